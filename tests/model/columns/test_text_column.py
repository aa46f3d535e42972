"""Text columns: TF-IDF vectors, compared with scikit-learn's, and refused values."""

from __future__ import annotations

import itertools
import random
import unicodedata
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.feature_extraction.text import TfidfVectorizer

from svc.errors import FeatureValueUnusable
from svc.model.columns.text_column import MAX_CHARACTERS, Analyzer, TextColumn, words_of
from svc.model.ids import IdTable

TEXTS = [
    "The Old Man and the Sea",
    "the sea, the sea — and the SEA",
    "Fantômas: À l'ombre de la guillotine",
    "Straße 1984 <b>sea</b>",
    "人民的名义 人民",
    "🦆🦆 duck_tape",
    "",
]
NORMALIZE = unicodedata.normalize
AS_SCIKIT_LEARN: dict[Analyzer, dict[str, Any]] = {
    "word": {"token_pattern": r"[^\W_]+"},
    "char": {"analyzer": "char", "ngram_range": (3, 5)},
}


def fitted(analyzer: Analyzer, texts: list[str] = TEXTS, *, without: str = "") -> tuple[TextColumn, TfidfVectorizer]:
    """Return a column and scikit-learn's vectorizer, fitted on all words of `texts` but one."""
    vocabulary = sorted({word for text in texts for word in words_of(text, analyzer)} - {without})
    theirs = TfidfVectorizer(vocabulary=vocabulary, **AS_SCIKIT_LEARN[analyzer]).fit(texts)
    counts = [sum(word in words_of(text, analyzer) for text in texts) for word in vocabulary]
    column = TextColumn(
        "title",
        IdTable.from_ids(vocabulary),
        np.array(counts, dtype=np.int32),
        n_items=len(texts),
        max_words=10_000,
        analyzer=analyzer,
    )
    return column, theirs


def dense(column: TextColumn, text: str) -> np.ndarray:
    vector = np.zeros(column.width)
    places, values = column.read(text)[0]
    vector[places] = values
    return vector


@pytest.mark.parametrize("analyzer", ["word", "char"])
def test_vectors_equal_those_of_scikit_learn(analyzer: Analyzer) -> None:
    """Vectors agree to 1e-9 on training texts and on texts with unknown words, for the same vocabulary."""
    column, theirs = fitted(analyzer, without="sea")
    shuffled = random.Random(3).sample(" ".join(TEXTS).split(), 12)
    for text in [*TEXTS, " ".join(shuffled), "an unknown sea man man"]:
        np.testing.assert_allclose(dense(column, text), theirs.transform([text]).toarray()[0], rtol=0, atol=1e-9)


@settings(max_examples=60)
@given(st.text(max_size=80), st.sampled_from(["word", "char"]))
def test_any_text_is_a_vector_of_length_one_or_zero(text: str, analyzer: Analyzer) -> None:
    """Emoji, markup, control characters and any script never raise an error."""
    column, _ = fitted(analyzer)
    length = float(np.linalg.norm(dense(column, text)))
    assert length == pytest.approx(1.0) or length == 0.0


def test_unknown_words_are_counted_once_each() -> None:
    """An answer has the number of unknown words, not the words."""
    column, _ = fitted("word")
    assert column.read("sea zz zz yy")[1] == ["title: 2 words"]
    assert column.read("sea zz")[1] == ["title: 1 word"]
    assert column.read("The SEA")[1] == []


def test_composed_and_combining_accents_are_equal() -> None:
    """A letter with a combining accent equals the single accented character."""
    assert words_of("Fanto\u0302mas", "word") == words_of("Fant\u00f4mas", "word") == ["fantômas"]


def kinds_of_code_points() -> list[str]:
    """Return two code points of each category, combining class and length after normalization.

    Code points above 0x20000 are of the same kinds as lower ones.
    """
    kinds: dict[tuple[str, int, int], list[str]] = {}
    for point in range(0x20000):
        character = chr(point)
        decomposed = NORMALIZE("NFD", character)
        kind = unicodedata.category(character), unicodedata.combining(decomposed[0]), len(decomposed)
        kinds.setdefault(kind, []).append(character)
    return [character for characters in kinds.values() for character in characters[:2]]


def sorting_steps(text: str) -> int:
    """Return the most steps of insertion sorts of all runs of marks, plus one for each character."""
    classes = map(unicodedata.combining, NORMALIZE("NFD", text))
    runs = (len(list(run)) for is_mark, run in itertools.groupby(classes, bool) if is_mark)
    return len(text) + sum(length**2 for length in runs)


def test_the_work_of_a_long_word_grows_with_its_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight times as many code points of any kind take less than 30 times the work to normalize."""
    steps: list[int] = []

    def counted(form: Any, text: str) -> str:
        steps.append(sorting_steps(text))
        return NORMALIZE(form, text)

    def work(text: str) -> int:
        steps.clear()
        words_of(text, "word")
        return sum(steps)

    monkeypatch.setattr(unicodedata, "normalize", counted)
    for character in kinds_of_code_points():
        for repeated in (character, character + "\u0323", "\u0301" + character):
            assert work("a" + repeated * 320) < 30 * work("a" + repeated * 40), ascii(repeated)


def test_marks_beyond_thirty_in_a_row_change_no_word_around_them() -> None:
    """The letters stay, and up to 30 marks are normalized together."""
    marks = "\u0301\u0323" * 40
    assert words_of(f"old{marks}sea", "word") == ["ol\u1e0d", "sea"]
    assert words_of("o" + "\u0323" * 29 + "\u0302", "char") == words_of("\u00f4" + "\u0323" * 29, "char")
    faces = "\U0001f986" * 40
    assert set(words_of(faces, "char")) == {faces[:n] for n in (3, 4, 5)}


@pytest.mark.parametrize("value", [["sea"], {"a": 1}, "x" * (MAX_CHARACTERS + 1), "sea " * 300_000])
def test_values_that_are_no_text_or_too_long_are_refused(value: object) -> None:
    """The error names the column and does not repeat the text."""
    column, _ = fitted("word")
    with pytest.raises(FeatureValueUnusable, match=r"^feature 'title'") as caught:
        column.read(value)
    assert len(caught.value.message) < 200


def test_missing_texts_and_numbers_follow_the_rules_of_request_filters() -> None:
    """Null, NaN and blanks are missing. A number becomes the text of its digits."""
    column, _ = fitted("word")
    for value in (None, float("nan"), "  "):
        assert len(column.read(value)[0][0]) == 0
    assert column.read(1984)[0][0].tolist() == column.read("1984")[0][0].tolist() != []
