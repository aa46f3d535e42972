"""Hints in the errors of invalid requests."""

from __future__ import annotations

import pytest

from svc.asking import hints
from svc.serving.api.endpoints import VERBS

FIELDS = ("user_id", "limit", "exclude_items")
NAMES = [row.verb for row in VERBS]


@pytest.mark.parametrize(("given", "meant"), [("userid", "user_id"), ("LIMIT", "limit"), ("exclude", "exclude_items")])
def test_the_most_similar_field_is_suggested(given: str, meant: str) -> None:
    """The comparison of names ignores case."""
    assert hints.unknown_field(given, FIELDS) == f"unknown field; did you mean {meant}?"


@pytest.mark.parametrize("given", ["numResults", "hitsPerPage", "n", "k"])
def test_parameter_names_of_other_products_get_a_suggestion(given: str) -> None:
    """`numResults` or `hitsPerPage` suggests `limit`, in bodies and in query strings."""
    assert hints.unknown_parameter(given, ("limit",)) == "unknown parameter; did you mean limit?"
    assert hints.unknown_field(given, FIELDS) == "unknown field; did you mean limit?"


def test_a_list_of_ids_to_rerank_is_items() -> None:
    """Only where there are no `items`, the name means the seeds of another endpoint."""
    assert hints.unknown_field("item_ids", ("user_id", "items")) == "unknown field; did you mean items?"
    assert ":recommend-related takes seed_items" in hints.unknown_field("item_ids", FIELDS)


def test_the_parameter_page_gets_a_hint_at_offset() -> None:
    """Only endpoints with `offset` give this hint."""
    assert "the third page of 10 items is offset 20" in hints.unknown_parameter("page", ("limit", "offset"))
    assert hints.unknown_parameter("page", ("q", "limit")) == "unknown parameter; this endpoint has q, limit"
    assert hints.unknown_parameter("page", ()) == "unknown parameter; this endpoint has no parameters"


def test_unknown_names_are_not_repeated() -> None:
    """The error never quotes a name that resembles no field, however long it is."""
    for name in ("s3cret", "x" * 100_000):
        assert name[:6] not in hints.unknown_field(name, FIELDS)


def test_only_ids_get_the_hint_at_quotes() -> None:
    """A number as an item id gets the hint to put it in quotes. Other fields get the plain message."""
    message = 'Input should be a valid string; ids are strings: "17", not 17'
    assert hints.wrong_id(("exclude_items", 3), "Input should be a valid string", 7) == message
    other = ("seed",)
    assert hints.wrong_value(other, "Input should be a valid string", "string_type", 7, is_id=False) == (
        "Input should be a valid string"
    )
    assert hints.wrong_id(("exclude_items", 3), message, ["a"]) == "one id belongs here, not a list"


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/recipes/a:recomend", "did you mean :recommend? "),
        ("/v1/recipes/a/recommend", "did you mean :recommend? "),
        ("/v1/recipes/a:explode", ""),
    ],
)
def test_an_unknown_path_below_a_recipe_lists_its_verbs(path: str, meant: str) -> None:
    """The error suggests the most similar verb, also after a slash in place of the colon."""
    message = hints.unknown_path(path, NAMES)
    listed = ", ".join(f":{name}" for name in NAMES)
    assert message == (f"nothing is served at this path; {meant}a recipe has {listed}, GET /popular, /items, /somebody")
    for elsewhere in ("/v1/books:recommend", "/recommend", "/health", "/v1/health/ready/"):
        assert hints.unknown_path(elsewhere, NAMES).endswith(
            "; there are /v1/recipes/NAME:recommend and /v1/health/ready, without a slash behind"
        )
