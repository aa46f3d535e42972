"""Types of csv columns: set by the recipe's `dtype`, otherwise inferred from the whole column.

Inference takes the first type that fits all rows: integers, floats, booleans, text. Blanks are missing values. In
columns of numbers NA, NaN, null and similar words are missing values too.
"""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from svc.sources import arrow

_PINNED = {
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
"""Texts that mean a missing value in columns of numbers."""
_NOTHING = arrow.texts(WORDS_FOR_NOTHING)
_TRUTH = arrow.texts(["true", "false"])
_MISSING = pa.nulls(1, pa.string())[0]


def dtype_of(dtype: str) -> pa.DataType:
    """Return the Arrow type for a type name in a recipe's `dtype`."""
    return _PINNED[dtype]


def by_content(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Convert a text column to the first type that all its values fit: integer, float, boolean, text."""
    stripped = pc.if_else(pc.is_in(column, value_set=_NOTHING), _MISSING, column)
    if stripped.null_count < len(stripped):
        for kind in (pa.int64(), pa.float64()):
            try:
                return stripped.cast(kind)
            except pa.ArrowInvalid:
                continue
        lowered = pc.utf8_lower(stripped)
        if pc.all(pc.is_in(lowered.drop_null(), value_set=_TRUTH)).as_py():
            return lowered.cast(pa.bool_())
    return text_with_gaps(column)


def text_with_gaps(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the text column with null in place of blanks."""
    return pc.if_else(pc.is_in(column, value_set=_BLANK), _MISSING, column)
