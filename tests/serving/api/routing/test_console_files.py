"""The files that the pages are made of: listed once, and complete."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from svc.serving.api.routing.console_files import CONSOLE, REFERENCE, SHARED, SWAGGER_UI

STATIC = Path(str(resources.files("svc.serving.api.pages.console"))) / "static"


FILES = sorted(path.name for path in STATIC.iterdir())


SCRIPTS = [name for name in FILES if name.endswith(".js")]


def test_every_import_of_a_script_is_a_file() -> None:
    """A module that is missing would stop the whole page."""
    for name in SCRIPTS:
        text = (STATIC / name).read_text(encoding="utf-8")
        assert {part[2:] for part in re.findall(r'from "([^"]+)"', text)} <= set(FILES), name


def test_every_file_is_listed_once() -> None:
    """The table of endpoints has a row for each; a file that is not listed would never be served."""
    listed = [*SHARED, *CONSOLE, *REFERENCE]
    assert sorted([*listed, "index.html", "reference.html"]) == FILES
    vendored = {path.name for path in (STATIC.parent / "swagger_ui").iterdir()}
    assert set(SWAGGER_UI) <= vendored
