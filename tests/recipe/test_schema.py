"""The fields of a recipe: their defaults, and fields that require or exclude each other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from svc.recipe.algorithms import TRANSITIONS
from svc.recipe.schema import Promotion
from tests.recipe.loading import BASE, load, refusal

SCHEMA = BASE["schema"]
WEIGHTS = {"view": 1, "cart": 3, "buy": 10, "no": "exclude"}


def of_events(seen: list[str] | None = None, **training: Any) -> dict[str, Any]:
    """Return the blocks of a recipe with events."""
    cleansing = {"event_weights": WEIGHTS} | ({} if seen is None else {"seen": seen})
    return {"schema": {**SCHEMA, "event_column": "e"}, "cleansing": cleansing, "training": training}


RANDOM = {"split": {"scheme": "random"}}
PROBLEMS: list[tuple[dict[str, Any], str]] = [
    ({"schema": {**SCHEMA, "weight_column": "user_id"}}, "weight_column names an id column"),
    ({"schema": {**SCHEMA, "weight_column": "w", "event_column": "e"}}, "keep one of them"),
    ({"schema": {**SCHEMA, "event_column": "e"}}, "needs cleansing.event_weights"),
    ({"cleansing": {"event_weights": {"view": 1}}}, "needs schema.event_column"),
    ({"cleansing": {"event_weights": {"view": 0}}}, "cleansing.event_weights.view"),
    ({"cleansing": {"event_weights": {"view": "drop"}}}, "cleansing.event_weights.view"),
    ({"cleansing": {"dedup": "mean"}}, "cleansing.dedup"),
    ({"cleansing": {"seen": ["buy"]}}, "cleansing.seen needs schema.event_column"),
    ({"training": {"target": ["buy"]}}, "training.target needs schema.event_column"),
    (
        of_events(seen=["byu"]),
        "cleansing.seen names 'byu', which has no weight in cleansing.event_weights; did you mean",
    ),
    (of_events(seen=["no"]), "cleansing.seen names 'no', which has no weight"),
    (of_events(target=["Buy"]), "training.target names 'Buy', which has no weight in cleansing.event_weights; did you"),
    (of_events(target=[]), "training.target: must have at least one entry"),
    (of_events(seen=["buy"], repeats=True), "cleansing.seen has no effect beside training.repeats: true"),
    ({"training": {"weighted_metric": True}}, "training.weighted_metric needs"),
    ({"training": {"time_decay": {"half_life": "0d"}}}, "half-life of 0"),
    ({"training": {"time_decay": {"half_life": ["7d", "7d"]}}}, "names '7d' twice"),
    ({"training": {"time_decay": {"half_life": "a month"}}}, "training.time_decay.half_life"),
    ({"training": {"time_decay": {"half_life": []}}}, "training.time_decay.half_life"),
    (
        {"schema": {"user_column": "u", "item_column": "i"}, "training": {"time_decay": {"half_life": "7d"}}},
        "training.time_decay needs schema.time_column",
    ),
    ({"training": {"split": {"test": 1}}}, "training.split.test"),
    (
        {"training": {"recency": "search", **RANDOM}},
        "split.scheme by time, such as leave_one_out. The scheme `random` holds out",
    ),
    ({"training": {"recency": 5.1, "split": {"scheme": "time_user"}}}, "training.recency"),
    ({"training": {"recency": -0.1, "split": {"scheme": "time_user"}}}, "training.recency"),
    ({"training": {"recency": "on"}}, "training.recency"),
    (
        {"schema": {"user_column": "u", "item_column": "i"}, "training": {"recency": 0.5}},
        "training.recency needs schema.time_column",
    ),
    (
        {
            "schema": {"user_column": "u", "item_column": "i"},
            "training": {"recency": "search", "split": {"scheme": "leave_one_out"}},
        },
        "training.recency needs schema.time_column",
    ),
    (
        {"training": {"search_space": {"RP3beta": {"recency": [0, 1]}}, **RANDOM}},
        "training.search_space.RP3betaRecommender.recency has no effect here",
    ),
    (
        {"training": {"search_space": {"TopPop": {"recency": [0, 1]}}, "split": {"scheme": "time_user"}}},
        "recency is not searched for TopPopRecommender",
    ),
    (
        {"training": {"search_space": {"RP3beta": {"recency": [0, 6]}}, "split": {"scheme": "time_user"}}},
        "RP3betaRecommender.recency takes [lowest, highest], two numbers from 0 to 5",
    ),
    (
        {"training": {"search_space": {"RP3beta": {"self_weight": [0, 1]}}}},
        "search_space.RP3betaRecommender.self_weight has no effect here: it needs training.repeats",
    ),
    (
        {"training": {"repeats": True, "search_space": {"RP3beta": {"self_weight": [0, 101]}}}},
        "RP3betaRecommender.self_weight takes [lowest, highest], two numbers from 0 to 100",
    ),
    (
        {"training": {"repeats": True, "search_space": {"IALS": {"self_weight": [0, 1]}}}},
        "self_weight is not searched for IALSRecommender",
    ),
]
VERSIONS = {"path": "artifacts/movies.svc", "versioning": "append_sha"}


def test_defaults_match_the_reference(tmp_path: Path) -> None:
    """A recipe of four blocks is complete. The defaults of the others match the documentation."""
    recipe = load(tmp_path).recipe
    assert recipe.training.n_trials == 40
    assert recipe.training.metric == "ndcg"
    assert recipe.training.algorithms[0] == "IALSRecommender"
    assert len(recipe.training.algorithms) == 8
    assert recipe.training.split.scheme == "time_user"
    assert load(tmp_path, {"schema": {"user_column": "u", "item_column": "i"}}).recipe.training.split.scheme == "random"
    assert recipe.cleansing.dedup == "keep_last"
    assert recipe.output.versioning == "always_overwrite"


@pytest.mark.parametrize(("more", "words"), PROBLEMS)
def test_invalid_weights_and_recency_are_refused(tmp_path: Path, more: dict[str, Any], words: str) -> None:
    """The message names the field and its requirement."""
    assert words in refusal(tmp_path, more)


def test_one_half_life_needs_no_list(tmp_path: Path) -> None:
    """A single half-life is a list of one, with the same hash."""
    alone = load(tmp_path, {"training": {"time_decay": {"half_life": "30d"}}})
    listed = load(tmp_path, {"training": {"time_decay": {"half_life": ["30d"]}}})
    assert alone.recipe.training.time_decay is not None
    assert alone.recipe.training.time_decay.half_life == ("30d",)
    assert alone.recipe_hash == listed.recipe_hash


def test_leave_one_out_needs_no_time_column(tmp_path: Path) -> None:
    """Without times the order of rows decides which item is the latest."""
    plain = {"schema": {"user_column": "u", "item_column": "i"}, "split": {"scheme": "leave_one_out"}}
    assert load(tmp_path, plain).recipe.training.split.scheme == "leave_one_out"


@pytest.mark.parametrize(
    ("recency", "scheme", "timed", "expected"),
    [
        (None, "random", True, 0.0),
        (None, "leave_one_out", True, "search"),
        (None, "leave_one_out", False, 0.0),
        ("search", "time_user", True, "search"),
        (False, "time_user", True, 0.0),
        ("off", "random", False, 0.0),
        (0, "time_user", True, 0.0),
        (0.5, "random", True, 0.5),
    ],
)
def test_recency_is_searched_if_the_split_is_by_time(
    tmp_path: Path, recency: object, scheme: str, timed: bool, expected: object
) -> None:
    """A number applies to any split. YAML reads a bare `off` as false."""
    schema = {"user_column": "u", "item_column": "i", **({"time_column": "t"} if timed else {})}
    option = {} if recency is None else {"recency": recency}
    recipe = load(tmp_path, {"schema": schema, "training": {"split": {"scheme": scheme}, **option}}).recipe
    assert recipe.recency == expected


BLENDED, ORDERED = {"algorithms": ["Blend", "IALS", "TopPop"]}, {"algorithms": ["IALS"], "ranker": "search"}


@pytest.mark.parametrize(
    ("training", "scheme", "timed", "blends", "orders", "trains"),
    [
        ({"algorithms": ["IALS"]}, "leave_one_out", True, False, False, False),
        ({"algorithms": ["IALS"], "recency": 0.5}, "random", True, False, False, True),
        ({"algorithms": ["IALS"], "time_decay": {"half_life": "7d"}}, "random", True, False, False, True),
        ({"algorithms": [TRANSITIONS]}, "leave_one_out", True, False, False, True),
        (BLENDED, "leave_one_out", True, True, False, True),
        (BLENDED, "leave_one_out", False, False, False, False),
        (BLENDED, "random", True, False, False, False),
        ({"algorithms": ["Blend", "IALS", "RP3beta"]}, "leave_one_out", True, False, False, False),
        ({"algorithms": ["IALS", "TopPop"]}, "leave_one_out", True, False, False, False),
        (ORDERED, "leave_one_out", True, False, True, True),
        (ORDERED, "leave_one_out", False, False, False, False),
        (ORDERED, "random", True, False, False, False),
    ],
)
def test_times_are_used_if_a_model_depends_on_them(
    tmp_path: Path,
    training: dict[str, Any],
    scheme: str,
    *,
    timed: bool,
    blends: bool,
    orders: bool,
    trains: bool,
) -> None:
    """Recent popularity and the order of pages need a time column and a split by time."""
    schema = {"user_column": "u", "item_column": "i", **({"time_column": "t"} if timed else {})}
    block = {"recency": "off", "ranker": "off", "split": {"scheme": scheme}, **training}
    recipe = load(tmp_path, {"schema": schema, "training": block}).recipe
    assert (recipe.blends_recent_popularity, recipe.orders_pages) == (blends, orders)
    assert recipe.trains_on_times == trains


def test_the_default_of_recency_does_not_change_the_hash(tmp_path: Path) -> None:
    """Other values of recency change the hash."""
    split = {"split": {"scheme": "time_user"}}
    hashes = [
        load(tmp_path, {"training": {**split, **more}}).recipe_hash
        for more in ({}, {"recency": "search"}, {"recency": "off"}, {"recency": 0.5})
    ]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def promotion(folder: Path, block: dict[str, Any] | str) -> Promotion:
    found = load(folder, {"output": VERSIONS, "promotion": block}).recipe.promotion
    assert found is not None
    return found


def test_the_defaults_have_two_opponents_and_three_guardrails(tmp_path: Path) -> None:
    """By default the metric may fall by 1% and guarded figures by 30%, and the mode is off."""
    found = promotion(tmp_path, {})
    assert (found.mode, found.against, found.min_relative_change) == ("off", ("incumbent", "TopPop"), -0.01)
    assert found.confidence == 0.95
    guarded = found.guardrails.model_dump()
    assert guarded.pop("rank_ms") is None
    assert guarded == {name: {"min_relative_change": -0.3} for name in ("catalog_coverage", "n_users", "n_items")}
    assert load(tmp_path).recipe.promotion is None


def test_guardrails_are_set_and_removed_one_by_one(tmp_path: Path) -> None:
    """The other guardrails keep their defaults."""
    found = promotion(tmp_path, {"guardrails": {"n_users": None, "n_items": {"min_relative_change": -0.1}}})
    assert found.guardrails.n_users is None
    assert found.guardrails.n_items is not None
    assert found.guardrails.n_items.min_relative_change == -0.1
    assert found.guardrails.catalog_coverage is not None


def test_a_bare_off_is_the_mode_off(tmp_path: Path) -> None:
    """YAML reads a bare `off` as false. It is accepted as the mode "off"."""
    lines = [f"{name}: {value!r}" for name, value in {**BASE, "output": VERSIONS}.items()]
    found = load(tmp_path, "\n".join([*lines, "promotion: {mode: off}"])).recipe.promotion
    assert found is not None
    assert found.mode == "off"


@pytest.mark.parametrize("spelled", ["TopPop", "toppop", "TopPopRecommender"])
def test_the_baseline_may_be_named_as_an_algorithm(tmp_path: Path, spelled: str) -> None:
    """All names of the popularity algorithm are accepted. A repeated name counts once."""
    assert promotion(tmp_path, {"against": [spelled, "TopPop"]}).against == ("TopPop",)


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"mode": "enforced"}, "promotion.mode: must be one of 'off', 'report' or 'enforce' (did you mean 'enforce'?)"),
        ({"mode": True}, "promotion.mode: must be one of 'off', 'report' or 'enforce'; found true; write 'enforce'"),
        ({"against": ["incumbant"]}, "promotion.against[0]: must be one of 'incumbent' or 'TopPop' (did you mean"),
        ({"against": []}, "promotion.against: "),
        ({"against": ["TopPop"], "guardrails": {}}, "guardrails compare with the incumbent"),
        ({"guardrails": {"n_rows": {"min_relative_change": -0.3}}}, "promotion.guardrails.n_rows: unknown key"),
        ({"guardrails": {"rank_ms": {"max_relative_change": -1}}}, "must be greater than or equal to 0"),
        ({"guardrails": {"n_users": -0.3}}, "promotion.guardrails.n_users: must be a mapping"),
        ({"guardrails": {"n_users": {}}}, "promotion.guardrails.n_users.min_relative_change: is missing"),
        ({"min_relative_change": -1.5}, "promotion.min_relative_change: must be greater than or equal to -1"),
        ({"confidence": 95}, "promotion.confidence: must be less than or equal to 0.999"),
        ({"guardrail": {}}, "promotion.guardrail: unknown key; did you mean `guardrails`?"),
    ],
)
def test_contradictory_fields_are_refused_with_their_path(tmp_path: Path, block: dict[str, Any], words: str) -> None:
    """The message names the path of the field and the allowed values."""
    assert words in refusal(tmp_path, {"output": VERSIONS, "promotion": block})


def test_enforce_needs_versions(tmp_path: Path) -> None:
    """`enforce` would overwrite the live model without `append_sha`. `report` may overwrite it."""
    message = refusal(tmp_path, {"promotion": {"mode": "enforce"}})
    assert "promotion.mode enforce needs output.versioning: append_sha" in message
    assert "always_overwrite would put a refused model over the live one" in message
    assert load(tmp_path, {"promotion": {"mode": "report"}}).recipe.promotion is not None
    assert "keep needs versioning: append_sha" in refusal(tmp_path, {"output": {"path": "a.svc", "keep": 3}})


@pytest.mark.parametrize(
    ("more", "seen", "target"),
    [
        ({}, None, None),
        ({"seen": ["buy", "view", "cart"]}, None, None),
        ({"seen": []}, frozenset(), None),
        ({"seen": ["buy", "buy"], "target": ["cart", "buy"]}, {"buy"}, {"cart", "buy"}),
        ({"target": ["view", "cart", "buy"]}, None, None),
    ],
)
def test_events_that_name_all_are_the_default(
    tmp_path: Path, more: dict[str, Any], seen: set[str] | None, target: set[str] | None
) -> None:
    """An event of weight `exclude` is not among all, because its rows are no choices."""
    recipe = load(tmp_path, of_events(**more)).recipe
    assert (recipe.seen, recipe.target) == (seen, target)


def test_the_largest_weight_counts_by_default_if_there_are_events(tmp_path: Path) -> None:
    """A later view does not take the place of a purchase. The hash tells `keep_last` from the default."""
    blocks = of_events()
    plain = load(tmp_path, blocks)
    last, largest = (
        load(tmp_path, {**blocks, "cleansing": {**blocks["cleansing"], "dedup": dedup}})
        for dedup in ("keep_last", "max")
    )
    assert [loaded.recipe.cleansing.dedup_in_effect for loaded in (plain, last, largest)] == ["max", "keep_last", "max"]
    assert last.recipe_hash != plain.recipe_hash == largest.recipe_hash
    assert load(tmp_path).recipe.cleansing.dedup_in_effect == "keep_last"


def test_events_that_hide_or_are_judged_change_the_hash(tmp_path: Path) -> None:
    blocks = [of_events(), of_events(seen=["buy"]), of_events(target=["buy"]), of_events(seen=["buy"], target=["buy"])]
    assert len({load(tmp_path, some).recipe_hash for some in blocks}) == 4
