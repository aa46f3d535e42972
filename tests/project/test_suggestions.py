"""Suggestions of error messages, fed back: mistakes are made of every field, command and argument, not listed by hand.

A suggested key or value must be accepted at the suggested place, and mean the same as before the mistake.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer
import yaml

import svc
from svc.asking.hints import unknown_field
from svc.asking.parsing import parse
from svc.cli import main
from svc.errors import SvcError, ValidationFailed
from svc.names import OTHER_NAMES
from svc.recipe.load import load_recipe
from svc.recipe.schema import Recipe
from svc.serving.api.endpoints import VERBS
from svc.settings import Settings
from svc.sources.base import check_spec
from tests.recipe.loading import AVAILABILITY, BASE, METADATA

Place = tuple[Any, ...]
FULL: dict[str, Any] = {
    **BASE,
    "source": {"type": "csv", "path": "data/ratings.csv", "delimiter": ";", "encoding": "latin-1", "header": 1},
    "item_metadata": METADATA,
    "cleansing": {
        "where": {"rating": {"gte": 4}},
        "hide": {"rating": {"lt": 3}},
        "dedup": "keep_first",
        "min_interactions": 2,
        "max_change": {"n_rows": 0.4, "n_users": 0.4, "n_items": 0.4},
    },
    "training": {
        "algorithms": ["IALS", "TopPop"],
        "metric": "map",
        "cutoff": 7,
        "n_trials": 5,
        "timeout_seconds": 90.5,
        "seed": 3,
        "split": {"scheme": "time_global", "heldout_ratio": 0.25},
        "time_decay": {"half_life": "30d"},
        "parallelism": 2,
        "per_algorithm_trials": {"IALS": 3},
        "search_space": {"IALS": {"n_components": [16, 64]}},
        "max_search_age": "7d",
    },
    "output": {"path": "artifacts/movies.svc", "versioning": "append_sha", "keep": 4, "expires_after": "36h"},
    "promotion": {"mode": "report", "against": ["TopPop"], "confidence": 0.9},
    "serving": {
        "filter": {"year": {"gte": 2000}},
        "diversity": 0.3,
        "limits": [{"field": "genres", "max": 3}],
        "boosts": [{"filter": {"genres": {"any": ["Drama"]}}, "factor": 2}],
        "pins": [{"item_id": "b1", "position": 0}],
        "availability": AVAILABILITY,
        "fallback": "popular",
        "popular": {"half_life": "7d"},
    },
}
"""A recipe with most of the keys of a recipe, none at its default."""


NAMED_BY_USERS = {"where", "hide", "filter", "search_space", "per_algorithm_trials"}
"""Mappings whose keys are columns, algorithms and parameters."""


def _loaded(recipe: dict[str, Any]) -> Recipe:
    return load_recipe(recipe, {}, settings=Settings(), check_source=check_spec).recipe


def _places(tree: Any, at: Place = ()) -> Iterator[Place]:
    """Yield the place of each key of a recipe."""
    if isinstance(tree, dict) and not NAMED_BY_USERS & {*at}:
        for key in tree:
            yield (*at, key)
            yield from _places(tree[key], (*at, key))
    elif isinstance(tree, list):
        for index, part in enumerate(tree):
            yield from _places(part, (*at, index))


def _at(tree: Any, place: Place) -> Any:
    for part in place:
        tree = tree[part]
    return tree


def _misspelt(name: str) -> Iterator[str]:
    """Yield typical misspellings of a name."""
    yield name[:-1]
    yield name[:2] + name[3:]
    yield f"{name}s"
    yield re.sub("_([a-z])", lambda match: match[1].upper(), name)
    yield name.replace("_", "-").title()


def _rewritten(value: Any) -> Iterator[Any]:
    """Yield the value in forms of another type, which mean the same."""
    if isinstance(value, list):
        yield ", ".join(map(str, value))
        yield from value if len(value) == 1 else ()
    else:
        yield [value]
    if isinstance(value, dict) and len(value) == 1:
        yield from value.values()
    if isinstance(value, float) and value < 1:
        yield f"{value * 100:g}%"
        yield value * 100
    if isinstance(value, str) and (duration := re.fullmatch("([0-9]+)([dh])", value)):
        yield f"{duration[1]} {'days' if duration[2] == 'd' else 'hours'}"


def _mistakes() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield FULL with one mistake: a key that is misspelt or at another place, or a value of another type."""
    for place in _places(FULL):
        *above, key = place
        if isinstance(key, int):
            continue
        for other in _misspelt(key):
            block = _at(wrong := copy.deepcopy(FULL), tuple(above))
            if other not in block:
                block[other] = block.pop(key)
                yield f"{place}: {other}", wrong
        for value in _rewritten(_at(FULL, place)):
            _at(wrong := copy.deepcopy(FULL), tuple(above))[key] = value
            yield f"{place}: {value!r}", wrong
        if not any(isinstance(part, int) for part in place):
            yield from ((f"{place} in {home}", wrong) for home, wrong in _misplaced(place))


