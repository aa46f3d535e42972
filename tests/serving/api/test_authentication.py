"""API keys: their list, the cost of checking them, and the delay of refusals in a flood."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from svc.errors import ConfigError, InvalidApiKey
from svc.serving.api import authentication
from svc.serving.api.authentication import (
    Authenticator,
    DigestOrder,
    RefusalThrottle,
    hash_api_key,
    key_in,
    new_api_key,
    parse_api_keys,
)


def test_a_new_key_is_43_characters_of_base64url() -> None:
    """Two new keys differ."""
    assert new_api_key() != new_api_key()
    assert all(re.fullmatch("[A-Za-z0-9_-]{43}", new_api_key()) for _ in range(20))


def test_the_hash_is_scrypt_behind_a_fixed_prefix() -> None:
    """The hash equals a known answer, so salt and cost parameters stay part of the format."""
    key = "A" * 43
    expected = hashlib.scrypt(key.encode(), salt=b"svc.api-key.v1", n=1024, r=8, p=1, dklen=32).hex()
    assert hash_api_key(key) == f"sha256:{expected}"
    assert expected != hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize(
    "text", ["nonsense", "k:sha256:12", "k:" + "0" * 64, "k k:sha256:" + "0" * 64, ":sha256:" + "0" * 64]
)
def test_an_invalid_key_list_is_refused_without_its_values(text: str) -> None:
    """The message has the number of the entry, but not its text."""
    with pytest.raises(ConfigError, match="entry 2") as caught:
        parse_api_keys(f"good:sha256:{'a' * 64},{text}")
    assert text not in str(caught.value)


def test_a_repeated_kid_is_refused() -> None:
    """Two entries with one kid are an error."""
    with pytest.raises(ConfigError, match="twice"):
        parse_api_keys(f"k:sha256:{'a' * 64}, k:sha256:{'b' * 64}")


def test_an_empty_list_has_no_keys() -> None:
    """An empty list, or one of commas only, configures no key."""
    assert parse_api_keys("") == parse_api_keys(" , ") == {}


@pytest.fixture
def digests(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Return the values that were hashed, in order."""
    seen: list[bytes] = []
    scrypt: Callable[..., bytes] = hashlib.scrypt

    def counted(password: bytes, **more: Any) -> bytes:
        seen.append(password)
        return scrypt(password, **more)

    monkeypatch.setattr(authentication.hashlib, "scrypt", counted)
    return seen


def made(*plaintexts: str) -> Authenticator:
    entries = ",".join(f"k{place}:{hash_api_key(text)}" for place, text in enumerate(plaintexts))
    return Authenticator(parse_api_keys(entries))


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({b"x-api-key": b"a"}, b"a"),
        ({b"authorization": b"Bearer b"}, b"b"),
        ({b"authorization": b"bearer  b "}, b" b "),
        ({b"x-api-key": b"a", b"authorization": b"Bearer b"}, b"a"),
        ({b"authorization": b"Basic b"}, None),
        ({b"authorization": b"Bearer"}, b""),
        ({}, None),
    ],
)
def test_a_key_may_come_as_a_bearer_token(headers: dict[bytes, bytes], key: bytes | None) -> None:
    """X-API-Key wins over the bearer token. Blanks are part of the key."""
    assert key_in(headers) == key


async def test_replaced_keys_apply_at_once(digests: list[bytes]) -> None:
    """A removed key is refused although it was accepted before. Only accepted keys have a kid."""
    old, new = "a" * 43, "b" * 43
    auth = made(old)
    await auth.check(old.encode(), "c")
    assert auth.kid_of(old.encode()) is not None
    assert (auth.kid_of(old.encode()), auth.kid_of(new.encode())) == ("k0", None)
    auth.replace(parse_api_keys(f"next:{hash_api_key(new)}"))
    assert auth.kid_of(old.encode()) is None
    with pytest.raises(InvalidApiKey):
        await auth.check(old.encode(), "c")
    await auth.check(new.encode(), "c")
    assert auth.kid_of(new.encode()) == "next"


