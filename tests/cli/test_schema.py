"""`svc schema`: what an editor is given."""

from __future__ import annotations

import json

import pytest

from svc import __version__
from svc.cli import main
from svc.recipe.json_schema import json_schema
from svc.serving.api.pages.openapi import document


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else stands on standard output, so that it can be sent to a file."""
    assert main.run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_openapi_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """As a server with keys and metrics has it, for generators of clients: production does not show it."""
    assert main.run(["schema", "--openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == document(__version__, has_keys=True, has_metrics=True)
