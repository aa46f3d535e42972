"""The served log: which items each answer had, as JSON lines in files of a local folder.

Answers put lines into a bounded queue, and a task writes them each second in a thread, so that no answer waits for a
disk. The file of a process is `RECIPE.YYYYmmddTHHMM.PID.jsonl.open` while it is written. It loses the ending `.open`
when it is rotated. The process holds a lock on its open file, so a file without a lock was left by a process that was
killed.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from pathlib import Path
from typing import NamedTuple

import trio
from pydantic_core import to_json

from svc import events, logs, metrics
from svc.asking.experiment import OPEN, unit_digest
from svc.metrics import Metrics
from svc.recipe.serving_schema import ServedLog

WRITE_S, SAY_S, LAST_WRITE_S = 1.0, 60.0, 2.0
MAX_WAITING_IDS = 500_000
"""Bound of the item ids in the queue. They take about 40 MB."""
LINE_COST = 20
"""A line without items takes the memory of this many ids."""
_UNIT = re.compile(rb'"unit":"[0-9a-f]{32}"')


class Line(NamedTuple):
    """One answered page. `experiment` has the name and the salt of the experiment, or is None."""

    time_s: float
    request_id: str
    recipe: str
    verb: str
    experiment: tuple[str, str] | None
    arm: str | None
    model_version: str
    unit: str | None
    items: Sequence[str]
    seed: str | None = None
    is_shadow: bool = False

    def encode(self, share: float) -> bytes:
        """Return the line as JSON, or no bytes if its unit is not among the `share` of units that are logged."""
        unit = None if self.unit is None or self.experiment is None else unit_digest(self.experiment[1], self.unit)
        if not is_among(share, unit or self.request_id):
            return b""
        moment = datetime.fromtimestamp(self.time_s, UTC).isoformat(timespec="milliseconds")
        fields = {
            "time": moment.replace("+00:00", "Z"),
            "request_id": self.request_id,
            "recipe": self.recipe,
            "verb": self.verb,
            "experiment": None if self.experiment is None else self.experiment[0],
            "arm": self.arm,
            "model_version": self.model_version,
            "unit": unit,
            "items": self.items,
            **({} if self.seed is None else {"seed": self.seed}),
            **({"shadow": True} if self.is_shadow else {}),
        }
        return to_json(fields) + b"\n"


def is_among(share: float, text: str) -> bool:
    """Return True for this share of all texts, always the same ones."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) < share * 2**32


class ServedLogs:
    """The served logs of all recipes of a process. Call `put` for each page, and let `run` write."""

    def __init__(self, counters: Metrics) -> None:
        self._metrics = counters
        self._waiting: list[tuple[ServedLog, Line]] = []
        self._n_ids = 0
        self._files: dict[tuple[ServedLog, str], LogFile] = {}
        self._lost: Counter[tuple[str, str]] = Counter()
        """Number of lost lines since the last event, by recipe and error."""
        self._said_at = -SAY_S
        self._limiter = trio.CapacityLimiter(1)

    def put(self, settings: ServedLog, line: Line) -> None:
        """Queue a line, or count it as lost if too many wait."""
        cost = LINE_COST + len(line.items)
        if self._n_ids + cost > MAX_WAITING_IDS:
            self._lose(line.recipe, "the disk is slower than the answers", 1)
            return
        self._n_ids += cost
        self._waiting.append((settings, line))

    async def run(self) -> None:
        """Write the waiting lines each second until cancelled, and then the last ones."""
        try:
            while True:
                await trio.sleep(WRITE_S)
                await self._flush()
        finally:
            # Without the shield, the cancelled task could not wait for the thread that writes.
            with trio.move_on_after(LAST_WRITE_S, shield=True):
                await self._flush(is_end=True)

    async def _flush(self, *, is_end: bool = False) -> None:
        waiting, self._waiting, self._n_ids = self._waiting, [], 0
        if waiting or self._files:
            work = partial(self._write, waiting, is_end=is_end)
            try:
                # A disk that hangs must not keep the server alive. The limiter lets no second write overtake it.
                outcomes = await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=self._limiter)
            except (RuntimeError, MemoryError) as failure:  # RuntimeError if the system cannot start another thread
                text, counts = f"{type(failure).__name__}: {failure}", Counter(line.recipe for _, line in waiting)
                outcomes = [(recipe, text, count) for recipe, count in counts.items()]
            for recipe, error, count in outcomes:
                if error:
                    self._lose(recipe, error, count)
                else:
                    self._metrics.of(metrics.SERVED_LOG_LINES, result="written").inc(count)
        if self._lost and (is_end or trio.current_time() >= self._said_at + SAY_S):
            self._said_at = trio.current_time()
            lost, self._lost = self._lost, Counter()
            for (recipe, error), count in lost.items():
                logs.emit(events.SERVED_LOG_FAILED, name=recipe, error=error, lines=count)

    def _lose(self, recipe: str, error: str, count: int) -> None:
        self._metrics.of(metrics.SERVED_LOG_LINES, result="lost").inc(count)
        self._lost[recipe, error] += count

    def _write(self, waiting: list[tuple[ServedLog, Line]], *, is_end: bool) -> list[tuple[str, str, int]]:
        """Write the lines, and return recipe, error or "", and number of lines for each file that has some."""
        outcomes, now_s = list[tuple[str, str, int]](), time.time()
        # Open files without a new line too, because their period may have ended.
        by_file: dict[tuple[ServedLog, str], list[bytes]] = {key: [] for key in self._files}
        for settings, line in waiting:
            if encoded := line.encode(settings.share):
                by_file.setdefault((settings, line.recipe), []).append(encoded)
        for (settings, recipe), lines in by_file.items():
            file = self._files.setdefault((settings, recipe), LogFile(settings, recipe))
            error = ""
            try:
                file.write(lines, now_s)
            except OSError as failure:
                error = f"{settings.path}: {failure.strerror or failure}"
            if lines:
                outcomes.append((recipe, error, len(lines)))
            if is_end:
                with suppress(OSError):
                    file.close()
        return outcomes


