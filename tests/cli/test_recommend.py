"""`svc recommend`: wrong usage is told before any artifact is read."""

from __future__ import annotations

from typing import Any

import pytest

from svc.cli.main import run


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["a.svc"], "--output is missing"),
        (["--output", "x.csv"], "name the recipe or the artifact"),
        (["a.svc", "--output", "x.txt"], "must end with .parquet, .csv, .jsonl"),
        (["a.svc", "--output", ".csv"], "must end with"),
        (["a.svc", "--output", "x.csv", "--limit", "1001"], "less than or equal to 1000"),
        (["a.svc", "--output", "x.csv", "--shard", "3/3"], "'3/3' is no shard"),
        (["a.svc", "--output", "x.csv", "--shard", "one"], "'one' is no shard"),
        (["a.svc", "--output", "x.csv", "--shards", "3"], "--shards goes with"),
        (["a.svc", "--output", "x.csv", "--related", "--users", "ids.txt"], "leave --users out"),
        (["a.svc", "--output", "x.csv", "--to-users", "--related"], "leave --related, --users and --filter out"),
        (["a.svc", "--output", "x.csv", "--items", "ids.txt"], "go with --to-users"),
        (["a.svc", "--output", "x.csv", "--to-users", "--order", "best"], "'best' is not score, lift, balanced"),
        (["a.svc", "--output", "x.csv", "--merge"], "--merge needs only --output"),
        (["a.svc", "--output", "x.csv", "--engine", "dask://h:1", "--shard", "0/2"], "leave --shard out"),
    ],
)
def test_wrong_usage_ends_with_2(capsys: Any, arguments: list[str], words: str) -> None:
    """Before any artifact is read; the message names the option and the way out."""
    assert run(["recommend", *arguments]) == 2
    assert words in capsys.readouterr().err
