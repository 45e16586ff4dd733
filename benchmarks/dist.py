"""The files of a release: built, looked into, and installed where nothing else is installed.

    make dist                              everything; the files stay in dist/
    make dist ARGS="--python 3.12"         only with this Python; may be repeated
    make dist ARGS="--no-extras"           without installing each extra by itself

For each distribution a source archive and a wheel are built, and each has exactly the files that it
should have. Then, for every supported Python on this machine, the core alone is installed from its
wheel and runs `scroll demo` and `scroll doctor`. Each other distribution, each extra and the core's
source archive are installed into an environment of their own, with the oldest Python that they
support. Other packages come from the index, ours from dist/.
"""

import argparse
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DIST = ROOT / "dist"
PACKAGES = sorted(file.parent for file in ROOT.glob("packages/*/pyproject.toml"))
CORE = ROOT / "packages/scroll-context"
SUPPORTED = ("3.11", "3.12", "3.13")
# Files that hatchling adds to an archive.
ADDED = {"PKG-INFO", ".gitignore"}
LARGEST = 2_000_000


def project(package: Path) -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((package / "pyproject.toml").read_text())["project"]
    return table


def tracked(package: Path, folder: str = "") -> set[str]:
    """The files of a package that git knows, relative to the package."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", folder or "."]
    done = subprocess.run(command, cwd=package, capture_output=True, text=True, check=True)
    return {line for line in done.stdout.splitlines() if (package / line).is_file()}


def build(python: str) -> None:
    """Build all archives, with the build backend from the index."""
    shutil.rmtree(DIST, ignore_errors=True)
    for package in PACKAGES:
        run(python, "-m", "build", "--no-isolation", "--outdir", str(DIST), str(package))


def file_stem(package: Path) -> str:
    return f"{package.name.replace('-', '_')}-{project(package)['version']}"


def check_wheel(package: Path) -> None:
    """A wheel has the package's sources, its licence and its metadata, and nothing else."""
    (path,) = DIST.glob(f"{file_stem(package)}-py3-none-any.whl")
    with zipfile.ZipFile(path) as archive:
        names = set(archive.namelist())
        facts = f"{file_stem(package)}.dist-info"
        metadata = archive.read(f"{facts}/METADATA").decode()
    expected = {name.removeprefix("src/") for name in tracked(package, "src")}
    expected |= {f"{facts}/{name}" for name in ("METADATA", "RECORD", "WHEEL")}
    expected.add(f"{facts}/licenses/LICENSE")
    extra = {f"{facts}/entry_points.txt"}
    check(path, names - extra, expected)
    module = package.name.replace("-", "_")
    assert f"{module}/py.typed" in names, f"{path.name} has no py.typed"
    text = (package / "README.md").read_text().strip()
    assert text in metadata, f"{path.name} does not have the README as its description"


def check_source(package: Path) -> None:
    """A source archive has what a wheel is built from, and no tests."""
    path = DIST / f"{file_stem(package)}.tar.gz"
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    expected = {"README.md", "LICENSE", "pyproject.toml", *tracked(package, "src")}
    check(path, names - ADDED, expected)


def check(path: Path, names: set[str], expected: set[str]) -> None:
    wrong = sorted(names ^ expected)
    assert not wrong, f"{path.name}: missing or not expected: {', '.join(wrong[:10])}"
    assert path.stat().st_size < LARGEST, f"{path.name} has {path.stat().st_size:,} bytes"
    print(f"  {path.name}: {len(names)} files, {path.stat().st_size:,} bytes", flush=True)


def run(*command: str, **options: Any) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if done.returncode:
        print(done.stdout[-4_000:], done.stderr[-4_000:], sep="\n")
        raise SystemExit(f"failed with status {done.returncode}: {' '.join(command)}")


