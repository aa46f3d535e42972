"""Policies of API keys: parsing, decisions, rates, and a policy file that is reread without a restart."""

from __future__ import annotations

import datetime
import json
import os
import re
from collections.abc import Callable, Iterator
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trio
import trio.testing
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from svc.errors import ConfigError, RateLimited
from svc.metrics import Metrics
from svc.serving.api import key_policies
from svc.serving.api.authentication import hash_api_key, parse_api_keys
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import ENDPOINTS
from svc.serving.api.key_policies import KeyPolicies, KeyPolicy, PolicyFile, elements_in, parse_policies
from svc.settings import Settings
from tests.serving.client import Answer, Client, serving
from tests.serving.sent import Sent

KEY, FREE = "k" * 43, "f" * 43
HEADERS, FREE_HEADERS = {"X-API-Key": KEY}, {"X-API-Key": FREE}
RECIPES = ("movies", "plain", "stub", "broken")
NAMES = (*RECIPES, "books", "Movies", "movies2", "m")
MANY = [{"user_id": "u1"}] * 3


def policies(text: str) -> dict[str, KeyPolicy]:
    return parse_policies(text.encode(), "keys.yaml")


def by_name(name: str) -> Endpoint:
    return next(row for row in ENDPOINTS if row.name == name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is not a mapping"),
        ("[]", "is not a mapping"),
        ("a: {", "not valid YAML"),
        ("shop: {}\nshop: {}", "twice"),
        ("'a b': {}", "'a b' is not a kid"),
        ("shop: 1", "shop: "),
        ("shop: {recipe: [a]}", "recipe: unknown key; did you mean `recipes`?"),
        ("shop: {recipes: [a/b]}", "recipes[0]: the text 'a/b'"),
        ("shop: {recipes: a}", "recipes: the text 'a'"),
        ("shop: {verbs: [batch-recommend]}", "verbs[0]"),
        ("shop: {rate: 5}", "rate: 5"),
        ("shop: {rate: 0/s}", "is not a rate above zero"),
        ("shop: {rate: 5/day}", "such as 200/s"),
        ("shop: {burst: 5}", "burst has no effect without rate"),
        ("shop: {rate: 5/s, burst: 0}", "burst: 0"),
        ("shop: {expires: 2027-02-30}", "is not a day"),
        ("shop: {expires: tomorrow}", "is not a day"),
        (f"shop: {{recipes: [{'a, ' * 1001}]}}", "recipes: a list of 1001"),
    ],
)
def test_invalid_policies_are_refused_with_the_path_of_the_field(text: str, message: str) -> None:
    """The message names the variable, the file, the kid and the field."""
    with pytest.raises(ConfigError) as caught:
        policies(text)
    assert caught.value.message.startswith("SVC_API_KEY_POLICIES: keys.yaml")
    assert message in caught.value.message


def test_the_default_burst_is_one_second_of_the_rate_and_at_least_1() -> None:
    """Rates in any unit are converted to seconds."""
    found = policies("a: {rate: 200/s}\nb: {rate: 30/min}\nc: {rate: 7200/h}\nd: {rate: 9/s, burst: 400}")
    rates = {kid: (policy.limit.per_s, policy.limit.burst) for kid, policy in found.items() if policy.limit}
    unlimited = policies("a: {recipes: null, verbs: null, rate: null, burst: null, expires: null}")["a"]
    assert (unlimited.limit, unlimited) == (None, KeyPolicy())
    assert rates == {"a": (200, 200), "b": (0.5, 1), "c": (2, 2), "d": (9, 400)}


@pytest.mark.parametrize(
    ("body", "count"),
    [
        (b'{"requests": [{}, {}, 3]}', 3),
        ({"requests": [{}] * 256}, 256),
        ({"requests": [{}] * 257}, 1),
        (b'{"requests": []}', 1),
        (b'{"requests": {"a": 1}}', 1),
        (b"[1, 2, 3]", 1),
        (b"{", 1),
    ],
)
def test_a_batch_counts_its_elements(body: bytes | dict[str, Any], count: int) -> None:
    """An invalid batch counts as one request, because it is answered with 422."""
    assert elements_in(body) == count


