"""Kernels for the tests: real processes, in the best jail that this machine offers.

Where it offers none, the tests of the runtime run without one, and those of the jail say what is
missing.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from capabilities import functions
from scroll_context.errors import KernelUnavailable
from scroll_context.jail.spec import (
    ALLOW_UNSANDBOXED,
    JailLimits,
    JailSpec,
    RequiredTier,
    default_read_only,
    site_packages,
)
from scroll_context.kernel.kernel import Kernel
from scroll_context.kernel.protocol import Prelude

MakeKernel = Callable[..., Kernel]


@pytest.fixture(scope="session")
def tier() -> RequiredTier:
    """The best tier that a kernel can have here, or the one that SCROLL_TEST_TIER names."""
    wanted = os.environ.get("SCROLL_TEST_TIER", "auto")
    read_only = (*default_read_only(), *site_packages())
    kernel = Kernel(spec=JailSpec(tier=cast(RequiredTier, wanted), read_only=read_only, scratch=""))
    try:
        return kernel.start().tier
    except KernelUnavailable:
        os.environ[ALLOW_UNSANDBOXED] = "1"
        return "none"
    finally:
        kernel.close()


@pytest.fixture
def make_kernel(tier: RequiredTier, tmp_path: Any) -> Iterator[MakeKernel]:
    """Makes started kernels, which end with the test. `limits` and `packages` shape the jail.

    Cells get a function for each capability of a `dispatch` that is a dict.
    """
    made: list[Kernel] = []

    def make(
        dispatch: Any = None,
        *,
        limits: JailLimits | None = None,
        packages: bool = True,
        start: bool = True,
        preludes: tuple[Prelude, ...] = (),
        **rest: Any,
    ) -> Kernel:
        scratch = tmp_path / f"scratch{len(made)}"
        scratch.mkdir()
        read_only = (*default_read_only(), *(site_packages() if packages else ()))
        spec = JailSpec(
            tier=tier, read_only=read_only, scratch=str(scratch), limits=limits or JailLimits()
        )
        offered = functions(*dispatch) if isinstance(dispatch, dict) and not preludes else ()
        kernel = Kernel(dispatch, preludes=(*offered, *preludes), spec=spec, **rest)
        made.append(kernel)
        if start:
            kernel.start()
        return kernel

    yield make
    for kernel in made:
        kernel.close()


@pytest.fixture(scope="session")
def missing_packages(tier: RequiredTier) -> set[str]:
    """Which of the packages that tests use cannot be imported by a cell."""
    read_only = (*default_read_only(), *site_packages())
    with Kernel(spec=JailSpec(tier=tier, read_only=read_only, scratch="")) as kernel:
        return {
            name for name in ("numpy", "pandas") if kernel.execute(f"import {name}").ended != "ok"
        }


@pytest.fixture
def needs(missing_packages: set[str]) -> Callable[[str], None]:
    """Skips a test whose source imports a package that is not there."""

    def check(source: str) -> None:
        for name in missing_packages:
            if name in source:
                pytest.skip(f"cells cannot import {name} here: install the extra `bench`")

    return check


@pytest.fixture
def kernel(make_kernel: MakeKernel) -> Kernel:
    return make_kernel()
