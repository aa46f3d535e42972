"""Loading a model from the verified parts of an artifact: refusals, warnings and the rehearsal."""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import version
from typing import Any

import numpy as np
import pytest
import structlog

from svc import events
from svc.errors import FeatureStateMismatch, FeatureVersionMismatch, PayloadInvalid, RehearsalFailed, VersionSkew
from svc.model.codec import encode
from svc.model.features import FEATURE_VERSION
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.load_model import (
    N_REHEARSED,
    check_feature_version,
    check_features,
    check_sizes,
    check_version_skew,
    load_model,
    rehearse,
    require_known_users,
    running_irspack_version,
)
from svc.model.model import Model
from svc.model.recommenders.factors import SVDScorer
from svc.model.recommenders.popularity import PopularityScorer
from tests import planned
from tests.families import family
from tests.model.test_model import FAMILIES, factors, made
from tests.serving.artifacts import header


def payload(value: object) -> memoryview:
    return memoryview(b"".join(bytes(piece) for piece in encode(value)))


def test_an_opened_model_answers() -> None:
    """The model is ready and rehearsed, and its arrays are views of the given bytes."""
    model = family("neighbours")
    opened = load_model(header(), payload(model), name="a", allow_skew=False)
    query = planned.recommend(model, user_id="u3", user_features=None, limit=5).query
    assert opened.rank([query])[0].items.tolist() == model.rank([query])[0].items.tolist()


def test_a_payload_that_is_no_model_is_refused() -> None:
    """A payload of any other allowed object is refused."""
    history = History(np.array([0, 0], dtype=np.int64), np.empty(0, dtype=np.int32))
    with pytest.raises(PayloadInvalid, match="holds History, not a model"):
        load_model(header(), payload(history), name="a", allow_skew=False)


def test_an_unverified_version_is_refused_or_logged() -> None:
    """The refusal comes before the payload is decoded. With `allow_skew`, an event has both versions."""
    head = header(irspack_version="0.1.0", best_class="IALSRecommender")
    with pytest.raises(VersionSkew):
        load_model(head, memoryview(b"not decoded"), name="a", allow_skew=False)
    with structlog.testing.capture_logs() as records:
        load_model(head, payload(family("SVD")), name="a", allow_skew=True)
    assert [(record["event"], record["artifact_version"]) for record in records] == [
        ("irspack_version_skew_allowed", "0.1.0")
    ]


VERIFIED = [
    "CosineKNNRecommender",
    "TopPopRecommender",
    "RP3betaRecommender",
    "DenseSLIMRecommender",
    "TruncatedSVDRecommender",
]


def header_of(version: object, best_class: object = "IALSRecommender") -> dict[str, object]:
    return {"irspack_version": version, "best_class": best_class}


@pytest.mark.parametrize("trained", ["0.5.0", "0.5.9", "0.5", "0.5.2rc1", "0.5.2.dev3+g1234"])
@pytest.mark.parametrize("best_class", ["IALSRecommender", "BPRFMRecommender", None])
def test_patch_versions_are_compatible(trained: str, best_class: object) -> None:
    """Every class loads within one major.minor version."""
    assert check_version_skew(header_of(trained, best_class), "0.5.2", allow=False) is None


@pytest.mark.parametrize(("trained", "running"), [("0.4.7", "0.5.2"), ("0.5.2", "0.4.7")])
@pytest.mark.parametrize("best_class", VERIFIED)
def test_verified_transitions_load_both_ways(trained: str, running: str, best_class: str) -> None:
    """The five verified classes load between 0.4 and 0.5, in either direction."""
    assert check_version_skew(header_of(trained, best_class), running, allow=False) is None


@pytest.mark.parametrize(("trained", "running"), [("0.4.7", "0.5.2"), ("0.5.2", "0.4.7")])
@pytest.mark.parametrize(
    "best_class", ["IALSRecommender", "BPRFMRecommender", "Unheard", "", None, 5, ["TopPopRecommender"]]
)
def test_unverified_classes_are_refused_between_minors(trained: str, running: str, best_class: object) -> None:
    """Known breaks, unverified classes and headers without a class are refused. The error names both versions."""
    with pytest.raises(VersionSkew, match=rf"^irspack version skew: .*{trained}.*{running}"):
        check_version_skew(header_of(trained, best_class), running, allow=False)


@pytest.mark.parametrize(
    ("trained", "running"), [("0.5.2", "0.6.0"), ("0.4.0", "0.6.0"), ("1.5.2", "0.5.2"), ("0.50.1", "0.5.0")]
)
@pytest.mark.parametrize("best_class", VERIFIED)
def test_other_transitions_are_refused(trained: str, running: str, best_class: str) -> None:
    """A class is verified only for its own transition."""
    with pytest.raises(VersionSkew):
        check_version_skew(header_of(trained, best_class), running, allow=False)


def test_a_refusal_can_be_turned_into_a_warning() -> None:
    """With `allow`, the check passes and returns the event to log."""
    warning = check_version_skew(header_of("0.4.1"), "0.5.2", allow=True)
    assert warning == events.IRSPACK_VERSION_SKEW_ALLOWED


