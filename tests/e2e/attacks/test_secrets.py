"""No output of any command or endpoint, errors included, contains a secret."""

from __future__ import annotations

import base64
import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.e2e.server import put

if TYPE_CHECKING:
    from tests.e2e.conftest import Ended, Server, Shop

PASSWORD = "Tr0ub4dor-and-3"
UNREACHABLE = f"postgresql+psycopg://svc:{PASSWORD}@127.0.0.1:1/shop"
SQL_RECIPE = """\
name: orders
source:
  type: sql
  dsn_env: SVC_RECIPE_DSN
  query: "SELECT 'u' || (n % 30) AS user_id, 'i' || ((n * 7 + n / 30) % 20) AS item_id FROM generate_series(1, 600) n"
schema: {user_column: user_id, item_column: item_id}
training: {algorithms: [TopPop], n_trials: 1, cutoff: 5}
output: {path: artifacts/orders.svc, versioning: always_overwrite}
"""
PATHS = [
    "/", "/v1/docs", "/v1/health", "/v1/health/live", "/v1/health/ready", "/v1/health/details", "/v1/metrics",
    "/v1/openapi.json", "/v1/recipes", "/v1/recipes/shop", "/v1/recipes/orders", "/v1/nothing",
]  # fmt: skip
BODIES = [b'{"user_id":"u1"}', b'{"user_id":"nobody"}', b"{", b'{"user_id":1}', b'{"seed_items":["i1"]}']
VERBS = [":recommend", ":recommend-related", ":recommend-users", ":batch-recommend", ":batch-recommend-related"]


def keygen(shop: Shop, kind: str) -> dict[str, str]:
    """Return the fields that `svc keygen` prints. No other output may contain a secret."""
    lines = shop.svc("keygen", "--type", kind, "--kid", f"{kind}-kid").out.splitlines()
    return dict(line.split("=", 1) for line in lines)


class Output:
    """The output of commands, answers, logs and files so far, as bytes by origin."""

    def __init__(self) -> None:
        self.parts: dict[str, bytes] = {}

    def command(self, name: str, ended: Ended) -> Ended:
        self.parts[name] = (ended.out + ended.err).encode()
        return ended

    def answer(self, name: str, url: str, body: bytes | None, headers: dict[str, str]) -> int:
        request = urllib.request.Request(url, data=body, headers=headers)
        try:
            answer = urllib.request.urlopen(request, timeout=30)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            self.parts[name] = str(answer.headers).encode() + answer.read()
            return int(answer.status)

    def files(self, folder: Path, known: Path) -> None:
        """Add every file of the folder except `known`, which the test itself wrote."""
        for path in folder.rglob("*"):
            if path.is_file() and path != known:
                self.parts[str(path)] = path.read_bytes()

    def origins_of(self, secret: bytes) -> list[str]:
        return [name for name, part in self.parts.items() if secret.lower() in part.lower()]


def send_all_requests(server: Server, output: Output, keys: dict[str, str]) -> set[int]:
    """Send every request with the good key and without one, and each path and verb with wrong keys.

    Return the set of statuses.
    """
    statuses = set()
    for kind, key in keys.items():
        headers = {"X-API-Key": key} if key else {}
        for path in PATHS:
            statuses.add(output.answer(f"GET {path} {kind}", server.url + path, None, headers))
        for recipe in ("shop", "orders", "none"):
            for verb in VERBS:
                for number, body in enumerate(BODIES if kind in ("good", "none") else BODIES[:1]):  # others are delayed
                    url = f"{server.url}/v1/recipes/{recipe}{verb}"
                    statuses.add(output.answer(f"{url} {kind} {number}", url, body, headers))
    return statuses


