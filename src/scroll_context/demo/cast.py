"""What the acts of the demonstration share: names, the size of the window, and the model."""

from collections.abc import Sequence

from scroll_context.models import ScriptedModel
from scroll_context.models.scripted import Entry

SESSION = "trip-4-september"
WINDOW = 6_000  # tokens: so small that the tour does not fit by far
SLOW_AT = 3  # the booking, counted in the process that is killed, whose answer never comes


def model(entries: Sequence[Entry], *, pace: float = 0.0) -> ScriptedModel:
    """A model that says these things, with the demonstration's window."""
    return ScriptedModel(entries, name="scripted:demo", window=WINDOW, chunk=6, pace=pace)
