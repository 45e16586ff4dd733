"""A shared store of a test: its database, and hosts that open it, each with a copy of its own."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from forms import form
from scroll_context import Store

# A killed process loses what it had not written; only a power cut loses more.
FSYNC = form({"fsync": "off"}, {})


class Hosts:
    """Opens one store as many hosts would. All that it opened is closed at the end of the test."""

    def __init__(
        self, database: str, folder: Path, *, name: str = "main", **parameters: object
    ) -> None:
        self.folder = folder
        parameters = {"payloads": folder / "payloads", **parameters}
        self.url = f"{database}&store={name}"
        self.url += "".join(f"&{key}={value}" for key, value in parameters.items())
        self._open: list[Store] = []

    def address(self, host: str) -> str:
        """The address that a host uses."""
        return f"{self.url}&replica={self.folder / host}"

    def open(self, host: str, *, create: bool = False) -> Store:
        store = Store(self.address(host), create=create)
        self._open.append(store)
        return store

    def close(self) -> None:
        for store in self._open:
            store.close()


@contextmanager
def hosts_of(database: str, folder: Path, **parameters: object) -> Iterator[Hosts]:
    hosts = Hosts(database, folder, **parameters)
    try:
        yield hosts
    finally:
        hosts.close()
