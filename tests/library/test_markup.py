"""What notebooks show of results: tables without colours of their own, with text that cannot become markup."""

from __future__ import annotations

import pandas as pd

import svc
from svc.library.markup import facts_table
from tests.library.test_tables import SMALL, sales


def test_each_result_has_a_table() -> None:
    """Of figures; no style sets a colour, so that a dark page keeps its own."""
    result = svc.train(sales(), **SMALL)
    judged = svc.evaluate(result.recommender, pd.DataFrame({"user_id": ["u1", "u2"], "item_id": ["none", "none"]}))
    for shown, words in ((result, "score"), (result.recommender, "60"), (judged, "ndcg")):
        markup = shown._repr_html_()
        assert words in markup
        assert markup.count("<table") == markup.count("color") == markup.count("color:inherit") > 0


def test_text_is_escaped() -> None:
    """Names come from recipes of others."""
    assert "<b>" not in facts_table("<b>", {"<b>": "<b>"})


def test_the_package_shows_what_is_public() -> None:
    """`dir(svc)` shows the public names and none that the package imports itself."""
    assert dir(svc) == sorted([*svc.__all__, "__version__"])
