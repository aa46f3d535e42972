"""Load a model from the verified parts of an artifact, and rehearse it before it is used.

Loading checks that this build can read the model and that its parts belong together. The rehearsal checks that the
model ranks items for known users, for a seed item, and for features.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

import numpy as np

from svc import events, logs
from svc.errors import (
    ArtifactError,
    FeatureStateMismatch,
    FeatureVersionMismatch,
    PayloadInvalid,
    RehearsalFailed,
    VersionSkew,
)
from svc.model.codec import decode
from svc.model.features import FEATURE_VERSION, SideEncoder
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.model import Model
from svc.model.ranking.query import Query, Ranking
from svc.model.recommenders.base import Scorer, Side
from svc.model.recommenders.blend import BlendScorer

Minor = tuple[int, int]

_VERIFIED: Final = frozenset(
    {
        "CosineKNNRecommender",
        "TopPopRecommender",
        "RP3betaRecommender",
        "DenseSLIMRecommender",
        "TruncatedSVDRecommender",
    }
)
COMPATIBLE: Final[Mapping[frozenset[Minor], frozenset[str]]] = {frozenset({(0, 4), (0, 5)}): _VERIFIED}
"""The recommender classes whose models may pass between two irspack versions (major, minor), in either direction."""
_MINOR = re.compile(r"([0-9]{1,9})\.([0-9]{1,9})(?![0-9])")


@cache
def running_irspack_version() -> str:
    """Return the version of the installed irspack, or "" if it is not installed.

    Reads the package metadata, because importing irspack takes longer.
    """
    try:
        return version("irspack")
    except PackageNotFoundError:
        return ""


def check_version_skew(header: Mapping[str, Any], running: str, *, allow: bool) -> events.Event | None:
    """Compare the header's `irspack_version` with the `running` one. Return the warning to log, or None.

    Versions with the same major and minor number are compatible. If either version is missing or unreadable, the
    warning is `irspack_version_unknown`. A combination that is not in `COMPATIBLE` raises VersionSkew, or with `allow`
    gives the warning `irspack_version_skew_allowed`.
    """
    trained = header.get("irspack_version")
    theirs, ours = _minor(trained), _minor(running)
    if theirs is None or ours is None:
        return events.IRSPACK_VERSION_UNKNOWN
    if theirs == ours or COMPATIBLE.get(frozenset({theirs, ours}), frozenset()).issuperset(_classes(header)):
        return None
    if allow:
        return events.IRSPACK_VERSION_SKEW_ALLOWED
    raise VersionSkew(
        f"irspack version skew: {_class(header)} was trained with {trained} and this server has {running}, "
        "a transition that is not verified for it; retrain with the serving host's version"
    )


def _classes(header: Mapping[str, Any]) -> list[str]:
    """Return the recommender classes in the payload: the classes of a blend's parts, or else the best class."""
    parts = header.get("parts")
    names = [part.get("class") for part in parts if isinstance(part, Mapping)] if isinstance(parts, list) else []
    return [str(name) for name in names or [header.get("best_class")]]  # any JSON, such as lists, which sets refuse


def _minor(text: object) -> Minor | None:
    match = _MINOR.match(text) if isinstance(text, str) else None
    return (int(match[1]), int(match[2])) if match else None


def _class(header: Mapping[str, Any]) -> str:
    best_class = header.get("best_class")
    return best_class if isinstance(best_class, str) else "a model of unnamed class"


def check_feature_version(header: Mapping[str, Any]) -> None:
    """Check that this build can read the feature encoders of the model, if the header declares any.

    Raises FeatureVersionMismatch if the header's `features.version` is missing, not an integer, or another version.
    """
    features = header.get("features")
    if features is None:
        return
    trained = features.get("version") if isinstance(features, Mapping) else None
    if type(trained) is not int:  # True is an `int`, but no version
        raise FeatureVersionMismatch("feature version check failed: features.version is missing or not an integer")
    if trained != FEATURE_VERSION:
        raise FeatureVersionMismatch(
            f"feature version check failed: the artifact has version {trained}, this build implements {FEATURE_VERSION}"
        )


def load_model(header: Mapping[str, Any], payload: memoryview, *, name: str, allow_skew: bool) -> Model:
    """Return the decoded model, ready to be rehearsed. Call it only on parts with a verified signature.

    `name` appears in log records. The model's arrays are views of `payload`. Raises a subclass of ArtifactError.
    """
    _check_versions(name, header, allow_skew=allow_skew)
    model = decode_model(payload)
    _make_ready(model, header)
    return model


def decode_model(payload: memoryview) -> Model:
    """Return the model of a payload, which is not yet ready for queries. Raises PayloadInvalid and ForbiddenClass."""
    model = decode(payload)
    if not isinstance(model, Model):
        raise PayloadInvalid(f"payload: holds {type(model).__name__}, not a model")
    return model


