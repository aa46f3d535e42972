"""A server during trainings whose models are partly refused."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from svc.artifact.keys import parse_signing_keys
from svc.artifact.versions import Versions
from svc.settings import Settings
from tests.e2e.conftest import Shop
from tests.e2e.server import Server, put, until
from tests.serving.artifacts import SIGNING_KEYS
from tests.training.runs import write_tastes

pytestmark = pytest.mark.integration

RECIPE = """
name: books
source: {type: csv, path: ../tastes.csv}
schema: {user_column: user_id, item_column: item_id}
training: {algorithms: [%s], n_trials: 1, cutoff: 5, split: {heldout_ratio: 0.3}}
promotion: {mode: enforce}
output: {path: ../books.svc, versioning: append_sha}
"""


def train(home: Path, algorithm: str) -> int:
    put(home / "books.yaml", RECIPE % algorithm)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SVC_")}
    environment |= {"SVC_SIGNING_KEYS": SIGNING_KEYS}
    return Shop(home, environment).svc("train", "books.yaml", "--quiet").code


def test_a_server_never_sees_a_model_that_was_refused(tmp_path: Path) -> None:
    """It serves the earlier model until another one is promoted. Its log does not name the refused model."""
    home = tmp_path / "recipes"
    home.mkdir()
    write_tastes(tmp_path / "tastes.csv")
    assert train(home, "CosineKNN") == 0
    versions = Versions(str(tmp_path / "books.svc"), parse_signing_keys(SIGNING_KEYS), Settings())
    with Server(home) as server:

        def served() -> str:
            return str(server.recommend("books").json()["model_version"]).removeprefix("sha256:")[:8]

        first = versions.live()
        assert served() == first
        assert train(home, "TopPop") == 9
        refused = versions.history()[0]
        assert (refused.decision, refused.live, versions.live()) == ("refused", False, first)
        assert served() == first
        assert train(home, "CosineKNN") == 0
        until(lambda: served() != first, server.log)
        assert served() == versions.live() != refused.sha8
        assert refused.sha8 not in server.log()
