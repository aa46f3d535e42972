"""Fit the encoder of a feature table, and encode the features of the users or items of the interactions with it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from svc import events, logs
from svc.errors import FeatureAxisError, FeatureDimensionExceeded, FeatureTableError
from svc.model.columns.text_column import TextColumn
from svc.model.features import Column, NumberColumn, SideEncoder, TokenColumn
from svc.model.ids import IdTable
from svc.recipe.training_schema import FeatureSide
from svc.settings import Settings
from svc.training.data.doubts import feature_doubts
from svc.training.data.interactions import id_codes
from svc.training.data.text_features import (
    UnusableRow,
    distinct_values,
    fit_text,
    fit_vectors,
    frequent_tokens,
    stack_rows,
    take_rows,
)
from svc.training.data.times import as_numbers

SideName = Literal["user", "item"]
_PRUNING_WARNING = 0.2
_SAMPLE = 5
_NARROWED_BY = {
    "categorical": "raise min_frequency",
    "multi_label": "raise min_frequency",
    "text": "lower max_words",
    "vector": "lower dimensions",
    "numerical": "leave out some",
}
"""The way to make a column of each kind narrower, for error messages."""


@dataclass(frozen=True, slots=True, eq=False)
class FittedSide:
    """The features of all users or of all items: a fitted encoder and the encoded features.

    `matrix`, (ids, encoder.dim) float32 CSR, has a row for each user or item of the interactions, in their order.
    """

    encoder: SideEncoder
    matrix: sparse.csr_matrix

    def blocks(self) -> Iterator[tuple[Column, sparse.csr_matrix]]:
        """Yield each encoded column with its part of `matrix`, (ids, column.width)."""
        start = 0
        for column in self.encoder.encoders:
            yield column, self.matrix[:, start : start + column.width]
            start += column.width


def fit_side(frame: pd.DataFrame, side: Any, name: SideName, ids: Sequence[str], settings: Settings) -> FittedSide:
    """Fit an encoder on the feature table `frame`, and encode `ids`.

    `side` is the block of the recipe with `id_column` and `columns`. The encoder is fitted on the first row of each id
    of the table, also of ids that are not in `ids`. Each of `ids` gets the features of its row and a constant feature.
    Ids without a row get only the constant feature.

    Raise FeatureAxisError if none of `ids` is in the table, and FeatureDimensionExceeded for too many features. Raise
    FeatureTableError for an unreadable text or vector, or if no column distinguishes any rows.
    """
    rows_of_table, numbers, row_of = _first_rows(frame, side.id_column, name, ids)
    columns: list[Column] = []
    blocks: list[sparse.csr_matrix] = []
    varies = False
    for declared in side.columns:
        try:
            column, rows = _fit_column(rows_of_table[declared.name], declared, settings.max_feature_dim)
        except UnusableRow as error:
            raise refused_row(name, int(numbers[error.row]), error.message) from None
        if not column.width:
            logs.emit(events.FEATURE_EMPTY_VOCABULARY_COLUMN, column=declared.name, side=name)
        columns.append(column)
        blocks.append(take_rows(rows, row_of))
        # Sparse maxima include the zeros that are not stored.
        varies = varies or (rows.shape[1] > 0 and bool((rows.max(axis=0) - rows.min(axis=0)).nnz))
    encoder = SideEncoder(tuple(columns))
    _check_width(encoder, name, settings)
    if not varies:
        raise FeatureTableError(
            f"features.{name}: every declared column is constant: all rows of the table have the same values, so "
            "nothing distinguishes them. Declare other columns."
        )
    constant = sparse.csr_matrix(np.ones((len(ids), 1), dtype=np.float32))
    return FittedSide(encoder, sparse.hstack([*blocks, constant], format="csr", dtype=np.float32))


def refused_row(name: SideName, number: int, message: str) -> FeatureTableError:
    """Return the error for a value that no encoder accepts, in row `number`, counted from 1."""
    return FeatureTableError(f"features.{name}: row {number} of the table: {message}")


def _check_width(encoder: SideEncoder, name: SideName, settings: Settings) -> None:
    if encoder.dim == 1:
        raise FeatureTableError(
            f"features.{name}: every declared column encodes to nothing: min_frequency pruned all values, a number "
            "does not vary, or all values are missing. Lower min_frequency, or declare other columns."
        )
    if encoder.dim > settings.max_feature_dim:
        widest = max(encoder.encoders, key=lambda column: column.width)
        raise FeatureDimensionExceeded(
            f"features.{name}: the encoded dimension {encoder.dim} is above SVC_MAX_FEATURE_DIM "
            f"({settings.max_feature_dim}); {_NARROWED_BY[widest.kind]} of the widest column, {widest.name!r} "
            f"({widest.width} {'words' if widest.kind == 'text' else 'values'}), or raise SVC_MAX_FEATURE_DIM"
        )


def _first_rows(
    frame: pd.DataFrame, id_column: str, name: SideName, ids: Sequence[str]
) -> tuple[pd.DataFrame, NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows of a feature table without those of blank and repeated ids.

    Also return the number of each of these rows in the whole table, counted from 1, and the row of each of `ids`, −1 if
    it has none.
    """
    codes, names = id_codes(frame[id_column])
    is_named = codes >= 0
    first = is_named & ~pd.Series(codes).duplicated().to_numpy()
    n_blank, n_repeated = int((~is_named).sum()), int(is_named.sum() - first.sum())
    if n_blank or n_repeated:
        logs.emit(events.FEATURE_ROWS_DROPPED, side=name, duplicates=n_repeated, blank_ids=n_blank)
    # `get_indexer` returns -1 for an id without a row, which selects the last element.
    row_of_code = np.full(len(names) + 1, -1, dtype=np.int64)
    row_of_code[codes[first]] = np.arange(int(first.sum()))
    row_of = row_of_code[pd.Index(names, dtype=object).get_indexer(pd.Index(list(ids), dtype=object))]
    matched = int(np.count_nonzero(row_of >= 0))
    logs.emit(events.FEATURE_AXIS_COVERAGE, side=name, matched=matched, total=len(ids))
    if not matched:
        own_ids = [names[code] for code in codes[first][:_SAMPLE]]
        raise FeatureAxisError(
            f"features.{name}: no {name} id of the interactions is in the column {id_column!r} of the feature table. "
            f"The interactions have ids such as {list(ids[:_SAMPLE])}, the table has {own_ids}. Ids are compared as "
            "text and never converted: a blank cell turns whole numbers into 1.0, 2.0 unless the type is pinned to str."
        )
    return frame[first].reset_index(drop=True), np.flatnonzero(first) + 1, row_of


