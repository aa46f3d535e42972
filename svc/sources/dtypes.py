"""Conversion of the columns of text files: the types that a recipe's `dtype` names, and types by content."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from svc.errors import DataSourceError
from svc.sources import arrow

DTYPES = {
    "str": pa.string(),
    "string": pa.string(),
    "int": pa.int64(),
    "int64": pa.int64(),
    "float": pa.float64(),
    "float64": pa.float64(),
    "bool": pa.bool_(),
    "datetime": pa.timestamp("us"),
}
_BLANK = arrow.texts([""])
WORDS_FOR_NOTHING = ("", "NA", "N/A", "NaN", "nan", "null", "NULL", "None")
"""Texts that mean a missing value in columns of numbers and booleans."""
_NOTHING = arrow.texts(WORDS_FOR_NOTHING)
_NULLS = arrow.texts(pa_csv.ConvertOptions().null_values)
"""Texts that Arrow's csv reader takes for missing values in columns with a declared type other than text."""
_CODE = "^[+-]?0[xX0-9]"
_TRUTH = arrow.texts(["true", "false"])
_MISSING = pa.nulls(1, pa.string())[0]
_ZEROS = r"^(-?[0-9]+)\.0*$"
"""A whole number as tools write it that hold columns with blanks as floats, such as 17850.0."""


def by_content(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a text column to the first type that all its values fit: integer, float, boolean, text.

    Texts with a leading zero, such as 007, are codes and not numbers, so their column stays text.
    """
    stripped = pc.if_else(pc.is_in(column, value_set=_NOTHING), _MISSING, column)
    if stripped.null_count < len(stripped):
        # Integers first, because a float64 holds only integers up to 2^53 exactly.
        for kind in (pa.int64(), pa.float64()):
            try:
                numbers = stripped.cast(kind)
            except pa.ArrowInvalid:
                continue
            # Arrow reads the code 0x10 as 16, and 007 as 7.
            is_code = pc.any(pc.match_substring_regex(column, _CODE)).as_py()
            return text_with_gaps(column) if is_code else numbers
        # Words only: Arrow's cast takes 0 and 1 for booleans, too.
        lowered = pc.utf8_lower(stripped)
        if pc.all(pc.is_in(lowered.drop_null(), value_set=_TRUTH)).as_py():
            return lowered.cast(pa.bool_())
    return text_with_gaps(column)


def text_with_gaps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the text column with null in place of empty texts."""
    return pc.if_else(pc.is_in(column, value_set=_BLANK), _MISSING, column)


def as_dtype(column: pa.ChunkedArray, dtype: str, name: str, where: str, n_before: int) -> pa.Array | pa.ChunkedArray:
    """Return a column of any type with the type that `dtype` names.

    Raises DataSourceError as `whole_numbers` does, for integers with the data row of the first unfit value.
    """
    kind = DTYPES[dtype]
    try:
        if kind == pa.int64() and column.type != kind:
            return whole_numbers(column.cast(pa.string()), name, where, n_before)
        return column.cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataSourceError(f"{where}: the column {name} cannot be read as {dtype}: {str(error)[:200]}") from None


def whole_numbers(column: pa.Array | pa.ChunkedArray, name: str, where: str, n_before: int) -> pa.Array:
    """Return a text column as integers of 64 bits. `17850.0` is 17850.

    Missing values are those of Arrow's csv reader. Raises DataSourceError for any other text, with its data row in the
    file `where`, of which `n_before` rows were read before.
    """
    texts = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    # Arrow's csv reader trims numbers, its cast does not.
    texts = pc.utf8_trim(pc.if_else(pc.is_in(texts, value_set=_NULLS), pa.scalar(None, texts.type), texts), " \t")
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        # Only now, because most columns have no decimal places, and the replacement copies all texts.
        texts = pc.replace_substring_regex(texts, _ZEROS, r"\1")
    try:
        return texts.cast(pa.int64())
    except pa.ArrowInvalid:
        # Arrow names the unfit value but not its row.
        row = next(index for index in range(len(texts)) if not _is_whole(texts.slice(index, 1)))
        raise DataSourceError(
            f"{where}, data row {n_before + row + 1}: the column {name} holds {texts[row].as_py()[:40]!r}, which is no "
            "whole number, as its `dtype` int says"
        ) from None


def _is_whole(text: pa.Array) -> bool:
    try:
        text.cast(pa.int64())
    except pa.ArrowInvalid:
        return False
    return True
