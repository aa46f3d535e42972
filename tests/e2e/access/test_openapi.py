"""schemathesis compares the answers of a running server with its OpenAPI document."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from svc.serving.api.authentication import hash_api_key
from tests.e2e.server import Server, make_home
from tests.serving.artifacts import header
from tests.serving.client import encoder, model

KEY = "A" * 43
EXAMPLES = 4
# 400 answers a request that fits the schema but has feature values that this model cannot use.
CONFIG = """
[checks.positive_data_acceptance]
expected-statuses = ["2xx", "400", "401", "403", "404"]

# The schema does not express these rules, so a request that breaks one gets 422: the sum of offset and limit is
# bounded, no two pins share a place, a user or seeds are required, filters are valid and use only declared fields.
[[operations]]
include-path-regex = "(:recommend|:recommend-related|/popular)$"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "422"]

# A row has one kind, which takes one of several fields. The examples get answers, which unknown headers do not change.
[[operations]]
include-path-regex = "(:page|:rerank)$"
checks.positive_data_acceptance.expected-statuses = ["2xx", "400", "401", "403", "404", "422"]
checks.negative_data_rejection.expected-statuses = ["200", "400", "401", "403", "404", "406", "422", "428", "5xx"]

# An invalid element fails alone, within an answer of status 200.
[[operations]]
include-path-regex = ":batch-"
checks.negative_data_rejection.expected-statuses = ["200", "400", "401", "403", "404", "406", "422", "428", "5xx"]
"""


@pytest.mark.timeout(600)
def test_answers_match_the_openapi_document(tmp_path: Path) -> None:
    """All checks of schemathesis pass for all operations, with a fixed seed and a bounded number of examples."""
    side = {"dimension": encoder().dim, "columns": list(encoder().columns)}
    features = {"version": 1, "active": True, "user": side, "item": side}
    head = header(features=features, best_class="IALSRecommender")
    recipes = make_home(tmp_path, "movies", model(), head=head)
    config = tmp_path / "schemathesis.toml"
    config.write_text(CONFIG)
    with Server(recipes, env={"SVC_API_KEYS": f"test:{hash_api_key(KEY)}"}) as server:
        found = subprocess.run(
            [
                *(str(Path(sys.executable).with_name("schemathesis")), "--config-file", str(config)),
                *("run", f"{server.url}/v1/openapi.json", "--header", f"X-API-Key: {KEY}", "--checks", "all"),
                *("--max-examples", str(EXAMPLES), "--seed", "7", "--generation-database", "none", "--no-color"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
    assert found.returncode == 0, found.stdout[-6000:]
    assert not server.said("request_failed")