@pytest.mark.timeout(60)
def test_no_name_makes_the_match_of_patterns_slow() -> None:
    """A pattern of many stars is matched at once. Trying all lengths would take years."""
    policy = policies(f"shop: {{recipes: ['{'*a' * 31}b']}}")["shop"]
    assert not policy.may_ask("a" * 64)


@settings(max_examples=60, deadline=None)
@given(
    per_min=st.integers(1, 600),
    burst=st.integers(1, 20),
    asked=st.lists(st.tuples(st.integers(0, 200), st.integers(1, 30)), max_size=40),
)
def test_a_rate_holds_for_any_sequence_of_requests(per_min: int, burst: int, asked: list[tuple[int, int]]) -> None:
    """Decisions match exact arithmetic.

    No sequence exceeds the rate or `burst`, and refusals cost nothing. Retry-After is exact to the second.
    """
    endpoint = by_name("batch_recommend")

    async def run() -> None:
        book = KeyPolicies(Metrics.disabled(), policies(f"shop: {{rate: {per_min}/min, burst: {burst}}}"))
        tokens, rate = Fraction(burst), Fraction(per_min, 60)
        for tenths, count in asked:
            await trio.sleep(tenths / 10)
            tokens = min(Fraction(burst), tokens + rate * Fraction(tenths, 10))
            need = count if tokens >= 1 else 1
            try:
                permit = book.admit("shop", endpoint, "movies")
                assert permit is not None
                permit.charge(count)
            except RateLimited as refusal:
                assert tokens < need + Fraction(1, 10**6)
                if need > burst:
                    assert "retry_after" not in refusal.fields
                    assert f"counts as {count}, more than the burst of {burst}" in refusal.message
                    continue
                lacking = need - tokens
                assert abs(refusal.fields["retry_after"] - max(1, lacking / rate)) <= 1
            else:
                assert tokens > need - Fraction(1, 10**6)
                tokens -= count

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


async def test_the_used_rate_of_a_key_survives_a_change_of_policies() -> None:
    """A new rate applies from the change on. A key whose policy is removed has no bound."""
    book = KeyPolicies(Metrics.disabled(), policies("shop: {rate: 1/h, burst: 3}"))
    row = by_name("recommend")
    for _ in range(3):
        book.admit("shop", row, "movies")
    book.replace(policies("shop: {rate: 1/min, burst: 50}"))
    with pytest.raises(RateLimited) as caught:
        book.admit("shop", row, "movies")
    assert 1 <= caught.value.fields["retry_after"] <= 60
    book.replace({})
    assert book.admit("shop", row, "movies") is None


class Portal(NamedTuple):
    """Runs the application in an event loop of its own, for hypothesis."""

    client: Client
    book: KeyPolicies
    loop: BlockingPortal

    def ask(self, method: str, target: str, body: bytes, headers: dict[str, str]) -> Answer:
        return self.loop.call(lambda: self.client.call(method, target, body, headers=headers))


@pytest.fixture(scope="module")
def portal() -> Iterator[Portal]:
    keys = parse_api_keys(f"shop:{hash_api_key(KEY)},free:{hash_api_key(FREE)}")
    book = KeyPolicies(Metrics.disabled())
    server = serving(Settings(), keys, Metrics.create(), policies=book)
    with start_blocking_portal("trio") as loop, loop.wrap_async_context_manager(server) as (client, _):
        yield Portal(client, book, loop)


ROWS = ("recommend", "recommend_related", "recommend_users", "batch_recommend", "batch_recommend_related")
READS = (
    "describe_recipe",
    "find_items",
    "popular_items",
    "somebody",
    "versions",
    "list_recipes",
    "health_details",
    "metrics",
)


class Rules(NamedTuple):
    """A policy of a key, in the form that the oracle reads."""

    recipes: list[str] | None
    verbs: list[str] | None
    expires: str | None

    def text(self) -> str:
        return json.dumps({"shop": {name: value for name, value in self._asdict().items() if value is not None}})