def _misplaced(place: Place) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield FULL with one key in each other block in which it means nothing, and the place of this block."""
    *above, key = place
    if key == "scheme":  # the loader sets a default at its place, which is thus not free
        return
    blocks = [at for at in _places(FULL) if isinstance(_at(FULL, at), dict) and not {*at} & {*NAMED_BY_USERS, "source"}]
    for home in [(), *blocks]:
        block = _at(wrong := copy.deepcopy(FULL), home)
        if home[: len(place)] != place and home != tuple(above) and not {key, *OTHER_NAMES.get(key, ())} & {*block}:
            del _at(wrong, tuple(above))[key]
            block[key] = _at(FULL, place)
            yield home, wrong


_VALUE = re.compile(
    r"(?:; write (?!dsn_env|a condition|`|one of|\"|[^ ]+ for days;)|did you mean (?![`:]))"
    "(.+?)(?:[?]|$| for days| for [0-9.]+%)"
)
_KEY = re.compile(r"(?:did you mean|it is|it belongs at) `([a-z_.]+)(?:: (.+?))?`(?!, which| or `)")


def _mended(recipe: dict[str, Any], line: str) -> dict[str, Any] | None:
    """Return the recipe with the suggestion of one line of a message, or None without one."""
    where, _, said = line.partition(": ")
    place = [int(part) if part.isdigit() else part for part in re.split("[].[]+", where) if part]
    value, key = _VALUE.search(said), _KEY.search(said)
    if key is None and value is None:
        return None
    block = _at(recipe := copy.deepcopy(recipe), tuple(place[:-1]))
    if key is None:
        meant = yaml.safe_load(value[1])
        (block if "a condition is" not in said else _at(recipe, tuple(place[:-2])))[
            place[-1] if "a condition is" not in said else place[-2]
        ] = meant
        return recipe
    given = block.pop(place[-1])
    *above, last = key[1].split(".") if "." in key[1] or "belongs" in said else [*place[:-1], key[1]]
    block = recipe
    for part in above:
        block = block.setdefault(part, {}) if isinstance(block, dict) else block[part]
    block[last] = yaml.safe_load(key[2]) if key[2] else given
    return recipe


@pytest.mark.parametrize("number", range(4))
def test_each_suggestion_for_a_recipe_restores_it(number: int) -> None:
    """A mistake that is refused with a suggestion is mended by it, so that the recipe means what it meant before."""
    meant, unmended, n_mended = _loaded(FULL), [], 0
    for mistake, wrong in [*_mistakes()][number::4]:
        try:
            _loaded(wrong)
        except SvcError as error:
            lines = [line.split("recipe: ")[-1].strip() for line in error.message.splitlines()]
            mended = [recipe for line in lines if (recipe := _mended(wrong, line)) is not None]
            n_mended += bool(mended)
            for recipe in mended:
                try:
                    same = _loaded(recipe) == meant
                except SvcError as again:
                    same = len(lines) > 2 and error.message != again.message
                if not same:
                    unmended.append((mistake, lines))
    assert unmended == []
    assert n_mended > 50


BODIES = {row.verb: row.request for row in VERBS if row.request is not None}
REQUEST: dict[str, Any] = {
    "user_id": "u1",
    "seed_items": ["i1"],
    "requests": [{"user_id": "u1"}],
    "history": ["i1"],
    "limits": [{"field": "genres", "max": 3}],
    "boosts": [{"filter": {"genres": {"any": ["Drama"]}}, "factor": 2}],
    "pins": [{"item_id": "i1", "position": 0}],
    "user_features": {"age": 30},
    "filter": {"genres": {"any": ["Drama"]}},
    "limit": 5,
    "offset": 2,
    "diversity": 0.2,
    "exclude_items": ["i2"],
    "include_seen": True,
}
"""A value for the fields of requests that differ in their form."""


def _said(verb: str, body: object) -> list[tuple[list[Any], str]]:
    """Return the place and the message of each error of a request."""
    try:
        parse(BODIES[verb], json.dumps(body).encode())
    except ValidationFailed as error:
        return [(part["loc"][1:], part["msg"]) for part in error.errors]
    return []


@pytest.mark.parametrize("verb", BODIES)
def test_each_suggestion_for_a_request_is_valid(verb: str) -> None:
    """A misspelt field gets its own name back. A field of another verb gets a verb that has it. Examples are valid."""
    own, wrong = BODIES[verb].model_fields, []
    for name, value in REQUEST.items():
        for other in {*_misspelt(name), name} - {*own}:
            for loc, said in _said(verb, {other: value}):
                if loc != [other]:
                    continue
                key, takes = re.search(r"did you mean (\w+)", said), re.search(r":([a-z-]+) takes (\w+)", said)
                if key and name in own and key[1] != name:
                    wrong.append((other, said))
                if key and name not in own and (other == name or key[1] not in own):
                    wrong.append((other, said))
                if takes and takes[2] not in BODIES[takes[1]].model_fields:
                    wrong.append((other, said))
        for form in ({name: str(value)}, {name: [[value]]}, {name: {"i1": 1}}) if name in own else ():
            for loc, said in _said(verb, form):
                example = re.search(r"as in ((?:\[|{).*(?:]|}))", said)
                if (
                    example
                    and loc == [name]
                    and any(
                        at == [name]
                        for at, _ in _said(
                            verb, json.loads(example[1]) if name == "requests" else {name: json.loads(example[1])}
                        )
                    )
                ):
                    wrong.append((form, said))
    assert wrong == []


_command_of = functools.cache(typer.main.get_command)
"""Makes a command of the program once. It takes 50 ms, and the mistakes of one command are about 150."""


def _parses(line: str) -> bool:
    """Return whether svc can parse a command line. Placeholders stand for texts."""
    group = _command_of(main.app)
    words = line.split()[1:]
    try:
        name, command, rest = group.resolve_command(
            context := group.make_context("svc", words, resilient_parsing=True), words
        )
        command.make_context(
            name, [word.replace("FOLDER", ".") for word in rest], parent=context, resilient_parsing=True
        )
    except typer.exceptions.TyperException:
        return False
    return True


@pytest.mark.parametrize("name", [name for name in main.COMMANDS if name != "demo"])
def test_each_suggested_command_line_is_one_of_svc(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each command and option is misspelt, put before the command, and given to another command."""
    monkeypatch.setattr(typer.main, "get_command", _command_of)
    options = [f"--{word.replace('_', '-')}" for word in inspect.signature(main.COMMANDS[name][0]).parameters]
    lines = [[word] for word in _misspelt(name)] + [[option, name] for option in options]
    lines += [[name, "r.yaml", word] for option in [*options, "--seed", "--recipe"] for word in _misspelt(option)]
    wrong = []
    for line in lines:
        if main.run(line) == 2:
            said = capsys.readouterr().err
            wrong += [(line, text) for text in re.findall("`(svc [^`]*)`", said) if not _parses(text)]
    assert wrong == []


def test_names_of_other_products_that_are_no_command_suggest_commands() -> None:
    """Each remedy begins with a command or is an option of svc."""
    for meant in main.OTHER_NAMES.values():
        assert meant in main.COMMANDS or meant in ("--help", "--version")


@pytest.mark.parametrize("function", [svc.evaluate, svc.compare, svc.load, svc.experiment, svc.Recommender.recommend])
def test_each_suggested_argument_is_the_one_that_is_meant(function: Any) -> None:
    """A misspelt argument gets its own name back, or no name."""
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    for name in names:
        for other in {*_misspelt(name)} - {*names}:
            said = unknown_field(other, names)
            near = re.search(r"did you mean (\w+)", said)
            assert near is None or near[1] == name, (other, said)
