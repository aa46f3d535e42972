"""Files in an object store in memory: reads in pieces, digests, changes while reading, and errors."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from svc.errors import DataSourceError, RecipeError
from svc.settings import Settings
from svc.sources import objects, parts
from tests.object_store import ObjectsInMemory

LINES = b"user_id,item_id\n" + b"".join(b"u%d,i%d\n" % (row, row) for row in range(40))
DIGEST = hashlib.sha256(LINES).hexdigest()


@pytest.fixture(autouse=True)
def short_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(objects, "_PIECE_BYTES", 64)


def parquet(**columns: Any) -> bytes:
    packed = io.BytesIO()
    pq.write_table(pa.table(columns), packed)
    return packed.getvalue()


def test_an_object_is_read_in_pieces(make: Any, objects_in_memory: ObjectsInMemory) -> None:
    """An object with a sha256 in the recipe is copied first, so that exactly the verified bytes are read."""
    objects_in_memory.pipe_file("s3://shop/a.csv", LINES)
    for digest in (None, DIGEST):
        frame = make("csv", path="s3://shop/a.csv", sha256=digest).fetch()
        assert frame["item_id"].to_list() == [f"i{row}" for row in range(40)]
    assert ("cat_file", "/shop/a.csv") in objects_in_memory.calls
    with pytest.raises(DataSourceError, match="not the expected file"):
        make("csv", path="s3://shop/a.csv", sha256="0" * 64).fetch()
    objects_in_memory.pipe_file("s3://shop/a.parquet", parquet(user_id=["1", "2"], x=[0.5, 1.5]))
    source = make("parquet", path="s3://shop/a.parquet", columns=("user_id",))
    assert source.fetch()["user_id"].to_list() == ["1", "2"]
    assert any("2 rows" in line for line in source.probe())


def on(operation: str, number: int, act: Callable[[], Any]) -> Callable[[str, str], None]:
    """Return a hook that calls `act` before the operation's call with this number, from 1."""
    times = [0]

    def hook(name: str, _path: str) -> None:
        times[0] += name == operation
        if name == operation and times[0] == number:
            act()

    return hook


def test_pieces_of_two_versions_never_mix(make: Any, objects_in_memory: ObjectsInMemory) -> None:
    """An object that is replaced while it is read is an error, also if the sizes are equal."""
    for content, words in ((LINES.replace(b"u", b"v"), "changed while it was read"), (LINES[:70], "was cut")):
        objects_in_memory.pipe_file("s3://shop/a.csv", LINES)
        objects_in_memory.before = on("cat_file", 2, lambda: objects_in_memory.pipe_file("s3://shop/a.csv", content))  # noqa: B023
        with pytest.raises(DataSourceError, match=rf"s3://shop/a\.csv {words}"):
            make("csv", path="s3://shop/a.csv").fetch()


class Refusal(Exception):
    """An error of a client, with the status of the store's answer and a secret in its text."""

    status_code = 403


def test_failures_name_the_object_and_the_reason(make: Any, objects_in_memory: ObjectsInMemory) -> None:
    """The refusal of a HEAD has no body, so the object is read for the body of that refusal."""

    def refuse() -> None:
        raise Refusal("hunter2")

    for scheme in ("s3", "gs", "az"):
        with pytest.raises(DataSourceError, match=rf"^{scheme}://shop/a\.csv does not exist$"):
            make("csv", path=f"{scheme}://shop/a.csv").fetch()
    objects_in_memory.pipe_file("s3://shop/a.csv", LINES)
    objects_in_memory.calls.clear()
    objects_in_memory.before = lambda _operation, _path: refuse()
    refusal = r"^s3://shop/a\.csv cannot be read: permission denied, status 403, Refusal; check the credentials$"
    with pytest.raises(DataSourceError, match=refusal):
        make("csv", path="s3://shop/a.csv").fetch()
    assert [operation for operation, _ in objects_in_memory.calls] == ["info", "cat_file"]
    objects_in_memory.before = on("cat_file", 2, refuse)
    with pytest.raises(DataSourceError, match=refusal):
        make("csv", path="s3://shop/a.csv").fetch()


@pytest.mark.parametrize("small", [True, False])
def test_folders_and_patterns_are_read_in_sorted_order(
    make: Any, objects_in_memory: ObjectsInMemory, monkeypatch: pytest.MonkeyPatch, small: bool
) -> None:
    """Small objects are prefetched and others read in pieces. A name with a wildcard may be that of one object."""
    if not small:
        monkeypatch.setattr(parts, "SMALL_OBJECT_BYTES", 0)
    for day in (3, 1, 2):
        objects_in_memory.pipe_file(
            f"s3://shop/lake/date=0{day}/a.parquet", parquet(user_id=[f"u{day}"], item_id=["i"])
        )
    objects_in_memory.pipe_file("s3://shop/lake/_SUCCESS", b"")
    objects_in_memory.pipe_file("s3://shop/lake[1]", parquet(user_id=["one"], item_id=["i"]))
    for path in ("lake", "lake/", "lake/*/*.parquet", "lake/date=*"):
        frame = make("parquet", path=f"s3://shop/{path}").fetch()
        assert frame["user_id"].to_list() == ["u1", "u2", "u3"]
        assert frame["date"].to_list() == ["01", "02", "03"]
    assert make("parquet", path="s3://shop/lake[1]").fetch()["user_id"].to_list() == ["one"]
    assert make("parquet", path="s3://shop/lake").probe()[0] == "s3://shop/lake: 3 files"
    for path, error, words in (
        ("none", DataSourceError, "does not exist"),
        ("none/", DataSourceError, "holds no file"),
        ("lake/x*", DataSourceError, "no file"),
    ):
        with pytest.raises(error, match=words):
            make("parquet", path=f"s3://shop/{path}").fetch()
    with pytest.raises(RecipeError, match="a pattern cannot stand in the name of a bucket"):
        make("parquet", path="s3://sh*p/lake").fetch()


def test_a_prefetched_object_is_whole_or_an_error(make: Any, objects_in_memory: ObjectsInMemory) -> None:
    """An object may be replaced after it was listed, by a longer or a shorter one."""
    for content in (LINES + b"u,i\n", LINES[:-1]):
        objects_in_memory.pipe_file("s3://shop/days/1.csv", LINES)
        objects_in_memory.before = on(
            "cat_file",
            1,
            lambda: objects_in_memory.pipe_file("s3://shop/days/1.csv", content),  # noqa: B023
        )
        with pytest.raises(DataSourceError, match=r"s3://shop/days/1\.csv changed while it was read"):
            make("csv", path="s3://shop/days/", settings=Settings(http_timeout_s=5)).fetch()
