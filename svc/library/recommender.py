"""A trained model in Python: the answers of the API as data frames."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import pandas as pd

from svc import logs
from svc.errors import UnknownUser, UsageError
from svc.export.request import ExportRequest
from svc.export.run import OpenedArtifact, open_artifact
from svc.export.scoring import score_all
from svc.export.user_selection import CHUNK
from svc.library.keys import Keys, signing_keys
from svc.model.query import Query, Ranking, Restriction
from svc.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from svc.model.model import Model

MAX_LIMIT = 1000
MAX_REASONS = 10
Features = Mapping[str, object]


def load(artifact: str | Path, keys: Keys = None) -> Recommender:
    """Read an artifact, verify its signature as a server does, and return a recommender.

    Args:
        artifact: Path or URI (`s3://`, `gs://`, `az://`, `https://`) of an artifact, or of the pointer to one.
        keys: The keys that it may be signed with: text as in `SVC_SIGNING_KEYS`, which is also the default, or
            a mapping from kid to 64 hex characters.

    Raises:
        svc.errors.ConfigError: There are no keys, or they cannot be parsed.
        svc.errors.ArtifactError: The artifact cannot be read, trusted or used; nothing of it has run.
    """
    settings = Settings.from_env()
    logs.configure_for_library()
    return Recommender(open_artifact(str(artifact), signing_keys(keys, settings), settings))


class Recommender:
    """A verified model. Its methods may be called from several threads at once; `svc.load` makes one."""

    def __init__(self, opened: OpenedArtifact) -> None:
        self._opened = opened

    def __repr__(self) -> str:
        return (
            f"<svc.Recommender {self.header.get('recipe_name', '?')}: {self.header.get('best_class', '?')}, "
            f"{self.n_users:,} users, {self.n_items:,} items>"
        )

    @property
    def model(self) -> Model:
        """The model itself, for other modules of svc."""
        return self._opened.model

    @property
    def header(self) -> Mapping[str, Any]:
        """What the artifact says of itself: class, parameters, scores, versions, data."""
        return MappingProxyType(dict(self._opened.header))

    @property
    def model_version(self) -> str:
        """`sha256:` and the digest of the artifact file, as answers of the API carry it."""
        return self._opened.model_version

    @property
    def n_users(self) -> int:
        """Users of the training data."""
        return self.model.n_users

    @property
    def n_items(self) -> int:
        """Items of the training data."""
        return self.model.n_items

    def users(self) -> list[str]:
        """Ids of all users, in training order."""
        return self.model.user_ids.all()

    def items(self) -> list[str]:
        """Ids of all items, the most chosen first; artifacts of earlier versions: in training order."""
        return self.model.item_ids.all()

    def recommend(
        self,
        user_id: str | None = None,
        *,
        limit: int = 10,
        user_features: Features | None = None,
        exclude_items: Sequence[str] = (),
        include_seen: bool = False,
    ) -> pd.DataFrame:
        """The best items for one user, as `:recommend` answers them.

        Args:
            user_id: A user of the training data.
            limit: The most items to return, 1 to 1000.
            user_features: Features of a user whom training did not see.
            exclude_items: Items that must not come back.
            include_seen: Whether items of the user's own history may come back.

        Returns:
            Columns `item_id` and `score`, best first.

        Raises:
            svc.errors.UnknownUser: The user is not in the training data and has no features.
            svc.errors.FeaturesNotSupported: The model was trained without features of users.
            svc.errors.FeatureValueUnusable: A value cannot be used.
        """
        prepared = self.model.prepare_recommend(
            user_id=user_id,
            user_features=user_features,
            limit=_checked(limit),
            exclude_items=tuple(exclude_items),
            include_seen=include_seen,
        )
        return self._frame(self._rank(prepared.query))

    def recommend_many(
        self, users: Iterable[str] | None = None, *, limit: int = 10, unknown: Literal["raise", "skip"] = "raise"
    ) -> pd.DataFrame:
        """The best items for each of many users, scored by all cores.

        Args:
            users: Ids in any iterable, such as a column of a data frame; None: all users of the training data.
            limit: The most items for each, 1 to 1000.
            unknown: What to do about users that training did not see.

        Returns:
            Columns `user_id`, `rank` from 1, `item_id` and `score`, users in the order given.

        Raises:
            svc.errors.UnknownUser: A user is not in the training data, and `unknown` is `raise`.
        """
        rows = self._rows(users, unknown)
        request = ExportRequest(output="", limit=_checked(limit))
        chunks = (rows[start : start + CHUNK] for start in range(0, len(rows), CHUNK))
        parts = list(score_all(self.model, request, chunks, len(os.sched_getaffinity(0))))
        scored = [np.empty(0, np.int32), *(part.rows.repeat(part.counts) for part in parts)]
        return pd.DataFrame(
            {
                "user_id": _names(self.model.user_ids.all(), np.concatenate(scored)),
                "rank": np.concatenate([np.empty(0, np.int32), *(part.ranks() for part in parts)]),
                "item_id": _names(self.items(), np.concatenate([np.empty(0, np.int32), *(p.items for p in parts)])),
                "score": np.concatenate([np.empty(0), *(part.scores for part in parts)]),
            }
        )

    def related(
        self,
        seed_items: Sequence[str] = (),
        *,
        limit: int = 10,
        item_features: Features | None = None,
        user_features: Features | None = None,
        exclude_items: Sequence[str] = (),
    ) -> pd.DataFrame:
        """The items that go best with others, as `:recommend-related` answers them.

        Args:
            seed_items: Items of the training data; unknown ones are left out.
            limit: The most items to return, 1 to 1000.
            item_features: Features of one unseen item, or a mapping from item id to features.
            user_features: Features of the user who asks.
            exclude_items: Items that must not come back; seeds never do.

        Returns:
            Columns `item_id` and `score`, best first.

        Raises:
            svc.errors.UnknownSeedItems: No seed is known or described.
            svc.errors.FeaturesNotSupported: The model was trained without features of that side.
            svc.errors.FeatureValueUnusable: A value cannot be used.
        """
        if isinstance(seed_items, str):
            raise UsageError(f"seed_items: give a list of items, such as [{seed_items!r}]")
        prepared = self.model.prepare_related(
            seed_items=list(seed_items),
            item_features=item_features,
            user_features=user_features,
            limit=_checked(limit),
            exclude_items=tuple(exclude_items),
        )
        return self._frame(self._rank(prepared.query))

    def similar_items(self, item_id: str, *, limit: int = 10) -> pd.DataFrame:
        """The items that go best with one item: `related` with it as the only seed."""
        return self.related([item_id], limit=limit)

    def explain(
        self,
        user_id: str | None = None,
        *,
        seed_items: Sequence[str] = (),
        limit: int = 10,
        reasons: int = 3,
        user_features: Features | None = None,
    ) -> pd.DataFrame:
        """Why each recommended item is recommended: the strongest contributions to its score.

        For factor models the score that is explained is that of the exact solve for the user's history, as in
        answers of the API with `explain`; it may differ a little from that of `recommend`.

        Args:
            user_id: A user of the training data; or, without one:
            seed_items: Items whose related ones are explained.
            limit: The most items to explain, 1 to 1000.
            reasons: The most reasons for each item, 1 to 10.
            user_features: Features of a user whom training did not see, or beside the seeds.

        Returns:
            One row a reason: `rank` and `item_id` of the recommended item, its `score`, the `reason` (an item, or a
            feature such as `genres=Comedy`, or `popular`) and its `share` of the score. The last row of an item has
            the reason `rest`; the shares of an item add up to 1, or to 0 where its score is 0.

        Raises:
            svc.errors.UnknownUser: The user is not in the training data and has no features.
            svc.errors.UnknownSeedItems: No seed is known.
            svc.errors.FeaturesNotSupported: The model was trained without features of users.
        """
        if not 1 <= reasons <= MAX_REASONS:
            raise UsageError(f"reasons: {reasons} is not within 1..{MAX_REASONS}")
        if user_id is not None and seed_items:
            raise UsageError("explain: give user_id or seed_items, not both")
        asked = Restriction(explain=reasons)
        if seed_items:
            prepared = self.model.prepare_related(
                seed_items=list(seed_items),
                item_features=None,
                user_features=user_features,
                limit=_checked(limit),
                restriction=asked,
            )
        else:
            prepared = self.model.prepare_recommend(
                user_id=user_id, user_features=user_features, limit=_checked(limit), restriction=asked
            )
        return self._reasons(self._rank(prepared.query))

    def _reasons(self, ranking: Ranking) -> pd.DataFrame:
        names = self.model.item_ids
        rows = []
        for place, (item, score, because) in enumerate(
            zip(ranking.items.tolist(), ranking.scores.tolist(), ranking.because, strict=True), start=1
        ):
            told = [*because.reasons, ("rest", because.rest)]
            rows += [
                (place, names.at(item), score, names.at(reason) if isinstance(reason, int) else reason, share)
                for reason, share in told
            ]
        return pd.DataFrame(rows, columns=["rank", "item_id", "score", "reason", "share"])

    def _rank(self, query: Query) -> Ranking:
        return self.model.rank([query])[0]

    def _frame(self, ranking: Ranking) -> pd.DataFrame:
        items = [self.model.item_ids.at(column) for column in ranking.items.tolist()]
        return pd.DataFrame({"item_id": pd.Series(items, dtype=object), "score": ranking.scores})

    def _rows(self, users: Iterable[str] | None, unknown: Literal["raise", "skip"]) -> NDArray[np.int32]:
        if users is None:
            return np.arange(self.n_users, dtype=np.int32)
        if isinstance(users, str):
            raise UsageError(f"users: give a list of ids, such as [{users!r}]")
        ids = [str(user) for user in users]
        rows = self.model.user_ids.indices(ids)
        strangers = np.flatnonzero(rows < 0)
        if len(strangers) and unknown == "raise":
            raise UnknownUser(
                f"{len(strangers)} of {len(ids)} users are not in the training data, the first is "
                f"{ids[strangers[0]]!r}; unknown='skip' leaves them out"
            )
        return rows[rows >= 0]


def _names(ids: list[str], rows: NDArray[np.int32]) -> NDArray[np.object_]:
    return np.array(ids, dtype=object)[rows]


def _checked(limit: int) -> int:
    if not 1 <= limit <= MAX_LIMIT:
        raise UsageError(f"limit: {limit} is not within 1..{MAX_LIMIT}")
    return limit
