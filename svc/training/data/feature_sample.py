"""The report of `svc validate` on the texts and vectors in the first rows of a feature table."""

from __future__ import annotations

import re

import pandas as pd

from svc.recipe.side_tables import FeatureColumn, FeatureSide
from svc.training.data.features import SideName, refused_row
from svc.training.data.text_features import UnusableRow, fit_text, fit_vectors

_MARKUP = re.compile(r"</?[a-z][a-z0-9]{0,12}[ />]|&[a-z]{2,8};", re.IGNORECASE)
_MANY = 0.01


def described_sample(side: FeatureSide, name: SideName, frame: pd.DataFrame) -> list[str]:
    """Return a line for each text and vector column, and warnings.

    Raise FeatureTableError if a training would.
    """
    columns = [column for column in side.columns if column.kind in ("text", "vector")]
    lines = []
    for column in columns:
        try:
            lines.append(_summary(column, frame[column.name]))
        except UnusableRow as error:
            raise refused_row(name, error.row + 1, error.message) from None
        if column.kind == "text" and (warning := _markup(column.name, frame[column.name])):
            lines.append(warning)
    ids = frame[side.id_column].dropna().astype(str)
    repeated = ids[ids.duplicated()]
    if len(repeated) and columns:
        lines.append(
            f"warning: {side.id_column} {repeated.iloc[0]!r} is there more than once in the first {len(frame)} rows, "
            f"as are {repeated.nunique() - 1} others: the first row of an id counts"
        )
    return lines


def _summary(column: FeatureColumn, values: pd.Series) -> str:
    n_rows = len(values)
    if column.kind == "vector":
        _, rows = fit_vectors(values, column)
        return f"{column.name}: {int((rows.getnnz(axis=1) > 0).sum())} of the first {n_rows} rows have a vector"
    text, rows, distinct = fit_text(values, column)
    without = int((rows.getnnz(axis=1) == 0).sum())
    unit = "words" if column.analyzer == "word" else "runs"
    return (
        f"{column.name}: of {distinct} {unit} in the first {n_rows} rows {text.width} would be kept, those of at least "
        f"{column.min_items} rows; {without} rows have none of them"
    )


def _markup(name: str, values: pd.Series) -> str | None:
    """Return a warning if texts hold HTML tags or entities, because their names would count as words."""
    marked = [row for row, value in enumerate(values) if isinstance(value, str) and _MARKUP.search(value)]
    if len(marked) <= _MANY * len(values):
        return None
    return (
        f"warning: {name}: {len(marked)} of the first {len(values)} texts hold markup, such as row {marked[0] + 1}; "
        "its tags and entities count as words: strip them"
    )
