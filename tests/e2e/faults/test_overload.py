"""A real server with more requests than it can score: some get answers and the others get 503."""

from __future__ import annotations

import http.client
import json
from pathlib import Path

import pytest

from tests.e2e.load import Clients
from tests.e2e.server import Server, make_home, until
from tests.serving.artifacts import factor_model

pytestmark = pytest.mark.integration
CLIENTS = 24
LIMIT_S = 0.2


class Crowd(Clients):
    """Clients that send batches without pause, each for `size` users and `limit` items."""

    def __init__(self, server: Server, size: int, limit: int) -> None:
        self._requests = [{"user_id": f"u{user}", "limit": limit} for user in range(size)]
        self._address = server.url.removeprefix("http://")
        self.statuses: list[int] = []
        self.codes: set[str] = set()
        self.retry_after: set[str | None] = set()
        super().__init__(CLIENTS)

    def ask(self, number: int) -> None:
        connection = http.client.HTTPConnection(self._address, timeout=60)
        body = json.dumps({"requests": self._requests})
        while not self.over.is_set():
            connection.request("POST", "/v1/recipes/a:batch-recommend", body)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status == 503:
                self.codes.add(json.loads(content)["code"])
                self.retry_after.add(answer.getheader("Retry-After"))
                self.over.wait(0.02)
            self.statuses.append(answer.status)
        connection.close()


def test_overload_refuses_some_batches_and_answers_most_single_requests(tmp_path: Path) -> None:
    """An overloaded server refuses some batches with 503 and answers the others.

    Health and most single requests are answered, too. After the load, requests get 200 again.
    """
    home = make_home(tmp_path, "a", factor_model(1_000, 30_000, 64))
    env = {"SVC_MAX_QUEUE_SECONDS": str(LIMIT_S), "SVC_LOG_LEVEL": "info", "SVC_ACCESS_LOG": "errors"}
    with Server(home, env=env) as server:
        assert server.recommend("a").status_code == 200
        with Crowd(server, size=64, limit=200) as crowd:
            until(lambda: {200, 503} <= set(crowd.statuses[-500:]), lambda: str(crowd.statuses))
            assert [server.health()[0] for _ in range(20)] == [200] * 20
            singles = [server.recommend("a", f"u{user}").status_code for user in range(20)]
            until(lambda: crowd.statuses.count(200) > 20)
        assert singles.count(200) > len(singles) // 2
        assert set(crowd.statuses) == {200, 503}
        assert crowd.codes == {"OVERLOADED"}
        assert all(int(seconds or 0) >= 1 for seconds in crowd.retry_after)
        assert server.recommend("a").status_code == 200
        assert server.metric('svc_v1_requests_total{recipe="a",status="overloaded"}') >= crowd.statuses.count(503)
        assert server.wait_for("requests_refused", code="OVERLOADED")["kid"] is None
        assert not [line for line in server.said("request_answered") if line["status"] == 503]
