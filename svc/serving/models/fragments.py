"""Encoding of answers as JSON from pieces that are prepared when a model is loaded.

All prepared pieces are in one byte string, the blob. Each item has two pieces: `,{"item_id":"...","score":` and
`,"field":value,...}`, or only `}` without metadata. A request inserts the scores between the pieces of its items.
"""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import chain
from mmap import mmap
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from svc.asking.page import PageAnswer
from svc.asking.rerank import RerankAnswer
from svc.errors import ApiError
from svc.model.explain import POPULAR, Because, Disliked, PopularityReason, Reasons
from svc.model.ids import IdTable
from svc.model.ranking.query import NOTHING_MORE, NOTHING_RANKED, Prepared, Ranking

if TYPE_CHECKING:
    from svc.asking.item_tables import MetadataTable

AnswerBody = bytes | tuple[bytes, ...]
"""The body of an answer, in parts if it is long."""
_PIECES = 2
_DISLIKED = b',"disliked":true'
_SCORE = b',"score":'
SCORE_BYTES, NOTE_BYTES = 32, 128
"""Bounds of the bytes of a score, and of names and numbers around the reasons of an item."""
HEAD_BYTES = 512
"""Bound of the bytes of `AnswerHeader` and the braces around the items."""
JOINED_BYTES = 1 << 16
"""Longest body that is joined. Joining 100 MB takes 30 ms and as much memory again."""


