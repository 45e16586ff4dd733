"""Packages that cells are given: importable and readable by themselves, without what lies beside
them.
"""

import sys
from pathlib import Path

import pytest

from scroll_context.errors import KernelUnavailable
from scroll_context.jail.spec import JailSpec, default_read_only
from scroll_context.kernel.kernel import Kernel, KernelOptions


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A folder with a package, a module and a secret side by side."""
    folder = tmp_path / "lib"
    (folder / "mylib" / "inner").mkdir(parents=True)
    (folder / "mylib/__init__.py").write_text("from mylib.inner import value\n")
    (folder / "mylib/inner/__init__.py").write_text("value = 42\n")
    (folder / "single.py").write_text("value = 7\n")
    (folder / "secret.py").write_text("value = 'secret'\n")
    return folder


def test_a_package_and_a_module_by_path(make_kernel, tier, library: Path) -> None:
    packages = (str(library / "mylib"), str(library / "single.py"))
    kernel = make_kernel(options=KernelOptions(packages=packages), packages=False)
    assert (
        kernel.execute("import mylib, single\nprint(mylib.value, single.value)").stdout == "42 7\n"
    )
    assert kernel.execute("import secret").error.type == "ModuleNotFoundError"
    if tier != "none":
        source = f"try: print(open({str(library / 'secret.py')!r}).read())\nexcept OSError: print('refused')"
        assert kernel.execute(source).stdout == "refused\n"
        assert kernel.execute(f"open({str(library / 'mylib/x')!r}, 'w')").ended == "error"


def test_a_folder_of_modules_by_path(make_kernel, library: Path) -> None:
    kernel = make_kernel(options=KernelOptions(packages=(str(library),)), packages=False)
    assert (
        kernel.execute("import mylib, single\nprint(mylib.value, single.value)").stdout == "42 7\n"
    )


def test_a_package_by_name_is_found_as_the_host_would(
    make_kernel, library: Path, monkeypatch
) -> None:
    monkeypatch.syspath_prepend(str(library))
    kernel = make_kernel(options=KernelOptions(packages=("mylib",)), packages=False)
    assert kernel.execute("import mylib\nprint(mylib.value)").stdout == "42\n"
    assert "mylib" not in sys.modules, "the host imported it"
    kernel.execute("kept = mylib")
    kernel.save()
    kernel.execute("import os; os._exit(1)")
    assert kernel.execute("print(kept.value)").stdout == "42\n"


def test_a_package_of_the_spec(tier, library: Path) -> None:
    spec = JailSpec(
        tier=tier, read_only=default_read_only(), scratch="", packages=(str(library / "mylib"),)
    )
    with Kernel(spec=spec) as kernel:
        assert kernel.execute("import mylib\nprint(mylib.value)").stdout == "42\n"


@pytest.mark.parametrize("package", ["no_such_package", "/no/such/path", "not a name", ""])
def test_a_package_that_is_not_there_is_refused_before_anything_runs(
    make_kernel, package: str
) -> None:
    kernel = make_kernel(options=KernelOptions(packages=(package,)), start=False)
    with pytest.raises(KernelUnavailable, match="packages"):
        kernel.start()


def test_a_package_with_compiled_parts(make_kernel, needs) -> None:
    needs("import numpy")
    kernel = make_kernel(options=KernelOptions(packages=("numpy",)), packages=False)
    assert kernel.execute("import numpy\nprint(numpy.arange(4).sum())").stdout == "6\n"
    assert kernel.execute("import pandas").error.type == "ModuleNotFoundError"
