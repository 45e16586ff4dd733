"""`postgresql://` addresses for the core (the entry-point group `scroll_context.stores`)."""

from scroll_context.errors import BadInput
from scroll_context.log.file_backend import StoreLimits
from scroll_context.log.schemes import Finding
from scroll_shared import doctor
from scroll_shared.address import parse
from scroll_shared.backend import SharedBackend, open_shared


class PostgresScheme:
    """Opens shared stores by their addresses."""

    def check(self, address: str) -> None:
        parse(address)

    def open(self, address: str, *, create: bool, limits: StoreLimits | None) -> SharedBackend:
        if limits is not None:
            raise BadInput(
                "how large a shared store may get is set on its server: "
                "`scroll shared init URL --max-bytes N`"
            )
        return open_shared(parse(address), create=create)

    def examine(self, address: str) -> list[Finding]:
        return doctor.examine(parse(address))


POSTGRES = PostgresScheme()
