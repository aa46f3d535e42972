"""Ask a trained model in Python: `svc.load`, and a `Recommender` that gives the answers of the API as DataFrames."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pandas as pd

from svc import lacks, logs
from svc.artifact.keys import SigningKeys, load_signing_keys, parse_signing_keys
from svc.artifact.store import refuse_other_kinds, require_file
from svc.asking.page import PageRequest, page_steps
from svc.asking.requests import MAX_REASONS, AnyRequest, PopularQuery, RecommendRequest, RelatedRequest, UsersRequest
from svc.asking.rerank import RerankRequest, rerank_steps
from svc.env_file import environment, key_list, keys_hint
from svc.errors import ConfigError, UsageError
from svc.export.run import OpenedArtifact, open_artifact
from svc.library.answers import (
    AnyQuestion,
    FramedOffer,
    answered,
    checked_id,
    checked_ids,
    frame_of,
    many_frame,
    page_frame,
    planned,
    question,
    reasons_frame,
    rerank_frame,
    score_frame,
)
from svc.library.controls import (
    Features,
    Item,
    PageControls,
    RecommendControls,
    RelatedControls,
    names_arguments,
    takes,
)
from svc.library.items import NO_ITEM_TABLE, item_table, new_items_of
from svc.library.tables import facts_table, id_series
from svc.model.ranking.new_items import ids_with
from svc.model.ranking.query import NOTHING_RANKED, Prepared, Ranking
from svc.names import Order
from svc.recipe.algorithms import short_name
from svc.recipe.serving_schema import NEW_ITEMS_SHARE
from svc.serving.models.fragments import facts_beside
from svc.settings import Settings

if TYPE_CHECKING:
    from svc.model.model import Model


class Recommender:
    """A verified model, made by `svc.load` or `svc.train`. Several threads may call its methods at once.

    Methods that ask for recommendations take the request fields of the HTTP API as arguments, with the same names and
    defaults. They raise the errors of the API, such as `UnknownUser`. If no item is left, they return an empty
    DataFrame. `filter`, `limits` and `boosts` need `items`, or after `svc.train` the recipe's `filter_fields`.
    """

    def __init__(self, opened: OpenedArtifact, offer: FramedOffer | None = None) -> None:
        if not isinstance(opened, OpenedArtifact):
            raise UsageError("svc.load(path) opens an artifact, and svc.train(table).recommender is one in memory")
        offer = offer or FramedOffer.of(opened.model)
        self._opened = opened
        # `serving.users` guards ids of users in answers over HTTP. A caller in Python has the file itself.
        self._offer = replace(offer, policy=replace(offer.policy, users=True))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a pickled or copied recommender. Models leave derived data out of pickles, so it is computed."""
        vars(self).update(state)
        self.model.ready()

    def __getattr__(self, name: str) -> Any:
        raise lacks("a Recommender", name)

    def __repr__(self) -> str:
        algorithm = short_name(self.header.get("best_class", "?"))
        return (
            f"<svc.Recommender {self.header.get('recipe_name', '?')}: {algorithm}, "
            f"{self.n_users:,} users, {self.n_items:,} items>"
        )

    def _repr_html_(self) -> str:
        facts = {
            "algorithm": short_name(self.header.get("best_class", "?")),
            "users": self.n_users,
            "items": self.n_items,
            "trained": self.header.get("trained_at", "?"),
            "version": self.model_version,
        }
        return facts_table(f"svc.Recommender {self.header.get('recipe_name', '?')}", facts)

    @property
    def model(self) -> Model:
        """The model, for other modules of svc."""
        return self._opened.model

    @property
    def header(self) -> Mapping[str, Any]:
        """The header of the artifact."""
        # A copy behind a proxy, because the header must stay as it was signed.
        return MappingProxyType(dict(self._opened.header))

    @property
    def model_version(self) -> str:
        """`sha256:` and the digest of the artifact file."""
        return self._opened.model_version

    @property
    def n_users(self) -> int:
        """Number of users in the training data."""
        return self.model.n_users

    @property
    def n_items(self) -> int:
        """Number of items in the training data."""
        return self.model.n_items

    def users(self) -> list[str]:
        """Return the ids of all users, in order of first appearance in the training data."""
        return self.model.user_ids.all()

    def items(self) -> list[str]:
        """Return the ids of all items, the most chosen first."""
        return self.model.item_ids.all()

    @takes(RecommendControls, RecommendRequest)
    def recommend(self, user_id: str | None = None, **controls: Unpack[RecommendControls]) -> pd.DataFrame:
        """Return the best items for one user, as `:recommend` of the API does.

        Args:
            user_id: A user of the training data.
            limit: The most items to return, 1 to 1000.
            offset: The number of best items to skip, at most 1000 together with `limit`.
            user_features: Features of a user whom training did not see. Not used for a known user.
            history: Items that the user chose, the oldest first, as ids or `{"item_id": ..., "weight": ...}`.
            history_mode: Whether `history` is added to the training history of a known user (`append`, the default) or
                replaces it (`replace`).
            dislikes: Items that the user rejects, as ids or `{"item_id": ..., "weight": ...}`. They never come back.
                With most algorithms similar items rank lower too. A dislike of weight 0 does not affect other items.
            fallback: The answer for a user of whom nothing is known: an error (`none`) or the most chosen items
                (`popular`). By default the recipe's, else an error.
            include_seen: Whether items of the user's own history may come back. By default they do only if the
                model was trained with `training.repeats`.
            shown: Items that the user was shown before, as ids or `{"item_id": ..., "times": ...}`. They rank lower.
            rotation: How far each earlier showing lowers an item, in standard deviations of the 100 best scores, 0 to
                1.
            seed: A text, such as today's date, that decides how the 100 best items are shuffled.
            shuffle: How strongly `seed` moves the 100 best items, in standard deviations of their scores, 0 to 1.
            exclude_items: Items that must not come back.
            include_items: The only items to rank.
            filter: A condition on the items to rank, such as `{"year": {"gte": 1990}}`. Needs `items`.
            explain: The most reasons for each item, 1 to 10.
            diversity: The weight of diversity against score. 0 gives the best items, and 1 items as unlike each other
                as possible.
            limits: The most items with the same value of a field, such as `[{"field": "genres", "max": 2}]`. Needs
                `items`.
            boosts: Factors for items that satisfy a filter, such as
                `[{"filter": {"genres": {"any": ["Drama"]}}, "factor": 2.0}]`. Needs `items`.
            pins: Items at fixed positions, counted from 0, such as `[{"item_id": "b7", "position": 0}]`.

        Returns:
            A row for each item, best first, with `item_id`, `score` and the columns of `items`. A column `reason`
            is added if more than the score decided an item's position, and `because`, `in_spite_of` and `rest` with
            `explain`. `attrs` has the API's `profile`, `fallback`, `ignored_items`, `ignored_pins` and
            `ignored_features`.

        Raises:
            svc.errors.UnknownUser: Nothing is known of the user, and `fallback` is not `popular`.
            svc.errors.FeaturesNotSupported: The model was trained without features of users.
            svc.errors.FeatureValueUnusable: A value cannot be used.
            svc.errors.UsageError: An argument is invalid.
        """
        return self._answer(question(RecommendRequest, self._offer, {"user_id": user_id, **controls}))

    @takes(RecommendControls, RecommendRequest)
    def recommend_many(
        self,
        users: Iterable[str] | None = None,
        *,
        unknown: Literal["raise", "skip"] = "raise",
        **controls: Unpack[RecommendControls],
    ) -> pd.DataFrame:
        """Return the best items for many users, computed on all cores.

        The arguments of `recommend` apply to every user.

        Args:
            users: Ids in any iterable. None: all users of the training data.
            limit: The most items for each user, 1 to 1000.
            offset: As in `recommend`, like all arguments that are not named here.
            unknown: Whether a user without known data raises an error (`raise`) or is left out (`skip`).

        Returns:
            A row for each item of each user, with the users in the order given. The columns are `user_id`, `rank`
            (from 1), and those of `recommend`.

        Raises:
            svc.errors.UnknownUser: Nothing is known of a user, and `unknown` is `raise`.
            svc.errors.UsageError: An argument is invalid.
        """
        if unknown not in ("raise", "skip"):
            raise UsageError(f"unknown: {unknown!r} is neither 'raise' nor 'skip'")
        request = question(RecommendRequest, self._offer, controls)
        ids = self.users() if users is None else checked_ids("users", users)
        return many_frame(self._offer, request, ids, skip=unknown == "skip")

    @takes(RelatedControls, RelatedRequest)
    def related(self, seed_items: Sequence[str] = (), **controls: Unpack[RelatedControls]) -> pd.DataFrame:
        """Return the items that go best with other items, as `:recommend-related` of the API does.

        Args:
            seed_items: Items of the training data. Unknown items are left out.
            limit: The most items to return, 1 to 1000.
            offset: As in `recommend`, like all arguments that are not named here.
            item_features: Features of one item that training did not see, or a mapping from item id to features.
            user_features: Features of the user for whom the items are ranked.
            exclude_items: Items that must not come back. Seeds never come back.

        Returns:
            As `recommend`.

        Raises:
            svc.errors.UnknownSeedItems: No seed is known or has features.
            svc.errors.FeaturesNotSupported: The model was trained without item features, or without user features.
            svc.errors.FeatureValueUnusable: A value cannot be used.
            svc.errors.UsageError: An argument is invalid.
        """
        # By type, because arrays and columns of pandas have no truth value.
        seeds = None if isinstance(seed_items, Sequence) and not len(seed_items) else seed_items
        return self._answer(question(RelatedRequest, self._offer, {"seed_items": seeds, **controls}))

    @names_arguments
    def recommend_users(
        self,
        item_id: str | None = None,
        *,
        limit: int = 10,
        offset: int = 0,
        item_features: Features | None = None,
        order: Order = "score",
        min_history: int | None = None,
        include_users: Sequence[str] | None = None,
        exclude_users: Sequence[str] = (),
        include_seen: bool | None = None,
    ) -> pd.DataFrame:
        """Return the users who may want an item, as `:recommend-users` of the API does.

        The recipe need not have `serving.users`. The first call takes longer, because it prepares all users.

        Args:
            item_id: An item of the training data.
            limit: The most users to return, 1 to 1000.
            offset: The number of best users to skip.
            item_features: Features of an item that training did not see. Not used for a known item.
            order: Rank users by the score of the item (`score`), by how far it lies above the user's scores of other
                items (`lift`), or by half of each (`balanced`).
            min_history: The fewest items in the history of a ranked user. The default is 5 for the order `lift`,
                otherwise 1.
            include_users: The only users to rank.
            exclude_users: Users who must not come back.
            include_seen: Whether users who already have the item may come back. By default they do only if the model
                was trained with `training.repeats`.

        Returns:
            Columns `user_id` and `score`. `attrs` has `ignored_features`.

        Raises:
            svc.errors.UnknownSeedItems: The item is not in the training data and has no features.
            svc.errors.UsersNotServed: The model has the same scores for every user, or its part for features has no
                users.
            svc.errors.FeaturesNotSupported: The model was trained without features of items.
            svc.errors.FeatureValueUnusable: A value cannot be used.
            svc.errors.UsageError: An argument is invalid.
        """
        # `locals` has each argument by its name, also `self`, which is no field.
        request = self._question(UsersRequest, locals())
        # On first use, because it may score all items for each user: 10 s for 100,000 users of a neighbour model.
        if not self.model.ranks_users:
            self.model.serve_users()
        page, prepared = self._page(request)
        ids = [self.model.user_ids.at(row) for row in page.items.tolist()]
        frame = pd.DataFrame({"user_id": id_series(ids), "score": page.scores})
        frame.attrs.update(facts_beside(page, prepared))
        return frame

    @takes(PageControls, PageRequest)
    def page(
        self, user_id: str | None = None, *, rows: Sequence[Mapping[str, object]], **controls: Unpack[PageControls]
    ) -> pd.DataFrame:
        """Return several rows of items for one user, in which no item stands twice, as `:page` of the API does.

        Args:
            user_id: A user of the training data.
            rows: The rows, each with an `id` and one kind: `recommend`, `related`, `label` or `popular`, as in
                `[{"id": "for you", "recommend": {"limit": 10}}, {"id": "hot", "popular": {"limit": 10}}]`.

        Returns:
            A row for each item, with a column `row` before those of `recommend`, and the columns `seed_item` and
            `label` if a row has one. `attrs` has the API's `profile`, `ignored_items` and `ignored_features`, and as
            `why` the reason of each empty row by its id.

        Raises:
            svc.errors.FeaturesNotSupported: The model was trained without features of users.
            svc.errors.FeatureValueUnusable: A value cannot be used.
            svc.errors.UsageError: An argument is invalid.
        """
        asked = question(PageRequest, self._offer, {"user_id": user_id, "rows": rows, **controls})
        page = answered(page_steps(asked, self._offer), self.model)
        frame = page_frame(self._offer, page)
        facts = facts_beside(NOTHING_RANKED, page.about)
        frame.attrs.update(facts, why={row.id: row.why for row in page.rows if row.why is not None})
        return frame

    @names_arguments
    def rerank(
        self,
        items: Sequence[str],
        user_id: str | None = None,
        *,
        history: Sequence[Item] | None = None,
        history_mode: Literal["append", "replace"] | None = None,
        user_features: Features | None = None,
        weight: float = 0.5,
        explain: int | None = None,
    ) -> pd.DataFrame:
        """Return a list of items in an order for one user, without losing any, as `:rerank` of the API does.

        Args:
            items: The list, without repeats. Unknown items keep their places.
            user_id: A user of the training data.
            history: As in `recommend`, like `history_mode`, `user_features` and `explain`.
            weight: From 0, the order of the list, to 1, the order of the model.

        Returns:
            A row for each item, with `item_id`, `score` (missing if the model does not know the item), its place `from`
            in the list, and whether it is `seen` and `unavailable`. `attrs` has the API's `profile`.

        Raises:
            svc.errors.FeaturesNotSupported: The model was trained without features of users.
            svc.errors.FeatureValueUnusable: A value cannot be used.
            svc.errors.UsageError: An argument is invalid.
        """
        asked = self._question(RerankRequest, locals())
        answer = answered(rerank_steps(asked, self._offer), self.model)
        frame = rerank_frame(self._offer, answer)
        frame.attrs.update(facts_beside(answer.ranking, answer.about))
        return frame

    @names_arguments
    def popular(self, *, limit: int = 10, offset: int = 0, filter: Mapping[str, object] | None = None) -> pd.DataFrame:
        """Return the most chosen items, as `/v1/recipes/{name}/popular` of the API does.

        Args:
            limit: The most items to return, 1 to 1000.
            offset: The number of most chosen items to skip.
            filter: A condition on the items to list, such as `{"year": {"gte": 1990}}`. Needs `items`.

        Returns:
            A row for each item, most chosen first, with `item_id`, `score` (always missing), `reason`, and the columns
            of `items`.

        Raises:
            svc.errors.UsageError: An argument is invalid.
        """
        return frame_of(self._offer, [self._page(self._question(PopularQuery, locals()))[0]])

    @names_arguments
    def similar_items(self, item_id: str, *, limit: int = 10) -> pd.DataFrame:
        """Return the items that go best with one item, as `related` does for a single seed."""
        return self.related([checked_id("item_id", item_id)], limit=limit)

    @names_arguments
    def score(self, users: Iterable[str], items: Iterable[str]) -> pd.DataFrame:
        """Return the scores of pairs of user and item, including items that the user has chosen.

        Args:
            users: Ids of users, in any iterable.
            items: Ids of items, as many as users: the n-th item is scored for the n-th user.

        Returns:
            A row for each pair, in the order given, with the columns `user_id`, `item_id` and `score`. The score is
            missing if training did not see the user or the item. Scores of different users are not comparable.

        Raises:
            svc.errors.UsageError: An argument is invalid.
        """
        return score_frame(self.model, checked_ids("users", users), checked_ids("items", items))

    @names_arguments
    def explain(
        self,
        user_id: str | None = None,
        *,
        seed_items: Sequence[str] = (),
        limit: int = 10,
        reasons: int = 3,
        user_features: Features | None = None,
    ) -> pd.DataFrame:
        """Return the strongest contributions to the score of each recommended item.

        iALS and SVD compute the user's vector from the history, without features, so the score may differ from that of
        `recommend`.

        Args:
            user_id: A user of the training data.
            seed_items: Seeds of the related items to explain, instead of a user.
            limit: The most items to explain, 1 to 1000.
            reasons: The most reasons for each item, and the most against it, 1 to 10.
            user_features: Features of a user whom training did not see. They can also accompany `seed_items`.

        Returns:
            A row for each reason, with the columns `rank`, `item_id`, `score`, `reason`, `share` and `in_spite_of`.
            The reason is an item, a feature such as `genres=Comedy`, `popular`, or a group of a learned order such as
            `labels`. The last reason of an item is `rest`. The share is the reason's part of all contributions that
            raise the score. If the reason lowers the score, its share is negative, and `in_spite_of` is True.

        Raises:
            svc.errors.UnknownUser: The user is not in the training data and has no features.
            svc.errors.UnknownSeedItems: No seed is known.
            svc.errors.FeaturesNotSupported: The model was trained without features of users.
            svc.errors.FeatureValueUnusable: A value cannot be used.
            svc.errors.UsageError: An argument is invalid.
        """
        # `in range` also refuses numbers with a fraction.
        if reasons not in range(1, MAX_REASONS + 1):
            raise UsageError(f"reasons: {reasons} is not within 1..{MAX_REASONS}")
        seeds = checked_ids("seed_items", seed_items)
        if user_id is not None and seeds:
            raise UsageError("explain: give user_id or seed_items, not both")
        controls = {"user_features": user_features, "limit": limit, "explain": reasons}
        request: AnyRequest
        if seeds:
            request = question(RelatedRequest, self._offer, {**controls, "seed_items": seeds})
        else:
            request = question(RecommendRequest, self._offer, {**controls, "user_id": user_id})
        return reasons_frame(self._offer, self._page(request)[0])

    def _page(self, request: AnyRequest | UsersRequest | PopularQuery) -> tuple[Ranking, Prepared]:
        """Return the ranking of a request from its offset on, and the plan of it."""
        prepared = planned(request, self._offer)
        return self.model.rank([prepared.query])[0].from_place(prepared.query.offset), prepared

    def _question(self, schema: type[AnyQuestion], arguments: Mapping[str, Any]) -> AnyQuestion:
        """Build the request from the `arguments` that are named like its fields. Other arguments are left out."""
        controls = {name: value for name, value in arguments.items() if name in schema.model_fields}
        return question(schema, self._offer, controls)

    def _answer(self, request: AnyRequest) -> pd.DataFrame:
        page, prepared = self._page(request)
        frame = frame_of(self._offer, [page])
        frame.attrs.update(facts_beside(page, prepared))
        return frame


