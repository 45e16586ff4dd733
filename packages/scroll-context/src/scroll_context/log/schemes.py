"""The installed packages that keep logs elsewhere than in a folder, by the scheme of an address.

A package registers an entry point in the group `scroll_context.stores`: its name is the scheme, and
its object is a `StoreScheme`. The core imports a package only when somebody opens an address with
its scheme.
"""

from pathlib import Path
from typing import Protocol

import msgspec

from scroll_context.errors import BadInput
from scroll_context.log.address import DISTRIBUTIONS, is_address, scheme_of
from scroll_context.log.backend import LogBackend
from scroll_context.log.file_backend import FileBackend, StoreLimits
from scroll_context.plugins import entry_points, how_to_install

GROUP = "scroll_context.stores"


class Finding(msgspec.Struct, frozen=True):
    """One thing that `scroll doctor ADDRESS` examined."""

    name: str
    ok: bool
    text: str


class StoreScheme(Protocol):
    """The work of a package on the addresses of its scheme."""

    def check(self, address: str) -> None:
        """Raise BadInput for an address that is incomplete or wrong. Connects to nothing."""

    def open(self, address: str, *, create: bool, limits: StoreLimits | None) -> LogBackend:
        """Open the log at an address, or with `create` make one where there is none.

        Raises BadInput for an address or a limit that it cannot honour, NotAStore when there is no
        store, and StoreUnreachable when nothing can be read.
        """

    def examine(self, address: str) -> list[Finding]:
        """Find out whether the store at an address can be used well; changes nothing there."""


def open_backend(
    place: str | Path, *, create: bool, lock_timeout: float, limits: StoreLimits | None
) -> LogBackend:
    """The backend of the log at a place: a folder, or an address with the scheme of a package."""
    if is_address(place):
        address = str(place)
        return installed_scheme(address).open(address, create=create, limits=limits)
    return FileBackend(Path(place), create=create, lock_timeout=lock_timeout, limits=limits)


def installed_scheme(address: str) -> StoreScheme:
    """The package for an address; BadInput names the one to install when it is missing."""
    scheme = scheme_of(address)
    for point in entry_points(GROUP):
        if point.name == scheme:
            implementation: StoreScheme = point.load()
            return implementation
    distribution = DISTRIBUTIONS.get(scheme)
    if distribution is None:
        raise BadInput(
            f"no installed package opens {scheme}:// addresses. Name a folder, or install a "
            f"package that registers {scheme!r} in the entry-point group {GROUP}."
        )
    raise BadInput(
        f"a {scheme}:// address needs {distribution}, which is not installed. "
        f"{how_to_install(distribution)}"
    )
