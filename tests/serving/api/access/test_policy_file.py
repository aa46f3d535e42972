"""The file of policies is followed without a restart, and the last valid one stays in use."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from svc.errors import ConfigError
from svc.metrics import Metrics
from svc.serving.api.access.key_policies import KeyPolicies
from svc.serving.api.access.policy_file import PolicyFile
from svc.serving.api.routing.endpoints import ENDPOINTS

pytestmark = pytest.mark.anyio
ROW = next(row for row in ENDPOINTS if row.name == "recommend")


def of(path: Path) -> tuple[PolicyFile, KeyPolicies]:
    book = KeyPolicies(Metrics.disabled())
    return PolicyFile(str(path), book.replace, kids=lambda: {"shop"}, interval_s=5.0), book


def allowed(book: KeyPolicies, recipe: str) -> bool:
    try:
        book.admit("shop", ROW, recipe)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("content", [None, b"", b"shop: {x: 1}", b"\xff", b"[1", b"a" * (1 << 20)])
def test_a_broken_or_missing_file_at_the_start_is_an_error(tmp_path: Path, content: bytes | None) -> None:
    """The server does not start without readable policies."""
    path = tmp_path / "keys.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ConfigError, match="SVC_API_KEY_POLICIES"):
        of(path)[0].read()


async def test_a_changed_file_is_read_and_an_invalid_one_changes_nothing(tmp_path: Path) -> None:
    """Each change is logged once. A removed file is treated like an invalid one."""
    path = tmp_path / "keys.yaml"
    path.write_text("shop: {recipes: [a]}\nshp: {}")
    file, book = of(path)
    with capture_logs() as logs:
        file.read()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(file.run)
            seen: list[tuple[bool, bool]] = [(allowed(book, "a"), allowed(book, "b"))]

            async def after(change: Callable[[], object]) -> None:
                n_logged = len(logs)
                change()
                while len(logs) == n_logged:  # noqa: ASYNC110  # a real thread reads the file
                    await trio.sleep(1)
                await trio.sleep(20)
                seen.append((allowed(book, "a"), allowed(book, "b")))

            await after(lambda: path.write_text("shop: {recipes: [b]}"))
            await after(lambda: path.write_text("shop: {recipes: [a, b}"))
            await after(path.unlink)
            await after(lambda: path.write_text("shop: {}"))
            nursery.cancel_scope.cancel()
    assert seen == [(True, False), (False, True), (False, True), (False, True), (True, True)]
    assert [(line["event"], line.get("unknown_kids")) for line in logs] == [
        ("key_policies_loaded", ["shp"]),
        ("key_policies_without_key", ["shp"]),
        ("key_policies_loaded", []),
        ("key_policies_failed", None),
        ("key_policies_failed", None),
        ("key_policies_loaded", []),
    ]


async def test_a_file_that_is_replaced_by_one_of_the_same_size_and_time_is_read(tmp_path: Path) -> None:
    """Tools that keep times, and the links of a mounted ConfigMap, make such replacements."""
    path, other = tmp_path / "keys.yaml", tmp_path / "other"
    path.write_text("shop: {recipes: [a]}")
    file, book = of(path)
    file.read()
    status = path.stat()
    other.write_text("shop: {recipes: [b]}")
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(file.run)
        other.replace(path)
        while not allowed(book, "b"):  # noqa: ASYNC110
            await trio.sleep(1)
        nursery.cancel_scope.cancel()
    assert (allowed(book, "a"), allowed(book, "b")) == (False, True)
