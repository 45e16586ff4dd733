"""The Python code in the documentation, to be run by tests."""

import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent.parent / "docs"


def run_snippet(page: str, heading: str, names: dict[str, Any]) -> dict[str, Any]:
    """Run the Python blocks below a heading with these names; the names that there are after it."""
    text = (DOCS / page).read_text()
    section = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```python\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    assert blocks, f"{page} has no code below {heading!r}"
    for block in blocks:
        exec(compile(block, f"{page}: {heading}", "exec"), names)
    return names