Keys = str | Mapping[str, str] | None
"""Keys as text in the form of SVC_SIGNING_KEYS, or as a mapping from kid to 64 hex characters.

None: read the variables SVC_SIGNING_KEYS or SVC_SIGNING_KEYS_FILE, and to verify also SVC_VERIFY_KEYS.
"""


def keys_text(keys: Keys, settings: Settings, artifact: str | None = None) -> str:
    """Return the keys in the form of SVC_SIGNING_KEYS.

    `artifact` is the address of the artifact to verify, or None for keys that sign. Raises ConfigError if keys are
    missing, or if `keys` are malformed. If keys are missing and the local file `artifact` does not exist, raises
    ArtifactReadError instead.
    """
    if keys is None:
        text, _ = key_list(settings.signing_keys, settings.signing_keys_file, "SVC_SIGNING_KEYS")
    elif isinstance(keys, str):
        text = keys
    elif isinstance(keys, Mapping):
        text = ",".join(f"{kid}:{key}" for kid, key in keys.items())
    else:
        raise ConfigError(f"keys: give text or a mapping from kid to key, not a {type(keys).__name__}")
    if not text.strip():
        if artifact is None:
            raise ConfigError("no signing keys: give `keys`, or set SVC_SIGNING_KEYS; `svc keygen` makes a key")
        require_file(artifact)
        raise ConfigError(
            "no keys to verify with: give `keys`, or set SVC_SIGNING_KEYS or SVC_VERIFY_KEYS to the keys that the "
            f"artifact may be signed with{keys_hint(artifact)}"
        )
    # Parsed for its error alone, which names the argument instead of a variable.
    if keys is not None:
        parse_signing_keys(text, "keys")
    return text


