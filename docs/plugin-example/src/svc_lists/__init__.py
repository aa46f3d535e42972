"""A data source for svc that reads text files with a user and the list of their items in each line."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from svc.errors import DataSourceError
from svc.sources.base import SourceContext

COLUMNS = ("user_id", "item_id", "position")


class ListsConfig(BaseModel):
    """What a recipe may say under `source:` beside `type: lists`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1)
    delimiter: str | None = Field(default=None, min_length=1, description="Null: blanks and tabs.")


class ListsSource:
    """One file. Each line has a user and their items, the oldest first, whose place in the line is the position."""

    type_name: ClassVar[str] = "lists"
    Config: ClassVar[type[ListsConfig]] = ListsConfig

    def __init__(self, config: ListsConfig, context: SourceContext) -> None:
        self._config = config
        self._path = context.base_dir / config.path
        self._context = context

    def fetch(self) -> pd.DataFrame:
        """All rows. Id columns come back as categories of text, as svc expects of every source."""
        self._require_columns()
        frame = pd.DataFrame(self._rows(), columns=list(COLUMNS))[list(self._context.columns or COLUMNS)]
        for name in self._context.text_columns & set(frame.columns):
            frame[name] = pd.Categorical(frame[name].astype(str))
        if self._context.progress is not None:
            self._context.progress(len(frame))
        return frame

    def probe(self) -> list[str]:
        """Reads the first line only."""
        self._require_columns()
        first = next(self._rows(), None)
        if first is None:
            raise DataSourceError(f"{self._path} has no line with a user and an item")
        return [f"{self._path}: readable, begins with the user {first[0]}"]

    def _require_columns(self) -> None:
        missing = [name for name in self._context.columns or () if name not in COLUMNS]
        if missing:
            raise DataSourceError(f"{self._path} has no column {', '.join(missing)}; it has {', '.join(COLUMNS)}")

    def _rows(self) -> Iterator[tuple[str, str, int]]:
        try:
            with self._path.open(encoding="utf-8") as file:
                for line in file:
                    user, *items = line.strip().split(self._config.delimiter) or [""]
                    yield from ((user, item.strip(), position) for position, item in enumerate(items))
        except FileNotFoundError:
            raise DataSourceError(f"{self._path} does not exist") from None
        except (OSError, ValueError) as error:
            raise DataSourceError(f"{self._path} cannot be read: {error}") from error
