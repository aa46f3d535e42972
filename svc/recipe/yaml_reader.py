"""A YAML reader for plain values, with limits that hold in spite of aliases and nesting.

Mapping keys are always text, exactly as written, and appear once. Dates stay text. Only the tags of plain YAML are
accepted. Values are built from parser events, so that a document too deep or too large is refused before it is built.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any, NoReturn

import yaml
from yaml.reader import ReaderError

from svc.errors import RecipeError, RecipeSecurityError
from svc.names import SURROGATE

MAX_BYTES = 256 * 1024
MAX_DEPTH = 32
MAX_SIZE = 20_000
MAX_NUMBER_CHARACTERS = 128
"""Longer numbers mean nothing in a recipe, and Python spends quadratic time on them or cannot print them."""
_CHARACTERS_A_UNIT = 32
"""Number of characters for which a text counts as one more value towards MAX_SIZE.

Without this, aliases could repeat a long text many times within the limit."""

_PREFIX = "tag:yaml.org,2002:"
_GLUED = re.compile(r"[ -]*(\w+):(?=[^\s/])")
"""A key whose value follows without a blank, so the line is one text."""
_VARIABLE = re.compile(r"(?<![\"'\w])\$\{")
_SCALAR_TAGS = frozenset(_PREFIX + name for name in ("str", "int", "float", "bool", "null", "timestamp"))
_NUMBER_TAGS = frozenset((_PREFIX + "int", _PREFIX + "float"))
_COLLECTION_TAGS = {_PREFIX + "map": yaml.MappingStartEvent, _PREFIX + "seq": yaml.SequenceStartEvent}


def parse_yaml(data: bytes, where: str, *, most_bytes: int = MAX_BYTES, most_values: int = MAX_SIZE) -> Any:
    """Return the one document in `data`. `where` is the file's name in messages.

    Raises RecipeError for text that is empty, invalid or no UTF-8, and RecipeSecurityError for a document that is too
    large or too deep, or has a tag that is not allowed.
    """
    if len(data) > most_bytes:
        kind = "a recipe" if most_bytes == MAX_BYTES else "such a file"
        raise RecipeSecurityError(f"{where}: the file is larger than {most_bytes} bytes, the most that {kind} may have")
    try:
        # Editors of Windows begin a file with a byte order mark, which would become a part of the first key.
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RecipeError(f"{where}: byte {error.start} is not UTF-8; save the file as UTF-8") from None
    try:
        return _Builder(text, where, most_values).document()
    except yaml.YAMLError as error:
        raise RecipeError(f"{where}: {_yaml_problem(error, text)}") from None


def _yaml_problem(error: yaml.YAMLError, text: str) -> str:
    mark = getattr(error, "problem_mark", None)
    position = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
    if isinstance(error, ReaderError):
        # A ReaderError has no mark, only the offset of the character.
        position = f"line {text.count(chr(10), 0, error.position) + 1}: "
    problem = getattr(error, "problem", None) or getattr(error, "reason", None) or "not readable"
    line = text.splitlines()[mark.line] if mark is not None and mark.line < len(text.splitlines()) else ""
    hint = ""
    # PyYAML names the character by its escape.
    if "\\t" in problem:
        hint = "; indent with spaces, not tabs"
    elif "escape character" in problem:
        hint = "; use single quotes, in which a backslash is itself"
    elif mark is not None and problem.startswith("mapping values"):
        above = next((past for past in reversed(text.splitlines()[: mark.line]) if past.strip()), "")
        glued = _GLUED.match(above)
        if ": " in line[: mark.column]:
            hint = "; a value that holds ': ' needs quotes"
        else:
            hint = f"; write a blank after `{glued[1]}:`" if glued else "; indent the keys of one block alike"
    elif _VARIABLE.search(line):
        hint = '; inside { } and [ ] a variable needs quotes: "${SVC_RECIPE_X}"'
    return f"{position}not valid YAML: {problem}{hint}"


@dataclass(frozen=True, slots=True)
class _Built:
    """A value, its size with each alias counted in full, and its height in levels."""

    value: Any
    size: int
    height: int


class _Builder:
    """A builder of values from the events of one parser. An alias shares the value of its anchor."""

    def __init__(self, text: str, where: str, most_values: int) -> None:
        self._most_values = most_values
        self._loader: Any = yaml.SafeLoader(text)  # PyYAML has no types for its methods
        self._where = where
        self._anchors: dict[str, _Built] = {}

    def document(self) -> Any:
        loader = self._loader
        loader.get_event()  # start of the stream
        if loader.check_event(yaml.StreamEndEvent):
            raise RecipeError(
                f"{self._where}: the file is empty; a recipe is a mapping with keys such as `name` and `source`"
            )
        loader.get_event()  # start of the document
        built = self._node(loader.get_event(), depth=0)
        while not loader.check_event(yaml.StreamEndEvent):
            event = loader.get_event()
            if not isinstance(event, yaml.DocumentEndEvent):
                self._fail(event, "a second document begins; a recipe is one document")
        return built.value

    def _node(self, event: Any, depth: int) -> _Built:
        if depth > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels")
        if isinstance(event, yaml.AliasEvent):
            built = self._anchors.get(event.anchor or "")
            if built is None:
                self._fail(event, f"alias *{event.anchor} names no anchor before it")
        else:
            built = self._plain(event, depth)
            if isinstance(event, yaml.NodeEvent) and event.anchor is not None:
                self._anchors[event.anchor] = built
        # An alias has no events of its own, so its levels are counted here.
        if depth + built.height > MAX_DEPTH:
            self._refuse(event, f"nested deeper than {MAX_DEPTH} levels through aliases")
        return built

    def _plain(self, event: Any, depth: int) -> _Built:
        if isinstance(event, yaml.ScalarEvent):
            return _Built(self._scalar(event), 1 + len(event.value) // _CHARACTERS_A_UNIT, 0)
        if event.tag is not None and not isinstance(event, _COLLECTION_TAGS.get(event.tag, ())):
            self._refuse(event, f"tag {event.tag!r} is not allowed: a recipe holds plain values only")
        if isinstance(event, yaml.MappingStartEvent):
            return self._mapping(depth)
        return self._sequence(depth)

    def _mapping(self, depth: int) -> _Built:
        values: dict[str, Any] = {}
        size, height = 1, 0
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            if not isinstance(event, yaml.ScalarEvent):
                self._fail(event, "a key must be plain text")
            # Kept as a plain key, the keys of the other mapping would be reported as missing.
            if event.value == "<<":
                self._fail(event, "merge keys (`<<`) are not read; write the keys of the other mapping here")
            # PyYAML itself would keep the last one silently.
            if event.value in values:
                self._fail(event, f"the key {_quote(event.value)} appears twice; keep one")
            built = self._node(self._loader.get_event(), depth + 1)
            values[event.value] = built.value
            size = self._add(event, size, built.size + 1 + len(event.value) // _CHARACTERS_A_UNIT)
            height = max(height, built.height + 1)
        return _Built(values, size, height)

    def _sequence(self, depth: int) -> _Built:
        values: list[Any] = []
        size, height = 1, 0
        while not isinstance(event := self._loader.get_event(), yaml.SequenceEndEvent):
            built = self._node(event, depth + 1)
            values.append(built.value)
            size = self._add(event, size, built.size)
            height = max(height, built.height + 1)
        return _Built(values, size, height)

    def _add(self, event: Any, size: int, more: int) -> int:
        if size + more > self._most_values:
            self._refuse(event, f"more than {self._most_values} values, counting what aliases repeat")
        return size + more

    def _scalar(self, event: Any) -> Any:
        loader = self._loader
        tag = event.tag
        # A `!` alone means the type that the text has without a tag.
        if tag is None or tag == "!":
            tag = loader.resolve(yaml.ScalarNode, event.value, event.implicit)
        if tag not in _SCALAR_TAGS and event.tag is None:
            return event.value  # YAML 1.1 has special tags for `=` and `<<`, which are plain text here
        if tag not in _SCALAR_TAGS:
            self._refuse(event, f"tag {tag!r} is not allowed: a recipe holds plain values only")
        # YAML can escape one, and no file, hash or answer in UTF-8 can hold it.
        if SURROGATE.search(event.value):
            self._fail(event, "the text holds half of a surrogate pair")
        # A date object would lose how the text was written, such as without a time zone.
        if tag == _PREFIX + "timestamp":
            return event.value
        if tag in _NUMBER_TAGS and len(event.value) > MAX_NUMBER_CHARACTERS:
            self._fail(
                event, f"{_quote(event.value)} is too long: a number has at most {MAX_NUMBER_CHARACTERS} characters"
            )
        try:
            value = loader.construct_object(yaml.ScalarNode(tag, event.value, event.start_mark, event.end_mark))
        except (ValueError, KeyError):
            self._fail(event, f"{_quote(event.value)} is no {tag.removeprefix(_PREFIX)}")
        if isinstance(value, float) and not math.isfinite(value):
            self._fail(event, f"{_quote(event.value)} is not a finite number")
        return value

    def _fail(self, event: Any, problem: str) -> NoReturn:
        raise RecipeError(f"{self._where}: line {event.start_mark.line + 1}: {problem}")

    def _refuse(self, event: Any, problem: str) -> NoReturn:
        raise RecipeSecurityError(f"{self._where}: line {event.start_mark.line + 1}: {problem}")


def _quote(text: str) -> str:
    return repr(text if len(text) <= 60 else text[:57] + "...")
