"""Find ids that probably mean something else than they say: placeholders, remains of a spreadsheet, quotes, blanks.

`svc validate` shows them for the first rows of each table, and `svc train` logs them for all rows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from svc import events, logs
from svc.names import MAX_ID_CHARACTERS, is_float_text
from svc.training.data.interactions import id_codes

PLACEHOLDERS: Final = frozenset({"na", "n/a", "#n/a", "null", "none", "nan", "\\n", "undefined", "unknown", '""', "''"})
"""Words for a missing id, in lower case."""
LARGE_SHARE: Final = 0.2
"""An id with more than this share of the rows is hardly one user or one item."""
_MANY_ROWS: Final = 0.01
"""Share of the rows above which 0 and -1 count as placeholders."""
_FAR_MORE: Final = 2
"""An id has too many rows only if it has this many times the mean. Else each of three users would have too many."""
_EXPONENT = re.compile(r"[+-]?[0-9]([.,][0-9]{0,20})?[eE]\+?[0-9]{1,3}")
_BYTES = re.compile("b'.+'|b\".+\"")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060\ufeff]")
_MANY_IN_CASE: Final = 0.01
"""Share of ids above which ids that differ by case alone are hardly random ones, in which each case means another id.
"""
_SHOWN_CHARACTERS = 40
_FAULTS: Final = {
    "floating_point": "holds floating point numbers, such as {example}, and requests must ask for {example!r}",
    "blanks": "has ids that differ by blanks at an end or invisible characters, such as {example!r}",
    "case": "has ids that differ by upper and lower case, such as {example!r}; if they mean the same",
    "quotes": "has ids with quote marks, such as {example!r}",
    "bytes": "holds bytes as Python prints them, such as {example!r}",
}
_REWRITES: Final = {
    "floating_point": ("CAST({name} AS BIGINT) AS {name}", ".astype(float).astype('Int64').astype(str)"),
    "blanks": ("TRIM({name}) AS {name}", ".str.strip()"),
    "case": ("LOWER({name}) AS {name}", ".str.lower()"),
    "quotes": ("REPLACE({name}, '\"', '') AS {name}", ".str.replace('\"', '')"),
    "bytes": ("SUBSTR({name}, 3, LENGTH({name}) - 3) AS {name}", ".str[2:-1]"),
}
"""The expression of a query, and the end of one of pandas, that mend the ids, by reason."""
_YAML_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class IdDoubt:
    """A warning about ids of one column: its reason, how many ids it is about, one of them, and its text."""

    side: str
    reason: str
    count: int
    example: str
    message: str

    def log(self) -> None:
        """Log the warning as an event."""
        logs.emit(events.IDS_HARDLY_MEANT, **asdict(self))


def id_doubts(
    column: pd.Series, side: str, source_type: str, *, are_rows: bool, is_sample: bool = False
) -> Iterator[IdDoubt]:
    """Yield the warnings about the ids in `column`, one for each reason.

    - `side` is "user" or "item".
    - `source_type` is the type of the source, which decides the remedy.
    - `are_rows` is True for interactions, where the number of rows of an id counts. Only one row of a table of features
      or metadata has the id, so a placeholder there does no harm.
    - `is_sample` is True for the first rows of a longer table. They may be sorted by user.
    """
    codes, texts_of_codes = id_codes(column)
    names = texts_of_codes.tolist()
    counts = np.bincount(codes[codes >= 0], minlength=len(names))
    rows_of = {name: n for name, n in zip(names, counts.tolist(), strict=True) if n}
    name = str(column.name)
    reasons: dict[str, list[str]] = {
        "too_long": [text for text in rows_of if len(text) > MAX_ID_CHARACTERS],
        "floating_point": [text for text in rows_of if is_float_text(text)],
        "exponent": [text for text in rows_of if _EXPONENT.fullmatch(text)],
        "quotes": [text for text in rows_of if _is_quoted(text)],
        "bytes": [text for text in rows_of if _BYTES.fullmatch(text)],
        "blanks": [text for text in rows_of if text != _bare(text) and _bare(text) in rows_of],
    }
    first_of: dict[str, str] = {}
    # The first id of each spelling is returned by setdefault, so the others differ from it by case alone.
    in_case = [text for text in rows_of if first_of.setdefault(text.lower(), text) != text]
    reasons["case"] = in_case if len(in_case) > _MANY_IN_CASE * len(rows_of) else []
    if are_rows:
        placeholders = _placeholders(rows_of)
        reasons["placeholder"] = placeholders
        # A placeholder already explains why one id has many rows.
        reasons["dominant"] = [] if placeholders else _dominant(rows_of, codes, names, is_sample=is_sample)
    for reason, texts in reasons.items():
        if texts:
            advice = _advice(reason, name, texts, rows_of, source_type)
            message = f"the id column {name} {advice}"
            yield IdDoubt(side, reason, len(texts), texts[0][:_SHOWN_CHARACTERS], message)


def _bare(text: str) -> str:
    # Most ids are ASCII. With this test a million take 0.35 s instead of 0.9.
    return (text if text.isascii() else _INVISIBLE.sub("", text)).strip()


def _is_quoted(text: str) -> bool:
    bare = text.lstrip("\\")
    return len(text) > 2 and (bare[:1] == '"' or bare[:1] == bare[-1:] == "'")


def _placeholders(rows_of: Mapping[str, int]) -> list[str]:
    words = [text for text in rows_of if text.strip().lower() in PLACEHOLDERS]
    least, most = _MANY_ROWS * sum(rows_of.values()), max(rows_of.values(), default=0)
    # Ids that count from 0 have a 1 too. Then 0 is a placeholder only if it has the most rows, as guests have.
    is_id = "1" in rows_of and (rows_of.get("0") != most or list(rows_of.values()).count(most) > 1)
    numbers = ["-1"] if is_id else ["-1", "0"]
    return words + [text for text in numbers if rows_of.get(text, 0) > least]


def _dominant(
    rows_of: Mapping[str, int], codes: NDArray[np.generic], names: list[str], *, is_sample: bool
) -> list[str]:
    if not rows_of:
        return []
    most = max(rows_of, key=lambda text: rows_of[text])
    if rows_of[most] <= sum(rows_of.values()) * max(LARGE_SHARE, _FAR_MORE / len(rows_of)):
        return []
    places = np.flatnonzero(codes == names.index(most))
    # The beginning of a table that is sorted by user has the rows of one or two users.
    is_sorted = bool(places[-1] - places[0] + 1 == len(places))
    return [] if is_sample and is_sorted else [most]


def _advice(reason: str, name: str, texts: list[str], rows_of: Mapping[str, int], source_type: str) -> str:
    """Return the end of the message: the fault with an example, and the line that mends it."""
    shown, key = repr(texts[0][:_SHOWN_CHARACTERS]), yaml_key(name)
    if reason == "too_long":
        return f"has {len(texts)} ids above {MAX_ID_CHARACTERS} characters, such as {shown}: requests refuse them"
    if reason == "exponent":
        return (
            f"holds {len(texts)} ids that a spreadsheet rounded, such as {shown}, so different ids became one: format "
            "the column as a number without decimals and save it again"
        )
    if reason in _REWRITES:
        fault = _FAULTS[reason].format(example=texts[0][:_SHOWN_CHARACTERS])
        is_frame = source_type == "dataframe"
        if reason == "blanks" and any(text.strip(None if is_frame else " ") != _bare(text) for text in texts):
            remedy = ".str.strip() keeps invisible characters" if is_frame else "TRIM removes only plain blanks"
            return f"{fault}: mend the source, as {remedy}{'' if is_frame else ' in most databases'}"
        return f"{fault}: {_rewrite(reason, name, source_type)}"
    listed = ", ".join(json.dumps(text, ensure_ascii=False) for text in texts)
    share = sum(rows_of[text] for text in texts) / sum(rows_of.values())
    line = f"`cleansing.where: {{not: {{{key}: {{any: [{listed}]}}}}}}` drops them"
    if reason == "placeholder":
        return f"holds {listed} in {share:.1%} of the rows, which looks like a missing id: {line}"
    return f"holds {shown} in {share:.0%} of the rows: if it stands for several or for none, {line}"


def yaml_key(name: str) -> str:
    """Return the name of a column as a key of YAML. A name such as 1 or yes needs quotes to stay a text."""
    return name if name.isidentifier() and name.lower() not in _YAML_WORDS else json.dumps(name, ensure_ascii=False)


def _rewrite(reason: str, name: str, source_type: str) -> str:
    if reason == "floating_point" and source_type == "csv":
        return f"`source.dtype: {{{yaml_key(name)}: int}}` reads them as integers"
    expression, of_pandas = _REWRITES[reason]
    if source_type == "dataframe":
        return f"write data[{name!r}] = data[{name!r}]{of_pandas}"
    query = f"`SELECT {expression.format(name=name)}, ...`"
    is_query = source_type in ("sql", "bigquery", "duckdb")
    return f"write {query} in source.query" if is_query else f"mend the file, or read it by a query, {query}"
