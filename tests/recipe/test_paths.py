"""The addresses that a recipe may name."""

from __future__ import annotations

from pathlib import Path

import pytest

from svc.errors import RecipeSecurityError
from svc.recipe.paths import parse_location


@pytest.mark.parametrize("uri", ["data/a.csv", "../a.csv", "/abs/a b.csv", "file:///abs/a%20b.csv", "a:b.csv"])
def test_local_paths_are_accepted(uri: str) -> None:
    """Relative paths are resolved below the recipe's folder."""
    location = parse_location(uri)
    assert not location.is_remote
    assert location.resolve(Path("/recipes")).is_absolute()


def test_file_uris_are_decoded() -> None:
    """`%20` in a file URI is a blank."""
    assert parse_location("file:///a%20b").path == Path("/a b")


@pytest.mark.parametrize(
    "uri",
    [
        "s3://b/a",
        "S3://b/a",
        "gs://b/a",
        "az://c/a",
        "abfs://c@acct.dfs.core.windows.net/a",
        "http://[::1]:80/a",
        "https://h/a?b=c",
    ],
)
def test_remote_addresses_are_accepted(uri: str) -> None:
    """Schemes may have any case.

    Colons of an IPv6 host are no chain, and an Azure container before `@` is no user-info.
    """
    location = parse_location(uri)
    assert location.is_remote
    assert location.scheme == uri.partition(":")[0].lower()


@pytest.mark.parametrize(
    "uri",
    [
        "",
        " ",
        "a\x00b",
        "a\nb",
        "ftp://h/a",
        "javascript://h/a",
        "javascript:alert(1)",
        "Data:text/csv,a",
        "simplecache::s3://b/a",
        "a::b",
        "https://u@h/a",
        "https://u:p@h/a",
        "https://u%40h:p@x/a",
        "s3://k:s@b/a",
        "abfs://c:key@acct/a",
        "https://h/a/../b",
        "https://h/%2e%2e/b",
        "https://h\\@evil/a",
        "https://h:port/a",
        "https:///a",
        "http://[::1/a",
        "file://host/a",
        "file://a",
    ],
)
def test_forbidden_addresses_are_refused(uri: str) -> None:
    """Each address raises RecipeSecurityError, without parts of the address that could be secret."""
    with pytest.raises(RecipeSecurityError) as caught:
        parse_location(uri)
    assert "key" not in caught.value.message
