"""Every benchmark shows its options, and the documentation names only existing ones."""

from __future__ import annotations

import re
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.__main__ import main, names, run

ROOT = Path(__file__).parents[2]
MOST_MODULES = 25
CITED = re.compile(r"python -m benchmarks ([a-z_]\w*)(?: ([a-z]\w*))?")
"""A cited command: the benchmark, and its first word, which may be a case."""


def cases(name: str) -> list[str]:
    """Return the cases of a benchmark, and an empty word for its first one."""
    return ["", *getattr(import_module(f"benchmarks.{name}"), "CASES", {})]


def test_benchmarks_stay_few() -> None:
    """A further question becomes a case of a benchmark."""
    assert len(list((ROOT / "benchmarks").rglob("*.py"))) <= MOST_MODULES


@pytest.mark.parametrize("name", names())
def test_each_case_shows_its_question_and_options(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """`--help` begins with the command, and has a question."""
    for case in cases(name):
        with pytest.raises(SystemExit) as ended:
            run(name, [case, "--help"] if case else ["--help"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        assert shown.startswith(f"usage: python -m benchmarks {name} {case}".strip())
        assert "?" in shown
    assert all(case in shown for case in cases(name))


def test_without_a_name_benchmarks_are_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown name is an error of usage."""
    for words, code in (([], 0), (["nothing"], 2)):
        monkeypatch.setattr(sys, "argv", ["benchmarks", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code
        assert ", ".join(names()) in capsys.readouterr().out


def test_cited_commands_exist() -> None:
    """Pages, results and sources cite benchmarks by names that exist, and the table of the README has every case."""
    pages = [*ROOT.glob("*.md"), ROOT / "tests" / "RELIABILITY.md"]
    for folder in ("docs", "svc", "benchmarks"):
        pages += [path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")]
    cited = {match for path in pages for match in CITED.findall(path.read_text(encoding="utf-8"))}
    assert len(cited) > 30
    assert {name for name, _ in cited} <= set(names())
    readme = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8").partition("\n## How to measure")[0]
    rows = re.findall(r"^\| .* \| `(\w+)(?: (\w+))?[^|]*` \|$", readme, re.MULTILINE)
    for name in names():
        assert name in {first for first, _ in rows}
        assert set(cases(name)[2:]) <= {word for first, word in rows if first == name}, name
