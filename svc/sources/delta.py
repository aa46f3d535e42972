"""Tables of Delta Lake, by the library deltalake. Removed rows are left out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, ClassVar

import pyarrow as pa
import pyarrow.compute as pc

from svc.errors import DataSourceError
from svc.late_imports import import_late
from svc.recipe.source_options import DeltaOptions
from svc.sources.files import address_of
from svc.sources.lake import LakeSource, LakeTable

if TYPE_CHECKING:
    import pyarrow.dataset as ds


class DeltaSource(LakeSource):
    """A source of one version of a Delta table, the latest one by default."""

    type_name: ClassVar[str] = "delta"
    Config: ClassVar[type[DeltaOptions]] = DeltaOptions

    def _open(self) -> LakeTable:
        deltalake = import_late("deltalake")
        where = address_of(self._config.location, self._context)
        if self._config.location.is_http:
            raise DataSourceError(f"{where}: a Delta table is a folder, which http(s) cannot list; name it in a store")
        local = None if self._config.location.is_remote else self._config.location.resolve(self._context.base_dir)
        if local is not None and not (local / "_delta_log").is_dir():
            why = "holds no folder _delta_log, so it is no Delta table" if local.exists() else "does not exist"
            raise DataSourceError(f"{where} {why}")
        table = deltalake.DeltaTable(str(local or self._config.location.uri), version=self._config.version)
        if "deletionVectors" in (table.protocol().reader_features or []):
            raise DataSourceError(
                f"{where} has deletion vectors, which deltalake does not read: `ALTER TABLE ... DROP FEATURE "
                "deletionVectors` in Spark rewrites the table without them"
            )
        return _DeltaTable(table.to_pyarrow_dataset(), f"{where}, version {table.version()}")


class _DeltaTable(LakeTable):
    def __init__(self, dataset: ds.Dataset, where: str) -> None:
        self._dataset = dataset
        self.schema: pa.Schema = dataset.schema
        self.where = where

    def n_rows(self) -> int:
        return int(self._dataset.count_rows())

    def batches(self, columns: list[str], condition: Any, n_rows: int | None) -> Iterator[pa.RecordBatch]:
        # By default Arrow reads 16 batches of four files ahead, before their size is checked.
        size = {} if n_rows is None else {"batch_size": n_rows, "batch_readahead": 1, "fragment_readahead": 1}
        yield from self._dataset.scanner(columns=columns, filter=condition, **size).to_batches()

    def compare(self, name: str, operator_name: str, operand: Any) -> Any:
        if operator_name == "any":
            return pc.field(name).isin(list(operand))
        return pc.field(name) >= operand if operator_name == "gte" else pc.field(name) <= operand
