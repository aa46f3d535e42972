"""The interface of data sources, and the registry that finds a source by its type.

A source returns id columns (`text_columns`) as pandas Categorical of str: categories in order of first appearance,
code -1 for missing values, blanks kept. Other columns have their natural dtypes. Integers with missing values are
`Int64`, so that 1999 does not become 1999.0, except unsigned integers of 64 bits, which become floats. Lists are object
columns of arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, Protocol, cast

from pydantic import BaseModel

from svc.errors import RecipeError, SourceTooLarge
from svc.late_imports import import_late
from svc.names import did_you_mean
from svc.recipe import problems
from svc.recipe.source_options import BUILT_IN_OPTIONS, SourceSpec
from svc.settings import Settings

if TYPE_CHECKING:
    import pandas


LEAST_ROWS: Final = 1 << 20
LEAST_BYTES: Final = 64 << 20
"""Lower limits of the bounds, for models with few items."""
TIMES_NEEDED: Final = 10
BYTES_A_CELL: Final = 512
ENTRY_POINT_GROUP = "svc.datasources"
Purpose = Literal["interactions", "features", "metadata"]
Progress = Callable[[int], None]
_BUILT_IN = {
    name: f"svc.sources.{name}:{options.__name__.removesuffix('Options')}Source"
    for name, options in BUILT_IN_OPTIONS.items()
}
_OF_PROGRAMS = {"dataframe": "svc.sources.in_memory:InMemorySource"}
"""Source types for tables that a program passes to `svc.train`. Recipes in files cannot use them."""
_EXCEL = ("excel", "xlsx", "xls")
_OTHER_TYPES = {
    **dict.fromkeys(("postgres", "postgresql", "mysql", "mariadb", "sqlite", "database", "db"), "sql"),
    **dict.fromkeys(("tsv", "text", "file", "pandas"), "csv"),
    **dict.fromkeys(("deltalake", "delta-lake", "databricks"), "delta"),
    **dict.fromkeys(("bq", "google"), "bigquery"),
    **dict.fromkeys(("duck", "motherduck"), "duckdb"),
    **dict.fromkeys(("json", "ndjson", "json-lines", "jsonlines"), "jsonl"),
}
"""Names of databases and formats that users may write as a type, with the source type to suggest."""


@dataclass(frozen=True, slots=True)
class TableBounds:
    """Limits on the rows and bytes of a table that a server reads. Bytes are counted after decompression.

    They protect the server's memory, because a small compressed file may expand to gigabytes, and the author of the
    file may not be the operator of the server. Repeated rows count.
    """

    max_rows: int
    max_bytes: int

    @classmethod
    def for_serving(cls, n_items: int, n_columns: int) -> TableBounds:
        """Return bounds of ten times the need of `n_items` rows, each with `n_columns` cells of 512 bytes.

        The bounds are never below 1,048,576 rows and 64 MiB.
        """
        needed = n_items * n_columns * BYTES_A_CELL
        return cls(max(LEAST_ROWS, TIMES_NEEDED * n_items), max(LEAST_BYTES, TIMES_NEEDED * needed))

    def check(self, n_rows: int, n_bytes: int, where: str) -> None:
        """Raise SourceTooLarge if a bound is exceeded. `where` names the table in the message."""
        if n_rows > self.max_rows:
            raise SourceTooLarge(
                f"{where} has more than {self.max_rows} rows, ten times what the model's items need: "
                "leave out rows that are not needed",
                fields={"cap": self.max_rows},
            )
        if n_bytes > self.max_bytes:
            raise SourceTooLarge(
                f"{where} expands to more than {self.max_bytes} bytes, ten times what the model's items need: "
                "leave out rows and fields that are not needed",
                fields={"bytes_read": n_bytes, "cap": self.max_bytes},
            )


@dataclass(frozen=True, slots=True)
class SourceContext:
    """The inputs of a source besides its own options.

    - `base_dir` is the folder of relative paths.
    - `columns` are the columns to read, or None for all. `text_columns` are the id columns among them.
    - `variables` are the SVC_RECIPE_* environment variables.
    - `progress` is called with the number of rows read since its last call, in the thread that calls `fetch`.
    - `bounds` are the limits of a server, or None. A source raises SourceTooLarge before a table exceeds them.
    """

    base_dir: Path
    settings: Settings
    columns: tuple[str, ...] | None
    text_columns: frozenset[str]
    purpose: Purpose
    variables: Mapping[str, str]
    progress: Progress | None
    bounds: TableBounds | None = None

    @classmethod
    def for_served_table(
        cls,
        base_dir: Path,
        settings: Settings,
        variables: Mapping[str, str],
        id_column: str,
        columns: tuple[str, ...] | None,
        *,
        bounds: TableBounds | None = None,
    ) -> SourceContext:
        """Return the context of a table that a server reads, with ids in `id_column`."""
        return cls(base_dir, settings, columns, frozenset({id_column}), "metadata", variables, None, bounds)


class DataSource(Protocol):
    """A reader of one table. Its constructor only assigns.

    Its methods raise DataSourceError. The built-in sources also raise RecipeError for options that cannot be used, and
    ConfigError if the environment lacks something, such as a database driver.

    `fetch` returns one row per interaction, user or item. These methods are optional:

    - `fetch_arrow() -> pyarrow.Table` returns the same without pandas: ids as dictionaries, missing values as null.
    - `fetch_where(where: RowFilter, keep)` returns the same rows without those that `keep` drops, their positions in
      the source, and the number of all rows.
    - `probe() -> list[str]` checks the access without reading all data, and returns one line per check.
    - `sample(n_rows) -> pandas.DataFrame | None` returns the first rows of `fetch`, or None if that would
      require reading all data.
    - `probe_and_sample(n_rows)` replaces both in a source that would run its query for each. It is a generator that
      yields the lines of `probe` and returns the rows of `sample`.
    """

    type_name: ClassVar[str]
    Config: ClassVar[type[BaseModel]]

    def __init__(self, config: Any, context: SourceContext) -> None: ...

    def fetch(self) -> pandas.DataFrame: ...


def build_source(spec: SourceSpec, context: SourceContext) -> DataSource:
    """Create the source that `spec` describes and check its options, without reading data. Raises RecipeError."""
    source_class = _find(spec.type, "source")
    return source_class(problems.checked_options(spec, source_class.Config, "source"), context)


def check_spec(spec: SourceSpec, where: str) -> None:
    """Raise RecipeError unless the type of `spec` is installed and its options are valid. `where` is its field path."""
    problems.checked_options(spec, _find(spec.type, where).Config, where)


def known_types() -> dict[str, str]:
    """Return the `module:class` of each source type for recipes in files. Plug-ins cannot replace built-in types."""
    return {**{point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)}, **_BUILT_IN}


def _plug_in(type_name: str, where: str) -> str:
    """Return the `module:class` of a source type that is not built in.

    Raises RecipeError if there is none, or if several packages offer it, because any choice would be arbitrary.
    """
    points = [point for point in entry_points(group=ENTRY_POINT_GROUP) if point.name == type_name]
    # A set, because a package that is found in two folders is listed twice.
    if len({point.value for point in points}) > 1:
        packages = sorted({point.dist.name if point.dist else point.module for point in points})
        raise RecipeError(
            f"{where}.type: several installed packages have a source {type_name!r}: {', '.join(packages)}; "
            "uninstall all but one"
        )
    location = points[0].value if points else _OF_PROGRAMS.get(type_name)
    if location is None:
        if type_name.lower() in _EXCEL:
            raise RecipeError(
                f"{where}.type: Excel files are not read: save the sheet as CSV, then write {{type: csv, path: a.csv}}"
            )
        similar = _OTHER_TYPES.get(type_name.lower(), type_name.lower())
        types = known_types()
        hint = did_you_mean(similar, types)
        raise RecipeError(
            f"{where}.type: {type_name!r} is not an installed source; {hint}installed are {', '.join(sorted(types))}"
        )
    return location


def _find(type_name: str, where: str) -> type[DataSource]:
    # Looking for plug-ins reads the metadata of every installed package: 60 ms for 250 packages.
    location = _BUILT_IN.get(type_name) or _plug_in(type_name, where)
    try:
        point = EntryPoint(type_name, location, ENTRY_POINT_GROUP)
        import_late(point.module)
        source_class = point.load()
    except Exception as error:
        raise RecipeError(f"{where}.type: the source {type_name!r} cannot be loaded: {error!r}") from error
    if not (isinstance(getattr(source_class, "Config", None), type) and callable(getattr(source_class, "fetch", None))):
        raise RecipeError(f"{where}.type: {location} is not a data source: it needs `Config` and `fetch()`")
    return cast("type[DataSource]", source_class)
