"""The flags of the development mode without signing keys."""

from __future__ import annotations

import pytest

from svc.cli import main
from tests.cli.conftest import last_error

BOTH_FLAGS = ["--dev-allow-unsigned", "--i-understand-this-loads-arbitrary-code"]


MISUSES = [(BOTH_FLAGS, ""), (BOTH_FLAGS, "production"), (BOTH_FLAGS[1:], "development")]


DECODING = [["train", "r.yaml"], ["serve", "--recipes", "."]]


@pytest.mark.parametrize(
    ("command", "arguments", "env"),
    [
        *((command, *misuse) for misuse in MISUSES for command in [*DECODING, ["inspect", "a.svc"]]),
        *((command, BOTH_FLAGS[:1], "development") for command in DECODING),
    ],
)
def test_unsigned_mode_needs_both_flags_and_a_development_environment(
    command: list[str],
    arguments: list[str],
    env: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Misuse ends with 8 before anything is read, and the message names the flag."""
    monkeypatch.setenv("SVC_ENV", env)
    assert main.run([*command, *arguments]) == 8
    assert "--dev-allow-unsigned" in str(last_error(capsys)["error"])