def _fit_column(values: pd.Series, declared: Any, limit: int) -> tuple[Column, sparse.csr_matrix]:
    """Return the encoder of a column, and the encoded rows of the table, (rows, width).

    `declared` is the column's block in the recipe. `limit` is the most values of a categorical or multi-label column.
    Raise FeatureDimensionExceeded above it, and UnusableRow for an unreadable text or vector.
    """
    if declared.kind == "numerical":
        return _fit_numbers(values, declared.name)
    if declared.kind == "vector":
        return fit_vectors(values, declared)
    if declared.kind == "text":
        text, rows, distinct = fit_text(values, declared)
        _warn_of_pruning(text, distinct, declared.min_items, rows, len(values))
        return text, rows
    categories, codes, weights = distinct_values(values)
    column = TokenColumn(declared.name, declared.kind, IdTable.from_ids([]), declared.delimiter)
    try:
        counts, distinct = frequent_tokens(
            categories, weights, column.split, min_frequency=declared.min_frequency, limit=limit
        )
    except FeatureDimensionExceeded as error:
        raise FeatureDimensionExceeded(f"feature column {declared.name!r}: {error.message}") from None
    except (TypeError, ValueError) as error:
        raise FeatureTableError(f"feature column {declared.name!r}: {error}; give text, numbers or booleans") from None
    # Sorted, so that the columns do not depend on the order of the table.
    column.tokens = IdTable.from_ids(sorted(counts))
    # Each distinct value is encoded once, and then copied to its rows.
    encoded = stack_rows((column.read(value)[0] for value in categories), column.width)
    rows = take_rows(encoded, codes)
    _warn_of_pruning(column, distinct, declared.min_frequency, rows, len(values))
    return column, rows


