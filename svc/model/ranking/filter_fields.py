"""The fields of items that filters read, and the compilation of filters to item sets.

| symbol | meaning |
|---|---|
| label | one value of a text field; an item has several in a `multi_label` field |
| missing | an empty cell, no label left, no number, or an item that the table lacks |

A missing value satisfies only the condition `exists: false`. `not` is the complement of a set, so an item without a
year satisfies `not year >= 1990`.
"""

from __future__ import annotations

import heapq
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, Literal, cast

import numpy as np
from numpy.typing import NDArray
from pydantic_core import to_json

from svc.errors import MetadataError
from svc.lru_cache import LruCache
from svc.model.columns.feature_values import kind_of
from svc.model.features import TokenColumn
from svc.model.ids import IdFinder, IdTable
from svc.model.ranking.item_sets import ItemSet, spans
from svc.model.ranking.steps import Steps, result_of

Tree = tuple[Any, ...]
"""A canonical filter tree of `svc.recipe.filter_tree`. It has been checked, and names only fields that may be read."""


@dataclass(frozen=True, slots=True)
class ClientTree:
    """A filter as a client wrote it. It is any JSON value, has not been checked, and may look like a canonical tree."""

    value: object


CACHE_BYTES: Final = 8 << 20
"""Memory for the item sets of recent filters. It holds 1,600 sets of 41,000 items."""
LEAST_CACHED: Final = 40
"""The least number of cached sets. A request has up to 34, for a filter and 16 boosts in client and canonical form."""
MAX_SHOWN_VALUES: Final = 200
COMPARE: Final[Mapping[str, Callable[[Any, float], Any]]] = {
    "gt": operator.gt,
    "gte": operator.ge,
    "lt": operator.lt,
    "lte": operator.le,
    "eq": operator.eq,
}
"""The comparisons of numbers by operator name. Row filters of trainings use them too."""


