"""A data source for svc that reads JSON Lines: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field

from svc.errors import DataSourceError
from svc.sources.base import SourceContext


class JsonLinesConfig(BaseModel):
    """What a recipe may say under `source:` beside `type: jsonl`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: str = Field(min_length=1)


class JsonLinesSource:
    """One file with one JSON object per line."""

    type_name: ClassVar[str] = "jsonl"
    Config: ClassVar[type[JsonLinesConfig]] = JsonLinesConfig

    def __init__(self, config: JsonLinesConfig, context: SourceContext) -> None:
        self._path = context.base_dir / config.path
        self._context = context

    def fetch(self) -> pd.DataFrame:
        """All rows. Id columns come back as categories of text, as svc expects of every source."""
        rows = list(self._rows(self._path))
        frame = pd.DataFrame(rows, columns=list(self._context.columns or rows[0] if rows else ()))
        for name in self._context.text_columns & set(frame.columns):
            frame[name] = pd.Categorical([None if value is None else str(value) for value in frame[name]])
        if self._context.progress is not None:
            self._context.progress(len(frame))
        return frame

    def probe(self) -> list[str]:
        """Reads the first line only."""
        first = next(self._rows(self._path), None)
        if first is None:
            raise DataSourceError(f"{self._path} is empty")
        return [f"{self._path}: readable, has the fields {', '.join(first)}"]

    def _rows(self, path: Path) -> Iterator[dict[str, Any]]:
        wanted = self._context.columns
        try:
            with path.open(encoding="utf-8") as file:
                for number, line in enumerate(file, start=1):
                    row = json.loads(line)
                    missing = [name for name in wanted or () if name not in row]
                    if missing:
                        raise DataSourceError(f"{path}, line {number}: has no field {', '.join(missing)}")
                    yield {name: row[name] for name in wanted} if wanted else row
        except FileNotFoundError:
            raise DataSourceError(f"{path} does not exist") from None
        except (OSError, ValueError) as error:
            raise DataSourceError(f"{path} cannot be read: {error}") from error
