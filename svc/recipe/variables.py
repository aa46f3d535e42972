"""Expansion of `${SVC_RECIPE_X}` in the strings of a recipe.

Expanded text is not expanded again. There is no syntax for defaults or escapes. Messages name a variable, but never
show its value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from svc.errors import RecipeError, RecipeSecurityError, UsageError

PREFIX = "SVC_RECIPE_"
_NAME = re.compile(r"SVC_RECIPE_[A-Za-z0-9_]+")
_REFERENCE = re.compile(r"\$\{([^{}]*)\}")
SECRET = re.compile("SECRET|PASSWORD|PASSWD|TOKEN|KEY|AUTH|BEARER|CRED|PRIVATE", re.IGNORECASE)
_NEVER_EXPANDED = frozenset({"query", "query_parameters"})


def recipe_variables(
    environ: Mapping[str, str], extra: Sequence[str] = (), argument: str = "--env-var"
) -> dict[str, str]:
    """Return the `SVC_RECIPE_*` variables of `environ`, overridden by the `KEY=VALUE` pairs in `extra`.

    Raises UsageError for an entry of `extra` that is no such pair or names another variable. `argument` is the name of
    `extra` in messages.
    """
    variables = {name: value for name, value in environ.items() if _NAME.fullmatch(name)}
    for item in extra:
        name, equals, value = item.partition("=")
        if not equals or not _NAME.fullmatch(name):
            shown = name if equals else "a value without ="
            raise UsageError(f"{argument}: {shown!r} is refused; give {PREFIX}<NAME>=<value>")
        variables[name] = value
    return variables


def has_reference(text: object) -> bool:
    """Return whether `text` is a string with `${`, which begins a reference."""
    return isinstance(text, str) and "${" in text


def contains_reference(tree: Any) -> bool:
    """Return whether any expandable string in `tree` refers to a variable."""
    return any(True for _ in _texts(tree))


def expand(tree: Any, variables: Mapping[str, str], where: str) -> Any:
    """Return a copy of `tree` with every reference replaced, except in queries. `where` is the field path of `tree`.

    Raises RecipeError for a variable that is not set or not a recipe variable, and RecipeSecurityError for a variable
    whose name looks like a secret.
    """
    if isinstance(tree, dict):
        return {
            # A variable within a query would be SQL. Values of queries are bound as `query_parameters`.
            key: value if key in _NEVER_EXPANDED else expand(value, variables, f"{where}.{key}")
            for key, value in tree.items()
        }
    if isinstance(tree, list):
        return [expand(value, variables, f"{where}[{index}]") for index, value in enumerate(tree)]
    return _expand_text(tree, variables, where) if has_reference(tree) else tree


def references(tree: Any) -> Iterator[tuple[str, str]]:
    """Yield the field path and the name of each variable that is expanded in `tree`."""
    for where, text in _texts(tree):
        yield from ((where, name) for name in _REFERENCE.findall(text))


def _texts(tree: Any, where: str = "") -> Iterator[tuple[str, str]]:
    """Yield the field path and the text of each expandable string in `tree` that refers to a variable."""
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            if key not in _NEVER_EXPANDED:
                yield from _texts(value, f"{where}.{key}" if where else key)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _texts(value, f"{where}[{index}]")
    elif has_reference(tree):
        yield where, tree


def unexpanded_references(tree: Any, where: str = "") -> Iterator[str]:
    """Yield the field paths of queries with a reference to a variable, which the database receives unexpanded."""
    if not isinstance(tree, Mapping):
        return
    for key, value in tree.items():
        path = f"{where}.{key}" if where else key
        if key in _NEVER_EXPANDED and f"${{{PREFIX}" in str(value):
            yield path
        yield from unexpanded_references(value, path)


def _expand_text(text: str, variables: Mapping[str, str], where: str) -> str:
    # A pattern finds only references that end.
    if text.count("${") != len(_REFERENCE.findall(text)):
        raise RecipeError(f"{where}: `${{` begins a variable that `}}` does not end; write ${{{PREFIX}<NAME>}}")
    # A function, because `sub` would read backslashes in a text as escapes.
    return _REFERENCE.sub(lambda match: _value(match[1], variables, where), text)


def _value(name: str, variables: Mapping[str, str], where: str) -> str:
    if not _NAME.fullmatch(name):
        raise RecipeError(f"{where}: ${{{name}}} is not a recipe variable; only ${{{PREFIX}<NAME>}} is expanded")
    # By name, because a value does not show that it is a secret.
    if SECRET.search(name.removeprefix(PREFIX)):
        raise RecipeSecurityError(
            f"{where}: {name} looks like a secret by its name, and secrets do not belong in a recipe; "
            "give database addresses through `dsn_env`, cloud credentials through the client's own environment"
        )
    if name not in variables:
        raise RecipeError(f"{where}: {name} is not set; export it or give --env-var {name}=<value>")
    return variables[name]
