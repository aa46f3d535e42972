"""The options of each built-in source in a recipe. Plug-ins have their own options."""

from __future__ import annotations

import io
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, field_validator, model_validator
from pydantic_core import PydanticKnownError

from svc.errors import RecipeSecurityError
from svc.logs import redact_text
from svc.recipe.paths import Location, parse_location
from svc.recipe.variables import SECRET

Dtype = Literal["str", "string", "int", "int64", "float", "float64", "bool", "datetime"]
Compression = Literal["infer", "none", "gzip", "bz2", "zstd", "zip"]
Scalar = str | int | float | bool | None


def _whole(value: Any) -> Any:
    if isinstance(value, bool):
        # pydantic takes true for 1. With its own error the message is that for other types.
        raise PydanticKnownError("int_type")
    return value


def _number(value: Any) -> Any:
    if isinstance(value, bool):
        raise PydanticKnownError("float_type")
    return value


def bare_off(mode: object) -> object:
    """Return "off" for false, because YAML reads a bare `off` as false. Return other modes unchanged."""
    return "off" if mode is False else mode


Whole = Annotated[int, BeforeValidator(_whole)]
Number = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Positive = Annotated[Whole, Field(ge=1)]
Name = Annotated[str, Field(min_length=1, max_length=1024)]
SHA256_PATTERN = "^[0-9a-fA-F]{64}$"
DSN_PATTERN = "^SVC_RECIPE_[A-Za-z0-9_]+$"
# No quote and no line end, which have a meaning of their own in csv.
DELIMITER_PATTERN = r"^(?:[\x01-\x09\x0b\x0c\x0e-!#-\x7f]|[\x01-\x09\x0b\x0c\x0e-!#-\[\]-\x7f]{2,8})$"
"""No backslash in several characters: `\\t` without quotes is no tab."""
_DELIMITERS_IN_WORDS = {"tab": "\\t", "\\t": "\\t", "comma": ",", "semicolon": ";", "pipe": "|", "space": " "}


def no_word(delimiter: object) -> object:
    """Raise ValueError for the name of a delimiter. Otherwise it would be searched in the table letter by letter."""
    if isinstance(delimiter, str) and (meant := _DELIMITERS_IN_WORDS.get(delimiter.lower())):
        raise ValueError(f'is no delimiter; write "{meant}" in double quotes')
    return delimiter


# In lower case, because digests are compared as text, and Python writes them so.
Sha256 = Annotated[str, StringConstraints(pattern=SHA256_PATTERN, to_lower=True)]


def unique_names(names: tuple[str, ...]) -> tuple[str, ...]:
    if len(set(names)) < len(names):
        repeated = next(name for index, name in enumerate(names) if name in names[:index])
        raise ValueError(f"names {repeated!r} twice")
    return names