def glob(pattern: str, name: str) -> bool:
    """Match a pattern character by character, unlike the server's regular expressions."""
    if not pattern:
        return not name
    if pattern[0] == "*":
        return glob(pattern[1:], name) or (bool(name) and glob(pattern, name[1:]))
    return bool(name) and pattern[0] in ("?", name[0]) and glob(pattern[1:], name[1:])


def knows(rules: Rules, name: str) -> bool:
    return rules.recipes is None or any(glob(pattern, name) for pattern in rules.recipes)


def oracle(rules: Rules, row: str, name: str) -> bool:
    """Return True if the specification allows the request."""
    if (
        rules.expires is not None
        and datetime.date.fromisoformat(rules.expires) <= datetime.datetime.now(datetime.UTC).date()
    ):
        return False
    if row in ("list_recipes", "health_details"):
        return True
    if row == "metrics":
        return rules.recipes is None
    if not knows(rules, name):
        return False
    needed = {
        "recommend": "recommend",
        "batch_recommend": "recommend",
        "popular_items": "recommend",
        "somebody": "recommend",
        "recommend_users": "recommend-users",
        "page": "page",
        "rerank": "rerank",
        "recommend_related": "recommend-related",
        "batch_recommend_related": "recommend-related",
    }.get(row)
    return needed is None or rules.verbs is None or needed in rules.verbs


def respelled(path: str, coded: list[int], form: str) -> str:
    """Return the path in another spelling: percent codes, an absolute form, or a query."""
    written = "".join(f"%{ord(c):02x}" if place in coded and c != "/" else c for place, c in enumerate(path))
    return form.format(written)


PATTERNS = st.sampled_from(["movies", "m*", "*", "?lain", "books", "b*s", "*s*", "M*", "zzz", "**e?"])
RULES = st.builds(
    Rules,
    st.none() | st.lists(PATTERNS, max_size=3),
    st.none()
    | st.lists(st.sampled_from(["recommend", "recommend-related", "recommend-users", "page", "rerank"]), max_size=2),
    st.none() | st.sampled_from(["2000-01-01", "9999-12-31"]),
)
FORMS = st.sampled_from(["{}", "{}?", "http://localhost{}", "HTTPS://localhost:80{}?"])


@settings(max_examples=150, deadline=None)
@given(
    rules=RULES,
    row=st.sampled_from([*ROWS, *READS]),
    name=st.sampled_from(NAMES),
    way=st.tuples(st.lists(st.integers(0, 40), max_size=8), FORMS),
)
def test_a_request_is_allowed_exactly_if_the_policy_allows_it(
    portal: Portal, rules: Rules, row: str, name: str, way: tuple[list[int], str]
) -> None:
    """Server and oracle agree for every spelling of the path. A key without a policy is never refused."""
    portal.book.replace(policies(rules.text()))
    endpoint = by_name(row)
    target = respelled(endpoint.path.replace("{name}", name), *way)
    body = b'{"user_id": "u1"}' if endpoint.method == "POST" else b""
    answer = portal.ask(endpoint.method, target, body, HEADERS)
    assert (answer.status != 403) == oracle(rules, row, name), (target, answer.body)
    if answer.status == 403:
        assert answer.json["code"] == "KEY_NOT_ALLOWED"
    elif row == "list_recipes":
        assert {recipe["name"] for recipe in answer.json["recipes"]} == {one for one in RECIPES if knows(rules, one)}
    elif row == "health_details":
        assert set(answer.json["recipes"]) == {one for one in RECIPES if knows(rules, one)}
        assert (answer.status == 503) == knows(rules, "stub")
    assert portal.ask(endpoint.method, target, body, FREE_HEADERS).status != 403


def bounded(text: str) -> Callable[[], Any]:
    keys = parse_api_keys(f"shop:{hash_api_key(KEY)},free:{hash_api_key(FREE)}")
    metrics = Metrics.create()
    return lambda: serving(Settings(), keys, metrics, policies=KeyPolicies(metrics, policies(text)))