class ItemFragments:
    """The encoded pieces of all items of one model. The instance is immutable, so threads may share it."""

    def __init__(self, blob: bytes | mmap, offsets: NDArray[np.integer], others: ItemFragments | None = None) -> None:
        """Use the pieces in `blob`. Piece i is at `offsets[i]:offsets[i + 1]`.

        `others` has the pieces of new items, or is None without new items.
        """
        self._blob = blob
        # A memoryview gives an entry as a Python int in 0.1 µs, an array a scalar of its own type in 0.2.
        self._offsets = offsets.data
        self._others = others
        own = offsets.astype(np.int64)[::_PIECES]
        self.longest: int = max(
            int(np.diff(own).max(initial=0)) + 2 * NOTE_BYTES, 0 if others is None else others.longest
        )
        """Bound of the bytes of one item with metadata and reasons, but without explanations."""

    def __reduce__(self) -> tuple[Any, ...]:
        # A mapped file cannot be pickled.
        return ItemFragments, (bytes(self._blob), self.memory[1], self._others)

    @property
    def memory(self) -> tuple[bytes | mmap, NDArray[np.integer]]:
        """The blob and the offsets, for the constructor."""
        return self._blob, np.asarray(self._offsets)

    @classmethod
    def build(cls, item_ids: IdTable, metadata: MetadataTable | None) -> ItemFragments:
        """Encode all items. A million items take about a second, so call it from a thread."""
        blob = io.BytesIO()  # `getvalue` of BytesIO makes no copy
        offsets = np.zeros(_PIECES * len(item_ids) + 1, dtype=np.int64)
        end = 0
        for number, piece in enumerate(_pieces(item_ids, metadata), start=1):
            end += blob.write(piece)
            offsets[number] = end
        narrow = end <= np.iinfo(np.uint32).max  # halves the memory of the offsets
        return cls(blob.getvalue(), offsets.astype(np.uint32) if narrow else offsets)

    def __len__(self) -> int:
        return len(self._offsets) // _PIECES

    def followed_by(self, others: ItemFragments) -> ItemFragments:
        """Return these pieces, followed by the pieces of new items."""
        # The fast path of `items`, for rankings without notes, does not know `others`. It never meets a new item,
        # because each new item has the reason "new".
        return ItemFragments(*self.memory, others)

    def describe(self, column: int) -> bytes:
        """Return the JSON object with id and metadata of one item, without a score."""
        return b"".join(self._around(column, with_metadata=True))

    def text(self, start: int, stop: int) -> str:
        """Return the pieces of the items `start` to `stop` - 1 as one text, for the search of `console.find_items`."""
        return self._blob[self._offsets[_PIECES * start] : self._offsets[_PIECES * stop]].decode()

    def block_end(self, start: int, size: int) -> int:
        """Return the largest `stop` for which `text(start, stop)` has at most `size` bytes.

        The result is at least `start` + 1, so that a block is never empty.
        """
        # The first piece that ends above `size`, which belongs to the next block.
        piece = bisect_right(self._offsets, self._offsets[_PIECES * start] + size, lo=_PIECES * start)
        return max((piece - 1) // _PIECES, start + 1)

    def items(self, ranking: Ranking, *, with_metadata: bool) -> bytes:
        """Return the JSON array of the items of a ranking."""
        return b"".join(self.item_parts(ranking, with_metadata=with_metadata))

    def n_bytes(self, ranking: Ranking, *, with_metadata: bool) -> int:
        """Return a number of bytes that the JSON array of `items` does not exceed, without encoding it."""
        columns, sizes = ranking.items, sum(map(len, chain.from_iterable(ranking.reasons)))
        if ranking.popular or ranking.reasons or ranking.because:
            sizes += NOTE_BYTES * len(columns)
        if ranking.because:
            entries = [entry for why in ranking.because for entry, _ in (*why.reasons, *why.in_spite_of)]
            columns = np.append(columns, [entry for entry in entries if isinstance(entry, int)])
            sizes += sum(NOTE_BYTES + (0 if isinstance(entry, int) else len(to_json(entry))) for entry in entries)
        return 2 + sizes + SCORE_BYTES * len(columns) + self._pieces_bytes(columns, with_metadata=with_metadata)

    def _pieces_bytes(self, columns: NDArray[np.integer], *, with_metadata: bool) -> int:
        own, offsets = columns[columns < len(self)].astype(np.int64) * _PIECES, np.asarray(self._offsets)
        size = int((offsets[own + (2 if with_metadata else 1)].astype(np.int64) - offsets[own]).sum())
        if self._others is not None:
            size += self._others._pieces_bytes(columns[columns >= len(self)] - len(self), with_metadata=with_metadata)
        return size

    def item_parts(self, ranking: Ranking, *, with_metadata: bool) -> list[bytes]:
        """Return the JSON array of the items of a ranking in parts."""
        columns = ranking.items.tolist()
        if not columns:
            return [b"[]"]
        if ranking.popular or ranking.reasons or ranking.because:
            return [self._items_with_notes(ranking, with_metadata=with_metadata)]
        # One call for all scores: 26 instead of 39 µs for 100. Numbers have no commas in JSON.
        scores = to_json(ranking.scores.tolist())[1:-1].split(b",")
        blob, offsets = self._blob, self._offsets
        parts = [b"["]
        for column, score in zip(columns, scores, strict=True):
            first = _PIECES * column
            middle = offsets[first + 1]
            parts.append(blob[offsets[first] : middle])
            parts.append(score)
            parts.append(blob[middle : offsets[first + 2]] if with_metadata else b"}")
        parts[1] = parts[1][1:]  # the first item has no comma in front
        parts.append(b"]")
        return parts

    def _items_with_notes(self, ranking: Ranking, *, with_metadata: bool) -> bytes:
        """Return the JSON array of a ranking whose items have reasons, explanations, or no scores (popular items)."""
        encoded = []
        for position, (column, score) in enumerate(zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True)):
            head, end = self._around(column, with_metadata=with_metadata)
            # Counts of choices are no scores of the model, so answers do not show them.
            shown = b"" if ranking.popular else _SCORE + to_json(score)
            if ranking.because:
                shown += self.because(ranking.because[position], with_metadata=with_metadata)
            reasons = ranking.reasons[position] if ranking.reasons else ()
            if ranking.popular or reasons:
                shown += b',"reason":' + to_json([*(("popular",) if ranking.popular else ()), *reasons])
            encoded.append(head + shown + end)
        return b"[" + b",".join(encoded) + b"]"

    def because(self, because: Because, *, with_metadata: bool) -> bytes:
        """Return the JSON fields of the reasons of an item, with a comma in front."""
        shown = [b'{"reason":"popular"}'] if because is POPULAR else self._reasons(because.reasons, with_metadata)
        fields = b',"because":[%b]' % b",".join(shown)
        if because.in_spite_of:
            fields += b',"in_spite_of":[%b]' % b",".join(self._reasons(because.in_spite_of, with_metadata))
        return fields + b',"rest":' + to_json(because.rest)

    def _reasons(self, reasons: Reasons, with_metadata: bool) -> list[bytes]:
        shown = []
        for reason, share in reasons:
            if isinstance(reason, int):
                head, end = self._around(reason, with_metadata=with_metadata)
                shown.append(
                    head + b',"share":' + to_json(share) + (_DISLIKED if isinstance(reason, Disliked) else b"") + end
                )
            else:
                kind = "reason" if isinstance(reason, PopularityReason) else "feature"
                shown.append(to_json({kind: reason, "share": share}))
        return shown

    def _around(self, column: int, *, with_metadata: bool) -> tuple[bytes, bytes]:
        """Return the JSON of an item before and after its score. The second part closes the object.

        The first part has the id, and the second has the metadata, if any.
        """
        if self._others is not None and column >= len(self):
            return self._others._around(column - len(self), with_metadata=with_metadata)
        first, middle, last = self._offsets[_PIECES * column : _PIECES * column + 3]
        return self._blob[first + 1 : middle - len(_SCORE)], self._blob[middle:last] if with_metadata else b"}"


