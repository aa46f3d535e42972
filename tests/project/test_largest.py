"""The benchmark of the largest requests covers every field of every endpoint, also those that are added later."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from pydantic import BaseModel, Field

from benchmarks.largest import TOGETHER, Unbounded, Values, asked_of, every_request
from svc.serving.api.endpoint import Endpoint
from svc.serving.api.endpoints import ENDPOINTS
from svc.serving.transport.http1 import MAX_LINE_BYTES

WITH_FIELDS = [row for row in ENDPOINTS if row.request is not None or row.query is not None]


@pytest.mark.parametrize("row", WITH_FIELDS, ids=lambda row: row.name)
def test_each_field_of_an_endpoint_has_a_request_that_is_valid(row: Endpoint) -> None:
    """The schema accepts each request, so no value is above its bound."""
    schemas: list[type[BaseModel]] = [schema for schema in (row.request, row.query) if schema is not None]
    fields = [name for schema in schemas for name in schema.model_fields]
    asked = list(asked_of(row))
    assert [one.field for one in asked if one.field != TOGETHER] == fields
    for one in asked:
        given: Any = one.body if one.body is not None else dict(parse_qsl(urlsplit(one.path).query))
        assert one.field in {*given, TOGETHER}
        assert len(one.path) < MAX_LINE_BYTES - 32
        schemas[0].model_validate(given)


def test_values_are_the_largest_that_a_schema_permits() -> None:
    """One more element, or a larger number, is invalid."""
    checked = 0
    for row in WITH_FIELDS:
        if row.request is None or row.is_batch:
            continue
        for one in asked_of(row):
            assert one.body is not None
            value = one.body.get(one.field)
            if isinstance(value, list):
                larger: Any = [*value, value[0]]
            elif isinstance(value, int | float) and not isinstance(value, bool):
                larger = value + 1
            else:
                continue
            with pytest.raises(ValueError, match=r"less|at most"):
                row.request.model_validate({**one.body, one.field: larger})
            checked += 1
    assert checked > 25


def test_a_field_without_a_largest_value_is_an_error() -> None:
    class Asks(BaseModel):
        many: list[Annotated[str, Field(max_length=4)]]
        long: str
        large: int

    schema = Asks.model_json_schema()
    for name in Asks.model_fields:
        with pytest.raises(Unbounded, match=name):
            Values(schema).of(name, schema["properties"][name])


def test_all_endpoints_with_fields_are_asked() -> None:
    assert {one.endpoint for one in every_request()} == {row.name for row in WITH_FIELDS}
