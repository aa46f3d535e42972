"""The description of one endpoint, and the match of a path with it."""

from __future__ import annotations

import dataclasses

import pytest

from svc.errors import MethodNotAllowed
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import ENDPOINTS, Router


def test_an_endpoint_must_declare_whether_it_is_public() -> None:
    """There is no default, so no endpoint is public by omission."""
    field = next(field for field in dataclasses.fields(Endpoint) if field.name == "public")
    assert field.default is field.default_factory is dataclasses.MISSING
    with pytest.raises(TypeError, match="public"):
        Endpoint(name="new", path="/v1/new")  # type: ignore[call-arg]


@pytest.mark.parametrize("row", ENDPOINTS, ids=lambda row: row.path)
def test_the_log_has_the_verb_or_the_name_of_an_endpoint(row: Endpoint) -> None:
    """The label of a recipe's verb is the verb, and that of any other endpoint is its name."""
    route = Router(ENDPOINTS).find(row.path.replace("{name}", "a"))
    assert route is not None
    assert route.label == (row.path.partition(":")[2] or row.name)


def test_methods_are_case_sensitive() -> None:
    """HEAD is accepted where GET is. Any other method gets the list of allowed ones."""
    router = Router(ENDPOINTS)
    health, verb = router.find("/v1/health"), router.find("/v1/recipes/a:recommend")
    assert health is not None
    assert verb is not None
    assert health.endpoint("HEAD") is health.endpoint("GET")
    for method in ("get", "Get", "POST", "OPTIONS", ""):
        with pytest.raises(MethodNotAllowed) as caught:
            health.endpoint(method)
        assert caught.value.fields["allow"] == ["GET", "HEAD"]
    with pytest.raises(MethodNotAllowed) as caught:
        verb.endpoint("HEAD")
    assert caught.value.fields["allow"] == ["POST"]
