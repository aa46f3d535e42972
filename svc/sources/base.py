"""What every data source is given and gives, and how one is found by its type.

Id columns (`text_columns`) come back as pandas Categorical of str in order of first appearance, missing values with
code -1, blanks kept as they are. Other columns have their natural dtypes: whole numbers with gaps are `Int64`, so that
no 1999 becomes 1999.0; lists are object columns of arrays.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, cast

from pydantic import BaseModel, ValidationError

from svc.errors import RecipeError
from svc.recipe import problems
from svc.recipe.source_options import SourceSpec
from svc.settings import Settings
from svc.sources.bounds import TableBounds

if TYPE_CHECKING:
    import pandas

ENTRY_POINT_GROUP = "svc.datasources"
Purpose = Literal["interactions", "features", "metadata"]
Progress = Callable[[int], None]
_BUILT_IN = {
    "csv": "svc.sources.csv:CsvSource",
    "parquet": "svc.sources.parquet:ParquetSource",
    "sql": "svc.sources.sql:SqlSource",
    "bigquery": "svc.sources.bigquery:BigQuerySource",
}
_OF_PROGRAMS = {"dataframe": "svc.sources.in_memory:InMemorySource"}
"""Types that `svc.train` gives the tables of its caller; recipes in files cannot use them."""


@dataclass(frozen=True, slots=True)
class SourceContext:
    """What a source needs to know beside its own options.

    `columns` are those to read (None: all), `text_columns` the ids among them. `variables` are the SVC_RECIPE_*
    ones. `progress` hears how many more rows were read, from the thread that calls `fetch`. `bounds` are set where a
    server reads: a source must not take the memory of a table beyond them.
    """

    base_dir: Path
    settings: Settings
    columns: tuple[str, ...] | None
    text_columns: frozenset[str]
    purpose: Purpose
    variables: Mapping[str, str]
    progress: Progress | None
    bounds: TableBounds | None = None


class DataSource(Protocol):
    """One place that data comes from. The constructor assigns only; `fetch` and `probe` do the work.

    `fetch` returns one row an interaction, user or item. A source may have `fetch_arrow() -> pyarrow.Table`, the same
    for readers that can do without pandas: ids as a dictionary, missing values null. It may have
    `probe() -> list[str]`, which reaches the data without reading it all and says, one line a check, what it found,
    and `sample(n_rows) -> pandas.DataFrame | None`, the first rows as `fetch` would give them, or None where they
    cannot be had alone. Where each of the two would run a query, it has `probe_and_sample(n_rows)` in place of
    `sample`: a generator that yields the lines of `probe` and returns the rows. All of them raise DataSourceError.
    """

    type_name: ClassVar[str]
    Config: ClassVar[type[BaseModel]]

    def __init__(self, config: Any, context: SourceContext) -> None: ...

    def fetch(self) -> pandas.DataFrame: ...


def build_source(spec: SourceSpec, context: SourceContext) -> DataSource:
    """The source that `spec` describes, its options checked. Nothing is read yet. Raises RecipeError."""
    source_class = _find(spec.type, "source")
    return source_class(_validated(source_class, spec, "source"), context)


def check_spec(spec: SourceSpec, where: str) -> None:
    """Raise RecipeError unless the type of `spec` is installed and its options are valid. `where` is its field path."""
    _validated(_find(spec.type, where), spec, where)


def known_types() -> dict[str, str]:
    """Every usable source type with the `module:class` that serves it; built-in ones cannot be replaced."""
    return {**{point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}, **_BUILT_IN}


def _find(type_name: str, where: str) -> type[DataSource]:
    types = known_types()
    location = types.get(type_name) or _OF_PROGRAMS.get(type_name)
    if location is None:
        near = difflib.get_close_matches(type_name.lower(), types, n=1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise RecipeError(
            f"{where}.type: {type_name!r} is no installed source; {hint}there are {', '.join(sorted(types))}"
        )
    try:
        found = EntryPoint(type_name, location, ENTRY_POINT_GROUP).load()
    except Exception as error:
        raise RecipeError(f"{where}.type: the source {type_name!r} cannot be loaded: {error!r}") from error
    if not (isinstance(getattr(found, "Config", None), type) and callable(getattr(found, "fetch", None))):
        raise RecipeError(f"{where}.type: {location} is no data source: it needs `Config` and `fetch()`")
    return cast("type[DataSource]", found)


def _validated(source_class: type[DataSource], spec: SourceSpec, where: str) -> BaseModel:
    try:
        return source_class.Config.model_validate(spec.options)
    except ValidationError as error:
        text = problems.explain(
            error, spec.options, source_class.Config, lambda loc: problems.field_path((where, *loc))
        )
        raise RecipeError(text) from None
