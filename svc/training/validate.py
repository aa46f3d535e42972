"""The checks of `svc validate`. They open the search storage and read at most the first rows of each table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from svc.errors import MetadataError, MinDataViolation, SvcError
from svc.model.ranking.filter_fields import LabelField, read_number
from svc.recipe.load import LoadedRecipe
from svc.recipe.serving_schema import ItemMetadata
from svc.recipe.source_options import BUILT_IN_OPTIONS, FileOptions, SourceSpec
from svc.settings import Settings
from svc.sources.base import SourceContext, build_source
from svc.sources.parts import first_rows_are_all
from svc.training.data.doubts import MOST_EVENTS, Doubt, column_hints, doubts
from svc.training.data.features import SideName, sample_warnings
from svc.training.data.fetch import (
    TrainingData,
    check_thresholds,
    draw_sample,
    feature_context,
    forgotten_users,
    interaction_context,
)
from svc.training.data.id_doubts import id_doubts
from svc.training.data.interactions import from_rows
from svc.training.data.metadata_doubts import metadata_doubts
from svc.training.data.times import MANY
from svc.training.data.where import fetch_kept, kept_rows, without_users
from svc.training.fitting.algorithms.registry import check_available
from svc.training.judging.task import plan_split
from svc.training.search.storage import preflight

if TYPE_CHECKING:
    import pandas

SAMPLED_ROWS = 1000
FrameCheck = Callable[["pandas.DataFrame"], Iterable[str]]


@dataclass(frozen=True, slots=True)
class Check:
    """The result of one check.

    `name` is the field of the recipe, or "algorithms". `exit_code` and `code` are those of the error if the check
    failed, and otherwise 0 and "".
    """

    name: str
    ok: bool
    detail: str
    exit_code: int = 0
    code: str = ""


def validate(loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str]) -> Iterator[Check]:
    """Check algorithms, search storage and every source in turn, and yield each result.

    The checks continue after a failed one. A source may yield several results. Errors that show only in the whole data,
    such as an empty vocabulary of features, are not found.
    """
    training = loaded.recipe.training
    yield from _check("algorithms", lambda: _algorithms(training.algorithms))
    yield Check("training.split", True, loaded.recipe.training.split.scheme)
    yield from _check("training.storage_path", lambda: _storage(training.storage_path, loaded))
    for name, spec, context, check_frame in _sources(loaded, settings, variables):
        yield from _check(name, partial(_probe_source, spec, context, check_frame))
        # After the probe, so that a source that cannot be read is reported first.
        for hint in column_hints(loaded, context) if name == "source" else ():
            yield Check(name, True, f"warning: {hint.message}")


def _check(name: str, check: Callable[[], Iterable[str]]) -> Iterator[Check]:
    try:
        for detail in check():
            yield Check(name, True, detail)
    except SvcError as error:
        yield Check(name, False, error.message, error.exit_code, error.code)


def _algorithms(names: tuple[str, ...]) -> list[str]:
    check_available(names)
    return [", ".join(names)]


def _storage(storage_path: str, loaded: LoadedRecipe) -> list[str]:
    location = preflight(storage_path, loaded.base_dir)
    if location.path is not None:
        return [f"SQLite file {location.path} can be written"]
    return ["the database answers" if location.shared else "trials are kept in memory"]


def _sources(
    loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str]
) -> Iterator[tuple[str, SourceSpec, SourceContext, FrameCheck | None]]:
    """Yield the field of the recipe, the source, its context and the check of its first rows, for each table."""
    recipe, items = loaded.recipe, set[str]()
    context = interaction_context(loaded, settings, variables)
    yield "source", recipe.source, context, partial(_row_warnings, loaded, context, items)
    names: tuple[SideName, ...] = ("item", "user")
    for name in names:
        side = getattr(recipe.features, name, None)
        if side is not None:
            context = feature_context(loaded, side, settings, variables)
            yield f"features.{name}.source", side.source, context, partial(sample_warnings, side, name)
    served = partial(SourceContext.for_served_table, loaded.base_dir, settings, variables)
    if (metadata := recipe.item_metadata) is not None:
        columns = dict.fromkeys((metadata.id_column, *metadata.fields, *metadata.filter_kinds))
        context = served(metadata.id_column, tuple(columns))
        few = _few_items(loaded, settings, variables, items)  # a generator, which reads nothing yet
        check = partial(_metadata_warnings, metadata, few)
        yield "item_metadata.source", metadata.source, context, check
    if (available := recipe.serving.availability) is not None:
        yield "serving.availability.source", available.source, served(available.id_column, (available.id_column,)), None


def _row_warnings(
    loaded: LoadedRecipe, context: SourceContext, items: set[str], frame: pandas.DataFrame
) -> Iterator[str]:
    """Yield lines about the first rows of the interactions: the effect of the filters of `cleansing`, and warnings.

    The items of these rows are added to `items`. Raise DataSourceError if the list of forgotten users cannot be read,
    MinDataViolation if there are no rows or if none is usable, and the errors of a training for values that it would
    refuse. If the table has no further rows, raise its errors about all rows too, after the warnings.
    """
    recipe = loaded.recipe
    schema = recipe.schema_
    if not len(frame):
        raise MinDataViolation("the table has a header and no rows, so there is nothing to train on")
    n_read, rows = len(frame), kept_rows(frame, recipe.cleansing.where, recipe.cleansing.hide)
    rows = without_users(rows, schema.user_column, forgotten_users(loaded, context.settings, context.variables))
    frame = rows.frame
    is_sample = n_read >= SAMPLED_ROWS or _may_have_more(recipe.source, context)
    # Of few rows of each user and item, no core may be left.
    cleansing = recipe.cleansing.model_copy(update={"min_interactions": None}) if is_sample else recipe.cleansing
    interactions = from_rows(rows, recipe.model_copy(update={"cleansing": cleansing}), started_ns=time.time_ns())
    # In place, because the check of the metadata, which comes later, reads the same set.
    items |= set(interactions.item_ids)
    reasons = "; ".join(interactions.reasons.values())
    first = f"of the first {len(frame)} rows" + ("" if rows.n_dropped is None else " that cleansing.where keeps")
    unusable = f"{interactions.n_unusable} {first} would be dropped: {reasons}"
    if interactions.n_unusable == len(frame) > 0:
        raise MinDataViolation(unusable)
    warnings = [unusable] if interactions.n_unusable > MANY * len(frame) else []
    if len(frame) and not len(interactions):
        dropped = ", ".join(f"{count} as {reason}" for reason, count in interactions.dropped.items() if count)
        warnings.append(f"none {first} is a choice, because they are dropped: {dropped}")
    if interactions.future is not None:
        warnings.append(f"{interactions.future.count} {first} have a time in the future: {interactions.future.detail}")
    warnings += [warning.message for warning in doubts(rows, interactions, recipe, is_sample=is_sample)]
    for side, name in (("user", schema.user_column), ("item", schema.item_column)):
        ids = id_doubts(frame[name], side, recipe.source.type, are_rows=True, is_sample=is_sample)
        warnings += [doubt.message for doubt in ids]
    n_hidden = 0 if rows.hides is None else int(rows.hides.sum())
    counts = [] if rows.n_dropped is None else [_count_kept(len(frame) - n_hidden, n_read)]
    counts += [] if rows.hides is None else [f"cleansing.hide hides {n_hidden} of the first {n_read} rows"]
    if interactions.events:
        counts.append(_events_line(recipe.cleansing.event_weights or {}, interactions.events, len(frame)))
    yield from counts + [f"warning: {text}" for text in warnings]
    if not is_sample:  # the table has no further rows, so a training would split these
        check_thresholds(interactions, recipe.cleansing)
        _, _, doubt = plan_split(loaded, TrainingData(interactions, n_read, {}, draw_sample(loaded, interactions)))
        yield from () if doubt is None else (f"warning: {doubt.message}",)


def _may_have_more(spec: SourceSpec, context: SourceContext) -> bool:
    """Return whether the source may have more rows than a sample that is shorter than SAMPLED_ROWS."""
    options = BUILT_IN_OPTIONS[spec.type].model_validate(spec.options) if spec.type in BUILT_IN_OPTIONS else None
    return isinstance(options, FileOptions) and not first_rows_are_all(options, context)


def _events_line(weights: Mapping[str, object], counts: Mapping[str, int], n_rows: int) -> str:
    """Return a line with the number of first rows of each event, and its weight."""
    kinds = [f"{count:,} {event!r:.40} ({_weight(weights.get(event))})" for event, count in counts.items()]
    return f"events of the first {n_rows} rows: {', '.join(kinds[:MOST_EVENTS])}"


def _weight(weight: object) -> str:
    return "no weight, dropped" if weight is None else "exclude" if weight == "exclude" else f"weight {weight:g}"


def _few_items(
    loaded: LoadedRecipe, settings: Settings, variables: Mapping[str, str], first: set[str]
) -> Iterator[Doubt]:
    """Yield the warnings of `metadata_doubts`. Raise MetadataError if the metadata has none of the items.

    `first` are the items of the first rows. If the metadata seems to have few of them, all items are read, because old
    items at the beginning of the interactions may have left the metadata.
    """
    compare = partial(metadata_doubts, loaded, settings, variables)
    with suppress(MetadataError):
        of_first = [*compare(first)]
        if all(doubt.code != "metadata_few_items" for doubt in of_first):
            yield from of_first
            return
    cleansing = loaded.recipe.cleansing
    source = build_source(loaded.recipe.source, interaction_context(loaded, settings, variables))
    rows = fetch_kept(source, cleansing.where, cleansing.hide)
    rows = without_users(rows, loaded.recipe.schema_.user_column, forgotten_users(loaded, settings, variables))
    yield from compare(from_rows(rows, loaded.recipe).item_ids)


def _metadata_warnings(declared: ItemMetadata, few: Iterable[Doubt], frame: pandas.DataFrame) -> list[str]:
    """Return warnings about a metadata table with the first rows `frame`, and those of `few`.

    Raise MetadataError if a server would refuse the rows.
    """
    for field in declared.filter_fields:
        values = [
            None if is_missing else value
            for value, is_missing in zip(frame[field.name], frame[field.name].isna(), strict=True)
        ]
        if field.kind == "numerical":
            # One by one, because a whole column would not name the row of a wrong value.
            for row, value in enumerate(values, start=1):
                try:
                    read_number(field.name, value)
                except MetadataError as error:
                    raise MetadataError(f"{error.message}; it is in data row {row}") from None
        else:
            LabelField.read(field.name, field.kind, field.delimiter, values, len(values))
    ids = frame[declared.id_column].dropna().astype(str)
    warnings = []
    repeated = ids[ids.duplicated()]
    if len(repeated):
        warnings.append(
            f"{declared.id_column} {repeated.iloc[0]!r} occurs more than once in the first {len(frame)} rows, as do "
            f"{repeated.nunique() - 1} others: the last row of an item counts"
        )
    warnings += [doubt.message for doubt in few]
    return [f"warning: {text}" for text in warnings]


def _count_kept(n_kept: int, n_read: int) -> str:
    """Return a line with the number of first rows that `cleansing.where` keeps, as a warning if all are dropped."""
    counts = f"cleansing.where keeps {n_kept} of the first {n_read} rows"
    if n_kept or not n_read:
        return counts
    return f"warning: {counts}: compare its values, also their upper and lower case, with those of the table"


def _probe_source(spec: SourceSpec, context: SourceContext, check_frame: FrameCheck | None) -> Iterator[str]:
    """Yield the lines of the source's probe, then warnings and the lines of `check_frame` about its first rows.

    These are left out if the source cannot return its first rows alone.
    """
    source = build_source(spec, context)
    together, probe, sample = (getattr(source, name, None) for name in ("probe_and_sample", "probe", "sample"))
    if together is not None:
        frame: pandas.DataFrame | None = yield from together(SAMPLED_ROWS)
    else:
        yield from ["this source cannot be probed; a training will read it"] if probe is None else probe()
        frame = None if sample is None else sample(SAMPLED_ROWS)
    if frame is None:
        return
    if context.purpose != "interactions":
        yield from (
            f"warning: {doubt.message}"
            for doubt in id_doubts(frame[(context.columns or ("",))[0]], "item", spec.type, are_rows=False)
        )
    if check_frame is not None:
        yield from check_frame(frame)
