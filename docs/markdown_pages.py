"""The documentation for programs: the Markdown of each page beside its HTML, and `llms.txt`, which lists them all.

`nox -s docs` calls `write` after the site is built. The form of `llms.txt` is that of https://llmstxt.org.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def llms_txt() -> str:
    """The index: what svc is, then each section of the navigation with a link to the Markdown of each page."""
    project = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]
    lines = [f"# {project['site_name']}", "", f"> {project['site_description']}: the distribution svc-recommender.", ""]
    for section in project["nav"]:
        for title, pages in section.items():
            lines += [f"## {title}", "", *(f"- [{name}]({page})" for name, page in _linked(pages)), ""]
    return "\n".join(lines).rstrip() + "\n"


def _linked(pages: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in pages:
        yield from entry.items()


def write(site: Path) -> None:
    """Copy the Markdown of all pages into the built `site`, each at its own path, and write the index."""
    for page in DOCS.rglob("*.md"):
        target = site / page.relative_to(DOCS)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(page, target)
    (site / "llms.txt").write_text(llms_txt(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
