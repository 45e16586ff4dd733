"""Names that are imported when they are first used: those of installed packages, and our own.

Installed packages extend Scroll through entry points, which are read here without importing them.
`importlib.metadata` would find them too, but its import alone takes as long as `scroll --help` may
take in all, and an assistant waits for `scroll hook`. The working folder is never searched: a
package there is not installed, it came with a repository.

`lazy_names` serves our own packages. A package lists its public names by the module that defines
them. Importing the package then costs nothing, and whoever uses one name pays for the module of
that name only.
"""

import os
import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any


class EntryPoint:
    """A named object of an installed package."""

    def __init__(self, name: str, target: str, metadata_folder: str) -> None:
        self.name = name
        self.target = target
        """`module:object`, as the package declares it."""
        self._metadata_folder = metadata_folder

    def load(self) -> "Any":
        """Import the object."""
        module, _, attribute = self.target.partition(":")
        return getattr(import_module(module), attribute)

    def description(self) -> tuple[str, str]:
        """One line about it, and the group of `scroll --help` that lists it.

        A package describes its commands in a file `scroll_commands.txt` beside its modules: lines
        of the form `name: summary` below a heading `[Group]`. A package without that file is
        described by its own summary, and names no group.
        """
        package = self.target.partition(":")[0].partition(".")[0]
        for folder in _search_path():
            group = ""
            for line in _contents(f"{folder}/{package}/scroll_commands.txt").splitlines():
                if line.startswith("["):
                    group = line.strip("[] ")
                name, _, summary = line.partition(":")
                if name == self.name:
                    return summary.strip(), group
        metadata = _contents(f"{self._metadata_folder}/METADATA")
        return metadata.partition("\nSummary:")[2].partition("\n")[0].strip(), ""


def how_to_install(distribution: str) -> str:
    """The sentence for errors that are fixed by installing a package of Scroll, or an extra.

    The packages are not on an index yet, and somebody else could register their names there.
    """
    path = f"./packages/{distribution}"
    # A shell would read the brackets of an extra as a pattern.
    argument = f"'{path}'" if "[" in path else path
    return f"Install it from a checkout of Scroll with: pip install {argument}"


def entry_points(group: str) -> "Iterator[EntryPoint]":
    """The entry points of a group, in the order of the search path.

    Packages whose names begin with `scroll` come first in a folder, so that `scroll hook` finds
    its target in the first few files. If two packages declare a name, the first one counts; the
    caller decides that.
    """
    for folder in _search_path():
        try:
            names = [name for name in os.listdir(folder) if name.endswith(".dist-info")]
        except OSError:
            # Not every entry of the search path is a folder.
            continue
        names.sort(key=lambda name: (not name.startswith("scroll"), name))
        for name in names:
            metadata_folder = f"{folder}/{name}"
            declarations = _contents(f"{metadata_folder}/entry_points.txt")
            section = declarations.partition(f"[{group}]")[2].partition("\n[")[0]
            for line in section.splitlines():
                point_name, _, target = line.partition("=")
                if target:
                    target = target.partition("[")[0].strip()
                    yield EntryPoint(point_name.strip(), target, metadata_folder)


def _search_path() -> list[str]:
    return list(dict.fromkeys(path for path in sys.path if os.path.isabs(path)))


def _contents(file: str) -> str:
    try:
        with open(file, "rb") as opened:
            return opened.read().decode("utf-8", "replace")
    except OSError:
        # Not every package has such a file.
        return ""


# our own public names -----------------------------------------------------------------------------


def lazy_names(
    package: str, public: "Mapping[str, tuple[str, ...]]"
) -> "tuple[list[str], Callable[[str], object]]":
    """The `__all__` and the `__getattr__` of a package, from a table of its public names.

    The modules in the table are named without the package at the top, such as `scroll_context`.
    """
    top = package.partition(".")[0]
    homes = {name: module for module, names in public.items() for name in names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(f"{top}.{homes[name]}"), name)
        setattr(sys.modules[package], name, value)
        return value

    return sorted(homes), load
