"""Hostile artifacts beside a good one in a real server: each is refused with its own event and never executed."""

from __future__ import annotations

import functools
import io
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from svc.artifact import layout
from svc.artifact.keys import parse_signing_keys
from svc.model import codec
from tests.e2e.server import Server, put, write_recipe
from tests.serving.artifacts import OTHER_KEYS, SIGNING_KEYS, factor_model, header, popularity_model

MIB = 1 << 20
ROUNDS = int(os.environ.get("SVC_TEST_ARTIFACT_ROUNDS", "1"))
SIZE, PARSE = "initial_artifact_read_error", "initial_artifact_parse_failed"
HMAC, DESERIALIZE = "initial_artifact_hmac_failed", "initial_artifact_deserialize_failed"


class Call:
    """An object whose pickle calls `function` when it is loaded."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.call = (function, arguments)

    def __reduce__(self) -> Any:
        return self.call


def signed(payload: list[Any], keys: str = SIGNING_KEYS) -> bytes:
    out = io.BytesIO()
    kid, key = parse_signing_keys(keys).active
    layout.write(out, kid=kid, key=key, header=header(), payload=payload)
    return out.getvalue()


def pickle_artifact(value: object) -> bytes:
    """Return a signed artifact whose payload is the plain pickle of `value`."""
    return signed(codec._lay_out(pickle.dumps(value, protocol=4), []))


def calling_artifact(module: str, name: str) -> bytes:
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    return signed(codec._lay_out(b"\x80\x04" + texts + b"\x93)R.", []))


def flipped(data: bytes, place: int) -> bytes:
    return data[:place] + bytes([data[place] ^ 0xFF]) + data[place + 1 :]


def attacks_with(mark: Path) -> dict[str, tuple[bytes, str, str]]:
    """Map each attack to its bytes, its event at the start and the beginning of its error."""
    good = signed(codec.encode(popularity_model(0)))
    big = signed(codec.encode(factor_model(500, 20_000, 64)))
    other = signed(codec.encode(popularity_model(1)))
    touch = Call(os.system, f"touch {mark}")
    forbidden = "payload names "
    return {
        "empty": (b"", PARSE, "magic bytes mismatch"),
        "garbage": (os.urandom(4096), PARSE, "magic bytes mismatch"),
        "magic": (flipped(good, 0), PARSE, "magic bytes mismatch"),
        "version": (flipped(good, 8), PARSE, "unsupported format version"),
        "kid-length": (flipped(good, 10), PARSE, "magic bytes mismatch"),
        "header-length": (flipped(good, 14), PARSE, "header JSON too large"),
        "payload-length": (flipped(good, 18), SIZE, "payload exceeds max bytes"),
        "cut": (good[:-1], PARSE, "magic bytes mismatch"),
        "cut-large": (big[: len(big) // 2], PARSE, "magic bytes mismatch"),
        "longer": (good + b"\0", PARSE, "magic bytes mismatch"),
        "header": (flipped(good, 30), HMAC, "signature mismatch"),
        "payload": (flipped(good, len(good) - 100), HMAC, "signature mismatch"),
        "payload-large": (flipped(big, len(big) // 2), HMAC, "signature mismatch"),
        "signature": (flipped(good, len(good) - 1), HMAC, "signature mismatch"),
        "swapped": (good[:-32] + other[-32:], HMAC, "signature mismatch"),
        "kid": (good[:12] + b"k9" + good[14:], HMAC, "unknown kid: k9"),
        "other-key": (signed(codec.encode(popularity_model(0)), OTHER_KEYS), HMAC, "unknown kid: k2"),
        "unsigned-system": (
            flipped(pickle_artifact(touch), -1 % len(pickle_artifact(touch))),
            HMAC,
            "signature mismatch",
        ),
        "system": (pickle_artifact(touch), DESERIALIZE, "payload"),
        "eval": (pickle_artifact(Call(eval, f"open({str(mark)!r}, 'w')")), DESERIALIZE, "payload"),
        "partial": (pickle_artifact(functools.partial(functools.partial, os.system)), DESERIALIZE, "payload"),
        "reduce": (pickle_artifact(Call(functools.reduce, os.system, [f"touch {mark}"])), DESERIALIZE, "payload"),
        "numpy-load": (pickle_artifact(Call(np.load, "/etc/passwd")), DESERIALIZE, "payload"),
        "numpy-object": (pickle_artifact(np.array([touch], dtype=object)), DESERIALIZE, "payload"),
        "numpy-buffer": (calling_artifact("numpy._core.numeric", "_frombuffer"), DESERIALIZE, forbidden),
        "os-by-name": (calling_artifact("os", "system"), DESERIALIZE, forbidden),
        "dotted": (calling_artifact("svc.model.codec", "pickle.loads"), DESERIALIZE, forbidden),
        "dotted-method": (calling_artifact("svc.model.ids", "IdTable.from_ids"), DESERIALIZE, forbidden),
        "globals": (calling_artifact("svc.model.codec", "array.__globals__"), DESERIALIZE, forbidden),
        "no-model": (signed(codec.encode({"a": 1})), DESERIALIZE, "payload"),
    }


def test_hostile_artifacts_are_never_loaded(home: Path) -> None:
    """No hostile artifact is loaded or executed, memory stays bounded, and the good recipe is answered.

    SVC_TEST_ARTIFACT_ROUNDS is the number of rounds. Each round writes different hostile bytes into every file.
    """
    attacks = attacks_with(home.parent / "mark")
    names = list(attacks)
    for name, (data, _, _) in attacks.items():
        put(home.parent / f"{name}.svc", data)
        write_recipe(home, name, home.parent / f"{name}.svc")
    with Server(home, fresh=True) as server:
        for name, (_, event, words) in attacks.items():
            record = server.wait_for(event, name=name)
            assert record["error"].startswith(words), record
        assert server.health() == (503, {"status": "degraded", "total": len(attacks) + 1, "loaded": 1})
        before = server.resident_bytes()
        for number in range(1, ROUNDS + 1):
            for name, attack in zip(names, names[number:] + names[:number], strict=True):
                put(home.parent / f"{name}.svc", attacks[attack][0])
            for name in names:
                server.wait_for("artifact_load_failed", name=name, times=number)
            assert server.recommend("a").status_code == 200
        grown = server.resident_bytes() - before
        print(f"{len(attacks)} attacks, {ROUNDS} rounds; resident memory {grown / MIB:+.1f} MiB")  # noqa: T201
        assert grown < 64 * MIB
        assert not server.said("artifact_load_unexpected_error")
        assert [one["name"] for one in server.said("artifact_loaded")] == ["a"]
        assert not (home.parent / "mark").exists()
        assert server.stop() == 0
