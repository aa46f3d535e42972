"""`svc.errors`: all errors can be imported from it, and its docstring shows them as a tree."""

from __future__ import annotations

import inspect

from svc import errors
from svc.errors import ApiError, SvcError

CLASSES = [c for _, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, SvcError)]


def test_every_class_is_drawn_in_the_tree() -> None:
    """The docstring of `svc.errors` names every error class except those of HTTP answers."""
    families = [c for c in CLASSES if not issubclass(c, ApiError)]
    drawn = errors.__doc__ or ""
    assert [c.__name__ for c in families if c.__name__ not in drawn] == []


def test_every_class_is_imported_from_one_place() -> None:
    """Every error class can be imported from `svc.errors`."""
    for room in (errors.commands, errors.http):
        own = [c for _, c in inspect.getmembers(room, inspect.isclass) if c.__module__ == room.__name__]
        assert own
        assert [c for c in own if c not in CLASSES] == []