class LogFile:
    """The open file of one recipe and process. All methods block."""

    def __init__(self, settings: ServedLog, recipe: str) -> None:
        self._settings = settings
        self._folder = Path(settings.path)
        self._recipe = recipe
        self._path: Path | None = None
        self._fd = -1
        self._size = 0
        self._period = (0, 0)

    def write(self, lines: list[bytes], now_s: float) -> None:
        """Append whole lines, in a new file if the period has ended or the file was removed. Raises OSError."""
        # Periods are counted from midnight, so each rotation ends there, however long it is.
        day, second = divmod(int(now_s), 86_400)
        period = (day, second // (60 * self._settings.rotate_minutes))
        if period != self._period or not self._is_there():
            self.close()
            self._period = period
        if not lines:
            return
        if self._fd < 0:
            self._open(now_s)
        data = memoryview(b"".join(lines))
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except OSError:
            os.ftruncate(self._fd, self._size)  # no half line stays
            raise
        self._size = os.fstat(self._fd).st_size

    def close(self) -> None:
        """Close the file, and give it its final name."""
        if self._fd >= 0:
            assert self._path is not None, "it is open"
            with suppress(OSError):
                if self._is_there():
                    self._path.rename(self._path.with_suffix(""))
            fd, self._fd = self._fd, -1  # it is closed after an error too
            os.close(fd)

    def _is_there(self) -> bool:
        if self._fd < 0 or self._path is None:
            return False
        with suppress(OSError):
            return os.path.samestat(self._path.stat(), os.fstat(self._fd))
        return False

    def _open(self, now_s: float) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._tidy(now_s)
        moment = datetime.fromtimestamp(now_s, UTC).strftime("%Y%m%dT%H%M")
        for number in range(1000):
            writer = f"{os.getpid()}-{number}" if number else str(os.getpid())
            name = f"{self._recipe}.{moment}.{writer}.jsonl"
            # Another container of the same machine may have the same PID.
            if not (self._folder / name).exists() and (fd := _locked(self._folder / (name + OPEN))) is not None:
                self._path, self._fd = self._folder / (name + OPEN), fd
                self._size = _cut_half_line(fd)
                return
        raise OSError(f"{self._folder} has too many files of this minute")

    def _tidy(self, now_s: float) -> None:
        """Give files that a killed process has left their final names, and remove files that are too old.

        Skips a file that cannot be opened. Another worker may have closed and renamed it meanwhile.
        """
        for path in self._folder.glob(f"{self._recipe}.*.jsonl{OPEN}"):
            with suppress(OSError), ExitStack() as held:
                if (fd := _locked(path, os.O_RDWR)) is not None:
                    held.callback(os.close, fd)
                    _cut_half_line(fd)
                    if not path.with_suffix("").exists():
                        path.rename(path.with_suffix(""))
        oldest = datetime.fromtimestamp(now_s - 86_400 * self._settings.keep_days, UTC).strftime("%Y%m%dT%H%M")
        for path in self._folder.glob(f"{self._recipe}.*.jsonl"):
            if path.name.split(".")[1] < oldest:
                with suppress(OSError):
                    path.unlink()


def forget_units(folder: Path, recipe: str, digests: Iterable[str]) -> int:
    """Overwrite the lines of these units with blanks, in closed and in open files. Return the number of lines. Blocks.

    Servers go on writing meanwhile, because no file is replaced. A line that begins with a blank was left by a run that
    was killed.
    """
    units = {b'"unit":"%b"' % digest.encode() for digest in digests}
    count = 0
    # A file that is closed meanwhile is found by the second search. One that is removed has no lines.
    searches = (folder.glob(f"{recipe}.*.jsonl{ending}") for ending in (OPEN, ""))
    for path in chain.from_iterable(searches):
        with suppress(FileNotFoundError), path.open("r+b") as file:
            start = 0
            for line in file:
                unit = _UNIT.search(line)
                if line.strip() and (line.startswith(b" ") or (unit is not None and unit[0] in units)):
                    # Without the line break, so the line keeps its length and a server can append meanwhile.
                    os.pwrite(file.fileno(), b" " * (len(line) - 1), start)
                    count += 1
                start += len(line)
    return count


def _locked(path: Path, flags: int = os.O_RDWR | os.O_CREAT) -> int | None:
    """Return a descriptor that holds the lock of the file, or None if another process holds it or has renamed it.

    Raises OSError, also on a file system without locks.
    """
    # A link in the folder could let the server append to any file that it may write.
    fd = os.open(path, flags | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    with ExitStack() as unused:
        unused.callback(os.close, fd)
        with suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(path.stat(), os.fstat(fd)):
                unused.pop_all()
                return fd
    return None


def _cut_half_line(fd: int) -> int:
    """Remove an incomplete last line, and return the size of the file in bytes."""
    size = 0
    if os.fstat(fd).st_size:  # an empty file cannot be mapped
        # Reads pages from the end only. No other process shortens the file, because the caller holds its lock.
        with mmap.mmap(fd, 0, prot=mmap.PROT_READ) as content:
            size = content.rfind(b"\n") + 1
    os.ftruncate(fd, size)
    return size
