"""Tables of Apache Iceberg, by the library pyiceberg. Deleted rows are left out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar

import pyarrow as pa

from svc.errors import DataSourceError
from svc.late_imports import LateModule, import_late
from svc.recipe.source_options import IcebergOptions
from svc.sources.files import address_of
from svc.sources.lake import LakeSource, LakeTable

catalogs = LateModule("pyiceberg.catalog")
expressions = LateModule("pyiceberg.expressions")
tables = LateModule("pyiceberg.table")

_LARGEST = 2**62


class IcebergSource(LakeSource):
    """A source of one snapshot of an Iceberg table, the current one by default."""

    type_name: ClassVar[str] = "iceberg"
    Config: ClassVar[type[IcebergOptions]] = IcebergOptions

    def _open(self) -> LakeTable:
        import_late("pyiceberg")
        where, table = self._from_catalog() if self._config.location is None else self._from_file()
        snapshot = self._config.snapshot
        if snapshot is not None and table.snapshot_by_id(snapshot) is None:
            there = ", ".join(str(each.snapshot_id) for each in table.snapshots()[-3:])
            raise DataSourceError(f"{where} has no snapshot {snapshot}; its latest are {there or 'none'}")
        return _IcebergTable(table, snapshot, where)

    def _from_catalog(self) -> tuple[str, Any]:
        properties = {name: str(value) for name, value in self._config.catalog.items()}
        with catalogs.load_catalog(**properties) as catalog:
            return f"the table {self._config.table}", catalog.load_table(self._config.table)

    def _from_file(self) -> tuple[str, Any]:
        location = self._config.location
        where = address_of(location, self._context)
        local = None if location.is_remote else location.resolve(self._context.base_dir)
        if local is not None and local.is_dir():
            # By time, because the names do not sort: catalogs write v10.metadata.json or 00010-<uuid>.metadata.json.
            files = sorted(local.glob("metadata/*.metadata.json"), key=lambda file: file.stat().st_mtime_ns)
            newest = f", such as its newest, {files[-1].relative_to(local)}" if files else ""
            raise DataSourceError(f"{where} is a folder; name a metadata file of the table{newest}, or a catalog")
        if local is not None and not local.exists():
            raise DataSourceError(f"{where} does not exist")
        return where, tables.StaticTable.from_metadata(location.uri if local is None else local.as_uri())


class _IcebergTable(LakeTable):
    def __init__(self, table: Any, snapshot: int | None, where: str) -> None:
        self._table = table
        self._snapshot = snapshot
        self.where = where
        self.schema: pa.Schema = table.scan(snapshot_id=snapshot).projection().as_arrow()

    def n_rows(self) -> int:
        return int(self._table.scan(snapshot_id=self._snapshot).count())

    def batches(self, columns: list[str], condition: Any, n_rows: int | None) -> Iterator[pa.RecordBatch]:
        row_filter = {} if condition is None else {"row_filter": condition}
        scan = self._table.scan(snapshot_id=self._snapshot, selected_fields=tuple(columns), **row_filter)
        for batch in scan.to_arrow_batch_reader():
            size = n_rows or max(batch.num_rows, 1)
            for start in range(0, batch.num_rows, size):
                # pyiceberg has no size of batches, and returns columns in the order of the table.
                yield batch.slice(start, size).select(columns)

    def compare(self, name: str, operator_name: str, operand: Any) -> Any:
        if operator_name == "any":
            return expressions.In(name, set(operand))
        # Infinity has no floor, and the library's integers have 64 bits.
        if pa.types.is_decimal(self.schema.field(name).type) or abs(operand) > _LARGEST:
            return None
        at_least = operator_name == "gte"
        if pa.types.is_integer(self.schema.field(name).type):
            # pyiceberg 0.12 compares no float with an integer column. Rounding outwards loses no row.
            operand = math.floor(operand) if at_least else math.ceil(operand)
        return (expressions.GreaterThanOrEqual if at_least else expressions.LessThanOrEqual)(name, operand)
