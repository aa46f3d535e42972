"""Run one export or one shard of it: verify the model, score, write the file, publish it, write the manifest.

Several threads rank many rows. The results keep the order of the rows.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from os.path import realpath
from typing import Any, BinaryIO

import numpy as np

from svc import events, logs
from svc.artifact.keys import SigningKeys
from svc.artifact.store import open_folder, read_verified
from svc.asking.offer import Offer
from svc.asking.plan import known_user, plan
from svc.asking.requests import RelatedRequest, UsersRequest
from svc.cores import usable_cores
from svc.errors import UsageError
from svc.export.formats import FORMATS, Scored, format_of
from svc.export.manifest import SUFFIX, Manifest, encode
from svc.export.request import EVERYBODY, ExportRequest, Rows, part_name, row_chunks, source_context
from svc.model.load_model import load_model, rehearse
from svc.model.model import Model
from svc.model.ranking.new_items import ids_with
from svc.model.ranking.query import Query
from svc.progress import EVERY_S, Progress, State
from svc.settings import Settings
from svc.sources.files import HashingFile

AHEAD = 2
"""Maximum number of chunks per thread that are submitted or scored but not yet written.

Two keep every thread busy, and the memory stays bounded.
"""


@dataclass(frozen=True, slots=True, eq=False)
class OpenedArtifact:
    """A verified model and the header of its file."""

    model: Model
    header: Mapping[str, Any]
    model_version: str
    resolved: str


def open_artifact(uri: str, keys: SigningKeys, settings: Settings) -> OpenedArtifact:
    """Read, verify and open an artifact as a server does. Raises ArtifactError."""
    blob, parsed = read_verified(uri, keys, settings)
    model = load_model(parsed.header, parsed.payload, name=uri, allow_skew=settings.allow_version_skew)
    rehearse(model)
    return OpenedArtifact(model, parsed.header, f"sha256:{blob.sha256}", blob.resolved)


def check(request: ExportRequest) -> None:
    """Raise UsageError for an output without a format, and for options in conflict."""
    format_of(request.output)
    if request.related and request.users != EVERYBODY:
        raise UsageError("--related ranks items for every item of the model: leave --users out")
    if request.to_users and (request.related or request.users != EVERYBODY or request.filter is not None):
        raise UsageError("--to-users writes the users of items: leave --related, --users and --filter out; see --items")
    if not request.to_users and (request.items != EVERYBODY or request.order != "score"):
        raise UsageError("--items and --order go with --to-users")
    # By real paths, because a link would let the export replace its own list.
    if request.leaders != EVERYBODY and realpath(request.leaders) == realpath(request.output):
        raise UsageError(f"--output: {request.output} is the list of ids: name another file")


def export(
    request: ExportRequest, opened: OpenedArtifact, settings: Settings, progress: Progress | None = None
) -> Manifest:
    """Write the recommendations and then their manifest. Return the manifest. `request` has passed `check`.

    Each of the two files replaces an earlier one atomically, one after the other. If the process is killed between the
    two, the new file is left with the earlier manifest, whose sha256 does not match it.

    Raises DataSourceError if the file of ids cannot be read, and ArtifactWriteError if the export cannot be written.
    Raises UsersNotServed for `to_users` if the model gives every user the same scores.
    """
    if request.to_users:
        opened.model.serve_users()
        opened.model.require_users()
    folder, name = open_folder(request.output, settings)
    name = part_name(name, request.shard)
    progress = progress or Progress(LogDisplay())
    logs.emit(events.EXPORT_STARTED, output=folder.uri_of(name), model_version=opened.model_version)
    began = time.monotonic()
    manifest = folder.put(lambda out: _write(out, name, request, opened, settings, progress), lambda _: name)
    # Last, so that a reader that waits for the manifest finds the whole file.
    folder.put(lambda out: out.write(encode(manifest)), lambda _: name + SUFFIX)
    seconds = time.monotonic() - began
    logs.emit(
        events.EXPORT_DONE,
        output=folder.uri_of(name),
        rows=manifest.rows,
        skipped=manifest.skipped,
        seconds=round(seconds, 3),
        rows_per_s=round(manifest.rows / max(seconds, 1e-9)),
    )
    return manifest


def _write(  # noqa: PLR0917 - the inputs of an export
    out: BinaryIO, name: str, request: ExportRequest, opened: OpenedArtifact, settings: Settings, progress: Progress
) -> Manifest:
    """Write every ranking to `out`, and return the manifest of the file, which gets this `name`."""
    model = opened.model
    progress.phase("recommending")
    leaders = model.item_ids if request.related or request.to_users else model.user_ids
    selection, chunks = row_chunks(leaders, request, source_context(settings))
    hashing = HashingFile(out)
    leader = "seed_item_id" if request.related else "item_id" if request.to_users else "user_id"
    items = model.user_ids if request.to_users else ids_with(model.item_ids, request.new)
    writer = FORMATS[format_of(request.output)](hashing, leader, leaders, items)
    done = n_rows = n_empty = 0
    for scored in score_all(model, request, chunks, settings.scoring_threads or usable_cores()):
        writer.add(scored)
        done += len(scored.rows)
        n_rows += len(scored.items)
        n_empty += int((scored.counts == 0).sum())
        progress.advance(done, selection.total, rows=len(scored.items))
    writer.close()
    return Manifest(
        path=name,
        rows=n_rows,
        sha256=hashing.sha256,
        bytes=hashing.n_bytes,
        model_version=opened.model_version,
        skipped=selection.skipped,
        empty=n_empty,
        asked=request.asked(selection.users),
        shard=None if request.shard is None else f"{request.shard.index}/{request.shard.count}",
    )


def score(model: Model, request: ExportRequest, rows: Rows) -> Scored:
    """Return for each row the ranking that the API would answer. `rows` are users or items, as `request` asks."""
    offer = request.offer(model)
    rankings = model.rank([_query(offer, request, row) for row in rows.tolist()])
    return Scored(
        rows,
        np.array([len(ranking.items) for ranking in rankings], dtype=np.int64),
        np.concatenate([ranking.items for ranking in rankings]),
        np.concatenate([ranking.scores for ranking in rankings]),
    )


def _query(offer: Offer, request: ExportRequest, row: int) -> Query:
    """Return the query of the API for a user or an item, without the rules of the recipe."""
    if request.to_users:
        item = offer.model.item_ids.at(row)
        return plan(UsersRequest(item_id=item, limit=request.limit, order=request.order), offer).query
    if request.related:
        return plan(
            RelatedRequest(seed_items=[offer.model.item_ids.at(row)], exclude_items=[], limit=request.limit), offer
        ).query
    return known_user(offer, row, limit=request.limit)


def score_all(model: Model, request: ExportRequest, chunks: Iterator[Rows], threads: int) -> Iterator[Scored]:
    """Yield the rankings of each chunk, in order. Closing the iterator ends the threads."""
    pool = ThreadPoolExecutor(threads, "svc-export")
    waiting: deque[Future[Scored]] = deque()
    try:
        for rows in chunks:
            waiting.append(pool.submit(score, model, request, rows))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


class LogDisplay:
    """Logs the progress of an export, at most once every EVERY_S seconds.

    The logged `done` and `total` count users, items or shards.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._next = clock() + EVERY_S

    def show(self, state: State) -> None:
        if not state.done or self._clock() < self._next:
            return
        self._next = self._clock() + EVERY_S
        seconds_left = state.seconds_left
        logs.emit(
            events.EXPORT_PROGRESS,
            done=state.done,
            total=state.total,
            rows=state.rows,
            rows_per_s=round(state.rows_per_s),
            seconds_left=None if seconds_left is None else round(seconds_left),
        )

    def close(self) -> None: ...