async def test_a_refusal_has_retry_after_and_a_batch_counts_its_elements() -> None:
    """The answer is 429, counted by key and code. Refused requests cost no tokens."""
    async with bounded("shop: {rate: 1/min, burst: 5}")() as (client, state):
        batch, single = "/v1/recipes/movies:batch-recommend", "/v1/recipes/movies:recommend"

        async def post(path: str, body: object) -> Answer:
            found: Answer = await client.post(path, body, headers=HEADERS)
            return found

        assert (await post(batch, {"requests": MANY})).status == 200
        refused = await post(batch, {"requests": MANY})
        assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (429, "RATE_LIMITED", "60")
        for status in (200, 200, 429):
            assert (await post(single, {"user_id": "u1"})).status == status
        assert (await client.get("/v1/recipes", headers=HEADERS)).status == 429
        assert (await client.post(single, {"user_id": "u1"}, headers=FREE_HEADERS)).status == 200
        text = state.metrics.render().decode()
    assert 'svc_key_refusals_total{code="RATE_LIMITED",kid="shop"} 3.0' in text
    assert 'svc_v1_requests_total{recipe="movies",status="rate_limited"} 2.0' in text


async def test_a_wrong_key_gets_401_before_403() -> None:
    """A wrong key learns nothing about policies."""
    async with bounded("shop: {recipes: []}")() as (client, _):
        assert (await client.get("/v1/recipes/movies", headers={"X-API-Key": "x" * 43})).status == 401
        assert (await client.get("/v1/recipes/nothing", headers=HEADERS)).status == 403
        assert (await client.get("/v1/health")).status == 503


