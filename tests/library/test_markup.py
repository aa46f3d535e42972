"""Tables of results in notebooks: without colours, and with escaped text."""

from __future__ import annotations

import pandas as pd

import svc
from svc.library.markup import facts_table
from tests.library.test_tables import SMALL, sales


def test_each_result_has_a_table() -> None:
    """No style sets a colour, so that a dark page keeps its own."""
    result = svc.train(sales(), **SMALL)
    judged = svc.evaluate(result.recommender, pd.DataFrame({"user_id": ["u1", "u2"], "item_id": ["none", "none"]}))
    for shown, words in ((result, "score"), (result.recommender, "60"), (judged, "ndcg")):
        markup = shown._repr_html_()
        assert words in markup
        assert markup.count("<table") == markup.count("color") == markup.count("color:inherit") > 0


def test_text_is_escaped() -> None:
    """Names may come from recipes of other people."""
    assert "<b>" not in facts_table("<b>", {"<b>": "<b>"})


def test_dir_lists_public_names() -> None:
    """`dir(svc)` lists the public names and no imports of the package."""
    assert dir(svc) == sorted([*svc.__all__, "__version__"])
