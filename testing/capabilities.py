"""Preludes that give cells a function for each capability of the host, by its name."""

from collections.abc import Iterable

from scroll_context.kernel.protocol import Prelude


def functions(*capabilities: str) -> tuple[Prelude, ...]:
    """`echo` becomes a function, `ms.search` one of a module `ms`; each passes its arguments to the
    host.
    """
    spaces: dict[str, list[str]] = {}
    for capability in capabilities:
        space, _, name = capability.rpartition(".")
        spaces.setdefault(space, []).append(name)
    return tuple(_prelude(space, names) for space, names in spaces.items())


def _prelude(space: str, names: Iterable[str]) -> Prelude:
    source = "ask = call\n" + "".join(
        (
            f"def {name}(*args, **kwargs): return ask({f'{space}.{name}'.strip('.')!r}, "
            "*args, **kwargs)\n"
        )
        for name in names
    )
    return Prelude(space or "functions", source, (space,) if space else tuple(names))
