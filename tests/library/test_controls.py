"""Each field of a request is an argument in Python, with the default of the request."""

from __future__ import annotations

import inspect

import pytest
from pydantic import BaseModel

import svc
from svc.asking.requests import RecommendRequest, RelatedRequest


@pytest.mark.parametrize(
    ("method", "schema"),
    [
        (svc.Recommender.recommend, RecommendRequest),
        (svc.Recommender.recommend_many, RecommendRequest),
        (svc.Recommender.related, RelatedRequest),
    ],
)
def test_a_method_takes_every_field_of_its_request(method: object, schema: type[BaseModel]) -> None:
    parameters = inspect.signature(method).parameters  # type: ignore[arg-type]
    fields = {**schema.model_fields}
    del fields["unit"]  # chooses an arm, and the library has none
    if method is svc.Recommender.recommend_many:
        del fields["user_id"]
    assert fields.keys() <= parameters.keys()
    assert parameters["limit"].default == fields["limit"].default


def test_an_unknown_argument_is_a_type_error() -> None:
    """The message names it, as for any function."""
    with pytest.raises(TypeError, match="limits_"):
        svc.Recommender.recommend(object(), "u1", limits_=[])  # type: ignore[arg-type, call-arg]


def test_too_many_arguments_by_position_are_a_type_error_with_the_names() -> None:
    """So a second argument, meant as the limit, is found among them."""
    with pytest.raises(TypeError, match=r"recommend: too many positional arguments; give these by name: .*\blimit\b"):
        svc.Recommender.recommend(object(), "u1", 5)  # type: ignore[call-arg, arg-type]
