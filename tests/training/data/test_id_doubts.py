"""Which ids cause a warning. `tests/tables/test_ids.py` tries the remedies."""

from __future__ import annotations

import pandas as pd
import pytest

from svc.training.data.id_doubts import id_doubts, yaml_key


def reasons(ids: list[str | None], *, are_rows: bool = True, is_sample: bool = False) -> dict[str, str]:
    column = pd.Series(ids, name="user", dtype="category")
    return {
        doubt.reason: doubt.example
        for doubt in id_doubts(column, "user", "csv", are_rows=are_rows, is_sample=is_sample)
    }


@pytest.mark.parametrize(
    ("ids", "named"),
    [
        (["9.78E+12", "1e5", "8e", "7.0"], {"exponent": "1e5", "floating_point": "7.0"}),
        (["1,36503E+09", "1,5"], {"exponent": "1,36503E+09"}),
        (["U1", "u1", "u2"], {"case": "u1"}),
        (["Ab", "aB", *map(str, range(1, 100))], {}),
        (["\u200bu1", "u1", "u\ufeff2", "u3\u200b"], {"blanks": "\u200bu1"}),
        (['"a"', "'b'", "c'd", '"'], {"quotes": '"a"'}),
        (["b'01'", 'b"it\'s"', "b''", "bb'"], {"bytes": 'b"it\'s"'}),
        (["\\\\\\", "a"], {}),
        ([' a', "a", "b "], {"blanks": " a"}),
        (["a" * 257, "b" * 256], {"too_long": "a" * 40}),
        (["a", "b", "c", None, " ", None], {}),
        ([], {}),
        (["NULL", "a", "b"], {"placeholder": "NULL"}),
        (["0", "1", "2", "3"], {}),
        (["0", "0", "1", "2", "3"], {"placeholder": "0"}),
        (["0", "0", "1", "1", "2", "3"], {}),
    ],
)  # fmt: skip
def test_ids_are_named_by_their_reason(ids: list[str | None], named: dict[str, str]) -> None:
    """The example is the first id in sorted order, cut to 40 characters."""
    assert reasons(ids) == named


def test_placeholders_of_side_tables_do_no_harm() -> None:
    """Such a row describes an item that nobody has chosen."""
    assert reasons(["NULL", "a"], are_rows=False) == {}


def test_one_id_with_most_rows_of_a_sorted_sample_is_not_named() -> None:
    """The first rows of a table that is sorted by user are those of few users."""
    ids = ["a"] * 30 + [f"u{number}" for number in range(50)]
    assert reasons(ids) == {"dominant": "a"}
    assert reasons(ids, is_sample=True) == {}
    assert reasons([*ids[29:], *ids[:29]], is_sample=True) == {"dominant": "a"}


@pytest.mark.parametrize(("name", "key"), [("user", "user"), ("1", '"1"'), ("no", '"no"'), ("a b", '"a b"')])
def test_names_of_columns_stay_texts_in_yaml(name: str, key: str) -> None:
    """An unquoted 1 would be a number, and no would be false."""
    assert yaml_key(name) == key


@pytest.mark.parametrize(("source_type", "told"), [("csv", "mend the source"), ("dataframe", ".str.strip()")])
def test_blanks_that_trim_may_keep_get_no_query(source_type: str, told: str) -> None:
    """Most databases remove a no-break space or a tab only by another function."""
    (doubt,) = id_doubts(pd.Series(["a\u00a0", "a", "b"], name="item"), "item", source_type, are_rows=True)
    assert told in doubt.message
    assert "SELECT" not in doubt.message
    (doubt,) = id_doubts(pd.Series(["a\u200b", "a", "b"], name="item"), "item", source_type, are_rows=True)
    assert "mend the source" in doubt.message
