"""Requests of commands to a running server: what is told when nobody answers, or not as svc does."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.cli.common.http import ServerUnreachable, base_url, get_json
from svc.cli.main import run
from svc.errors import UsageError
from tests.cli.conftest import Answers


def test_a_missing_key_is_told_with_the_way_to_give_it(
    url: str, answers: type[Answers], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A request without a key fails with advice; with the key it works."""
    monkeypatch.setattr(answers, "key", "secret-of-the-client")
    assert run(["status", url]) == 1
    assert "asks for an API key (401 Unauthorized): set SVC_CLIENT_KEY" in capsys.readouterr().err
    assert run(["status", url, "--client-key", "another"]) == 1
    assert "(401 Unauthorized): it does not know the key that was given" in capsys.readouterr().err
    monkeypatch.setenv("SVC_CLIENT_KEY", "secret-of-the-client")
    assert run(["status", url]) == 5


@pytest.mark.parametrize("command", [["status"], ["bench", "--recipe", "books", "--users", "users.txt"]])
def test_an_unreachable_server_is_an_error_with_advice(
    command: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line, exit code 1."""
    monkeypatch.chdir(tmp_path)
    Path("users.txt").write_text("u1\n")
    assert run([*command, "http://127.0.0.1:1"]) == 1
    assert "svc serve" in capsys.readouterr().err


def test_an_address_is_that_of_a_server() -> None:
    """Another scheme, or none, is wrong usage before anything is sent; a slash at the end does not matter."""
    assert base_url("http://127.0.0.1:8080/") == "http://127.0.0.1:8080"
    for wrong in ("127.0.0.1:8080", "ftp://host", "http://", "localhost"):
        with pytest.raises(UsageError, match="is not the address of a server"):
            base_url(wrong)


def test_an_answer_of_another_server_is_an_error(url: str, answers: type[Answers]) -> None:
    """A status that the command cannot use ends it; one that it accepts is given with its body."""
    with pytest.raises(ServerUnreachable, match="answers 404"):
        get_json(url, "/nothing", None)
    assert get_json(url, "/nothing", None, accept=(404,))["code"] == "RECIPE_NOT_FOUND"
