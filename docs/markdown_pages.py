"""Add to the built site each page's Markdown, and `llms.txt`, an index for language models.

`nox -s docs` calls `write` after the site is built. The form of `llms.txt` is that of https://llmstxt.org.
"""

from __future__ import annotations

import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]


def sections() -> dict[str, dict[str, str]]:
    """Return the navigation: each section's pages, path by title."""
    return {
        title: {name: page for entry in entries for name, page in entry.items()}
        for section in PROJECT["nav"]
        for title, entries in section.items()
    }


def llms_txt() -> str:
    """Return the index: what svc is, then each section with a link to the Markdown of each page."""
    lines = [f"# {PROJECT['site_name']}", "", f"> {PROJECT['site_description']}: the distribution svc-recommender.", ""]
    for title, pages in sections().items():
        lines += [f"## {title}", "", *(f"- [{name}]({page})" for name, page in pages.items()), ""]
    return "\n".join(lines).rstrip() + "\n"


def write(site: Path) -> None:
    """Copy the Markdown of all pages into the built `site`, each at its own path, and write the index."""
    for pages in sections().values():
        for page in pages.values():
            target = site / page
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(DOCS / page, target)
    (site / "llms.txt").write_text(llms_txt(), encoding="utf-8")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
