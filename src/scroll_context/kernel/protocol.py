"""What host and worker say to each other: two closed sets of messages, checked when they arrive.

`ToWorker` is what the host sends, `ToHost` is what it accepts. Every list and text that the host accepts has a
bound here, except the arguments of a call, which stay undecoded until `codec.count_items` has measured them, and
the bytes of outputs and blobs, which the receiver counts. A message that does not fit its schema ends the kernel.
"""

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from scroll_context.kernel.jail.spec import Enforcement
from scroll_context.kernel.results import Line, Name, Variable

Text = Annotated[str, Meta(max_length=65_536)]
Reason = Annotated[str, Meta(max_length=64)]  # a code of `results.REASONS`, and the exception after a colon
Names = Annotated[tuple[Name, ...], Meta(max_length=20_000)]


class WireMessage(msgspec.Struct, frozen=True, array_like=True):
    """The common form: a msgpack array that starts with the name of the message."""


# What the host asks for.


class Binding(msgspec.Struct, frozen=True):
    """A name in the namespace that forwards to the host.

    With `methods` it is a module-like object, importable too: `ms.search(...)` calls the capability `ms.search`.
    Without, it is a function that calls the capability of its own name.
    """

    name: str
    methods: tuple[str, ...] = ()
    doc: str = ""


class Prelude(msgspec.Struct, frozen=True):
    """Trusted source that runs inside the jail before the first cell, as the importable module `name`.

    It finds `call(capability, *args, **kwargs)` among its globals. Each of `exports` is bound in the namespace of
    the cells: an attribute of the module, or the module itself where the export is the module's own name.
    """

    name: str
    source: str
    exports: tuple[str, ...] = ()


class Prepare(WireMessage, frozen=True, tag="setup"):
    bindings: tuple[Binding, ...]
    preludes: tuple[Prelude, ...]
    output_bytes: int


class Execute(WireMessage, frozen=True, tag="execute"):
    cell: int
    source: str


class Describe(WireMessage, frozen=True, tag="describe"):
    """Asks for the facts about every variable."""


class Save(WireMessage, frozen=True, tag="save"):
    full: bool
    again: bool  # send everything, because the host could not keep what was sent before
    blob_bytes: int  # a variable whose pickle is larger is reported as lost


class Load(WireMessage, frozen=True, tag="load"):
    """A piece of a pickled value; `last` binds it to every one of `names`."""

    names: tuple[str, ...]
    piece: bytes
    last: bool


class Import(WireMessage, frozen=True, tag="import"):
    name: str
    module: str


class CallReply(WireMessage, frozen=True, tag="reply"):
    id: int
    value: Any


class CallRefusal(WireMessage, frozen=True, tag="refusal"):
    """The answer to a call that failed: `kind` names a built-in exception where there is a fitting one."""

    id: int
    kind: str
    text: str


ToWorker = Prepare | Execute | Describe | Save | Load | Import | CallReply | CallRefusal


# What the worker says.


class Ready(WireMessage, frozen=True, tag="ready"):
    enforcement: Enforcement
    python: Name


class Failed(WireMessage, frozen=True, tag="failed"):
    """The jail could not be built, or a prelude did not run: no cell will."""

    text: Text


class Prepared(WireMessage, frozen=True, tag="prepared"):
    """The answer to Prepare."""


class Printed(WireMessage, frozen=True, tag="printed"):
    data: bytes


class CallRequest(WireMessage, frozen=True, tag="call"):
    id: Annotated[int, Meta(ge=1, lt=1 << 53)]
    capability: Name
    arguments: msgspec.Raw  # [args, kwargs]


class CellFault(msgspec.Struct, frozen=True, array_like=True):
    """An exception that ended a cell."""

    type: Line
    message: Text
    traceback: Text
    limit: Annotated[str, Meta(pattern="^(|interrupt|cpu|memory|output)$")]  # which limit it stands for, if any


class Done(WireMessage, frozen=True, tag="done"):
    """The end of a cell."""

    cell: int
    fault: CellFault | None
    bound: Names
    changed: Names
    deleted: Names
    read: Names
    rebound: Names  # names of the host that the model had overwritten and that came back before this cell


class Facts(WireMessage, frozen=True, tag="facts"):
    variables: Annotated[tuple[Variable, ...], Meta(max_length=20_000)]


class Blob(WireMessage, frozen=True, tag="blob"):
    """A piece of the pickle that is being saved; the next Kept tells whose it is."""

    piece: bytes


class Kept(WireMessage, frozen=True, tag="kept"):
    """One value that was looked at by a save. Blobs before it hold the pickle, if it `changed`."""

    names: Names
    label: Name
    changed: bool
    size: Annotated[int, Meta(ge=0)]
    module: Name  # set when the value is a module, which is saved by its name
    reason: Reason  # why it cannot be saved; empty when it is


class Saved(WireMessage, frozen=True, tag="saved"):
    """The end of a save."""

    names: Names  # every variable there is, in order
    unchecked: Names  # those that may have changed since they were sent


class Loaded(WireMessage, frozen=True, tag="loaded"):
    """The answer to a Load that is last, and to an Import."""

    label: Name
    reason: Reason  # why it could not be restored; empty when it was


ToHost = Ready | Failed | Prepared | Printed | CallRequest | Done | Facts | Blob | Kept | Saved | Loaded
