"""`svc bench` as people see it, against a small server of the tests' own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from svc.cli.main import run
from tests.cli.conftest import RECIPES


def bench(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and output; measured for longer where the machine is too busy for two answers in a moment."""
    for seconds in ("0.2", "3", "30"):
        code, shown = run(["bench", *arguments, "--seconds", seconds]), capsys.readouterr().out
        if not re.search(r'^requests +[01]$|"requests": [01],', shown, re.MULTILINE):
            break
    return code, shown


def test_bench_shows_throughput_latencies_and_errors(
    url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Known users only: exit code 0; the ids come from a column of a CSV."""
    users = tmp_path / "users.csv"
    users.write_text("viewer,item\nknown1,a\nknown2,b\n")
    code, shown = bench(capsys, url, "--recipe", "books", "--users", str(users), "--column", "viewer", "--json")
    figures = json.loads(shown)
    assert (code, figures["asked"]) == (0, "books:recommend")
    assert figures["errors"] == {}
    assert 0 < figures["p50_ms"] <= figures["p90_ms"] <= figures["p99_ms"] <= figures["p99.9_ms"] <= figures["max_ms"]
    assert figures["requests_per_s"] == pytest.approx(figures["requests"] / figures["seconds"], rel=0.01)


def test_bench_needs_nothing_but_the_address(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The only recipe is asked, for items like those that the server itself names."""
    code, shown = bench(capsys, url, "--json")
    figures = json.loads(shown)
    assert (code, figures["asked"], figures["errors"]) == (0, "books:recommend-related", {})


def test_bench_asks_which_of_several_recipes(
    url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With several recipes the command asks for one and names them."""
    both = [*RECIPES["recipes"], {"name": "films", "loaded": True}, {"name": "news", "loaded": False}]
    monkeypatch.setitem(RECIPES, "recipes", both)
    assert run(["bench", url]) == 2
    assert "books, films" in capsys.readouterr().err


def test_bench_repeats_why_a_recipe_cannot_be_asked(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    """In the server's words."""
    assert run(["bench", url, "--recipe", "boks"]) == 2
    assert "boks: no recipe of this name is served here" in capsys.readouterr().err


def test_bench_says_what_may_be_wrong(url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Users whom training did not see are errors: exit code 1, and a hint."""
    users = tmp_path / "users.txt"
    users.write_text("known1\nstranger\n")
    code, shown = bench(capsys, url, "--recipe", "books", "--users", str(users))
    assert code == 1
    assert "requests_per_s" in shown
    assert "404: no such recipe (svc status lists them)" in shown


@pytest.mark.parametrize(("text", "message"), [("", "holds no user ids"), ("item\nb1\n", "has no column 'user_id'")])
def test_bench_refuses_users_that_it_cannot_read(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before anything is sent."""
    users = tmp_path / ("users.csv" if text else "users.txt")
    users.write_text(text)
    assert run(["bench", "http://127.0.0.1:1", "--recipe", "a", "--users", str(users)]) == 2
    assert message in capsys.readouterr().err
