"""The request fields that methods of a recommender take by name, stated once for type checkers and for signatures."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, Literal, ParamSpec, TypedDict, TypeVar

from pydantic import BaseModel

from svc.asking.hints import NO_HINT, unknown_field

Features = Mapping[str, object]
Item = str | Mapping[str, object]
"""An item id, or an object with `item_id` and a number."""
P = ParamSpec("P")
Owner = TypeVar("Owner")
Answer = TypeVar("Answer")


class ItemsControls(TypedDict, total=False):
    """Fields of all requests for items. `Recommender.recommend` describes them."""

    limit: int
    offset: int
    user_features: Features | None
    exclude_items: Sequence[str]
    include_items: Sequence[str] | None
    filter: Mapping[str, object] | None
    explain: int | None
    diversity: float | None
    limits: Sequence[Mapping[str, object]] | None
    boosts: Sequence[Mapping[str, object]] | None
    pins: Sequence[Mapping[str, object]] | None


class UserControls(TypedDict, total=False):
    """Fields that describe a user by more than features, and that vary the user's pages."""

    history: Sequence[Item] | None
    history_mode: Literal["append", "replace"] | None
    dislikes: Sequence[Item] | None
    fallback: Literal["none", "popular"] | None
    include_seen: bool | None
    shown: Sequence[Item] | None
    rotation: float
    seed: str | None
    shuffle: float


class RecommendControls(ItemsControls, UserControls, total=False):
    """Fields of requests for the items of a user."""


class PageControls(UserControls, total=False):
    """Fields of requests for a page, which hold for all of its rows."""

    user_features: Features | None
    exclude_items: Sequence[str]
    filter: Mapping[str, object] | None


class RelatedControls(ItemsControls, total=False):
    """Fields of requests for related items."""

    item_features: Features | Mapping[str, Features] | None


def takes(
    controls: type, schema: type[BaseModel]
) -> Callable[[Callable[Concatenate[Owner, P], Answer]], Callable[Concatenate[Owner, P], Answer]]:
    """Give a method with `**controls` a signature that names them, with the defaults of the request's `schema`.

    Notebooks show this signature. A name that it lacks raises TypeError, as for any function.
    """

    def decorate(method: Callable[Concatenate[Owner, P], Answer]) -> Callable[Concatenate[Owner, P], Answer]:
        own = inspect.signature(method)
        named = [p for p in own.parameters.values() if p.kind is not p.VAR_KEYWORD]
        fields = schema.model_fields
        more = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=_default(fields[name].get_default()))
            for name in inspect.get_annotations(controls)
            if name in fields
        ]
        return names_arguments(method, own.replace(parameters=[*named, *more]))

    return decorate


def names_arguments(function: Callable[P, Answer], signature: inspect.Signature | None = None) -> Callable[P, Answer]:
    """Let a function raise TypeError for an unknown argument with the name that the caller means, or with all names.

    `signature` is that of the function, or the one to show instead.
    """
    shown = signature or inspect.signature(function)
    names = [name for name in shown.parameters if name != "self"]
    by_name = [name for name, p in shown.parameters.items() if p.kind is p.KEYWORD_ONLY]

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> Answer:
        # Before `bind`, whose message has no suggestion.
        for name in sorted(kwargs.keys() - shown.parameters.keys()):
            hint = unknown_field(name, names).removeprefix("unknown field")
            hint = f"; it takes {', '.join(names)}" if hint in NO_HINT else hint
            raise TypeError(f"{function.__name__} got an unexpected keyword argument {name!r}{hint}")
        try:
            shown.bind(*args, **kwargs)
        except TypeError as error:
            # Python's own message counts arguments and names none.
            hint = f"; give these by name: {', '.join(by_name)}" if "positional" in str(error) and by_name else ""
            raise TypeError(f"{function.__name__}: {error}{hint}") from None
        return function(*args, **kwargs)

    # Otherwise notebooks would show the signature of the wrapped method with `**controls`.
    checked.__signature__ = shown  # type: ignore[attr-defined]  # inspect reads it
    return checked


def _default(value: Any) -> Any:
    """Return a default that cannot be changed. A list of ids is empty if it is not given."""
    return value if isinstance(value, str | int | float | None) else ()
