"""The files of the web pages: complete, and each listed once."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from svc.serving.api.routing.console_files import CONSOLE, REFERENCE, SHARED, SWAGGER_UI

STATIC = Path(str(resources.files("svc.serving.api.pages.console"))) / "static"


FILES = sorted(path.name for path in STATIC.iterdir())


SCRIPTS = [name for name in FILES if name.endswith(".js")]


def test_every_import_of_a_script_is_a_file() -> None:
    """A missing module would stop the whole page."""
    for name in SCRIPTS:
        text = (STATIC / name).read_text(encoding="utf-8")
        assert {part[2:] for part in re.findall(r'from "([^"]+)"', text)} <= set(FILES), name


def test_every_file_is_listed_once() -> None:
    """A file without a row in the table of endpoints would never be served."""
    listed = [*SHARED, *CONSOLE, *REFERENCE]
    assert sorted([*listed, "index.html", "reference.html"]) == FILES
    vendored = {path.name for path in (STATIC.parent / "swagger_ui").iterdir()}
    assert set(SWAGGER_UI) <= vendored