def _fit_numbers(values: pd.Series, name: str) -> tuple[NumberColumn, sparse.csr_matrix]:
    numbers = as_numbers(values)
    column = NumberColumn.fit(name, numbers)
    if not column.width:
        return column, sparse.csr_matrix((len(numbers), 0), dtype=np.float32)
    # An infinite number counts as missing, because it would make the mean infinite.
    is_known = np.isfinite(numbers)
    places = np.flatnonzero(is_known), np.zeros(np.count_nonzero(is_known), dtype=np.int32)
    standardized = column.standardize(numbers[is_known]).astype(np.float32)  # 0 is stored too: a missing number is not
    return column, sparse.csr_matrix((standardized, places), shape=(len(numbers), 1))


def _warn_of_pruning(
    column: TokenColumn | TextColumn, distinct: int, min_frequency: int, rows: sparse.csr_matrix, n_rows: int
) -> None:
    without = int(np.count_nonzero(np.diff(rows.indptr) == 0))
    # Only if values were pruned: rows are also empty because their cells are.
    if column.width < distinct and n_rows and without >= _PRUNING_WARNING * n_rows:
        logs.emit(
            events.FEATURE_VOCABULARY_PRUNED,
            column=column.name,
            min_frequency=min_frequency,
            distinct_values=distinct,
            kept_values=column.width,
            rows_without_signal=without,
            n_rows=n_rows,
        )


_MARKUP = re.compile(r"</?[a-z][a-z0-9]{0,12}[ />]|&[a-z]{2,8};", re.IGNORECASE)
_MANY = 0.01


def sample_warnings(side: FeatureSide, name: SideName, frame: pd.DataFrame) -> list[str]:
    """Return warnings about labels, texts and repeated ids in the first rows of a feature table, `frame`.

    Tables without text and vector columns cause no warnings about ids. Raise FeatureTableError for a text or vector
    that cannot be read.
    """
    columns = [column for column in side.columns if column.kind in ("text", "vector")]
    lines = [f"warning: {doubt.message}" for doubt in feature_doubts(frame, side.columns, f"features.{name}.columns")]
    for column in columns:
        values = frame[column.name]
        try:
            (fit_text if column.kind == "text" else fit_vectors)(values, column)
        except UnusableRow as error:
            raise refused_row(name, error.row + 1, error.message) from None
        if column.kind == "text" and (warning := _markup(column.name, values)):
            lines.append(warning)
    ids = frame[side.id_column].dropna().astype(str)
    repeated = ids[ids.duplicated()]
    if len(repeated) and columns:
        lines.append(
            f"warning: {side.id_column} {repeated.iloc[0]!r} occurs more than once in the first {len(frame)} rows, "
            f"as do {repeated.nunique() - 1} others: the first row of an id counts"
        )
    return lines


def _markup(name: str, values: pd.Series) -> str | None:
    """Return a warning if over 1% of the texts hold HTML tags or entities, because their names would count as words."""
    marked = [row for row, value in enumerate(values) if isinstance(value, str) and _MARKUP.search(value)]
    if len(marked) <= _MANY * len(values):
        return None
    return (
        f"warning: {name}: {len(marked)} of the first {len(values)} texts hold markup, such as row {marked[0] + 1}; "
        "its tags and entities count as words: strip them"
    )
