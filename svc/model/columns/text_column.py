"""Encode texts as features: their words, weighted by TF-IDF over the training items.

The weight of a word that a text has `count` times is `count · idf` with

    idf = ln((1 + n_items) / (1 + items with the word)) + 1

The vector of a text's weights is scaled to length one. This is the smooth formula of scikit-learn's `TfidfVectorizer`.
It is computed here so that a server needs no scikit-learn.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from svc.errors import FeatureValueUnusable
from svc.model.codec import Stored
from svc.model.columns.feature_values import NOTHING, Value, kind_of, token_text
from svc.model.ids import IdTable

Analyzer = Literal["word", "char"]
MAX_CHARACTERS = 65_536
"""Longer texts are refused, because they hardly describe one item, and analyzing them would delay other requests."""
RUN_LENGTHS = range(3, 6)
"""Lengths of the runs of characters that the `char` analyzer treats as words."""

_WORD = re.compile(r"[^\W_]+")
_BLANKS = re.compile(r"\s+")
_MAX_MARKS = 30
"""The most combining marks in a row, as in Unicode's stream-safe text format (UAX #15). No script needs more."""
_LONG_RUN = re.compile(r"[^\w\x00-\u02ff]{31,}")
"""Finds runs that may have more than _MAX_MARKS marks. It matches all marks, but also emoji and punctuation."""
_JOINER = "\u034f"
"""The combining grapheme joiner. It is not a letter, and ends a run of marks."""


def words_of(text: str, analyzer: Analyzer) -> list[str]:
    """Return the words of a text, lower-cased, in order and with repetitions.

    With the analyzer `word`, words are runs of letters and digits of any script. With `char`, words are all runs of 3
    to 5 characters, including blanks. A letter and its accent become one character (NFC), because systems differ in
    whether they store them as one or two.
    """
    lowered = unicodedata.normalize("NFC", _LONG_RUN.sub(_with_joiners, text)).lower()
    if analyzer == "word":
        return _WORD.findall(lowered)
    lowered = _BLANKS.sub(" ", lowered)
    return [lowered[start : start + n] for n in RUN_LENGTHS for start in range(len(lowered) - n + 1)]


def _with_joiners(run: re.Match[str]) -> str:
    """Return the run with a joiner after every 30 marks in a row.

    This bounds the time of normalization, which takes quadratic time for a run of marks and holds the GIL. A text of
    65,536 marks took 6.9 s.
    """
    parts, n_marks = [], 0
    for character in run[0]:
        # Three Tibetan vowels are not marks, but normalization splits each into two marks.
        is_mark = unicodedata.combining(unicodedata.normalize("NFD", character)[0]) > 0
        n_marks = n_marks + 1 if is_mark else 0
        if n_marks > _MAX_MARKS:
            parts.append(_JOINER)
            n_marks = 1
        parts.append(character)
    return "".join(parts)


@dataclass(eq=False, repr=False)
class TextColumn(Stored):
    """A `text` column, encoded as one component for each word of the vocabulary.

    `vocabulary` holds W words. `item_counts`, (W,) int32, is the number of training items that contain each word.
    `n_items` is the number of all training items.
    """

    kind: ClassVar[Literal["text"]] = "text"

    name: str
    vocabulary: IdTable
    item_counts: NDArray[np.int32]
    _: KW_ONLY
    n_items: int
    max_words: int
    analyzer: Analyzer

    @property
    def width(self) -> int:
        return len(self.vocabulary)

    def ready(self) -> None:
        """Compute the index of words and their IDF weights, in tens of milliseconds for a large vocabulary."""
        _ = self._place_of, self._idf

    @cached_property
    def _place_of(self) -> dict[str, int]:
        """Return the position of each word. A dict finds the few words of a text much faster than an IdTable."""
        return {word: position for position, word in enumerate(self.vocabulary.all())}

    @cached_property
    def _idf(self) -> NDArray[np.float64]:
        """Return the IDF weight of each word, (W,)."""
        return np.asarray(np.log((1.0 + self.n_items) / (1.0 + self.item_counts)) + 1.0, dtype=np.float64)

    def check(self, value: object) -> str | None:
        """Return the text of one value, or None if it is missing. Numbers and booleans become text.

        Raises FeatureValueUnusable if the value is not a scalar, or its text is longer than MAX_CHARACTERS.
        """
        try:
            text = token_text(value)
        except (TypeError, ValueError):
            raise FeatureValueUnusable(
                f"feature {self.name!r}: {kind_of(value)} is not a text; give one text, or null"
            ) from None
        if text is not None and len(text) > MAX_CHARACTERS:
            raise FeatureValueUnusable(
                f"feature {self.name!r}: the text has {len(text)} characters, more than {MAX_CHARACTERS}; give its "
                "beginning, or a summary"
            )
        return text

    def words(self, value: object) -> list[str]:
        """Return the words of one value, known or not. Raises FeatureValueUnusable as `check` does."""
        text = self.check(value)
        return [] if text is None else words_of(text, self.analyzer)

    def unknown(self, words: Iterable[str]) -> set[str]:
        """Return the words that are not in the vocabulary."""
        return {*words} - self._place_of.keys()

    def read(self, value: object) -> tuple[Value, list[str]]:
        """Return the positions of the known words with their weights, and a list about the unknown words.

        The positions ascend, and the weights are scaled to length one. If there are unknown words, the list has one
        text with the number of distinct ones, such as "title: 3 words".
        """
        counts = Counter(self.words(value))
        place_of = self._place_of
        # Ascending, so that sums over the words of a text have the same bits for any order of words.
        placed = sorted((place_of[word], count) for word, count in counts.items() if word in place_of)
        n_unknown = len(counts) - len(placed)
        unit = "word" if self.analyzer == "word" else "run"
        ignored = [f"{self.name}: {n_unknown} {unit}{'' if n_unknown == 1 else 's'}"] if n_unknown else []
        if not placed:
            return NOTHING, ignored
        places = np.array([position for position, _ in placed], dtype=np.intp)
        weights = np.array([count for _, count in placed], dtype=np.float64) * self._idf[places]
        return (places, weights / np.sqrt(np.square(weights).sum())), ignored
