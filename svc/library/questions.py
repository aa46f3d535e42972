"""Calls in Python as requests of the API: the same names, the same checks, the same queries."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from svc.errors import UsageError, ValidationFailed
from svc.library.items import ItemTable
from svc.model.model import Model
from svc.model.ranking.filter_fields import FilterFields
from svc.model.ranking.item_sets import ItemSet, intersect
from svc.model.ranking.new_items import NewItems
from svc.model.ranking.query import Prepared
from svc.serving.api.bodies.parsing import parse
from svc.serving.api.bodies.requests import PopularQuery, RecommendRequest, RelatedRequest, UsersRequest
from svc.serving.models.policy import DEFAULT_POLICY, Policy

AnyQuestion = TypeVar("AnyQuestion", RecommendRequest, RelatedRequest, PopularQuery, UsersRequest)
_IDS = ("exclude_items", "include_items", "seed_items", "include_users", "exclude_users")
_LISTS = (*_IDS, "history", "limits", "boosts", "pins")
_FILTERING = ("filter", "limits", "boosts")


@dataclass(frozen=True, slots=True, eq=False)
class Answerer:
    """A model for requests, with the table of its items, the policy of its recipe, and new items.

    `items` has the rows of the model's items, followed by those of the new items.
    """

    model: Model
    items: ItemTable | None = None
    policy: Policy = DEFAULT_POLICY
    new: NewItems | None = None

    @property
    def filters(self) -> FilterFields | None:
        return None if self.items is None else self.items.filters

    @property
    def filter_kinds(self) -> Mapping[str, str]:
        return {} if self.filters is None else self.filters.kinds

    @property
    def new_items(self) -> NewItems | None:
        """Return the new items that may be recommended, or None if there are none."""
        return None if self.new is None or not len(self.new) else self.new

    def item_id(self, column: int) -> str:
        """Return the id of an item of the model or of a new one."""
        n_items = self.model.n_items
        if self.new is not None and column >= n_items:
            return self.new.ids.at(column - n_items)
        return self.model.item_ids.at(column)

    def allowed_items(self, own: ItemSet | None = None) -> ItemSet | None:
        """Return the items that may be shown. None: all. `own` are those that satisfy the request's own filter."""
        tree = self.policy.filter
        always = None if tree is None or self.filters is None else self.filters.items(tree)
        return intersect(always, own)


def question(schema: type[AnyQuestion], answerer: Answerer, controls: Mapping[str, Any]) -> AnyQuestion:
    """Return the validated request of these controls. Controls that are None are left out. Raises UsageError."""
    given = {name: _to_json(name, value) for name, value in controls.items() if value is not None}
    asked = next((name for name in _FILTERING if given.get(name)), None)
    if asked is not None and answerer.filters is None:
        raise UsageError(f"{asked}: nothing is known of the items: give svc.load or svc.train items=, a DataFrame")
    try:
        return parse(schema, given)
    except ValidationFailed as error:
        raise in_python(error) from None


def prepare(request: RecommendRequest | RelatedRequest | PopularQuery, answerer: Answerer) -> Prepared:
    """Return the query of a valid request. Raises UsageError, and the errors of the model."""
    try:
        return request.prepare(answerer)
    except ValidationFailed as error:
        raise in_python(error) from None


def in_python(error: ValidationFailed) -> UsageError:
    """Return the error without words of HTTP."""
    return UsageError(error.message.removeprefix("request body: ").removeprefix("query: "))


def checked_id(name: str, value: object) -> str:
    """Return one id. Raises UsageError for anything but text."""
    if isinstance(value, str):
        return str(value)
    if value is None or value is pd.NA or (isinstance(value, float) and math.isnan(value)):
        raise UsageError(f"{name}: an id is missing (NaN); leave such rows out, as dropna() does")
    if isinstance(value, Iterable):
        plural = "; recommend_many takes several users" if name == "user_id" else ""
        raise UsageError(f"{name}: one id belongs here, not a {type(value).__name__}{plural}")
    raise UsageError(f"{name}: ids are text, and {value!r} is of type {type(value).__name__}: use str({value!r})")


def checked_ids(name: str, values: object) -> list[str]:
    """Return the ids of any iterable, such as a column of a DataFrame. Raises UsageError."""
    return [checked_id(name, value) for value in _as_list(name, values)]


def _as_list(name: str, values: object) -> list[Any]:
    if isinstance(values, str):
        raise UsageError(f"{name}: give a list, such as [{values!r}]")
    if isinstance(values, pd.DataFrame):
        raise UsageError(f"{name}: give one column of the DataFrame, such as {name}=data['item_id']")
    if isinstance(values, Mapping) or not isinstance(values, Iterable):
        raise UsageError(f"{name}: give a list, not a {type(values).__name__}")
    return list(values)


def _to_json(name: str, value: object) -> object:
    """Return the value in the form of JSON."""
    if name in ("user_id", "item_id"):
        return checked_id(name, value)
    if name in _IDS:
        return checked_ids(name, value)
    if name in ("history", "dislikes", "shown"):
        return [_entry(name, entry) for entry in _as_list(name, value)]
    return _plain(_as_list(name, value) if name in _LISTS else value)


def _entry(name: str, entry: object) -> object:
    if isinstance(entry, Mapping):
        plain = {str(key): _plain(value) for key, value in entry.items()}
        return {**plain, "item_id": checked_id(name, plain["item_id"])} if "item_id" in plain else plain
    return checked_id(name, entry)


def _plain(value: Any) -> Any:
    """Return numbers, lists and mappings of numpy and pandas as those of JSON. Missing values become None."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is pd.NA or value is pd.NaT or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, pd.Series) and not isinstance(value.index, pd.RangeIndex):
        value = value.to_dict()  # a row of a frame, as a mapping by column
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, Sequence | np.ndarray | pd.Series | pd.Index | set) and not isinstance(value, str | bytes):
        return [_plain(inner) for inner in value]
    return value