def _pieces(item_ids: IdTable, metadata: MetadataTable | None) -> Iterator[bytes]:
    fields = () if metadata is None else metadata.fields
    rows = [None] * len(item_ids) if metadata is None else metadata.rows
    for item_id, row in zip(item_ids.all(), rows, strict=True):
        yield b',{"item_id":%b%b' % (to_json(item_id), _SCORE)
        # Items without a row have all fields too, so that the items of an answer have the same form.
        values = dict.fromkeys(fields) if row is None else dict(zip(fields, row, strict=True))
        yield b"," + to_json(values, inf_nan_mode="null", fallback=_plain)[1:] if values else b"}"


def _plain(value: Any) -> Any:
    """Return a value that JSON can hold for a value that it cannot hold, such as a numpy scalar or a time."""
    item = getattr(value, "item", None)
    return item() if callable(item) else str(value)


class AnswerHeader(NamedTuple):
    """The fields at the beginning of every answer. Their values never need JSON escapes."""

    request_id: str
    recipe: str
    model_version: str

    def encode_opening(self) -> bytes:
        """Return the beginning of a JSON object with these fields."""
        return b'{"request_id":"%b","recipe":"%b","model_version":"%b",' % (
            self.request_id.encode(),
            self.recipe.encode(),
            self.model_version.encode(),
        )

    def before(self, fields: bytes) -> AnswerBody:
        """Return the body of the answer, with `fields` after these fields. Only a body of up to JOINED_BYTES is joined.

        `fields` is a result of `encode_fields` or `encode_users`.
        """
        # The body ends with a line end, because `while read` in a shell skips a last line without it. The copy of the
        # body takes 0.1 µs for 5 kB and 6 µs for 300 kB.
        if len(fields) > JOINED_BYTES:
            return self.encode_opening(), fields, b"}\n"
        return b"%b%b}\n" % (self.encode_opening(), fields)

    def before_all(self, elements: Sequence[bytes]) -> AnswerBody:
        """Return the body of the answer to a batch, with the results of `encode_elements` after these fields."""
        parts = (self.encode_opening(), b'"results":[', *elements, b"]}\n")
        return parts if sum(map(len, elements)) > JOINED_BYTES else b"".join(parts)


def encode_elements(
    results: Sequence[tuple[Ranking, Prepared] | ApiError],
    fragments: Sequence[ItemFragments],
    named: Sequence[bytes],
    *,
    with_metadata: bool,
) -> Iterator[bytes]:
    """Yield the JSON of each result of a batch, a ranking or an error, in order, with commas between them.

    `fragments` has the pieces of the model of each result, and `named` more fields of each, with a comma behind.
    """
    for index, result in enumerate(results):
        comma = b"," if index else b""
        if isinstance(result, ApiError):
            yield comma + to_json({"index": index, "status": "error", "code": result.code, "detail": result.message})
        else:
            items = encode_fields(result[0], fragments[index], result[1], with_metadata=with_metadata)
            yield b'%b{"index":%d,"status":"ok",%b%b}' % (comma, index, named[index], items)


def batch_bytes(
    results: Sequence[tuple[Ranking, Prepared] | ApiError], fragments: Sequence[ItemFragments], *, with_metadata: bool
) -> int:
    """Return a number of bytes that the answer to a batch does not exceed, without encoding it."""
    return sum(
        len(to_json(result.message)) + NOTE_BYTES
        if isinstance(result, ApiError)
        else fields_bytes(result[0], own, result[1], with_metadata=with_metadata)
        for result, own in zip(results, fragments, strict=True)
    )


def fields_bytes(
    ranking: Ranking, fragments: ItemFragments, about: Prepared = NOTHING_MORE, *, with_metadata: bool = True
) -> int:
    """Return a number of bytes that the answer with items does not exceed, without encoding it."""
    return _head_bytes(ranking, about) + fragments.n_bytes(ranking, with_metadata=with_metadata)


