"""Fit the encoders of text columns and vector columns of a feature table, and encode the table with them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import sparse

from svc.errors import FeatureDimensionExceeded, FeatureValueUnusable
from svc.model.columns.feature_values import Value
from svc.model.columns.text_column import TextColumn
from svc.model.columns.vector_column import VectorColumn
from svc.model.ids import IdTable

Tokenize = Callable[[object], Iterable[str]]


def frequent_tokens(
    values: Sequence[object],
    weights: NDArray[np.int64],
    tokenize: Tokenize,
    *,
    min_frequency: int,
    limit: float = math.inf,
) -> tuple[dict[str, int], int]:
    """Return the number of rows of each frequent token, and the number of distinct tokens.

    - A token is frequent if at least `min_frequency` rows have it.
    - `weights[j]` is the number of rows with the value `values[j]`.
    - `tokenize` returns each token of a value once.

    Raise FeatureDimensionExceeded if more than `limit` tokens are frequent.
    """
    # Exact counts, because a million tokens take only 62 MB.
    counts: Counter[str] = Counter()
    for value, weight in zip(values, weights.tolist(), strict=True):
        for token in tokenize(value):
            counts[token] += weight
    frequent = {token: count for token, count in counts.items() if count >= min_frequency}
    if len(frequent) > limit:
        raise FeatureDimensionExceeded(
            f"more than {limit} distinct values occur at least {min_frequency} times: raise min_frequency, "
            "or SVC_MAX_FEATURE_DIM"
        )
    return frequent, len(counts)


def distinct_values(values: pd.Series) -> tuple[list[object], NDArray[np.integer], NDArray[np.int64]]:
    """Return the distinct values of a column, the position of each row among them, and the number of rows of each.

    A missing value has the position −1. Lists are not compared: pandas has no categories of them.
    """
    if values.dtype == object and any(isinstance(value, list | dict | np.ndarray) for value in values):
        codes = np.where(values.isna(), -1, np.cumsum(values.notna()) - 1)
        lists = [value for value, code in zip(values, codes, strict=True) if code >= 0]
        return lists, codes, np.ones(len(lists), np.int64)
    # Categories of dropped rows remain in pandas, and would count as values.
    texts = values.astype("category").cat.remove_unused_categories()
    codes = texts.cat.codes.to_numpy()
    return list(texts.cat.categories), codes, np.bincount(codes[codes >= 0], minlength=len(texts.cat.categories))


class UnusableRow(Exception):
    """A row has a value that the encoder of its column cannot read.

    `row` is the position of the row in the fitted column, from 0.
    """

    def __init__(self, row: int, message: str) -> None:
        super().__init__(message)
        self.row = row
        self.message = message


def fit_text(values: pd.Series, declared: Any) -> tuple[TextColumn, sparse.csr_matrix, int]:
    """Return the encoder of a text column, the encoded rows, (rows, words) float32, and the number of distinct words.

    `declared` is the column's block in the recipe. The vocabulary has the `max_words` most frequent words, each in at
    least `min_items` rows, with ties in alphabetical order. Raise UnusableRow for a value that cannot be read.
    """
    categories, codes, weights = distinct_values(values)
    column = TextColumn(
        declared.name,
        IdTable.from_ids([]),
        np.empty(0, dtype=np.int32),
        n_items=len(values),
        max_words=declared.max_words,
        analyzer=declared.analyzer,
    )
    for code, text in enumerate(categories):
        try:
            column.check(text)
        except FeatureValueUnusable as error:
            raise UnusableRow(int(np.argmax(codes == code)), error.message) from None
    counts, distinct = frequent_tokens(
        categories, weights, lambda text: set(column.words(text)), min_frequency=declared.min_items
    )
    # Ties in alphabetical order, so that the words at the limit do not depend on the order of the table.
    ranked = sorted(counts, key=lambda word: (-counts[word], word))[: declared.max_words]
    column.vocabulary = IdTable.from_ids(ranked)
    column.item_counts = np.array([counts[word] for word in ranked], dtype=np.int32)
    encoded = stack_rows((column.read(text)[0] for text in categories), column.width)
    return column, take_rows(encoded, codes), distinct


def fit_vectors(values: pd.Series, declared: Any) -> tuple[VectorColumn, sparse.csr_matrix]:
    """Return the encoder of a column of vectors, and the encoded rows, (rows, dimensions) float32.

    If all vectors are missing or zero, the encoded rows are (rows, 0). `declared` is the column's block in the recipe.
    Raise UnusableRow for a value that cannot be read.
    """
    column = VectorColumn(declared.name, dimensions=declared.dimensions, delimiter=declared.delimiter, length=1.0)
    squares = [float(np.square(vector).sum()) for vector in _vectors(column, values) if vector is not None]
    column.length = math.sqrt(sum(squares) / len(squares)) if squares else 0.0
    read = (column.read(None if vector is None else vector)[0] for vector in _vectors(column, values))
    return column, stack_rows(read, column.width)


def _vectors(column: VectorColumn, values: pd.Series) -> Iterator[NDArray[np.float64] | None]:
    """Yield the vector of each row, or None for a row without a vector. Raise UnusableRow for an unreadable value.

    Callers iterate twice instead of keeping all vectors, because these may need more memory than the column.
    """
    for row, value in enumerate(values):
        try:
            # `pd.isna` of a list is an array, so missing values are told by identity.
            yield column.vector(None if value is pd.NA else value)
        except FeatureValueUnusable as error:
            raise UnusableRow(row, error.message) from None


def take_rows(rows: sparse.csr_matrix, positions: NDArray[Any]) -> sparse.csr_matrix:
    """Return the rows of `rows` at `positions`, with an empty row for the position −1."""
    padded = sparse.vstack([rows, sparse.csr_matrix((1, rows.shape[1]), dtype=rows.dtype)], format="csr")
    return padded[positions]  # -1 selects the last row


def stack_rows(rows: Iterable[Value], width: int) -> sparse.csr_matrix:
    """Return a float32 matrix, (rows, width), from the columns and values of each row's stored entries."""
    entries = [(columns.astype(np.int32), values.astype(np.float32)) for columns, values in rows]
    indptr = np.cumsum([0, *(len(columns) for columns, _ in entries)])
    indices = np.concatenate([*(columns for columns, _ in entries), np.empty(0, dtype=np.int32)])
    data = np.concatenate([*(values for _, values in entries), np.empty(0, dtype=np.float32)])
    return sparse.csr_matrix((data, indices, indptr), shape=(len(entries), width))
