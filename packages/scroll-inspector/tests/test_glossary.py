"""The words that the pages explain are those of the glossary."""

import re
from pathlib import Path

from scroll_inspector.glossary import TERMS

GLOSSARY = Path(__file__).parents[3] / "docs" / "glossary.md"
TEMPLATES = Path(__file__).parents[1] / "src" / "scroll_inspector" / "templates"


def test_each_word_is_in_the_glossary() -> None:
    words = {word.casefold() for word in re.findall(r"\*\*([^*]+)\*\*", GLOSSARY.read_text())}
    assert {word.casefold() for word in TERMS} <= words


def test_each_word_that_a_page_explains_has_a_meaning() -> None:
    used = set()
    for template in TEMPLATES.glob("*.html"):
        used |= set(re.findall(r'term\("([^"]+)"', template.read_text()))
    assert used <= TERMS.keys()
    assert {"plan", "stub", "level", "index"} <= used
