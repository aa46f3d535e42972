"""Random filters over HTTP against a real server, which never answers with 5xx."""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from pathlib import Path

import pytest

from tests.e2e.server import Server
from tests.filter_items import filterable_home
from tests.filter_trees import fuzzed, widest
from tests.serving.artifacts import factor_model

pytestmark = pytest.mark.integration
TREES = int(os.environ.get("SVC_TEST_FILTERS", "500"))
N_ITEMS = 4000
GENRES = ("Comedy", "Drama|Comedy", "War|g7", "", "d e|é")


def home(folder: Path) -> Path:
    rows = (f"i{n},{GENRES[n % 5]},c{n % 90},{1950 + n % 70 if n % 11 else ''}" for n in range(N_ITEMS))
    return filterable_home(folder, "films", factor_model(100, N_ITEMS, 16), rows)


@pytest.mark.timeout(600)
def test_fuzzed_filters_cause_no_server_error(tmp_path: Path) -> None:
    """SVC_TEST_FILTERS is the number of filters. Every 500th is the largest one allowed."""
    rng = random.Random(23)
    found: Counter[int] = Counter()
    with Server(home(tmp_path)) as server:
        for number in range(TREES):
            tree = widest(rng) if number % 500 == 499 else fuzzed(rng)
            body = json.dumps({"user_id": f"u{number % 100}", "filter": tree}).encode()
            answer = server.client.post("/v1/recipes/films:recommend", content=body)
            found[answer.status_code] += 1
            assert answer.status_code in (200, 404, 422), (answer.text, body)
        assert found[200] > TREES // 4
        assert found[422] > TREES // 10
        assert server.metric('svc_v1_requests_total{recipe="films",status="error"}') == 0
        assert server.health()[0] == 200