def rerank_bytes(answer: RerankAnswer, fragments: ItemFragments) -> int:
    """Return a number of bytes that the answer with a list does not exceed, without encoding it."""
    ids = sum(len(to_json(item)) + NOTE_BYTES for item in answer.ids)
    return _head_bytes(answer.ranking, answer.about) + ids + fragments.n_bytes(answer.ranking, with_metadata=False)


def users_bytes(ranking: Ranking, user_ids: IdTable, about: Prepared) -> int:
    """Return a number of bytes that the answer with users does not exceed, without encoding it."""
    ids = sum(len(to_json(user_ids.at(row))) for row in ranking.items.tolist())
    return _head_bytes(ranking, about) + NOTE_BYTES * len(ranking.items) + ids


def _head_bytes(ranking: Ranking, about: Prepared | None) -> int:
    beside = facts_beside(ranking, about)
    return HEAD_BYTES + (len(to_json(beside)) if beside else 0)


def encode_fields(
    ranking: Ranking, fragments: ItemFragments, about: Prepared = NOTHING_MORE, *, with_metadata: bool = True
) -> bytes:
    """Return the JSON fields of an answer with items, without the braces of the object."""
    parts = fragments.item_parts(ranking, with_metadata=with_metadata)
    beside = [b',"%b":%b' % (name.encode(), to_json(fact)) for name, fact in facts_beside(ranking, about).items()]
    return b"".join((b'"items":', *parts, *beside))


def encode_page(page: PageAnswer, fragments: ItemFragments) -> bytes:
    """Return the JSON fields of a page, without the braces of the object."""
    rows = []
    for row in page.rows:
        named = {"seed_item": row.seed_item, "label": row.label, "why": row.why}
        beside = to_json({"id": row.id, **{name: text for name, text in named.items() if text is not None}})
        rows.append(b'%b,"items":%b}' % (beside[:-1], fragments.items(row.ranking, with_metadata=True)))
    facts = facts_beside(NOTHING_RANKED, page.about)
    return b'"rows":[%b],%b' % (b",".join(rows), to_json(facts)[1:-1])


def encode_rerank(answer: RerankAnswer, fragments: ItemFragments) -> bytes:
    """Return the JSON fields of a list in its new order, without the braces of the object."""
    scores, because, items = answer.ranking.scores, answer.ranking.because, []
    for origin, ranked, seen, unavailable in zip(
        answer.order.tolist(), answer.ranked.tolist(), answer.seen, answer.unavailable, strict=True
    ):
        item = {"item_id": answer.ids[origin], **({"score": float(scores[ranked])} if ranked >= 0 else {})}
        flags = {"seen": True} if seen else {}
        flags |= {"unavailable": True} if unavailable else {}
        reasons = fragments.because(because[ranked], with_metadata=False) if because and ranked >= 0 else b""
        # Without its last brace, so that the reasons, which are encoded already, can follow.
        items.append(b"%b%b}" % (to_json({**item, "from": origin, **flags})[:-1], reasons))
    facts = facts_beside(answer.ranking, answer.about)
    return b'"items":[%b],%b' % (b",".join(items), to_json(facts)[1:-1])


def encode_users(ranking: Ranking, user_ids: IdTable, about: Prepared) -> bytes:
    """Return the JSON fields of an answer with users, without the braces of the object."""
    pairs = zip(ranking.items.tolist(), ranking.scores.tolist(), strict=True)
    users = [{"user_id": user_ids.at(row), "score": score} for row, score in pairs]
    return to_json({"users": users, **facts_beside(ranking, about)})[1:-1]


def facts_beside(ranking: Ranking, about: Prepared | None) -> dict[str, Any]:
    """Return the fields of an answer besides items or users, by name. Leaves out empty fields.

    `about` is None if nothing is known of the user.
    """
    if about is None:
        return {"profile": "none"}
    facts: dict[str, Any] = {}
    if about.ignored_features:
        facts["ignored_features"] = list(about.ignored_features)
    if about.ignored_items:
        facts["ignored_items"] = list(about.ignored_items)
    if about.ignored_pins:
        facts["ignored_pins"] = [{"item_id": item, "why": why} for item, why in about.ignored_pins]
    if about.profile is not None:
        facts["profile"] = about.profile
        if ranking.popular:
            facts["fallback"] = "popular"
    return facts