def _check_versions(name: str, header: Mapping[str, Any], *, allow_skew: bool) -> None:
    running = running_irspack_version()
    warning = check_version_skew(header, running, allow=allow_skew)
    if warning is not None:
        trained = header.get("irspack_version")
        shown = trained if isinstance(trained, str) else None
        logs.emit(warning, name=name, artifact_version=shown, running_version=running)
    check_feature_version(header)


def _make_ready(model: Model, header: Mapping[str, Any]) -> None:
    """Check the parts and compute the derived data.

    Raises an ArtifactError for any failure but MemoryError, because the payload is the cause.
    """
    try:
        # Before `ready`, which computes with arrays whose sizes would not fit.
        check_features(model, header)
        check_sizes(model)
        model.describe_events(header.get("events") or ())
        model.ready()
    except (ArtifactError, MemoryError):  # the machine's fault, not the payload's
        raise
    except Exception as error:
        raise RehearsalFailed(
            f"rehearsal: the model cannot be made ready: {type(error).__name__}: {error!s:.100}"
        ) from error


def check_sizes(model: Model) -> None:
    """Raise PayloadInvalid if the parts of the model do not fit each other."""
    n_users, n_items = model.n_users, model.n_items
    history, scorer, cold = model.history, model.scorer, model.cold
    for ids in (model.user_ids, model.item_ids, *(() if model.other_user_ids is None else (model.other_user_ids,))):
        if not len(ids) == len(ids.hashes) == len(ids.offsets) - 1:
            raise PayloadInvalid(f"payload: {len(ids)} ids do not match their hashes or offsets")
    for rows in (model.hidden, model.hidden_new):
        if rows is not None and len(rows) != n_users:
            raise PayloadInvalid(f"payload: {n_users} users do not match {len(rows)} rows of hidden items")
    others = (model.other_user_ids, model.hidden_of_others)
    n_others, n_rows = (0 if part is None else len(part) for part in others)
    if n_others != n_rows:
        raise PayloadInvalid(f"payload: {n_others} other users do not match {n_rows} rows of hidden items")
    if (n_users, n_items) != (len(history), scorer.n_items):
        parts = f"{len(history)} histories and {scorer.n_items} scored items"
        raise PayloadInvalid(f"payload: {n_users} users and {n_items} items do not match {parts}")
    _check_histories(history, scorer, cold)
    part = scorer.popularity if isinstance(scorer, BlendScorer) else None
    for of_items in (model.popularity, None if part is None else part.addends):
        if of_items is not None and of_items.shape != (n_items,):
            raise PayloadInvalid(f"payload: {n_items} items do not match the popularity of {of_items.size}")
    moments = model.user_moments
    if moments is not None and moments.shape != (2, n_users):
        shape = f"means and deviations of shape {moments.shape}"
        raise PayloadInvalid(f"payload: {shape}, but {n_users} users need {(2, n_users)}")
    if cold is not None and cold.n_items != n_items:
        raise PayloadInvalid(f"payload: {n_items} items do not match {cold.n_items} of the second part")


def _check_histories(history: History, scorer: Scorer, cold: Scorer | None) -> None:
    for values in (history.is_seen, *(weights for weights, _ in history.others)):
        if values is not None and len(values) != len(history.columns):
            raise PayloadInvalid(f"payload: {len(history.columns)} items of histories do not match {len(values)}")
    if (history.recency_beside or history.weighing_beside) and cold is None:
        raise PayloadInvalid("payload: the histories do not match the second part, which weighs them by its own")
    weighings = scorer.weighings if isinstance(scorer, BlendScorer) else ()
    if max(history.weighing_beside, *weighings, 0) > len(history.others):
        raise PayloadInvalid("payload: the histories lack the weights that a part reads")


def check_features(model: Model, header: Mapping[str, Any]) -> None:
    """Compare the artifact header's `features` with the payload's encoders and with the scorer that reads them.

    Raises FeatureStateMismatch if they disagree.
    """
    declared: Mapping[str, Any] = header.get("features") or {}
    features, scorer = model.features, model.cold or model.scorer
    active = bool(declared.get("active"))
    if active != (features is not None):
        held = "holds no" if features is None else "holds an"
        raise FeatureStateMismatch(f"feature state check failed: active is {active}, the payload {held} encoder")
    if features is None:
        return
    if features.version != FEATURE_VERSION:
        raise FeatureStateMismatch(
            f"feature state check failed: the payload is of version {features.version},"
            f" this build reads {FEATURE_VERSION}"
        )
    _check_side("user", declared.get("user"), features.user, scorer)
    _check_side("item", declared.get("item"), features.item, scorer)