class Clean:
    """A virtual environment with nothing in it, and a home folder with nothing in it."""

    def __init__(self, pip: str, python: str, folder: Path) -> None:
        self.pip = pip
        self.folder = folder
        run(python, "-m", "venv", "--without-pip", str(folder / "venv"))
        self.python = str(folder / "venv/bin/python")

    def install(self, *requirements: str) -> None:
        options = ["--quiet", "--no-compile", "--find-links", str(DIST)]
        run(self.pip, "-m", "pip", "--python", self.python, "install", *options, *requirements)

    def call(self, *words: str) -> None:
        """Run a program of the environment, outside the checkout."""
        environment = {"HOME": str(self.folder), "PATH": os.environ["PATH"], "TERM": "dumb"}
        program, *arguments = words
        path = str(self.folder / "venv/bin" / program)
        run(path, *arguments, cwd=self.folder, env=environment)


def try_it(pip: str, python: str, what: str, *requirements: str, demo: bool = False) -> None:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="scroll-dist-") as name:
        clean = Clean(pip, python, Path(name))
        clean.install(*requirements)
        clean.call("scroll", "--help")
        clean.call("scroll", "doctor")
        if demo:
            clean.call("scroll", "demo", "--fast", "--keep", "trip")
            clean.call("scroll", "search", "walnut allergy", "--store", "trip")
        size = sum(file.lstat().st_size for file in Path(clean.folder, "venv").rglob("*"))
    seconds = time.monotonic() - began
    print(f"  {what}: {size / 1e6:,.0f} MB installed, {seconds:.0f} s", flush=True)


def is_working(python: str) -> bool:
    done = subprocess.run([python, "-m", "venv", "--help"], capture_output=True, check=False)
    return done.returncode == 0


def pythons(wanted: list[str]) -> dict[str, str]:
    """The path of each supported Python on this machine, by its version."""
    paths = {}
    for version in wanted or SUPPORTED:
        installed = Path.home() / ".pyenv/versions"
        candidates = [shutil.which(f"python{version}"), *installed.glob(f"{version}.*/bin/python3")]
        # A shim of pyenv exists for versions that are not active, and fails.
        working = [str(path) for path in candidates if path and is_working(str(path))]
        if working:
            paths[version] = working[0]
        elif wanted:
            raise SystemExit(f"there is no Python {version} on this machine")
    return paths


def suitable(requirements: list[str], found: dict[str, str]) -> list[str]:
    """The versions on this machine for which these requirements bring a package, oldest first."""
    floors = re.findall(r"python_version >= '([\d.]+)'", " ".join(requirements))
    lowest = max([SUPPORTED[0], *floors], key=SUPPORTED.index)
    return [version for version in found if SUPPORTED.index(version) >= SUPPORTED.index(lowest)]


def try_extras(pip: str, package: Path, found: dict[str, str]) -> None:
    """Install each extra of a distribution by itself."""
    table = project(package)
    for extra, requirements in table.get("optional-dependencies", {}).items():
        name = f"{package.name}[{extra}]"
        versions = suitable(requirements, found)
        if versions:
            python = found[versions[0]]
            what = f"{name} on Python {versions[0]}"
            try_it(pip, python, what, f"{name}=={table['version']}")
        else:
            print(f"  {name}: not tried, it needs a newer Python: {requirements}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", action="append", default=[], metavar="VERSION")
    parser.add_argument("--no-extras", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="scroll-build-") as folder:
        venv.create(folder, with_pip=True)
        tool = str(Path(folder, "bin/python"))
        run(tool, "-m", "pip", "install", "--quiet", "build", "hatchling", "pip>=25.1")
        build(tool)
        for package in PACKAGES:
            check_wheel(package)
            check_source(package)
        found = pythons(options.python)
        wheel = str(DIST / f"{file_stem(CORE)}-py3-none-any.whl")
        for version, path in found.items():
            try_it(tool, path, f"scroll-context on Python {version}", wheel, demo=True)
        path = next(iter(found.values()))
        try_it(tool, path, "scroll-context from source", str(DIST / f"{file_stem(CORE)}.tar.gz"))
        for package in PACKAGES:
            if package != CORE:
                pinned = f"{package.name}=={project(package)['version']}"
                try_it(tool, path, package.name, pinned)
        for package in () if options.no_extras else PACKAGES:
            try_extras(tool, package, found)
        print("Every file was built, checked and installed.", flush=True)


if __name__ == "__main__":
    main()