def signing_keys(keys: Keys, settings: Settings, artifact: str | None = None) -> SigningKeys:
    """Return the parsed `keys`. If `keys` is None, return the keys of SVC_SIGNING_KEYS and SVC_VERIFY_KEYS.

    Raises ConfigError and ArtifactReadError as `keys_text` does. No message contains a key.
    """
    if keys is None and (settings.verify_keys or settings.signing_keys_file):
        return load_signing_keys(settings)
    return parse_signing_keys(keys_text(keys, settings, artifact))


@names_arguments
def load(
    artifact: str | Path,
    keys: Keys = None,
    *,
    items: Any = None,
    new_items: Any = None,
    new_items_share: float | None = NEW_ITEMS_SHARE,
    new_items_min_share: float = 0.0,
) -> Recommender:
    """Read an artifact, verify its signature as a server does, and return a recommender.

    Args:
        artifact: Path or URI (`s3://`, `gs://`, `az://`, `https://`) of an artifact or its pointer.
        keys: The keys that may have signed the artifact, as text in the form of `SVC_SIGNING_KEYS` or as a mapping from
            kid to 64 hex characters. None: the keys of `SVC_SIGNING_KEYS` and `SVC_VERIFY_KEYS`.
        items: A DataFrame with one row per item. Requests can filter by its columns except times, and answers show all.
            Ids are in the item column of the training, or in `item_id`. A cell with several labels is a list, or text
            with `|` between the labels.
        new_items: A DataFrame of items that training did not see, with ids and the columns of `features.item`.
            `recommend` ranks them among the items of the model.
        new_items_share: The largest share of new items among the first n items of a ranking, for every n, 0 to 1.
            None: no bound.
        new_items_min_share: The smallest such share, as long as new items are left.

    Raises:
        svc.errors.UsageError: An argument is invalid.
        svc.errors.FeaturesNotSupported: `new_items` is given, and the model was trained without item features.
        svc.errors.ConfigError: There are no keys, or they cannot be parsed.
        svc.errors.ArtifactError: The artifact cannot be read, trusted or used.
    """
    settings = Settings.from_env(environment(Path()))
    logs.configure_for_library()
    given: object = artifact
    # Typed as object, because a caller without a type checker may pass anything.
    if not isinstance(given, str | os.PathLike):
        ready = "; it has a `.recommender`" if hasattr(given, "recommender") else ""
        raise UsageError(f"artifact: give a path or URI, not a {type(given).__name__}{ready}")
    refuse_other_kinds(str(artifact))
    opened = open_artifact(str(artifact), signing_keys(keys, settings, str(artifact)), settings)
    new = new_items_of(new_items, opened, new_items_share, new_items_min_share)
    ids = ids_with(opened.model.item_ids, new)
    table = NO_ITEM_TABLE if items is None else item_table(items, ids, id_column_of(opened))
    return Recommender(opened, FramedOffer.of(opened.model, table, new))


def id_column_of(opened: OpenedArtifact) -> str:
    """Return the name of the item id column in the artifact's recipe, or `item_id` if the recipe does not name it."""
    recipe = opened.header.get("recipe") or {}
    return str((recipe.get("schema") or {}).get("item_column", "item_id"))
