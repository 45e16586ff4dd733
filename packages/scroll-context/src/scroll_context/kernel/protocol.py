"""The messages of host and worker, each in a frame of its own (frames.py).

`ToWorker` is what the host sends, `ToHost` is what it accepts. Every list and text that the host
accepts has a bound here, except the arguments of a call, which stay undecoded until
`values.count_items` has measured them, and the bytes of outputs and blobs, which the receiver
counts. A message that does not fit its schema ends the kernel.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from scroll_context.jail.spec import Enforcement, JailSpec
from scroll_context.kernel.results import CellError, Name, Text, Variable

Reason = Annotated[str, Meta(max_length=64)]
"""A code of `results.REASONS`, and the exception after a colon."""
Names = Annotated[tuple[Name, ...], Meta(max_length=20_000)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True, tag=str.lower):
    """The common form: a msgpack array that starts with the name of the message."""


# The requests of the host.


class KernelSettings(msgspec.Struct, frozen=True):
    """The settings of a new worker, which it has before it enters the jail."""

    spec: JailSpec
    allow_unsandboxed: bool
    """Whether the host's environment permits tier `none`."""


class Prelude(msgspec.Struct, frozen=True):
    """Trusted source that runs inside the jail before the first cell, as the importable module
    `name`.

    It finds `call(capability, *args, **kwargs)` among its globals. Each of `exports` is bound in
    the namespace of the cells: an attribute of the module, or the module itself where the export is
    the module's own name.
    """

    name: str
    source: str
    exports: tuple[str, ...] = ()


class Prepare(WireMessage, frozen=True):
    preludes: tuple[Prelude, ...]
    output_bytes: int


class Execute(WireMessage, frozen=True):
    cell: int
    source: str


class Describe(WireMessage, frozen=True):
    """Asks for the facts about every variable."""


class Save(WireMessage, frozen=True):
    full: bool
    # Send everything, because the host could not store the previous save.
    again: bool
    # A variable whose pickle is larger is reported as lost.
    blob_bytes: int


class LoadPiece(WireMessage, frozen=True):
    """A piece of a pickle; the next Load names its variables."""

    piece: bytes


class Load(WireMessage, frozen=True):
    """Binds a value to all `names`: a module, or the value of the pieces before."""

    names: tuple[str, ...]
    module: str


class CallReply(WireMessage, frozen=True):
    id: int
    value: Any


class CallRefusal(WireMessage, frozen=True):
    """The answer to a call that failed: `kind` names a built-in exception if one fits."""

    id: int
    kind: str
    text: str


ToWorker = Prepare | Execute | Describe | Save | LoadPiece | Load | CallReply | CallRefusal


# The messages of the worker.


class Ready(WireMessage, frozen=True):
    enforcement: Enforcement
    python: Name


class Failed(WireMessage, frozen=True):
    """The jail could not be built, or a prelude did not run: no cell will."""

    text: Text


class Prepared(WireMessage, frozen=True):
    """The answer to Prepare."""


class Printed(WireMessage, frozen=True):
    data: bytes


class CallRequest(WireMessage, frozen=True):
    id: Annotated[int, Meta(ge=1, lt=1 << 53)]
    capability: Name
    # A list of the positional and the keyword arguments.
    arguments: msgspec.Raw
    is_late: bool = False
    """Whether the calling thread was started before the running cell."""
    line: Annotated[int, Meta(ge=0, lt=1 << 31)] = 0
    """The line of the cell that made the call, for display; 0 for a call of a thread."""


class Done(WireMessage, frozen=True):
    """The end of a cell."""

    cell: int
    error: CellError | None = None
    bound: Names = ()
    deleted: Names = ()
    read: Names = ()
    # Host names that the model had overwritten and that were put back before this cell.
    rebound: Names = ()


class Facts(WireMessage, frozen=True):
    variables: Annotated[tuple[Variable, ...], Meta(max_length=20_000)]


class SavePiece(WireMessage, frozen=True):
    """A piece of the pickle that is being saved; the next SavedValue names its variables."""

    piece: bytes


class SavedValue(WireMessage, frozen=True):
    """One value that a save examined. Pieces before it have the pickle, if it `changed`."""

    names: Names
    label: Name
    changed: bool
    size: Annotated[int, Meta(ge=0)]
    # Set when the value is a module, which is saved by its name.
    module: Name
    # Why it cannot be saved; "" when it is saved.
    reason: Reason


class Saved(WireMessage, frozen=True):
    """The end of a save."""

    # Every existing variable, in order.
    names: Names
    # Those that may have changed since they were sent.
    unchecked: Names


class Loaded(WireMessage, frozen=True):
    """The answer to a Load."""

    # Why it could not be restored; "" when it was.
    reason: Reason


ToHost = (
    Ready
    | Failed
    | Prepared
    | Printed
    | CallRequest
    | Done
    | Facts
    | SavePiece
    | SavedValue
    | Saved
    | Loaded
)
