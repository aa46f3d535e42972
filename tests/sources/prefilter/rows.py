"""Random tables and filters over them, for sources that leave rows out by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from hypothesis import strategies as st

NUMBERS = st.sampled_from([-1.0, 0.0, 0.1, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 2.0**53, 2.0**53 + 2, 1e300])
TEXTS = st.lists(st.sampled_from(["a", "A", "a ", "ä", "b", " ", "", "7", "1"]), min_size=1, max_size=3, unique=True)
KINDS = {"stars": NUMBERS, "price": NUMBERS, "big": NUMBERS, "label": TEXTS, "item_id": TEXTS}


def _condition(name: str) -> st.SearchStrategy[dict[str, Any]]:
    compared: dict[str, st.SearchStrategy[Any]] = {"exists": st.booleans()}
    if KINDS[name] is NUMBERS:
        compared |= dict.fromkeys(("gt", "gte", "lt", "lte", "eq"), NUMBERS)
    else:
        compared["any"] = TEXTS
    some = st.lists(st.sampled_from([*compared]), min_size=1, max_size=2, unique=True)
    return some.flatmap(lambda names: st.fixed_dictionaries({n: compared[n] for n in names})).map(lambda it: {name: it})


FILTERS = st.recursive(
    st.sampled_from([*KINDS]).flatmap(_condition),
    lambda nodes: st.one_of(
        st.builds(lambda node: {"not": node}, nodes),
        st.builds(
            lambda word, parts: {word: parts}, st.sampled_from(["all", "any"]), st.lists(nodes, min_size=1, max_size=3)
        ),
    ),
    max_leaves=5,
)


def table(seed: int, n_rows: int) -> dict[str, list[Any]]:
    """Columns with nulls, NaN, infinities, blanks, letters that collations hold for equal, and numbers above 2^53."""
    rng = np.random.default_rng(seed)

    def some(values: list[Any]) -> list[Any]:
        return [values[code] for code in rng.integers(len(values), size=n_rows)]

    return {
        "user_id": [f"u{code}" for code in rng.integers(9, size=n_rows)],
        "item_id": some(["a", "A", "b", "7", None]),
        "stars": some([0, 1, 2, 3, 4, None]),
        "price": some([0.1, 0.5, 1.0, 1.5, 4.0, float("nan"), float("inf"), None, -1.0]),
        "big": some([0, 1, 2**53, 2**53 + 1, 2**53 + 2, None, -(2**53) - 1]),
        "label": some(["a", "A", "a ", "ä", "b", " ", "", "7", None, "\u2003"]),
    }


def values(frame: pd.DataFrame) -> list[list[Any]]:
    """The rows, None for whatever is missing: the types of columns depend on whether something is missing there."""
    plain = frame.astype(object)
    return [[name, *column] for name, column in plain.where(plain.notna(), None).items()]