async def test_an_attempt_costs_one_digest_and_an_accepted_key_none(digests: list[bytes], lowered: list[int]) -> None:
    """An attempt costs one scrypt for any number of entries. An accepted key costs none at later requests.

    The thread of scrypt lowers its priority.
    """
    keys = [new_api_key() for _ in range(5)]
    checker = made(*keys)
    digests.clear()
    value = keys[3].encode()
    assert checker.kid_of(value) is None
    await checker.check(value, "c")
    assert digests == [value]
    assert len(lowered) == 1
    assert checker.kid_of(value) == "k3"
    for _ in range(2):
        with pytest.raises(InvalidApiKey):
            await checker.check(new_api_key().encode(), "c")
    assert len(digests) == 3


@pytest.mark.parametrize(
    "value", [b"", b"short", b"A" * 42, b"A" * 44, b"A" * 42 + b"!", b" " + b"A" * 43, b"\xff" * 43]
)
async def test_values_without_the_form_of_a_key_are_not_hashed(value: bytes, digests: list[bytes]) -> None:
    """Such values are refused without scrypt."""
    checker = made(new_api_key())
    digests.clear()
    with pytest.raises(InvalidApiKey):
        await checker.check(value, "c")
    assert digests == []


async def test_a_partly_right_key_takes_the_same_work_as_any_wrong_key(
    digests: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The digest is compared with all entries, so that the time reveals nothing."""
    compared: list[tuple[bytes, bytes]] = []

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((one, other))
        return real(one, other)

    real = authentication.hmac.compare_digest
    monkeypatch.setattr(authentication.hmac, "compare_digest", counted)
    keys = [new_api_key() for _ in range(5)]
    checker = made(*keys)
    work = []
    for value in (
        keys[0][:21] + new_api_key()[21:],
        keys[4][:42] + ("A" if keys[4][42] != "A" else "B"),
        new_api_key(),
    ):
        digests.clear()
        compared.clear()
        with pytest.raises(InvalidApiKey):
            await checker.check(value.encode(), "c")
        work.append((len(digests), len(compared), {len(part) for pair in compared for part in pair}))
    assert work == [(1, 5, {32})] * 3


async def test_a_flood_of_refusals_is_slowed_down() -> None:
    """The refusals of one second are sent at once. Later ones are sent at a bounded rate, after a bounded wait."""
    checker = made(new_api_key())
    waits: list[float] = []

    async def attempt() -> None:
        started = trio.current_time()
        with pytest.raises(InvalidApiKey):
            await checker.check(b"wrong", "c")
        waits.append(trio.current_time() - started)

    async with trio.open_nursery() as nursery:
        for _ in range(3000):
            nursery.start_soon(attempt)
    assert sum(wait < 0.05 for wait in waits) >= authentication.REFUSALS_PER_S
    assert authentication.LONGEST_WAIT_S - 0.1 < max(waits) <= authentication.LONGEST_WAIT_S + 0.5


pytestmark = pytest.mark.anyio
PER_S, BURST, LONGEST_S = 10.0, 5.0, 3.0


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    return ("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)})


async def test_a_burst_is_answered_at_once_and_a_flood_at_a_rate() -> None:
    """After the burst, one refusal is sent each 0.1 s. No wait exceeds the longest one."""
    throttle = RefusalThrottle(PER_S, BURST, LONGEST_S)
    waits = [throttle.next_wait_s() for _ in range(60)]
    assert waits[:5] == [0.0] * 5
    assert waits[5:35] == pytest.approx([number / PER_S for number in range(1, 31)])
    assert waits[35:] == [LONGEST_S] * 25


async def test_a_burst_after_the_end_of_a_flood_is_answered_at_once() -> None:
    """The burst is full again after the longest wait and the time in which a burst accrues."""
    throttle = RefusalThrottle(PER_S, BURST, LONGEST_S)
    for _ in range(1_000):
        throttle.next_wait_s()
    await trio.sleep(LONGEST_S + BURST / PER_S)
    assert [throttle.next_wait_s() for _ in range(5)] == pytest.approx([0.0] * 5)


async def test_occasional_refusals_are_never_delayed() -> None:
    throttle = RefusalThrottle(PER_S, BURST, LONGEST_S)
    for _ in range(100):
        assert throttle.next_wait_s() == 0.0
        await trio.sleep(1 / PER_S)


def test_every_configured_key_stays_accepted(monkeypatch: pytest.MonkeyPatch) -> None:
    """3,000 keys in turn compute one digest each. A cache of 1,024 keys computed one for each request."""
    computed: list[bytes] = []

    def fast(plaintext: bytes) -> bytes:
        computed.append(plaintext)
        return hashlib.sha256(plaintext).digest()

    monkeypatch.setattr(authentication, "digest", fast)
    keys = {f"k{number}": (b"%d" % number).rjust(43, b"0") for number in range(3000)}
    auth = Authenticator({kid: hashlib.sha256(key).digest() for kid, key in keys.items()})

    async def use_all_twice() -> None:
        for _ in range(2):
            for kid, key in keys.items():
                if auth.kid_of(key) is None:
                    assert await auth.check(key, "c") == kid

    trio.run(use_all_twice)  # without anyio's runner, in which each thread hop takes up to 40 ms
    assert len(computed) == 3000


async def test_accepted_keys_stay_accepted_while_they_are_listed(digests: list[bytes]) -> None:
    """After a reload they need no new digest, and have the key id that they have now."""
    kept, renamed, removed = "a" * 43, "b" * 43, "c" * 43
    auth = made(kept, renamed, removed)
    for key in (kept, renamed, removed):
        await auth.check(key.encode(), "c")
    auth.replace(parse_api_keys(f"k0:{hash_api_key(kept)},new:{hash_api_key(renamed)}"))
    digests.clear()
    assert [auth.kid_of(key.encode()) for key in (kept, renamed, removed)] == ["k0", "new", None]
    with pytest.raises(InvalidApiKey):
        await auth.check(removed.encode(), "c")
    assert digests == [removed.encode()]


async def enter(order: DigestOrder, client: str, name: str, entered: list[str], ends: trio.Semaphore) -> None:
    """Take a turn, which lasts until `ends` is released."""
    async with order.turn(client):
        entered.append(name)
        await ends.acquire()


async def test_clients_with_a_wrong_key_go_behind_others() -> None:
    """Of clients with a wrong key the newest goes first. Cancelled ones leave the order."""
    order, entered, ends = DigestOrder(), list[str](), trio.Semaphore(0)
    order.note_wrong("flood")
    async with trio.open_nursery() as nursery, trio.open_nursery() as flood:
        for number in range(50):
            flood.start_soon(enter, order, "flood", f"wrong {number}", entered, ends)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(enter, order, "flood", "other", entered, ends)
        await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(enter, order, "shop", "good", entered, ends)
        for _ in range(2):
            await trio.testing.wait_all_tasks_blocked()
            ends.release()
        await trio.testing.wait_all_tasks_blocked()
        flood.cancel_scope.cancel()
        ends.release()
    assert entered == ["wrong 0", "good", "other"]
    with trio.fail_after(1):
        ends.release()
        await enter(order, "later", "later", entered, ends)


async def test_no_key_waits_for_ever_beside_wrong_keys_from_its_address() -> None:
    """Of those that wait from one address, the oldest gets every second turn, however many newer ones come."""
    order, entered, ends = DigestOrder(), list[str](), trio.Semaphore(0)
    async with trio.open_nursery() as nursery:
        for number in range(5):
            nursery.start_soon(enter, order, "balancer", f"wrong {number}", entered, ends)
            await trio.testing.wait_all_tasks_blocked()
        nursery.start_soon(enter, order, "balancer", "good", entered, ends)
        for number in range(5, 50, 2):
            await trio.testing.wait_all_tasks_blocked()
            for newer in (number, number + 1):
                nursery.start_soon(enter, order, "balancer", f"wrong {newer}", entered, ends)
                await trio.testing.wait_all_tasks_blocked()
            ends.release()
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert entered.index("good") <= 2 * 5 + 1


async def test_an_unknown_key_is_accepted_beside_many_wrong_ones() -> None:
    good = new_api_key()
    auth = made(good)
    async with trio.open_nursery() as flood:

        async def ask(key: str) -> None:
            with suppress(InvalidApiKey):
                await auth.check(key.encode(), "flood")

        for _ in range(20):
            flood.start_soon(ask, new_api_key())
        await trio.testing.wait_all_tasks_blocked()
        assert await auth.check(good.encode(), "shop") == "k0"
        flood.cancel_scope.cancel()
