"""Serials and expiry in signed headers, and signed lines of the log beside an output."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from svc.artifact.keys import SigningKeys, load_signing_keys, parse_signing_keys, public_entry
from svc.artifact.replay import freshness
from svc.errors import ArtifactExpired, HeaderInvalid
from svc.settings import Settings

SEED = bytes(range(32))
SECRET = SigningKeys((("k1", SEED),))
PUBLIC = load_signing_keys(Settings(verify_keys=public_entry("k1", SEED)))
MOVE = {"action": "rollback", "sha256": "ab" * 32, "from_serial": 7, "at": "2026-11-22T00:00:00+00:00"}
NOW = datetime(2026, 11, 22, tzinfo=UTC)


@pytest.mark.parametrize("serial", [-1, 1.0, "1", True, freshness.MAX_SERIAL + 1, [1], {}])
def test_an_invalid_serial_is_an_invalid_header(serial: Any) -> None:
    """A value that is no serial is refused, and never compared as a low or a high serial."""
    with pytest.raises(HeaderInvalid, match="serial"):
        freshness.serial_of({"serial": serial})


def test_serial_and_expiry_are_optional() -> None:
    """A header without them is valid, and the largest and smallest serials are accepted."""
    assert freshness.serial_of({}) is None
    assert freshness.expires_at({}) is None
    freshness.require_unexpired({}, NOW)
    assert freshness.serial_of({"serial": 0}) == 0
    assert freshness.serial_of({"serial": freshness.MAX_SERIAL}) == freshness.MAX_SERIAL


@pytest.mark.parametrize(
    "text", ["", "soon", "2026-11-22T00:00:00", 5, None.__class__, ["2026"], "2026-13-01T00:00:00Z"]
)
def test_an_invalid_expiry_is_an_invalid_header(text: Any) -> None:
    """A time without a zone is refused too, because it would be another moment on another host."""
    with pytest.raises(HeaderInvalid, match="expires_at"):
        freshness.require_unexpired({"expires_at": text}, NOW)


@given(st.integers(-(10**6), 10**6), st.integers(-14, 14))
@settings(deadline=None)
def test_an_artifact_expires_at_its_moment_in_any_zone(seconds: int, zone: int) -> None:
    """An artifact expires exactly at the moment in its header, not before."""
    moment = datetime(2026, 11, 22, tzinfo=UTC) + timedelta(seconds=seconds)
    header = {"expires_at": moment.astimezone(datetime.strptime(f"{zone:+03d}00", "%z").tzinfo).isoformat()}
    if moment <= NOW:
        with pytest.raises(ArtifactExpired, match="expired at"):
            freshness.require_unexpired(header, NOW)
    else:
        freshness.require_unexpired(header, NOW)


@pytest.mark.parametrize("signature", ["hmac", "ed25519"])
def test_only_log_lines_with_a_valid_signature_are_read(signature: Any) -> None:
    """Changed lines, lines of other keys and text that is no line are skipped."""
    line = freshness.signed_line(MOVE, kid="k1", key=SEED, signature=signature)
    assert "\n" not in line
    content = json.loads(line)
    others = [
        json.dumps(content | {"from_serial": 8}),
        json.dumps(content | {"sha256": "cd" * 32}),
        json.dumps(content | {"kid": "k2"}),
        json.dumps(content | {"more": 1}),
        json.dumps({name: value for name, value in content.items() if name != "at"}),
        json.dumps(content | {"signature": "00" * (32 if signature == "hmac" else 64)}),
        json.dumps(content | {"signature": content["signature"][:-2]}),
        json.dumps(content | {"signature": 5}),
        freshness.signed_line(MOVE, kid="k1", key=bytes(32), signature=signature),
        *(
            "",
            "{",
            "[]",
            "null",
            "5",
            '{"signature": "00"}',
            "[" * 10_000,
            "\ud800".encode("utf-8", "replace").decode(),
        ),
    ]
    log = "\n".join([*others, line, *others]).encode()
    keys = SECRET if signature == "hmac" else PUBLIC
    assert [found["from_serial"] for found in freshness.verified_lines(log, keys)] == [7]
    assert list(freshness.verified_lines(log, parse_signing_keys(f"k2:{'11' * 32}"))) == []


def test_an_hmac_with_a_public_key_is_no_valid_signature() -> None:
    """Everyone knows the public key, so an HMAC by it proves nothing."""
    public = PUBLIC.public_of("k1")
    assert public is not None
    line = freshness.signed_line(MOVE, kid="k1", key=public, signature="hmac")
    assert list(freshness.verified_lines(line.encode(), PUBLIC)) == []
    own = freshness.signed_line(MOVE, kid="k1", key=SEED, signature="hmac")
    assert list(freshness.verified_lines(own.encode(), PUBLIC)) == []


@pytest.mark.parametrize(
    ("change", "highest", "allowed"),
    [
        ({}, 7, True),
        ({}, 6, True),
        ({}, 8, False),
        ({"sha256": "cd" * 32}, 7, False),
        ({"action": "promote"}, 7, True),
        ({"action": "train"}, 7, False),
        ({"from_serial": "7"}, 7, False),
        ({"from_serial": True}, 0, False),
        ({"from_serial": None}, 7, False),
    ],
)
def test_a_rollback_permits_one_artifact_until_a_higher_serial_is_served(
    change: dict[str, Any], highest: int, allowed: bool
) -> None:
    """An old rollback line cannot bypass the next training."""
    assert freshness.is_rolled_back_to("ab" * 32, highest, iter([MOVE | change])) is allowed


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 65, 5, None, "a\n"])
def test_an_invalid_recipe_name_in_a_header_is_not_used(name: Any) -> None:
    """A name from a header becomes part of a file name, so an invalid one is ignored even if it is signed."""
    assert freshness.recipe_of({"recipe_name": name}, "declared") == "declared"
    assert freshness.recipe_of({"recipe_name": "movies"}, "declared") == "movies"
