"""Brings the files outside docs/ that pages link to into the documentation site.

MkDocs calls the functions (`hooks` in mkdocs.yml). On a code host, pages of docs/ link to
CONTRIBUTING.md and to programs in examples/ by relative paths. The site has copies of these files
beside its pages, and the links are shortened to match, so one text works in both places.
"""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")


def on_files(files: Files, config: Any) -> Files:
    """Add the pages at the root of the repository, and the examples."""
    programs = sorted((ROOT / "examples").glob("*.py"))
    for file in [*(ROOT / name for name in PAGES), *programs]:
        name = file.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(file)))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point the links of a page at the copies."""
    name = page.file.src_uri
    if name in PAGES:
        return markdown.replace("](docs/", "](")
    up = "../" * name.count("/")
    outside = "|".join(map(re.escape, PAGES))
    return re.sub(rf"\]\({re.escape(up)}\.\./({outside}|examples/)", rf"]({up}\1", markdown)