@pytest.mark.parametrize(
    ("trained", "running"),
    [(None, "0.5.2"), (5, "0.5.2"), ("", "0.5.2"), ("five", "0.5.2"), ("1", "0.5.2"), ("0.5.2", "")],
)
def test_versions_that_cannot_be_compared_pass_with_a_warning(trained: object, running: str) -> None:
    """Missing and unreadable versions load with a warning."""
    assert check_version_skew(header_of(trained), running, allow=False) == events.IRSPACK_VERSION_UNKNOWN
    assert check_version_skew({}, "0.5.2", allow=False) == events.IRSPACK_VERSION_UNKNOWN


def test_the_running_version_is_that_of_the_installed_package() -> None:
    """The version comes from package metadata."""
    assert running_irspack_version() == version("irspack")


def test_without_features_there_is_no_version_to_check() -> None:
    """An artifact without encoder state passes, and so does one of this build's version."""
    check_feature_version({})
    check_feature_version({"features": None})
    check_feature_version({"features": {"version": FEATURE_VERSION}})


@pytest.mark.parametrize(
    "features", [{}, {"version": None}, {"version": "1"}, {"version": 1.0}, {"version": True}, [], "1", 1]
)
def test_a_features_version_that_is_no_integer_is_refused(features: object) -> None:
    """Missing, textual, fractional and boolean versions are refused, and so is a block that is no map."""
    with pytest.raises(FeatureVersionMismatch, match=r"^feature version check failed: "):
        check_feature_version({"features": features})


@pytest.mark.parametrize("found", [FEATURE_VERSION - 1, FEATURE_VERSION + 1, 1 << 70])
def test_another_features_version_is_refused(found: int) -> None:
    """Older and newer encoder states are refused alike."""
    with pytest.raises(FeatureVersionMismatch, match=f"version {found}, this build implements {FEATURE_VERSION}"):
        check_feature_version({"features": {"version": found}})


def test_every_part_must_be_verified() -> None:
    """A neighbour model with an iALS part for cold starts is refused if iALS is not verified."""
    parts = [{"class": "CosineKNNRecommender"}, {"class": "IALSRecommender"}]
    head = {"irspack_version": "0.4.3", "best_class": "CosineKNNRecommender"}
    assert check_version_skew(head, "0.5.1", allow=False) is None
    with pytest.raises(VersionSkew):
        check_version_skew({**head, "parts": parts}, "0.5.1", allow=False)
    assert check_version_skew({**head, "parts": parts[:1]}, "0.5.1", allow=False) is None


HEADER = {"version": 1, "active": True, "user": {"dimension": 4, "columns": ["tag", "age"]}}
HEADER["item"] = HEADER["user"]


def test_a_header_that_agrees_with_the_payload_passes() -> None:
    """Active features, inactive ones and no features pass."""
    check_features(made("ials", features=True), {"features": HEADER})
    check_features(made("svd"), {})
    check_features(made("svd"), {"features": {**HEADER, "active": False}})


@pytest.mark.parametrize(
    "features",
    [
        None,
        {**HEADER, "active": False},
        {**HEADER, "user": {"dimension": 5, "columns": ["tag", "age"]}},
        {**HEADER, "item": {"dimension": 4, "columns": ["age", "tag"]}},
        {"version": 1, "active": True, "user": HEADER["user"]},
    ],
)
def test_a_header_that_disagrees_with_the_payload_is_refused(features: dict[str, Any] | None) -> None:
    """Dimension, columns and presence of each side must match."""
    with pytest.raises(FeatureStateMismatch, match="feature state check failed: "):
        check_features(made("ials", features=True), {"features": features})


def test_parts_of_different_sizes_are_refused() -> None:
    """A payload with ids and arrays of different sizes is refused."""
    model = made("popularity")
    model.item_ids = IdTable.from_ids(["just one"])
    with pytest.raises(PayloadInvalid, match="3000 scored items"):
        check_sizes(model)


