"""Ids as people have them: decimals, padding, placeholders, quotes, blanks, remains of a spreadsheet."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import svc
from svc.errors import UsageError
from svc.sources.arrow import table_of_rows
from tests.tables.tables import (
    KEYS,
    TRAINING,
    both_accept,
    both_refuse,
    choices,
    query_of,
    recommended,
    tried,
    write_csv,
    write_table,
)

NUMBERED = [(int(user[1:]) + 17850, int(item[1:]) + 500) for user, item in choices()]


def write_parquet(path: Path, kind: pa.DataType, rows: list[Any]) -> None:
    pq.write_table(pa.table({"user_id": pa.array(rows, kind), "item_id": [str(item) for _, item in NUMBERED]}), path)


@pytest.mark.parametrize("kind", [pa.decimal128(10, 2), pa.decimal256(50, 1), pa.dictionary(pa.int32(), pa.string())])
def test_whole_decimals_of_parquet_are_integers(tmp_path: Path, kind: pa.DataType) -> None:
    """A user 17850.00 of a DECIMAL(10, 2) is asked for as 17850."""
    rows = [str(user) if pa.types.is_dictionary(kind) else Decimal(user) for user, _ in NUMBERED]
    write_parquet(tmp_path / "rows.parquet", kind, rows)
    model = both_accept(tried(tmp_path, source={"type": "parquet", "path": "rows.parquet"}))
    assert recommended(model, "17850")


@pytest.mark.parametrize(
    ("kind", "rows", "words"),
    [
        (pa.decimal128(10, 2), [Decimal("17850.50"), *(Decimal(user) for user, _ in NUMBERED[1:])], "17850.50: is it"),
        (pa.float64(), [float(user) for user, _ in NUMBERED], "CAST(user_id AS BIGINT)"),
        (pa.binary(), [str(user).encode() for user, _ in NUMBERED], "table['user_id'].cast('string')"),
        (pa.binary(5), [str(user).encode() for user, _ in NUMBERED], "CAST(user_id AS VARCHAR)"),
    ],
)
def test_other_numbers_and_bytes_of_parquet_are_refused(
    tmp_path: Path, kind: pa.DataType, rows: list[Any], words: str
) -> None:
    """The error names the conversion to write. Both commands end with the same exit code."""
    write_parquet(tmp_path / "rows.parquet", kind, rows)
    assert words in both_refuse(tried(tmp_path, source={"type": "parquet", "path": "rows.parquet"}))


def test_whole_decimals_of_a_query_are_integers() -> None:
    """Drivers return NUMERIC as decimals, such as 17850.00, and PostgreSQL pads CHAR(8) with blanks."""
    rows = [(Decimal("17850.00"), "b1      "), (None, None), (Decimal("0E-8"), "b2      ")]
    positions = {"user_id": 0, "item_id": 1}
    table = table_of_rows(rows, positions, frozenset(positions), padded=frozenset({1}))
    assert table.to_pydict() == {"user_id": ["17850", None, "0"], "item_id": ["b1", None, "b2"]}
    for value in (Decimal("1.50"), Decimal("NaN")):
        assert pa.types.is_floating(table_of_rows([(value,)], {"a": 0}, frozenset({"a"})).column("a").type)


def test_decimals_in_a_frame_are_named_with_a_conversion_that_works() -> None:
    """`astype(str)` alone would make 17850.00 of 17850."""
    frame = pd.DataFrame({"user_id": [Decimal(f"{user}.00") for user, _ in NUMBERED], "item_id": "x"})
    with pytest.raises(UsageError, match=r"astype\('Int64'\).astype\(str\)"):
        svc.train(frame)
    assert frame["user_id"].astype("Int64").astype(str)[0] == "17850"


PLACEHOLDERS = ["NA", "N/A", "NULL", "None", "NONE", "nan", "\\N", "undefined", "unknown", "''", "0", "-1"]


@pytest.mark.parametrize("word", PLACEHOLDERS)
def test_placeholders_are_named_with_the_filter_that_drops_them(tmp_path: Path, word: str) -> None:
    """The filter makes the warning go away, and the placeholder is no item of the model."""
    rows = choices() + [(f"u{user}", word) for user in range(0, 24, 2)]
    write_csv(tmp_path / "rows.csv", rows)
    first = tried(tmp_path)
    hint = first.hint("placeholder")
    shown = word.replace("\\", "\\\\")
    assert f'`cleansing.where: {{not: {{item_id: {{any: ["{shown}"]}}}}}}`' in hint
    assert "9.1% of the rows" in hint
    second = tried(tmp_path, cleansing={"where": {"not": {"item_id": {"any": [word]}}}})
    assert second.is_silent("placeholder")
    assert recommended(both_accept(second), "u1")
    assert word not in recommended(both_accept(second), "u1")


@pytest.mark.parametrize("prefix", ["", "n", "nana", "0"])
def test_ids_that_only_resemble_placeholders_are_not_named(tmp_path: Path, prefix: str) -> None:
    """Where ids count from 0, it is an id like others if it has no more rows than they have."""
    write_csv(tmp_path / "rows.csv", [(prefix + user[1:], prefix + item[1:]) for user, item in choices()])
    assert tried(tmp_path).is_silent("placeholder")


def test_one_id_with_a_fifth_of_the_rows_is_named(tmp_path: Path) -> None:
    """In the first rows of a longer table that is sorted by user, many rows of one user mean nothing."""
    rows = choices() + [("guest", f"i{number}") for number in range(12)] * 4
    write_csv(tmp_path / "rows.csv", rows[::2] + rows[1::2])
    hint = tried(tmp_path).hint("dominant")
    assert "holds 'guest' in 29% of the rows" in hint
    where = {"not": {"user_id": {"any": ["guest"]}}}
    assert '`cleansing.where: {not: {user_id: {any: ["guest"]}}}`' in hint
    assert tried(tmp_path, cleansing={"where": where}).is_silent("dominant")
    write_csv(tmp_path / "rows.csv", [("a", f"i{n}") for n in range(600)] + choices(n_users=400))
    assert not [line for line in tried(tmp_path).checks if "'a' in" in line]


@pytest.mark.parametrize(
    ("reason", "spoilt", "expression"),
    [
        ("blanks", lambda item: f"{item} ", "TRIM(item_id) AS item_id"),
        ("quotes", lambda item: f'"{item}"', "REPLACE(item_id, '\"', '') AS item_id"),
        ("floating_point", lambda item: f"{item[1:]}.0", "CAST(item_id AS BIGINT) AS item_id"),
    ],
)
def test_blanks_quotes_and_floats_are_mended_by_the_query_that_the_warning_names(
    tmp_path: Path, reason: str, spoilt: Any, expression: str
) -> None:
    """With the expression, users who chose the spoilt id chose the same item as others."""
    rows = [(user, spoilt(item) if item == "i3" and int(user[1:]) % 2 else item) for user, item in choices()]
    if reason == "floating_point":
        rows = [(user, spoilt(item)) for user, item in choices()]
    write_table(tmp_path / "rows.db", rows)
    hint = tried(tmp_path, source=query_of()).hint(reason)
    assert f"write `SELECT {expression}, ...` in source.query" in hint
    mended = tried(tmp_path, source=query_of(f"user_id, {expression}"))
    assert mended.is_silent(reason)
    assert len(both_accept(mended).items()) == 12


def test_floats_of_a_csv_are_read_by_the_type_that_is_named(tmp_path: Path) -> None:
    """17850.0 is the customer 17850 in a table that once had blanks."""
    write_csv(tmp_path / "rows.csv", [(f"{user}.0", item) for user, item in NUMBERED])
    assert "`source.dtype: {user_id: int}`" in tried(tmp_path).hint("floating_point")
    mended = tried(tmp_path, source={"type": "csv", "path": "rows.csv", "dtype": {"user_id": "int"}})
    assert mended.is_silent("floating_point")
    assert recommended(both_accept(mended), "17850")


def test_numbers_that_a_spreadsheet_rounded_are_named(tmp_path: Path) -> None:
    """9.78E+12 was an ISBN. Its last digits are lost."""
    rows = [(user, f"9.78E+{10 + int(item[1:])}") for user, item in choices()]
    write_csv(tmp_path / "rows.csv", rows)
    result = tried(tmp_path)
    assert "12 ids that a spreadsheet rounded, such as '9.78E+10'" in result.hint("exponent")
    assert result.is_silent("floating_point")


def test_ids_of_a_feature_table_are_checked_as_those_of_interactions(tmp_path: Path) -> None:
    """The remedy is one for this table's source."""
    write_csv(tmp_path / "rows.csv", choices())
    write_csv(tmp_path / "items.csv", [(f"i{n}", n % 3) for n in range(12)] + [("7.0", 1)], "item_id,kind")
    side = {
        "source": {"type": "csv", "path": "items.csv"},
        "id_column": "item_id",
        "columns": [{"name": "kind", "kind": "categorical"}],
    }
    result = tried(tmp_path, features={"item": side}, training={**TRAINING, "algorithms": ["IALS"]})
    assert "`source.dtype: {item_id: int}`" in result.hint("floating_point")


@pytest.mark.parametrize(("cells", "shown"), [(("007", "12"), "007"), (("7", "12"), 7), (("0.5", "0"), 0.5)])
def test_texts_with_a_leading_zero_stay_text_in_metadata(
    tmp_path: Path, cells: tuple[str, str], shown: str | float
) -> None:
    """A postal code 007 is not the number 7. Numbers stay numbers."""
    write_csv(tmp_path / "rows.csv", choices())
    write_csv(tmp_path / "items.csv", [(f"i{n}", cells[n % 2]) for n in range(12)], "item_id,code")
    metadata = {"source": {"type": "csv", "path": "items.csv"}, "id_column": "item_id", "fields": ["code"]}
    both_accept(tried(tmp_path, item_metadata=metadata))
    answer = svc.train(tmp_path / "shop.yaml", keys=KEYS, progress=False).recommender.recommend("u1")
    even = answer[answer["item_id"].str[1:].astype(int) % 2 == 0]
    assert set(even["code"]) == {shown}
