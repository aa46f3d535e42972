"""A trained model that can answer: requests become queries, queries become rankings."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from svc.errors import FeaturesNotSupported, FeatureStateMismatch, PayloadInvalid, UnknownSeedItems, UnknownUser
from svc.model.features import FEATURE_VERSION, FeatureState, SideEncoder
from svc.model.history import History
from svc.model.ids import IdTable
from svc.model.query import Encoded, Prepared, Query, Ranking
from svc.model.recommenders.base import Scorer, Side
from svc.model.stored import Stored

Features = Mapping[str, object]


class Model(Stored):
    """What the payload of an artifact holds. `ready` must be called before the first query; then it never changes.

    Every method may run in several threads at once.
    """

    def __init__(
        self,
        *,
        user_ids: IdTable,
        item_ids: IdTable,
        history: History,
        scorer: Scorer,
        features: FeatureState | None,
    ) -> None:
        self.user_ids = user_ids
        self.item_ids = item_ids
        self.history = history
        self.scorer = scorer
        self.features = features

    @property
    def n_users(self) -> int:
        return len(self.user_ids)

    @property
    def n_items(self) -> int:
        return len(self.item_ids)

    @property
    def kind(self) -> str:
        """Family of the scorer, such as "factors"."""
        return self.scorer.kind

    def ready(self) -> None:
        """Compute what the scorer keeps beside the stored arrays. Takes up to about a second for a large model.

        Raises PayloadInvalid for parts that do not belong together.
        """
        sizes = (self.n_users, self.n_items)
        if sizes != (len(self.history), self.scorer.n_items):
            found = f"{len(self.history)} histories and {self.scorer.n_items} scored items"
            raise PayloadInvalid(f"payload: {sizes[0]} users and {sizes[1]} items do not match {found}")
        self.scorer.ready()

    def rehearse(self) -> None:
        """Answer one query of each kind that the model can, so that a broken model fails before it is published."""
        queries = [Query(limit=1, user=0, include_seen=True)]
        for side in ("user", "item"):
            encoder = self._encoder(side)
            if encoder is not None:
                vector, _ = encoder.encode({})
                if side == "user":
                    queries.append(Query(limit=1, user_features=vector))
                else:
                    queries.append(Query(limit=1, seed_features=(Encoded.of(vector),)))
        for ranking in self.rank(queries):
            if not len(ranking.scores) or not np.isfinite(ranking.scores).all():
                raise PayloadInvalid("payload: the model gives scores that are not finite numbers")
        self.rank([Query(limit=1, seeds=np.zeros(1, dtype=np.int32))])

    def check_features(self, header: Mapping[str, Any]) -> None:
        """Compare the artifact header's `features` with the encoders of the payload.

        Raises FeatureStateMismatch where they disagree.
        """
        declared = header.get("features") or {}
        active = bool(declared.get("active"))
        if active != (self.features is not None):
            held = "holds no" if self.features is None else "holds an"
            raise FeatureStateMismatch(f"feature state check failed: active is {active}, the payload {held} encoder")
        if self.features is None:
            return
        if self.features.version != FEATURE_VERSION:
            raise FeatureStateMismatch(
                f"feature state check failed: the payload is of version {self.features.version},"
                f" this build reads {FEATURE_VERSION}"
            )
        for side in ("user", "item"):
            self._check_side(side, declared.get(side))

    def prepare_recommend(
        self,
        *,
        user_id: str | None,
        user_features: Features | None,
        limit: int,
        exclude_items: Sequence[str] = (),
        include_seen: bool = False,
    ) -> Prepared:
        """A known `user_id` is answered from its history; otherwise `user_features` make a cold start.

        Raises UnknownUser, FeaturesNotSupported and FeatureValueUnusable.
        """
        user = -1 if user_id is None else self.user_ids.index(user_id)
        exclude = self._columns(exclude_items)
        if user >= 0:
            return Prepared(Query(limit=limit, user=user, exclude=exclude, include_seen=include_seen), ())
        if user_features is None:
            raise UnknownUser("user_id is not in the training data; user_features can stand in for it")
        vector, ignored = self._encode("user", user_features)
        return Prepared(Query(limit=limit, user_features=vector, exclude=exclude), ignored)

    def prepare_related(
        self,
        *,
        seed_items: Sequence[str],
        item_features: Features | None,
        user_features: Features | None,
        limit: int,
        exclude_items: Sequence[str] = (),
    ) -> Prepared:
        """Known seeds, and unseen items by their features, are the history of an imagined user.

        `item_features` describes one unseen item, or maps item ids to such descriptions; an id that training knows
        counts as a seed by itself and its features are not used. Seeds that are neither known nor described are left
        out. Raises UnknownSeedItems, FeaturesNotSupported and FeatureValueUnusable.
        """
        described = _by_item(item_features)
        known = self._columns([*seed_items, *(item for item in described if item is not None)])
        ignored: dict[str, None] = {}
        unseen = []
        for item, features in described.items():
            if item is None or self.item_ids.index(item) < 0:
                vector, others = self._encode("item", features)
                unseen.append(Encoded.of(vector))
                ignored |= dict.fromkeys(others)
        prior = None
        if user_features is not None:
            prior, others = self._encode("user", user_features)
            ignored |= dict.fromkeys(others)
        if not len(known) and not unseen:
            raise UnknownSeedItems(
                "none of the seed items is in the training data; item_features can stand in for them"
            )
        query = Query(
            limit=limit,
            seeds=known,
            seed_features=tuple(unseen),
            user_features=prior,
            exclude=self._columns(exclude_items),
        )
        return Prepared(query, tuple(ignored))

    def rank(self, queries: Sequence[Query]) -> list[Ranking]:
        """One ranking a query, in order; empty where no candidate is left.

        The bits of a ranking depend on its query alone. Long array operations release the interpreter lock.
        """
        return self.scorer.rank(queries, self.history)

    def _columns(self, items: Sequence[str]) -> NDArray[np.int32]:
        """Distinct columns of the known items, rising."""
        if not items:
            return np.empty(0, dtype=np.int32)
        columns = np.unique(self.item_ids.indices(items))
        return columns[columns >= 0]

    def _encoder(self, side: Side) -> SideEncoder | None:
        if self.features is None:
            return None
        return self.features.user if side == "user" else self.features.item

    def _encode(self, side: Side, features: Features) -> tuple[NDArray[np.float64], tuple[str, ...]]:
        encoder = self._encoder(side)
        if encoder is None:
            raise FeaturesNotSupported(f"{side}_features: the model was not trained with features of that side")
        return encoder.encode(features)

    def _check_side(self, side: Side, declared: Mapping[str, Any] | None) -> None:
        encoder = self._encoder(side)
        held = None if encoder is None else (encoder.dim, list(encoder.columns))
        stated = None if declared is None else (declared.get("dimension"), declared.get("columns"))
        if held != stated:
            raise FeatureStateMismatch(f"feature state check failed: {side} is {stated}, the payload holds {held}")
        if encoder is not None and encoder.dim != self.scorer.feature_dim(side):
            raise FeatureStateMismatch(
                f"feature state check failed: the {side} encoder has {encoder.dim} places,"
                f" the scorer {self.scorer.feature_dim(side)}"
            )


def payload_parts(model: Model) -> dict[str, int]:
    """Bytes of each array of the payload, by the path of attributes that leads to it."""
    return model.parts()


def _by_item(item_features: Features | None) -> dict[str | None, Features]:
    """Features by item id; by None for one item without an id."""
    if item_features is None:
        return {}
    if item_features and all(isinstance(value, Mapping) for value in item_features.values()):
        return {item: features for item, features in item_features.items() if isinstance(features, Mapping)}
    return {None: item_features}
