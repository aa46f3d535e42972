"""Features of texts and vectors in training: vocabularies, encoding and limits."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from svc.errors import FeatureDimensionExceeded, FeatureTableError
from svc.model.columns.text_column import MAX_CHARACTERS, TextColumn
from svc.model.columns.vector_column import VectorColumn
from svc.settings import Settings
from svc.training.data.features import FittedSide, fit_side
from svc.training.data.text_features import frequent_tokens
from tests.training.data.test_features import side

ROWS = st.lists(st.tuples(st.lists(st.sampled_from("abcdefgh"), max_size=4), st.integers(1, 5)), max_size=12)


def tokens_of(value: object) -> list[str]:
    assert isinstance(value, tuple)
    return sorted(set(value))


@given(rows=ROWS, min_frequency=st.integers(1, 6))
def test_counts_are_those_of_rows(rows: list[tuple[list[str], int]], min_frequency: int) -> None:
    values = [tuple(tokens) for tokens, _ in rows]
    weights = np.array([weight for _, weight in rows], dtype=np.int64)
    frequent, distinct = frequent_tokens(values, weights, tokens_of, min_frequency=min_frequency, limit=100)
    counts: Counter[str] = Counter()
    for tokens, weight in rows:
        counts.update(dict.fromkeys(set(tokens), weight))
    assert frequent == {token: count for token, count in counts.items() if count >= min_frequency}
    assert distinct == len(counts)


def test_too_many_tokens_are_refused() -> None:
    values = [(str(number),) for number in range(11)]
    with pytest.raises(FeatureDimensionExceeded, match="raise min_frequency"):
        frequent_tokens(values, np.ones(11, dtype=np.int64), tokens_of, min_frequency=1, limit=10)


TITLE = {"name": "title", "kind": "text"}
EMBEDDING = {"name": "embedding", "kind": "vector", "dimensions": 2}


def fit(values: list[Any], declared: dict[str, Any], *, max_places: int = 32_768) -> FittedSide:
    ids = [f"i{number}" for number in range(len(values))]
    frame = pd.DataFrame({"id": pd.Categorical(ids), declared["name"]: pd.Series(values, dtype=object)})
    return fit_side(frame, side(declared), "item", ids, Settings(max_feature_dim=max_places))


def words(fitted: FittedSide) -> dict[str, int]:
    column = fitted.encoder.encoders[0]
    assert isinstance(column, TextColumn)
    return dict(zip(column.vocabulary.all(), column.item_counts.tolist(), strict=True))


def test_the_vocabulary_has_the_words_of_most_items() -> None:
    """A word counts once for each item. The alphabet breaks ties. Words of a single item are left out."""
    texts = ["sea sea man", "Sea", "the sea", "the man", "zoo ape", "ape zoo", None]
    assert words(fit(texts, TITLE)) == {"sea": 3, "ape": 2, "man": 2, "the": 2, "zoo": 2}
    assert list(words(fit(texts, {**TITLE, "max_words": 3}))) == ["sea", "ape", "man"]
    assert words(fit(texts, {**TITLE, "min_items": 3})) == {"sea": 3}
    assert set(words(fit(["人民的", "人民的", None], {**TITLE, "analyzer": "char"}))) == {"人民的"}


def test_rows_are_encoded_as_requests_are() -> None:
    """Repeated texts, missing texts and ids without a row give the same values as requests."""
    texts = ["old sea", "old sea", None, "sea man", "man overboard"]
    fitted = fit(texts, TITLE)
    for row, text in enumerate(texts):
        np.testing.assert_allclose(
            fitted.matrix[row].toarray()[0], fitted.encoder.encode({"title": text})[0], rtol=1e-6
        )


def test_vectors_have_length_one_on_average() -> None:
    """A vector is a list or a text. A missing one is zero, and does not count in the average."""
    fitted = fit([[3.0, 4.0], "0|12.5", None], EMBEDDING)
    column = fitted.encoder.encoders[0]
    assert isinstance(column, VectorColumn)
    squares = np.square(fitted.matrix.toarray()[:, :2]).sum(axis=1)
    assert squares[:2].mean() == pytest.approx(1.0)
    assert squares[2] == 0
    np.testing.assert_allclose(
        fitted.matrix[0].toarray()[0], fitted.encoder.encode({"embedding": [3, 4]})[0], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("values", "declared", "words"),
    [
        (["sea", "sea", "x" * (MAX_CHARACTERS + 1)], TITLE, "feature 'title': the text has 65537 characters"),
        (["1|2", None, "1|2|3"], EMBEDDING, "feature 'embedding': the vector has 3 numbers"),
        ([[1, 2], None, [1.0, float("nan")]], EMBEDDING, "feature 'embedding': number 2 is not finite"),
    ],
)
def test_a_value_that_cannot_be_read_is_refused_with_its_row(
    values: list[Any], declared: dict[str, Any], words: str
) -> None:
    """Rows count from 1, also in a large table."""
    with pytest.raises(FeatureTableError) as caught:
        fit(values, declared)
    assert caught.value.message.startswith(f"features.item: row 3 of the table: {words}")


def test_a_row_that_is_left_out_may_have_a_text_that_cannot_be_read() -> None:
    """Of repeated ids, only the first row is read."""
    texts = ["old sea", "sea", "x" * (MAX_CHARACTERS + 1)]
    frame = pd.DataFrame({"id": ["a", "b", "a"], "title": pd.Categorical(texts)})
    assert fit_side(frame, side({**TITLE, "min_items": 1}), "item", ["a"], Settings()).encoder.dim == 3


def test_too_many_words_are_refused_with_the_setting_to_lower() -> None:
    """The limit applies to all columns together."""
    texts = [*[" ".join(f"w{number}" for number in range(40))] * 2, None]
    assert fit(texts, TITLE, max_places=41).encoder.dim == 41
    with pytest.raises(FeatureDimensionExceeded, match="lower max_words of the widest column, 'title'"):
        fit(texts, TITLE, max_places=40)