@pytest.mark.parametrize(
    ("text", "verb", "body", "status"),
    [
        ("shop: {recipes: []}", "recommend", {"user_id": "u1"}, 403),
        ("shop: {rate: 1/h, burst: 1}", "batch-recommend", {"requests": MANY}, 429),
    ],
)
async def test_a_flood_of_refusals_delays_only_its_own_key(
    text: str, verb: str, body: object, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two refusals are sent at once, then one each 0.05 s. Other keys are answered meanwhile."""
    monkeypatch.setattr(key_policies, "REFUSALS_PER_S", 20.0)
    monkeypatch.setattr(key_policies, "REFUSALS_AT_ONCE", 2.0)
    waits: list[float] = []
    async with bounded(text)() as (client, state):
        path = f"/v1/recipes/movies:{verb}"
        await client.post(path, body, headers=FREE_HEADERS)
        await client.post(path, body, headers=HEADERS)
        await trio.sleep(0.1)

        async def ask() -> None:
            began = trio.current_time()
            assert (await client.post(path, body, headers=HEADERS)).status == status
            waits.append(trio.current_time() - began)

        async with trio.open_nursery() as nursery:
            for _ in range(12):
                nursery.start_soon(ask)
            await trio.sleep(0.05)
            assert (await client.post(path, body, headers=FREE_HEADERS)).status == 200
            assert len(waits) < 12
        text = state.metrics.render().decode()
    assert 0.4 < max(waits) < 5
    counted = re.search(r'svc_key_refusals_total{code="[A-Z_]+",kid="shop"} ([0-9.]+)', text)
    assert counted is not None
    assert float(counted[1]) >= 12


async def test_a_delayed_refusal_ends_when_its_client_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that floods and disconnects costs no memory."""
    monkeypatch.setattr(key_policies, "REFUSALS_PER_S", 0.01)
    monkeypatch.setattr(key_policies, "REFUSALS_AT_ONCE", 0.0)
    async with bounded("shop: {recipes: []}")() as (client, _):
        headers = [(b"host", b"localhost"), (b"x-api-key", KEY.encode())]
        leaving = Sent("POST", b"/v1/recipes/movies:recommend", headers, leaves_s=0.2)
        with trio.fail_after(5):
            assert await client.app(leaving) is None


pytestmark = pytest.mark.anyio
ROW = next(row for row in ENDPOINTS if row.name == "recommend")


def of(path: Path) -> tuple[PolicyFile, KeyPolicies]:
    book = KeyPolicies(Metrics.disabled())
    return PolicyFile(path, [book.replace], kids=lambda: {"shop"}, interval_s=5.0), book


def allowed(book: KeyPolicies, recipe: str) -> bool:
    try:
        book.admit("shop", ROW, recipe)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("content", [None, b"", b"shop: {x: 1}", b"\xff", b"[1", b"a" * (1 << 20)])
def test_a_broken_or_missing_file_at_the_start_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    """The server does not start without readable policies."""
    path = tmp_path / "keys.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="SVC_API_KEY_POLICIES"):
        of(path)[0].read()


async def test_a_changed_file_is_read_and_an_invalid_one_changes_nothing(tmp_path: Path) -> None:
    """Each change is logged once. A missing file is treated like an invalid one."""
    path = tmp_path / "keys.yaml"
    path.write_text("shop: {recipes: [a]}\nshp: {}")
    file, book = of(path)
    with capture_logs() as logs:
        file.read()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.run)
            seen: list[tuple[bool, bool]] = [(allowed(book, "a"), allowed(book, "b"))]

            async def after(change: Callable[[], object]) -> None:
                n_logged = len(logs)
                change()
                while len(logs) == n_logged:  # noqa: ASYNC110  # a real thread reads the file
                    await trio.sleep(1)
                await trio.sleep(20)
                seen.append((allowed(book, "a"), allowed(book, "b")))

            await after(lambda: path.write_text("shop: {recipes: [b]}"))
            await after(lambda: path.write_text("shop: {recipes: [a, b}"))
            await after(path.unlink)
            await after(lambda: path.write_text("shop: {}"))
            nursery.cancel_scope.cancel()
    assert seen == [(True, False), (False, True), (False, True), (False, True), (True, True)]
    assert [(line["event"], line.get("unknown_kids")) for line in logs] == [
        ("key_policies_loaded", ["shp"]),
        ("key_policies_without_key", ["shp"]),
        ("key_policies_loaded", []),
        ("key_policies_failed", None),
        ("key_policies_failed", None),
        ("key_policies_loaded", []),
    ]


async def test_a_file_that_is_replaced_by_one_of_the_same_size_and_time_is_read(tmp_path: Path) -> None:
    """Tools that preserve times make such replacements, and so do the links of a mounted ConfigMap."""
    path, other = tmp_path / "keys.yaml", tmp_path / "other"
    path.write_text("shop: {recipes: [a]}")
    file, book = of(path)
    file.read()
    status = path.stat()
    other.write_text("shop: {recipes: [b]}")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run)
        other.replace(path)
        while not allowed(book, "b"):  # noqa: ASYNC110
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert (allowed(book, "a"), allowed(book, "b")) == (False, True)


@pytest.mark.system
def test_policies_for_ten_thousand_keys_are_read() -> None:
    """The bounds of a recipe (20,000 values, 256 KiB) do not apply to them. Reading takes seconds."""
    policy = "{recipes: [books, films], verbs: [recommend], rate: 30/min, burst: 60, expires: 2030-01-01}"
    text = "".join(f"key-{number:05d}: {policy}\n" for number in range(10_000))
    assert len(parse_policies(text.encode(), "policies.yaml")) == 10_000


def test_the_policy_file_has_bounds() -> None:
    """A longer file is refused, and so are aliases that multiply."""
    with pytest.raises(ConfigError, match="larger than 8388608 bytes"):
        parse_policies(b"#" * (8 << 20) + b"\n{}", "policies.yaml")
    bomb = "a: &a [" + "x, " * 1000 + "]\nb: &b [" + "*a, " * 1000 + "]\n"
    with pytest.raises(ConfigError, match="more than 400000 values"):
        parse_policies(bomb.encode(), "policies.yaml")