def cycle(shop: Shop, serve: Callable[..., Server], dsn: str, output: Output) -> tuple[dict[str, str], dict[str, str]]:
    """Run all commands and requests, and return the output of keygen for the signing key and the API key."""
    signing, api = keygen(shop, "signing"), keygen(shop, "api")
    shop.environment |= {
        "SVC_SIGNING_KEYS": signing["env_entry"].partition("=")[2],
        "SVC_API_KEYS": api["env_entry"].partition("=")[2],
        "SVC_RECIPE_DSN": dsn,
        "SVC_LOG_LEVEL": "debug",
        "SVC_METRICS_ENABLED": "1",
    }
    orders = shop.folder / "orders.yaml"
    put(orders, SQL_RECIPE)
    for recipe in (shop.recipe, orders):
        output.command(f"validate {recipe.name}", shop.svc("validate", str(recipe)))
        output.command(f"train {recipe.name}", shop.svc("train", str(recipe), "--verbose"))
    given = shop.svc("train", str(orders), "--env-var", f"SVC_RECIPE_DSN={dsn}", SVC_RECIPE_DSN="")
    output.command("train with the DSN on the command line", given)
    output.command("inspect", shop.svc("inspect", str(shop.artifact)))
    output.command("inspect --json", shop.svc("inspect", str(shop.artifact), "--json"))
    server = serve()
    good = api["plaintext"]
    asked = {"none": "", "good": good, "padded": good + ".", "half": good[:21] + "A" * 22, "malformed": "x"}
    assert send_all_requests(server, output, asked) >= {200, 401, 404, 422}
    whole = shop.artifact.read_bytes()
    put(shop.artifact, whole[:-1] + bytes([whole[-1] ^ 1]))
    server.wait_for("artifact_load_failed")
    output.answer("details with an error", server.url + "/v1/health/details", None, {"X-API-Key": good})
    assert server.stop() == 0
    output.parts["server log"] = json.dumps(server.records).encode()
    mistakes = {"SVC_API_KEYS": f"k:{good}", "SVC_SIGNING_KEYS": f"k:{signing['plaintext']}0"}
    for variable, value in mistakes.items():
        ended = shop.process("serve", "--recipes", str(shop.folder), "--port", "0", **{variable: value})
        assert output.command(f"a mistake in {variable}", ended).code == 8
    output.files(shop.folder, known=shop.recipe)
    return signing, api


def assert_no_secret(output: Output, signing: dict[str, str], api: dict[str, str]) -> None:
    """Check that no secret appears in any encoding.

    The fingerprint and the kid of the signing key must appear, which proves that the search covers log and output.
    """
    raw = bytes.fromhex(signing["plaintext"])
    digest = re.sub("^sha256:", "", api["hash"])
    secrets = {
        "signing key": signing["plaintext"].encode(),
        "signing key, raw": raw,
        "signing key, base64": base64.b64encode(raw).rstrip(b"="),
        "API key": api["plaintext"].encode(),
        "first half of the API key": api["plaintext"][:21].encode(),
        "hash of the API key": digest.encode(),
        "hash of the API key, raw": bytes.fromhex(digest),
        "password": PASSWORD.encode(),
    }
    assert {name: output.origins_of(secret) for name, secret in secrets.items() if output.origins_of(secret)} == {}
    assert {"server log", "inspect"} <= set(
        output.origins_of(signing["fingerprint"].encode()) + output.origins_of(b"signing-kid")
    )
    assert output.origins_of(b'"auth_invalid_key"') == ["server log"]


def test_no_secret_is_shown_if_the_database_is_unreachable(shop: Shop, serve: Callable[..., Server]) -> None:
    """No output contains a secret, even if the error of an unreachable database contains its password."""
    output = Output()
    assert_no_secret(output, *cycle(shop, serve, UNREACHABLE, output))


@pytest.mark.integration
def test_no_secret_is_shown_if_the_database_answers(shop: Shop, serve: Callable[..., Server]) -> None:
    """No output contains a secret if a recipe is trained from a real database with a password."""
    url = os.environ.get("SVC_TEST_POSTGRES_URL") or pytest.skip("SVC_TEST_POSTGRES_URL is not set")
    output = Output()
    known = cycle(shop, serve, re.sub("://([^:@]+)(:[^@]*)?@", rf"://\1:{PASSWORD}@", url), output)
    assert output.origins_of(b'"n_rows": 600')
    assert_no_secret(output, *known)
