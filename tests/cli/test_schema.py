"""`svc schema`: the JSON Schema of recipes and the OpenAPI document."""

from __future__ import annotations

import json

import pytest

from svc import __version__
from svc.cli import main
from svc.recipe.json_schema import json_schema
from svc.serving.api.pages.openapi import document


def test_the_schema_is_printed_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is printed, so that the output can go to a file."""
    assert main.run(["schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json_schema()


def test_the_openapi_document_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    """The document is that of a server with keys and metrics, which a server in production does not show."""
    assert main.run(["schema", "--openapi"]) == 0
    assert json.loads(capsys.readouterr().out) == document(__version__, has_keys=True, has_metrics=True)
