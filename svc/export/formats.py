"""Writers of export files: Parquet, csv and JSON lines.

The memory of a writer does not grow with the number of rows. The columns are `user_id`, `rank` from 1, `item_id`,
`score`. An export of related items has `seed_item_id` instead of `user_id`. An export of the users of items has
`item_id`, `rank`, `user_id`, `score`. Text files write numbers as the API does, so they give the same float64 as the
Parquet file.

A leader is the user or item for which a ranking is made: `user_id`, `seed_item_id`, or `item_id` in an export of users.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import repeat
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from svc.errors import UsageError
from svc.export.request import Rows
from svc.late_imports import LateModule
from svc.model.ids import IdTable
from svc.sources.files import HashingFile

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from svc.sources import arrow
else:
    pa = LateModule("pyarrow")
    pq = LateModule("pyarrow.parquet")
    arrow = LateModule("svc.sources.arrow")

ROW_GROUP: Final = 1 << 19


class Scored(NamedTuple):
    """The rankings of several leaders, concatenated.

    `rows`, (leaders,), are their rows in the model, and `counts`, (leaders,), the lengths of their rankings. `items`
    and `scores`, (sum of counts,), are the ranked items. In an export of users, `items` are rows of users.
    """

    rows: Rows
    counts: NDArray[np.int64]
    items: NDArray[np.int32]
    scores: NDArray[np.float64]

    def ranks(self) -> NDArray[np.int32]:
        """Return the rank of each of `items` in its ranking, from 1."""
        ends = np.cumsum(self.counts)
        starts = np.repeat(ends - self.counts, self.counts)
        return (np.arange(len(self.items)) - starts + 1).astype(np.int32)


class Writer(Protocol):
    """A writer of rankings, in the order of the calls. `close` writes the buffered rows, but leaves the file open."""

    def add(self, scored: Scored) -> None: ...
    def close(self) -> None: ...


def ranked_by(leader: str) -> str:
    """Return the name of the column of ranked ids. `leader` is the name of the leaders' column."""
    return "user_id" if leader == "item_id" else "item_id"


class ParquetWriter:
    """A writer of Parquet files with row groups of about ROW_GROUP rows."""

    def __init__(self, out: HashingFile, leader: str, leaders: IdTable, items: IdTable) -> None:
        self._leaders, self._items = _as_arrow(leaders), _as_arrow(items)
        follower = ranked_by(leader)
        fields = [(leader, pa.string()), ("rank", pa.int32()), (follower, pa.string()), ("score", pa.float64())]
        self._schema = pa.schema([pa.field(name, kind, nullable=False) for name, kind in fields])
        self._writer = pq.ParquetWriter(
            # Dictionaries of ranks and scores make 524,288 rows 3% larger and a third slower to write (pyarrow 26).
            out,
            self._schema,
            compression="snappy",
            use_dictionary=[leader, follower],
            write_statistics=[leader],
        )
        self._waiting: list[pa.RecordBatch] = []
        self._n_waiting = 0

    def add(self, scored: Scored) -> None:
        columns = [
            self._leaders.take(arrow.numbers(np.repeat(scored.rows, scored.counts))),
            arrow.numbers(scored.ranks()),
            self._items.take(arrow.numbers(scored.items)),
            arrow.numbers(scored.scores),
        ]
        typed = [column.cast(kind) for column, kind in zip(columns, self._schema.types, strict=True)]
        self._waiting.append(pa.record_batch(typed, schema=self._schema))
        self._n_waiting += len(scored.items)
        if self._n_waiting >= ROW_GROUP:
            self._write()

    def _write(self) -> None:
        if self._n_waiting:
            # Arrow makes one group of the waiting rows, because they are fewer than 2^20.
            self._writer.write_table(pa.Table.from_batches(self._waiting))
        self._waiting, self._n_waiting = [], 0

    def close(self) -> None:
        self._write()
        self._writer.close()


class TextWriter:
    """A writer of lines, one for each ranked item.

    A line has `begin(row)` for its leader in this row, its rank, its item's part of `items`, its score, and `end`.
    """

    def __init__(self, out: HashingFile, items: Sequence[bytes], begin: Callable[[int], bytes], end: bytes) -> None:
        self._out = out
        self._items = items
        self._begin = begin
        self._end = end

    def add(self, scored: Scored) -> None:
        items, end = self._items, self._end
        # One call writes all numbers of the chunk, in the form of the API.
        scores = to_json(scored.scores.tolist())[1:-1].split(b",")
        leaders = zip(scored.rows.tolist(), scored.counts.tolist(), strict=True)
        begins = (part for row, count in leaders for part in repeat(self._begin(row), count))
        lines = zip(begins, scored.ranks().tolist(), scored.items.tolist(), scores, strict=False)
        self._out.write(
            b"".join(b"%b%d%b%b%b" % (first, rank, items[item], score, end) for first, rank, item, score in lines)
        )

    def close(self) -> None: ...


def csv_writer(out: HashingFile, leader: str, leaders: IdTable, items: IdTable) -> Writer:
    """Return a writer of csv files by RFC 4180, with a header line and `\\n` line ends."""
    out.write(f"{leader},rank,{ranked_by(leader)},score\n".encode())
    middles = [f",{_csv_cell(text)},".encode() for text in items.all()]
    return TextWriter(out, middles, lambda row: f"{_csv_cell(leaders.at(row))},".encode(), end=b"\n")


def json_lines_writer(out: HashingFile, leader: str, leaders: IdTable, items: IdTable) -> Writer:
    """Return a writer of JSON lines. Ids and scores are written exactly as in the API's answers."""
    first, name = leader.encode(), ranked_by(leader).encode()
    middles = [b',"%b":%b,"score":' % (name, to_json(text)) for text in items.all()]
    return TextWriter(out, middles, lambda row: b'{"%b":%b,"rank":' % (first, to_json(leaders.at(row))), end=b"}\n")


FORMATS: Final[dict[str, Callable[[HashingFile, str, IdTable, IdTable], Writer]]] = {
    "parquet": ParquetWriter,
    "csv": csv_writer,
    "jsonl": json_lines_writer,
}


def format_of(output: str) -> str:
    """Return the key of FORMATS for the extension of an address. Raises UsageError for another extension."""
    extension = output.rpartition("/")[2].rpartition(".")[2].lower()
    if extension not in FORMATS or "." not in output.rpartition("/")[2].lstrip("."):
        raise UsageError(f"--output: the name must end with .{', .'.join(FORMATS)}; {output!r} does not")
    return extension


def _csv_cell(text: str) -> str:
    """Return the cell of a csv file, in quotes only if it needs them."""
    return '"' + text.replace('"', '""') + '"' if any(special in text for special in ',"\r\n') else text


def _as_arrow(table: IdTable) -> pa.Array:
    """Return the ids as a text array over the table's own bytes."""
    narrow = table.offsets[-1] <= np.iinfo(np.int32).max
    offsets = np.ascontiguousarray(table.offsets, dtype=np.int32 if narrow else np.int64)
    kind = pa.string() if narrow else pa.large_string()
    return pa.Array.from_buffers(kind, len(table), [None, pa.py_buffer(offsets), pa.py_buffer(table.blob)])