def each_once(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def unique_by_name(columns: tuple[Any, ...]) -> tuple[Any, ...]:
    unique_names(tuple(column.name for column in columns))
    return columns


class Block(BaseModel):
    """A mapping in a recipe. Unknown keys are errors, and values cannot be changed."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Located(Block):
    """A block that names one address in its `path`."""

    path: Name

    @cached_property
    def location(self) -> Location:
        """Return the address of `path`, parsed once. Raises RecipeSecurityError for a forbidden address.

        Never raises for the addresses that the loader of the recipe has checked.
        """
        return parse_location(self.path)


class FileOptions(Located):
    """The address of a file, folder or pattern. Only a single file may have an expected digest."""

    path: Name = Field(
        description="A file, folder or pattern: local (relative to the recipe), file://, s3://, gs://, az://, "
        "abfs(s)://; or the http(s):// address of a file."
    )
    sha256: Sha256 | None = Field(default=None, description="Expected digest of the file; required for http(s)://.")

    @model_validator(mode="after")
    def _digest_for_http(self) -> Self:
        try:
            is_http = self.location.is_http
        except RecipeSecurityError:
            return self  # the loader reports this as a security error
        if is_http and self.sha256 is None:
            raise ValueError("sha256 is required for http(s):// addresses; `sha256sum` of the file gives it")
        return self


class TextFileOptions(FileOptions):
    dtype: dict[str, Dtype] = Field(default_factory=dict, description="Type of a column by its name.")
    compression: Compression = Field(default="infer", description="infer goes by .gz, .bz2, .zst and .zip.")


class CsvOptions(TextFileOptions):
    """A delimited text file. Id columns are read as text, exactly as written, unless `dtype` says otherwise."""

    delimiter: Annotated[str, Field(pattern=DELIMITER_PATTERN), BeforeValidator(no_word)] = Field(
        default=",", description="One to eight ASCII characters."
    )
    encoding: str = Field(default="utf-8", description="Any encoding that Python knows.")
    header: Annotated[Whole, Field(ge=0, le=1000)] | None = Field(
        default=0, description="Row of the column names, from 0; null: none, the columns are named 0, 1, 2, …"
    )
    skip_rows: Annotated[Whole, Field(ge=0, le=1000)] = Field(
        default=0, description="Number of lines above the row that `header` 0 means, or above the data of header: null."
    )

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, value: str) -> str:
        try:
            # Not `codecs.lookup`, which also finds hex and rot13. These encode no text.
            io.TextIOWrapper(io.BytesIO(), value)
        except (LookupError, ValueError):
            raise ValueError("is not an encoding that Python knows; utf-8, latin-1 and cp1252 are usual") from None
        return value


class JsonlOptions(TextFileOptions):
    """JSON lines: one object in each line. Nested fields are columns with dotted names, such as user.id."""

    explode: Name | None = Field(default=None, description="A list in each line, of which each entry becomes a row.")


class ParquetOptions(FileOptions):
    """A Parquet file. Columns have the types that the file declares."""


class DeltaOptions(Located):
    """A Delta table."""

    path: Name = Field(description="The folder of the table: local (relative to the recipe), s3://, gs:// or az://.")
    version: Annotated[Whole, Field(ge=0)] | None = Field(default=None, description="Null: the latest version.")


class IcebergOptions(Block):
    """An Iceberg table, named by its metadata file or by its name in a catalog."""

    path: Name | None = Field(default=None, description="A file metadata/*.metadata.json of the table.")
    table: Name | None = Field(default=None, description="The name of the table in the catalog, such as shop.events.")
    catalog: dict[str, Scalar] = Field(default_factory=dict, description="Properties of pyiceberg for the catalog.")
    snapshot: Whole | None = Field(default=None, description="Null: the current snapshot.")

    @model_validator(mode="after")
    def _one_table(self) -> Self:
        if (self.path is None) == (self.table is None):
            raise ValueError("name the table by `path`, its metadata file, or by `table` in a `catalog`")
        if self.location is not None and self.location.is_http:
            raise ValueError("a table is a folder, which http(s) cannot list; name it in a store")
        for name, value in self.catalog.items():
            # An artifact keeps the recipe.
            if SECRET.search(name) or redact_text(str(value)) != str(value):
                variable = name.upper().replace(".", "__").replace("-", "_")
                raise ValueError(
                    f"catalog.{name} looks like a secret, and secrets do not belong in a recipe; give it in "
                    f"PYICEBERG_CATALOG__DEFAULT__{variable}"
                )
        return self

    @cached_property
    def location(self) -> Location | None:
        """Return the address of `path`, or None. Raises RecipeSecurityError for a forbidden address."""
        return None if self.path is None else parse_location(self.path)


class QueryOptions(Block):
    query: str = Field(
        min_length=1, max_length=200_000, description="One statement that returns rows; sent as it stands."
    )
    query_parameters: dict[str, Scalar] = Field(
        default_factory=dict, description="Values bound by name; never expanded."
    )


class SqlOptions(QueryOptions):
    """A query against PostgreSQL, MySQL/MariaDB or SQLite."""

    dsn_env: Annotated[str, Field(pattern=DSN_PATTERN)] = Field(
        description="Name of the SVC_RECIPE_* variable with the SQLAlchemy URL, never the URL itself."
    )
    connect_timeout_seconds: Annotated[Whole, Field(ge=1, le=600)] = 10
    statement_timeout_seconds: Annotated[Whole, Field(ge=1, le=86_400)] = 300


class DuckdbOptions(QueryOptions):
    """A query run by DuckDB, over files and over a database."""

    database: Name | None = Field(default=None, description="A local database file, only read. Null: none.")

    @field_validator("database")
    @classmethod
    def _local(cls, value: str | None) -> str | None:
        # DuckDB reads `md:name` and addresses over the network.
        if value is not None and ":" in value:
            raise ValueError("is no local file of DuckDB")
        return value


class BigQueryOptions(QueryOptions):
    """A query run by BigQuery."""

    project: Name | None = Field(default=None, description="Project that pays; null: the one of the credentials.")


BUILT_IN_OPTIONS: dict[str, type[Block]] = {
    "csv": CsvOptions,
    "jsonl": JsonlOptions,
    "parquet": ParquetOptions,
    "delta": DeltaOptions,
    "iceberg": IcebergOptions,
    "sql": SqlOptions,
    "bigquery": BigQueryOptions,
    "duckdb": DuckdbOptions,
}
"""The one list of built-in sources. `svc.sources.csv.CsvSource` has the options CsvOptions, and so on."""
TYPES = ", ".join(BUILT_IN_OPTIONS)


class SourceSpec(BaseModel):
    """A `source:` block: its type, and the options of that type, not yet checked."""

    model_config = ConfigDict(extra="allow", frozen=True)

    type: Name = Field(description=f"{TYPES} or the type of an installed plug-in.")

    @property
    def options(self) -> dict[str, Any]:
        return dict(self.model_extra or {})
