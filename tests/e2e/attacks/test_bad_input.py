"""Bad input to the commands: each ends with the exit code of its error and one clear last line, without a traceback."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.server import put

if TYPE_CHECKING:
    from tests.e2e.conftest import Ended, Shop


def assert_failed(ended: Ended, code: int, *words: str, event: str = "train_error") -> None:
    """Check exit code and event of the last record, that its error contains `words`, and that no traceback follows."""
    assert ended.code == code, ended.err
    assert "Traceback" not in ended.err
    last = ended.records[-1]
    assert (last["event"], last["exit_code"]) == (event, code)
    assert [word for word in words if word not in last["error"]] == []


def test_inspect_refuses_artifacts_that_it_cannot_verify(shop: Shop, artifact: bytes) -> None:
    """`svc inspect` refuses artifacts that it cannot verify with exit code 5.

    Unknown kids, wrong signatures and truncated files each have their own error.
    """
    whole = shop.give(artifact)
    path = str(shop.artifact)
    cases: list[tuple[bytes, dict[str, str], str]] = [
        (whole, {"SVC_SIGNING_KEYS": "other:" + "5a" * 32}, "unknown kid: test"),
        (whole, {"SVC_SIGNING_KEYS": "test:" + "00" * 32}, "signature mismatch"),
        (whole[:-1] + bytes([whole[-1] ^ 1]), {}, "signature mismatch"),
        (whole[: len(whole) // 2], {}, "magic bytes mismatch"),
        (b"not an artifact at all", {}, "magic bytes mismatch"),
        (b"", {}, "magic bytes mismatch"),
    ]
    for data, environment, text in cases:
        put(shop.artifact, data)
        assert_failed(shop.svc("inspect", path, **environment), 5, text, event="command_error")
    assert_failed(shop.svc("inspect", path + ".not-there"), 5, event="command_error")


def test_a_closed_pipe_is_no_error(shop: Shop) -> None:
    """A command whose stdout is closed, as in `svc schema | head -1`, prints no error."""
    process = shop.start("schema", fresh=True)
    assert process.stdout is not None
    process.stdout.close()
    assert process.stderr is not None
    err = process.stderr.read()
    process.stderr.close()
    process.wait(timeout=30)
    assert err == ""


@pytest.mark.parametrize(("kept", "codes"), [("", {4}), ("u7,i3,1700000000", {4}), ("u7,", {0, 4})])
def test_a_training_with_too_few_rows_is_no_internal_error(shop: Shop, kept: str, codes: set[int]) -> None:
    """A training with no row or one row ends with exit code 4.

    Rows of one user suffice if the search can score a model.
    """
    path = shop.folder / "sales.csv"
    header, *rows = path.read_text().splitlines()
    rows = [row for row in rows if kept and row.startswith(kept)] or [kept]
    path.write_text("\n".join([header, *rows, ""]))
    ended = shop.train()
    assert ended.code in codes, ended.err
    assert ended.records[-1].get("code") != "internal_error"