def _check_side(side: Side, declared: Mapping[str, Any] | None, encoder: SideEncoder | None, scorer: Scorer) -> None:
    held = None if encoder is None else (encoder.dim, list(encoder.columns))
    stated = None if declared is None else (declared.get("dimension"), declared.get("columns"))
    if held != stated:
        raise FeatureStateMismatch(
            f"feature state check failed: for the {side}, the header declares {stated} and the payload holds {held}"
            " (dimension, columns)"
        )
    scorer_dim = scorer.feature_dim(side)
    if encoder is not None and encoder.dim != scorer_dim:
        raise FeatureStateMismatch(
            f"feature state check failed: the {side} encoder has {encoder.dim} places, the scorer {scorer_dim}"
        )


N_REHEARSED = 32
_LIMIT = 10

_Question = tuple[Query, str]
"""A query, and the name of its user or kind for messages."""


def rehearse(model: Model) -> list[Ranking]:
    """Return the answers of a ready model to queries for known and unknown users, alone and in batches.

    The known users are the 32 with the lowest id digests, so that successive models rehearse the same users. One of
    them ranks every item, so that an item without a finite score is found at any rank. The batch of 32 users takes 0.2
    s for 41,000 items, and 2 s for a million. Raises RehearsalFailed.
    """
    with np.errstate(all="ignore"):  # `_answer` raises for scores that are not finite, so no warnings are needed
        # The table is sorted by digests, so its first rows are these users.
        users = model.user_ids.rows[:N_REHEARSED].tolist()
        of_users = [(_of_user(model, user), f"the user in row {user}") for user in users]
        # One of them alone too, because a single query takes another path through the scan than a batch.
        rankings = _answer(model, of_users) + _answer(model, of_users[:1])
        (whole,) = _answer(model, [(query._replace(limit=model.n_items), who) for query, who in of_users[:1]])
        if len(whole.items) != model.n_items:
            raise RehearsalFailed(
                f"rehearsal: {model.n_items - len(whole.items)} of {model.n_items} items have no finite score"
            )
        of_strangers = list(_unknown(model))
        for asked in ([question] for question in of_strangers):
            rankings += _answer(model, asked)
        return rankings + _answer(model, of_strangers)


def require_known_users(user_ids: IdTable, live_user_ids: IdTable, share: float) -> None:
    """Raise RehearsalFailed if fewer than `share` of the live model's users are among `user_ids`."""
    n_shared, total = user_ids.n_shared(live_user_ids), len(live_user_ids)
    if n_shared < share * total:
        raise RehearsalFailed(
            f"rehearsal: {n_shared} of the live model's {total} users are known to the new model, "
            f"less than the share {share:g} of serving.rehearsal.min_known_users; "
            "compare the ids of both trainings, such as 1 and 1.0"
        )


def _of_user(model: Model, user: int) -> Query:
    with suppress(IndexError, UnicodeDecodeError):
        if model.user_ids.index(model.user_ids.at(user)) == user:
            return Query(limit=_LIMIT, user=user, include_seen=True, reordered=model.ranker is not None)
    raise RehearsalFailed(f"rehearsal: the id in row {user} is not found in the table of ids")


def _unknown(model: Model) -> Iterator[_Question]:
    """Yield queries for users outside the training data, each with the name of its kind for messages."""
    yield Query(limit=_LIMIT, seeds=model.item_ids.rows[:1].astype(np.int32), include_seen=True), "a seed item"
    features = model.features
    if features is not None and features.user is not None:
        yield Query(limit=_LIMIT, user_features=features.user.encode({})[0]), "user_features"
    if features is not None and features.item is not None:
        yield Query(limit=_LIMIT, seed_features=(features.item.encode_sparse({})[0],)), "item_features"


def _answer(model: Model, asked: list[_Question]) -> list[Ranking]:
    """Return one ranking per query. Raise RehearsalFailed if a ranking is empty or has a score that is not finite."""
    try:
        rankings = model.rank([query for query, _ in asked])
    except MemoryError:
        raise
    except Exception as error:
        for question in asked if len(asked) > 1 else ():
            _answer(model, [question])  # asked one at a time, so that the message names the query that fails
        who = asked[0][1] if len(asked) == 1 else f"a batch of {len(asked)}"
        raise RehearsalFailed(f"rehearsal: {who} got no answer: {type(error).__name__}: {error!s:.100}") from error
    for ranking, (_, who) in zip(rankings, asked, strict=True):
        if not len(ranking.scores):
            raise RehearsalFailed(f"rehearsal: {who} got no items, because no item has a finite score")
        if not np.isfinite(ranking.scores).all():
            raise RehearsalFailed(f"rehearsal: {who} got scores that are not finite numbers")
    return rankings
