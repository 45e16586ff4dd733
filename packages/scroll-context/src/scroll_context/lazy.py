"""Public names that are imported when they are first used.

A package lists its public names by the module that defines them. Importing the package then costs
nothing, and whoever uses one name pays for the module of that name only.
"""

import sys
from importlib import import_module

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


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