class LabelField:
    """A `categorical` or `multi_label` field, indexed by label and by item.

    The items of the label l are `items[item_starts[l]:item_starts[l + 1]]`, ascending. The labels of the item i are
    `labels[label_starts[i]:label_starts[i + 1]]`.
    """

    def __init__(
        self, kind: Literal["categorical", "multi_label"], n_items: int, pairs: NDArray[np.int32], names: IdTable
    ) -> None:
        item_of, label_of = pairs[:, 0], pairs[:, 1]
        # Stable, so that the items of a label are ascending.
        order = np.argsort(label_of, kind="stable")
        self.kind = kind
        self.names = names
        self._finder = IdFinder(names)
        self.n_items = n_items
        self.items = np.ascontiguousarray(item_of[order])
        self.item_starts = np.append(0, np.bincount(label_of, minlength=len(names)).cumsum())
        self.labels = np.ascontiguousarray(label_of)
        self.label_starts = np.append(0, np.bincount(item_of, minlength=n_items).cumsum())
        # Computed once, because every filter with `exists` or its negation asks for the same set.
        self.exists = ItemSet.of_flags(np.diff(self.label_starts) > 0)

    @classmethod
    def read(cls, name: str, kind: Any, delimiter: str, values: Iterable[object], n_items: int) -> LabelField:
        """Build the field from one value per item, in column order. Raises MetadataError for a wrong kind of value."""
        column = TokenColumn(name, kind, IdTable.from_ids([]), delimiter)
        codes: dict[str, int] = {}
        pairs: list[tuple[int, int]] = []
        for item, value in enumerate(values):
            try:
                labels = column.split(value)
            except (TypeError, ValueError) as error:
                raise MetadataError(f"filter field {name!r}: {error}; give text, numbers or booleans") from None
            pairs += [(item, codes.setdefault(label, len(codes))) for label in labels]
        return cls(kind, n_items, np.array(pairs, dtype=np.int32).reshape(-1, 2), IdTable.from_ids(list(codes)))

    def of_items(self, items: NDArray[np.int64]) -> LabelField:
        """Return the field for some of the items alone, in the order of `items`."""
        counts = np.diff(self.label_starts)[items]
        labels = self.labels[spans(self.label_starts[items], counts)]
        # Labels that no item has any longer are dropped, so that they are neither offered nor counted.
        used, codes = np.unique(labels, return_inverse=True)
        pairs = np.column_stack([np.repeat(np.arange(len(items)), counts), codes]).astype(np.int32)
        return LabelField(
            self.kind, len(items), pairs, IdTable.from_ids([self.names.at(label) for label in used.tolist()])
        )

    def blank(self, n_items: int) -> LabelField:
        """Return a field of the same kind for `n_items` items without a value."""
        return LabelField(self.kind, n_items, np.empty((0, 2), np.int32), IdTable.from_ids([]))

    def followed_by(self, other: LabelField) -> LabelField:
        """Return a field with the items of this field, followed by the items of `other`."""
        others = other.names.all()
        codes = self._finder.indices(others)
        unknown = np.flatnonzero(codes < 0)
        codes[unknown] = len(self.names) + np.arange(len(unknown))
        names = self.names
        if len(unknown):
            names = IdTable.from_ids([*self.names.all(), *(others[label] for label in unknown.tolist())])
        pairs = [self._pairs(), other._pairs()]
        pairs[1] = np.column_stack([pairs[1][:, 0] + self.n_items, codes[pairs[1][:, 1]]]).astype(np.int32)
        return LabelField(self.kind, self.n_items + other.n_items, np.concatenate(pairs), names)

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays that make up the field."""
        return self.names.blob, self.names.offsets, self.labels, self.label_starts

    def _pairs(self) -> NDArray[np.int32]:
        """Return the pairs of item and label, (p, 2), ordered by item."""
        items = np.repeat(np.arange(self.n_items, dtype=np.int32), np.diff(self.label_starts))
        return np.column_stack([items, self.labels])

    def labels_of(self, item: int) -> NDArray[np.int32]:
        """Return the labels of one item."""
        return self.labels[self.label_starts[item] : self.label_starts[item + 1]]

    def having(self, label: int) -> ItemSet:
        """Return the items of one label."""
        return ItemSet.of_columns(self.items[self.item_starts[label] : self.item_starts[label + 1]], self.n_items)

    def matching(self, name: str, operand: Any) -> ItemSet:
        if name == "exists":
            return self.exists if operand else ~self.exists
        labels = self._finder.indices(operand)
        labels = labels[labels >= 0]
        # No item has a label that the table lacks.
        if name == "all" and len(labels) < len(operand):
            return ItemSet.of_columns(labels[:0], self.n_items)
        items = [self.items[self.item_starts[label] : self.item_starts[label + 1]] for label in labels.tolist()]
        if name == "any":
            # `labels[:0]`, because numpy cannot concatenate nothing.
            return ItemSet.of_columns(np.concatenate([*items, labels[:0]]), self.n_items)
        # An item that stands in the list of each label has all of them.
        times = np.bincount(np.concatenate(items), minlength=self.n_items)
        return ItemSet.of_flags(times == len(items))

    def describe(self) -> dict[str, Any]:
        """Return the MAX_SHOWN_VALUES most frequent values, by descending frequency, ties by name."""
        return {"values": list(self._most_frequent)}

    @cached_property
    def _most_frequent(self) -> list[str]:
        """Return the most frequent names, computed once.

        `nsmallest` works in many short steps, so other threads can run in between. Sorting 100,000 names at once would
        delay them by 0.1 s.
        """
        counts = np.diff(self.item_starts)
        n_rare = max(len(counts) - MAX_SHOWN_VALUES, 0)
        least = np.partition(counts, n_rare)[n_rare] if len(counts) else 0
        often = np.flatnonzero(counts >= least).tolist()
        first = heapq.nsmallest(MAX_SHOWN_VALUES, ((-int(counts[label]), self.names.at(label)) for label in often))
        return [name for _, name in first]


class NumberField:
    """A `numerical` field. `numbers`, (n,) float64, has the number of each item, or NaN if it is missing."""

    kind: Final = "numerical"

    def __init__(self, numbers: NDArray[np.float64]) -> None:
        self.numbers = numbers
        self.exists = ItemSet.of_flags(~np.isnan(numbers))

    @classmethod
    def read(cls, name: str, values: Iterable[object], n_items: int) -> NumberField:
        """Build the field from one value per item, in column order. Raises MetadataError if a value is not a number."""
        return cls(np.fromiter((read_number(name, value) for value in values), np.float64, n_items))

    def of_items(self, items: NDArray[np.int64]) -> NumberField:
        """Return the field for some of the items alone, in the order of `items`."""
        return NumberField(self.numbers[items])

    def blank(self, n_items: int) -> NumberField:
        """Return a field of the same kind for `n_items` items without a value."""
        return NumberField(np.full(n_items, np.nan))

    def followed_by(self, other: NumberField) -> NumberField:
        """Return a field with the items of this field, followed by the items of `other`."""
        return NumberField(np.concatenate([self.numbers, other.numbers]))

    def arrays(self) -> tuple[NDArray[Any], ...]:
        """Return the arrays that make up the field."""
        return (self.numbers,)

    def matching(self, name: str, operand: Any) -> ItemSet:
        if name == "exists":
            return self.exists if operand else ~self.exists
        # Comparisons with NaN are false, so a missing number matches none of them.
        return ItemSet.of_flags(COMPARE[name](self.numbers, operand))

    def describe(self) -> dict[str, Any]:
        present = self.numbers[~np.isnan(self.numbers)]
        if not len(present):
            return {"min": None, "max": None}
        return {"min": float(present.min()), "max": float(present.max())}


Field = LabelField | NumberField


class FilterFields:
    """The filter fields of one served model, with a bounded cache of compiled filters. Thread-safe.

    `hidden` fields are for the recipe's own filter. Requests cannot name them.
    """

    def __init__(self, fields: Mapping[str, Field], n_items: int, hidden: Sequence[str] = ()) -> None:
        self.fields = fields
        self.kinds = {name: field.kind for name, field in fields.items() if name not in hidden}
        self.hidden = hidden
        self._n_items = n_items
        # By number of sets instead of bytes, because a set has at most one bit an item.
        self._cache: LruCache[bytes, ItemSet] = LruCache(max(LEAST_CACHED, CACHE_BYTES // max(1, n_items // 8)))
        self._lock = Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the fields without the cache and its lock, which stay in their process."""
        return FilterFields, (self.fields, self._n_items, self.hidden)

    def of_items(self, items: NDArray[np.int64]) -> FilterFields:
        """Return the fields for some of the items alone, in the order of `items`."""
        fields = {name: field.of_items(items) for name, field in self.fields.items()}
        return FilterFields(fields, len(items), self.hidden)

    def followed_by(self, other: FilterFields) -> FilterFields:
        """Return the fields of these items, followed by the items of `other`.

        If `other` lacks a field, its items have no value there. This happens when the list of new items is older than
        the recipe's declaration of the field.
        """
        fields: dict[str, Field] = {}
        for name, field in self.fields.items():
            new = other.fields.get(name)
            new = new if type(new) is type(field) else field.blank(other._n_items)
            fields[name] = field.followed_by(cast(Any, new))
        return FilterFields(fields, self._n_items + other._n_items, self.hidden)

    def cached(self, tree: Tree | ClientTree) -> ItemSet | None:
        """Return the item set of a tree, or None if the cache does not have this tree in this form."""
        key = _key(tree)
        with self._lock:
            return self._cache.get(key)

    def items(self, tree: Tree) -> ItemSet:
        """Return the items that satisfy `tree`. Takes up to a millisecond at 41,000 items if it is not cached."""
        return result_of(self._compile(tree))

    def items_as_asked(self, tree: ClientTree, canonical: Callable[[object], Tree]) -> ItemSet:
        """Return the items that satisfy a client's tree.

        `canonical` checks the client's value and returns a canonical tree. A cached tree has passed this check before,
        so it is not checked again.
        """
        return result_of(self.compile(tree, canonical))

    def compile(self, tree: ClientTree, canonical: Callable[[object], Tree]) -> Steps[ItemSet]:
        """Compute `items_as_asked` in steps of one condition."""
        items = self.cached(tree)
        if items is None:
            items = yield from self._compile(canonical(tree.value))
            # The client's form is cached too, so that a repeated filter is neither checked nor made canonical. With
            # this, the slowest of 1,500 fuzzed filters takes 4.4 instead of 5.9 ms.
            self._keep(tree, items)
        return items

    def describe(self) -> list[dict[str, Any]]:
        """Return the name, kind, and most frequent values or range of each field that requests may name."""
        return [{"name": name, "kind": kind, **self.fields[name].describe()} for name, kind in self.kinds.items()]

    def _keep(self, tree: Tree | ClientTree, items: ItemSet) -> None:
        key = _key(tree)
        with self._lock:
            self._cache.put(key, items)

    def _compile(self, tree: Tree) -> Steps[ItemSet]:
        items = self.cached(tree)
        if items is None:
            items = yield from self._compile_node(tree)
            self._keep(tree, items)
        return items

    def _compile_node(self, tree: Tree) -> Steps[ItemSet]:
        match tree:
            case ("all", parts):
                return (yield from self._join(operator.and_, parts, enough=0))
            case ("any", parts):
                return (yield from self._join(operator.or_, parts, enough=self._n_items))
            case ("not", part):
                return ~(yield from self._compile_node(part))
            case ("field", name, operators):
                items = reduce(operator.and_, (self.fields[name].matching(*condition) for condition in operators))
                yield
                return items
        raise ValueError("not a canonical filter tree")

    def _join(self, join: Callable[[ItemSet, ItemSet], ItemSet], parts: Sequence[Tree], enough: int) -> Steps[ItemSet]:
        """Join the item sets of the parts. Stop at a set of `enough` items, which can no longer change."""
        items = yield from self._compile_node(parts[0])
        for part in parts[1:]:
            # Of 1,500 fuzzed filters, 2 to 5 take more than 5 ms with this stop, and 23 to 32 without it.
            if items.count == enough:
                break
            items = join(items, (yield from self._compile_node(part)))
        return items


NO_FIELDS: Final = FilterFields({}, 0)
"""For recipes and tables without filter fields. No filter is valid then, so the number of items does not matter."""


def _key(tree: Tree | ClientTree) -> bytes:
    """Return the cache key of a tree. It is a short digest, so that a cache of long filters stays small.

    Client trees and canonical trees with the same JSON have different keys. Otherwise a client could send unchecked
    JSON in the form of a canonical tree and get that tree's cached set.
    """
    if isinstance(tree, ClientTree):
        return blake2b(to_json(tree.value), digest_size=16, person=b"client tree").digest()
    return blake2b(to_json(tree), digest_size=16, person=b"canonical tree").digest()


def read_number(name: str, value: object) -> float:
    """Return the number of a value, or NaN if it is missing: null, a blank text, or not finite.

    Raises MetadataError if the value is not a number.
    """
    if value is None or (isinstance(value, str) and not value.strip()):
        return math.nan
    try:
        number = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError):  # OverflowError: a whole number beyond float64
        raise MetadataError(
            f"filter field {name!r} is numerical, and a cell holds {kind_of(value)} that is not a number;"
            " mend the table or declare the field categorical"
        ) from None
    return number if math.isfinite(number) else math.nan