USERS = IdTable.from_ids(["u"])


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"user_ids": replace(USERS, offsets=USERS.offsets[:-1])}, "1 ids do not match their hashes or offsets"),
        ({"item_ids": replace(USERS, hashes=USERS.hashes[:0])}, "1 ids do not match their hashes or offsets"),
        ({"hidden": History(np.arange(3), np.zeros(2, np.int32))}, "1 users do not match 2 rows of hidden items"),
        ({"hidden_new": History(np.arange(1), np.zeros(0, np.int32))}, "1 users do not match 0 rows of hidden items"),
        ({"hidden_of_others": History(np.arange(2), np.zeros(1, np.int32))}, "0 other users do not match 1 rows"),
        ({"other_user_ids": USERS}, "1 other users do not match 0 rows of hidden items"),
        ({"other_user_ids": replace(USERS, hashes=USERS.hashes[:0])}, "1 ids do not match their hashes or offsets"),
        ({"popularity": np.ones(5)}, "3 items do not match the popularity of 5"),
        ({"user_moments": np.ones((2, 4))}, r"means and deviations of shape \(2, 4\), but 1 users need \(2, 1\)"),
        ({"user_moments": np.ones((1, 2))}, r"means and deviations of shape \(1, 2\), but 1 users need \(2, 1\)"),
        ({"cold": PopularityScorer(np.ones(4))}, "3 items do not match 4 of the second part"),
    ],
)
def test_parts_have_the_sizes_of_the_model(parts: dict[str, Any], message: str) -> None:
    """Hashes and offsets need an entry for each id. Hidden items, means and deviations need one for each user.

    Popularity and the cold-start part need one for each item.
    """
    history, scorer = History(np.array([0, 1]), np.array([2], np.int32)), PopularityScorer(np.ones(3))
    items = IdTable.from_ids(["a", "b", "c"])
    model = Model(user_ids=USERS, item_ids=items, history=history, scorer=scorer, features=None)
    check_sizes(model)
    vars(model).update(parts)
    with pytest.raises(PayloadInvalid, match=message):
        check_sizes(model)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("features", [False, True])
def test_models_of_every_family_pass_the_rehearsal(family: str, features: bool) -> None:
    """Known users, a single one, and every kind of cold start get answers, alone and in a batch."""
    model = made(family, features=features and family == "ials")
    model.ready()
    cold = 3 if model.features is not None else 1
    assert len(rehearse(model)) == N_REHEARSED + 1 + 2 * cold


def test_a_small_model_is_rehearsed_with_all_users() -> None:
    """A model with fewer users than a rehearsal needs is rehearsed with all of them."""
    model = made("popularity")
    model.user_ids = IdTable.from_ids([f"u{i}" for i in range(7)])
    model.ready = lambda: None  # type: ignore[method-assign]
    assert len(rehearse(model)) == 7 + 1 + 2


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_the_rehearsal_finds_a_user_without_finite_scores_in_any_row(bad: float) -> None:
    """One broken user of the 32 is enough, and the error names its row."""
    model = made("svd")
    row = int(model.user_ids.rows[N_REHEARSED - 1])
    users = factors(len(model.user_ids))
    users[row] = bad
    model.scorer = SVDScorer(users, model.scorer.index)  # type: ignore[attr-defined]
    model.ready()
    with pytest.raises(RehearsalFailed, match=f"the user in row {row} got scores that are not finite"):
        rehearse(model)


@pytest.mark.parametrize("family", ["svd", "bpr"])
def test_the_rehearsal_finds_nan_in_any_factors(family: str) -> None:
    """NaN is in all factors, in those of the users, or in those of one item among thousands."""
    for broken in ("users", "all", "one item"):
        model = made(family)
        index: Any = model.scorer.index  # type: ignore[attr-defined]
        if broken != "one item":
            model.scorer.users = np.full_like(model.scorer.users, np.nan)  # type: ignore[attr-defined]
        if broken != "users":
            index.factors = index.factors.copy()
            index.factors[1234 if broken == "one item" else slice(None)] = np.nan
        with np.errstate(all="ignore"), pytest.raises(RehearsalFailed):
            model.ready()
            rehearse(model)


def test_the_rehearsal_names_the_user_of_an_error() -> None:
    """The message has the user and the cause."""
    model = made("neighbours")
    model.ready()
    row = int(model.user_ids.rows[5])
    rank = model.rank

    def failing(queries: Any) -> Any:
        if any(query.user == row for query in queries):
            raise IndexError("index 7 is out of bounds")
        return rank(queries)

    model.rank = failing  # type: ignore[method-assign]
    with pytest.raises(RehearsalFailed, match=f"row {row} got no answer: IndexError: index 7 is out of bounds"):
        rehearse(model)


def test_an_id_table_that_does_not_find_its_own_ids_is_refused() -> None:
    """Such a model would answer 404 for its own users."""
    model = made("popularity")
    model.ready()
    ids = model.user_ids
    for spoilt in ({"hashes": ids.hashes[::-1].copy()}, {"rows": ids.rows + len(ids)}, {"blob": ids.blob | 128}):
        model.user_ids = replace(ids, **spoilt)
        with pytest.raises(RehearsalFailed, match="is not found in the table of ids"):
            rehearse(model)


def test_the_share_of_known_users_counts_all_users_of_the_live_model() -> None:
    """Exactly the required share passes. One user less is refused, with both counts."""
    live = IdTable.from_ids([str(number) for number in range(100)])
    half = IdTable.from_ids([str(number) for number in range(50)] + [f"new{number}" for number in range(500)])
    require_known_users(half, live, 0.5)
    with pytest.raises(RehearsalFailed, match="50 of the live model's 100 users are known to the new model"):
        require_known_users(half, live, 0.51)
    floats = IdTable.from_ids([f"{number}.0" for number in range(100)])
    with pytest.raises(RehearsalFailed, match="0 of the live model's 100 users"):
        require_known_users(floats, live, 0.01)
    require_known_users(floats, live, 0.0)
