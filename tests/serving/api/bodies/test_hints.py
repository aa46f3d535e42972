"""What clients usually meant by a request that is not valid."""

from __future__ import annotations

import pytest

from svc.serving.api.bodies import hints
from svc.serving.api.routing.endpoints import VERBS

FIELDS = ("user_id", "limit", "exclude_items")
NAMES = [row.verb for row in VERBS]


@pytest.mark.parametrize(("given", "meant"), [("userid", "user_id"), ("LIMIT", "limit"), ("exclude", "exclude_items")])
def test_the_nearest_field_is_named(given: str, meant: str) -> None:
    """Whatever its case."""
    assert hints.unknown_field(given, FIELDS) == f"unknown field; did you mean {meant}?"


@pytest.mark.parametrize("given", ["numResults", "hitsPerPage", "n", "k"])
def test_names_of_other_products_are_known(given: str) -> None:
    """In bodies and in query strings alike."""
    assert hints.unknown_parameter(given, ("limit",)) == "unknown parameter; did you mean limit?"
    assert hints.unknown_field(given, FIELDS) == "unknown field; did you mean limit?"


def test_pages_are_told_of_offset() -> None:
    """Only by an endpoint that has it."""
    assert "the third page of 10 items is offset 20" in hints.unknown_parameter("page", ("limit", "offset"))
    assert hints.unknown_parameter("page", ("q", "limit")) == "unknown parameter; this endpoint has q, limit"
    assert hints.unknown_parameter("page", ()) == "unknown parameter; this endpoint has no parameters"


def test_what_a_client_sent_is_not_repeated() -> None:
    """Neither a field that is like none, nor a very long one."""
    for name in ("s3cret", "x" * 100_000):
        assert name[:6] not in hints.unknown_field(name, FIELDS)


def test_only_ids_are_told_to_be_strings() -> None:
    """Quotes are what most clients forget."""
    told = 'Input should be a valid string; ids are strings: "17", not 17'
    assert hints.wrong_type(("exclude_items", 3), "Input should be a valid string") == told
    assert (
        hints.wrong_type(("boosts", 0, "filter"), "Input should be a valid string") == "Input should be a valid string"
    )


@pytest.mark.parametrize(
    ("path", "meant"),
    [
        ("/v1/recipes/a:recomend", "did you mean :recommend? "),
        ("/v1/recipes/a/recommend", "did you mean :recommend? "),
        ("/v1/recipes/a:explode", ""),
    ],
)
def test_a_path_below_a_recipe_is_told_its_verbs(path: str, meant: str) -> None:
    """Also after a slash in place of the colon."""
    told = hints.unknown_path(path, NAMES)
    assert told == f"nothing is served at this path; {meant}a recipe has {', '.join(f':{name}' for name in NAMES)}"
    assert hints.unknown_path("/v2/anything", NAMES) == ""
