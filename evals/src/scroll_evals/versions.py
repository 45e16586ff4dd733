"""Which software a run was made with."""

import platform
from importlib import metadata

from scroll_context import __version__

LIBRARIES = ("msgspec", "tantivy", "cloudpickle", "pydantic-ai-slim", "openai", "anthropic")


def versions() -> dict[str, str]:
    """Scroll, Python, the system and the libraries that a result may depend on."""
    found = {"scroll": __version__, "python": platform.python_version(), "system": platform.platform(terse=True)}
    for library in LIBRARIES:
        try:
            found[library] = metadata.version(library)
        except metadata.PackageNotFoundError:
            continue
    return found
