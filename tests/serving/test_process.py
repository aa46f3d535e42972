"""What all processes that answer have in common."""

from __future__ import annotations

from svc.serving import process
from svc.settings import Settings


def test_one_error_in_groups_is_told_alone() -> None:
    """Several stay a group."""
    error = ValueError("x")
    assert process.single(ExceptionGroup("a", [ExceptionGroup("b", [error])])) is error
    several = ExceptionGroup("a", [error, KeyError("y")])
    assert process.single(several) is several


def test_the_limits_of_connections_are_the_settings() -> None:
    """Each where it belongs."""
    limits = process.limits(Settings(keep_alive_s=1.0, client_timeout_s=2.0, drain_s=3.0, http2=False))
    assert (limits.idle_s, limits.unread_s, limits.drain_s, limits.http2) == (1.0, 2.0, 3.0, False)
