"""Types of csv columns: those that a recipe pins, and those that the content of a whole column shows.

Content decides over all rows, never over the first ones: whole numbers, else numbers, else true/false, else text.
Blanks, and in columns of numbers the usual words for nothing (NA, NaN, null), are missing values.
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
"""What a missing value is called in columns of numbers."""
_NOTHING = arrow.texts(WORDS_FOR_NOTHING)
_TRUTH = arrow.texts(["true", "false"])
_MISSING = pa.nulls(1, pa.string())[0]


def pinned(dtype: str) -> pa.DataType:
    """The Arrow type for a name that `dtype` of a recipe may hold."""
    return _PINNED[dtype]


def by_content(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column of text as what its values are."""
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
    """Text with blanks as missing values."""
    return pc.if_else(pc.is_in(column, value_set=_BLANK), _MISSING, column)
