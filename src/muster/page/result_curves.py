"""Read the results that trials logged, a little at a time, and rolls them up for the curves.

The store keeps only the last result of a trial, so curves come from `result.json` in the trials' directories.
Files are read from where the last look ended, in a scattered order, so that a part stands for the whole.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from muster.host.regular_file import MOST_BYTES, open_regular
from muster.page.trial_arrays import number_of
from muster.trials.metrics import TRAINING_ITERATION, flatten
from muster.tune.analysis.result_files import EXPR_RESULT_FILE, TIME_TOTAL_S

BUCKETS = 160
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
MAX_METRICS = 8
MAX_RAW_POINTS = 1500  # of one trial
NO_BUCKET = 255  # for a result without a number
MAX_ROWS = 2_000_000  # results kept: then long trials are thinned out, and more trials are left unread
LONG_TRIAL = 2_000  # results
LOG_DELAY_S = 0.25  # of a result after its fact
LATE_S = 1.0  # then a page says that it waits for a file
GIVE_UP_S = 120.0  # a driver that does not log results has no more to wait for
FEW_BUCKETS = 16  # more that changed: all are made again
Floats = npt.NDArray[np.float32]


class ResultRows:
    """All results read so far: trial, iteration and metrics, in growing arrays."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics[:MAX_METRICS])
        self.count = 0
        self.version = 0  # another one: not only new results were added
        self.trials: npt.NDArray[np.int32] = np.zeros(1024, dtype=np.int32)
        self.values: Floats = np.zeros((1 + len(self.metrics), 1024), dtype=np.float32)

    def add(self, trial: int, rows: npt.NDArray[np.float32]) -> None:
        """Add results of one trial; `rows` has iteration and the metrics as columns."""
        end = self.count + len(rows)
        if end > len(self.trials):
            size = max(end, 2 * len(self.trials))
            trials, values = np.zeros(size, dtype=np.int32), np.zeros((len(self.values), size), np.float32)
            trials[: self.count], values[:, : self.count] = (
                self.trials[: self.count],
                self.values[:, : self.count],
            )
            self.trials, self.values = trials, values
        self.trials[self.count : end] = trial
        self.values[:, self.count : end] = rows.T
        self.count = end

    def remove(self, trial: int) -> None:
        """Drop the results of a trial, whose file was made again."""
        keep = np.flatnonzero(self.trials[: self.count] != trial)
        self.trials[: len(keep)], self.values[:, : len(keep)] = self.trials[keep], self.values[:, keep]
        self.count = len(keep)
        self.version += 1

    def thin_out(self) -> None:
        """Keep every second result of the trials that have many; their first and last ones stay."""
        trials = self.trials[: self.count]
        order = np.argsort(trials, kind="stable")
        sizes = np.bincount(trials)
        starts = np.cumsum(sizes) - sizes
        places = np.empty(self.count, dtype=np.int64)  # of each result among those of its trial
        places[order] = np.arange(self.count) - starts[trials[order]]
        keep = np.flatnonzero((sizes[trials] <= LONG_TRIAL) | (places % 2 == 0))
        self.trials[: len(keep)], self.values[:, : len(keep)] = trials[keep], self.values[:, keep]
        self.count = len(keep)
        self.version += 1

    def column(self, metric: str) -> Floats | None:
        if metric not in self.metrics:
            return None
        return self.values[1 + self.metrics.index(metric), : self.count]

    @property
    def iterations(self) -> Floats:
        return self.values[0, : self.count]

    def of(self, trial: int, metric: str) -> list[list[float | None]]:
        """Return the points of one trial: iterations and values, at most MAX_RAW_POINTS of them."""
        found = self.column(metric)
        if found is None:
            return [[], []]
        places = np.flatnonzero(self.trials[: self.count] == trial)
        if len(places) > MAX_RAW_POINTS:
            # The lowest and the highest point of each part.
            kept = []
            for part in np.array_split(places, MAX_RAW_POINTS // 2):
                filled = np.where(np.isnan(found[part]), 0.0, found[part])
                kept += sorted({int(part[int(filled.argmin())]), int(part[int(filled.argmax())])})
            places = np.array(kept)
        return [_plain(self.iterations[places]), _plain(found[places])]


class CurveBands:
    """Quantiles of a metric by iteration; new results change only the buckets they are in."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._low, self._high, self._width = 0.0, -1.0, 1.0
        self._made_of: tuple[int, int] = (-1, 0)  # version of the rows, and how many of them
        self._buckets: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._found: dict[int, list[float]] = {}  # quantiles by bucket
        self._points = 0
        self._held: npt.NDArray[np.int64] = np.zeros(NO_BUCKET + 1, dtype=np.int64)  # results by bucket

    def of(self, rows: ResultRows) -> dict[str, Any]:
        """Return the bands of all trials."""
        values = rows.column(self._metric)
        if values is not None and self._made_of != (rows.version, rows.count):
            self._update(rows, values)
            self._made_of = (rows.version, rows.count)
        return self.plain()

    def _update(self, rows: ResultRows, values: Floats) -> None:
        version, count = self._made_of
        start = count if version == rows.version else 0
        fresh, iterations = values[start:], rows.iterations[start:]
        usable = np.isfinite(fresh) & np.isfinite(iterations)
        inside = (iterations >= self._low) & (iterations <= self._high)
        if start and bool((inside | ~usable).all()):
            more = np.where(usable, (iterations - self._low) / self._width, NO_BUCKET).astype(np.uint8)
            fresh_counts = np.bincount(more, minlength=NO_BUCKET + 1)
            touched = [int(each) for each in np.flatnonzero(fresh_counts) if each != NO_BUCKET]
            self._held = self._held + fresh_counts
            self._buckets = np.concatenate([self._buckets, more])
            self._points += int(usable.sum())
            if len(touched) <= FEW_BUCKETS:
                for bucket in touched:
                    self._found[bucket] = _quantiles(values[np.flatnonzero(self._buckets == bucket)])
                return
        self.make(rows.iterations, values)

    def make(self, iterations: Floats, values: Floats) -> None:
        """Rebuild everything."""
        usable = np.isfinite(values) & np.isfinite(iterations)
        self._points, self._found = int(usable.sum()), {}
        if not self._points:
            self._high, self._buckets = self._low - 1.0, np.full(len(values), NO_BUCKET, dtype=np.uint8)
            self._held = np.zeros_like(self._held)
            return
        kept = iterations if self._points == len(values) else iterations[usable]
        self._low, self._high = float(kept.min()), float(kept.max())
        self._width = max(1.0, math.ceil((self._high - self._low + 1) / BUCKETS))
        places = (iterations - self._low) / self._width
        self._buckets = np.where(usable, places, NO_BUCKET).astype(np.uint8)
        order = np.argsort(self._buckets, kind="stable")  # a radix sort, for bytes
        self._held = np.bincount(self._buckets, minlength=NO_BUCKET + 1)
        in_order, counts = values[order], self._held
        ends = np.cumsum(counts)
        for bucket in np.flatnonzero(counts[:NO_BUCKET]):
            part = in_order[ends[bucket] - counts[bucket] : ends[bucket]]
            self._found[int(bucket)] = _quantiles(part)

    def plain(self) -> dict[str, Any]:
        buckets = sorted(self._found)
        x = [self._low + bucket * self._width + (self._width - 1) / 2 for bucket in buckets]
        bands = [[self._found[bucket][place] for bucket in buckets] for place in range(len(QUANTILES))]
        counts = [round(int(self._held[bucket]) / self._width) for bucket in buckets]  # trials, about
        return {"metric": self._metric, "x": x, "bands": bands, "counts": counts, "points": self._points}


def rollup(rows: ResultRows, metric: str, keep: npt.NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Return quantiles of a metric by iteration, over all trials or those that `keep` names."""
    bands, found = CurveBands(metric), rows.column(metric)
    if found is not None and rows.count:
        if keep is None or not len(keep):
            bands.make(rows.iterations, found)
        else:
            passes = keep[np.minimum(rows.trials[: rows.count], len(keep) - 1)]
            bands.make(rows.iterations[passes], found[passes])
    return bands.plain()


def _quantiles(part: Floats) -> list[float]:
    places = [q * (len(part) - 1) for q in QUANTILES]
    ends = [(math.floor(place), math.ceil(place)) for place in places]
    parted = np.partition(part, sorted({each for pair in ends for each in pair}))
    values = (
        float(parted[low]) + (float(parted[high]) - float(parted[low])) * (place - low)
        for place, (low, high) in zip(places, ends, strict=True)
    )
    return [float(f"{value:.6g}") for value in values]


def _plain(values: Floats) -> list[float | None]:
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.tolist()]


LastResult = tuple[float, float]  # training_iteration and time_total_s


def last_result(result: Mapping[str, Any]) -> LastResult:
    """Return what tells the last line of a file from the others."""
    iteration, time_s = result.get(TRAINING_ITERATION), result.get(TIME_TOTAL_S)
    if type(iteration) is int and iteration < 1 << 53 and type(time_s) is float and time_s >= 0:
        return iteration, time_s  # nearly always, and faster
    return _ends(number_of(iteration), number_of(time_s))


def _ends(*numbers: float | None) -> LastResult:
    iteration, time_s = (math.inf if each is None or math.isnan(each) else each for each in numbers)
    return iteration, time_s


class _Place(NamedTuple):
    """How far a file was read, where its last line begins and the hash of that line."""

    offset: int = 0
    line_at: int = 0
    line: int = hash(b"")
    last: LastResult | None = None


class ResultReader:
    """Brings the ResultRows of an experiment up to date, for a limited time per call.

    The driver logs a result a moment after its fact: until the last line is the last result, it looks again.
    """

    def __init__(self, directory: str, monotonic: Callable[[], float]) -> None:
        self._directory = directory
        self._root = f"{os.path.realpath(directory)}/"
        self._monotonic = monotonic
        self.rows: ResultRows | None = None
        self._places: dict[int, _Place] = {}
        self._last: dict[int, LastResult] = {}  # of each row, by its facts
        self._late: dict[int, tuple[float, float]] = {}  # lacks its last result: since, look at
        self._known: dict[int, str] = {}  # all rows that were ever asked for
        self._waiting: dict[int, str] = {}  # rows of the table whose files have more, and their folders
        self._overdue = 0
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._bands: dict[str, CurveBands] = {}  # by metric
        self.done = 0  # files read, each time counted
        self._most = MAX_ROWS
        self.left_out = 0  # trials that were not read because there is too much

    def start(self, metrics: Sequence[str]) -> None:
        """Choose the metrics; called again when there are others, which reads everything again."""
        chosen = tuple(metrics[:MAX_METRICS])
        if self.rows is not None and self.rows.metrics == chosen:
            return
        self.rows, self._places, self._bands = ResultRows(chosen), {}, {}
        self._waiting = dict(self._known)
        self._decoder = _decoder(chosen)

    def want(
        self, row: int, folder: str, last: LastResult | None = None, *, is_running: bool = False
    ) -> None:
        """Ask for what is new in a trial's directory, up to its last result if that is known.

        A driver that runs logs it in a moment: a look at once would be in vain.
        """
        self._known[row] = folder
        if last is not None:
            self._last[row] = last
        if is_running and self.rows is not None:
            now = self._monotonic()
            self._late.setdefault(row, (now, now + LOG_DELAY_S))
        else:
            self._waiting[row] = folder

    def hurry(self) -> None:
        """Look for all results that are expected, now."""
        self._waiting.update((row, self._known[row]) for row in self._late)

    @property
    def behind(self) -> int:
        """The number of trials whose results are still to be read."""
        return len(self._waiting) + self._overdue

    def bands(self, metric: str) -> dict[str, Any]:
        """Return the bands of a metric over all results that were read."""
        if self.rows is None:
            return {}
        if metric not in self._bands:
            self._bands[metric] = CurveBands(metric)
        return self._bands[metric].of(self.rows)

    def read(self, budget_s: float, most: int | None = None) -> bool:
        """Read files until the time is up, or so many were read; returns whether anything has changed."""
        now = self._monotonic()
        late = [row for row, (since, _) in self._late.items() if now - since > LATE_S and row in self._places]
        self._overdue = len(late)
        self._waiting.update((row, self._known[row]) for row, (_, at) in self._late.items() if at <= now)
        if self.rows is None or not self._waiting:
            return False
        deadline, before = now + budget_s, (self.rows.version, self.rows.count)
        self._make_room()
        rows = scattered(list(self._waiting))  # the list is short, but for the first few seconds
        for row in rows if most is None else islice(rows, most):
            self._read_one(row, self._waiting.pop(row))
            self.done += 1
            if self._monotonic() >= deadline:
                break
        return (self.rows.version, self.rows.count) != before

    def _make_room(self) -> None:
        """Thin out what is known when it is too much; when that does not help, new trials are left out."""
        if self.rows is None or self.rows.count < self._most:
            return
        self.rows.thin_out()
        self._most = max(MAX_ROWS, int(self.rows.count * 1.2))
        if self.rows.count > 0.75 * MAX_ROWS:
            unread = [row for row in self._waiting if row not in self._places]
            for row in unread:
                del self._waiting[row]
            self.left_out += len(unread)

    def read_rows(self, wanted: Sequence[int]) -> None:
        """Read what is new of these trials, whatever else waits."""
        for row in wanted:
            if self.rows is not None and row in self._waiting:
                self._read_one(row, self._waiting.pop(row))

    def _read_one(self, row: int, folder: str) -> None:
        path = os.path.join(self._directory, folder, EXPR_RESULT_FILE)
        if self.rows is None or not os.path.realpath(path).startswith(self._root):  # links followed
            return
        with contextlib.suppress(OSError):  # not logged, or not yet
            self._read_file(self.rows, row, path)
        place, last = self._places.get(row), self._last.get(row)
        if last is None or (place is not None and place.last == last):
            self._late.pop(row, None)
            return
        now = self._monotonic()
        since = self._late.get(row, (now, now))[0]
        if now - since > GIVE_UP_S:
            del self._late[row]
        else:
            self._late[row] = (since, now + min(2.0, max(0.15, (now - since) / 2)))

    def _read_file(self, rows: ResultRows, row: int, path: str) -> None:
        place = self._places.get(row, _Place())
        with open_regular(path) as stream:
            stream.seek(place.line_at)
            content = stream.read(MOST_BYTES)
            seen = place.offset - place.line_at
            if hash(content[:seen]) != place.line:  # a restart took lines away, and may have added others
                rows.remove(row)
                place, seen = _Place(), 0
                stream.seek(0)
                content = stream.read(MOST_BYTES)
        whole = content[: content.rfind(b"\n") + 1]
        found = self._decoded(whole[seen:])
        if found:
            rows.add(row, np.array([each[:-1] for each in found], dtype=np.float64).astype(np.float32))
        start = whole.rfind(b"\n", 0, len(whole) - 1) + 1  # of the last line
        last = place.last if not found else _ends(found[-1][0], found[-1][-1])
        at = place.line_at
        self._places[row] = _Place(at + len(whole), at + start, hash(whole[start:]), last)

    def _decoded(self, lines: bytes) -> list[tuple[float, ...]]:
        decoder, rows = self._decoder, self.rows
        if decoder is None or rows is None or not lines:
            return []
        try:
            return list(map(msgspec.structs.astuple, decoder.decode_lines(lines)))  # the last is time_total_s
        except (msgspec.MsgspecError, ValueError):  # NaN, which is not JSON, text, or a line cut by a crash
            return list(_slowly(lines, rows.metrics))


def scattered(values: list[int]) -> Iterator[int]:
    """Yield all values, far apart from each other, so that the first few stand for the whole.

    Example:
        >>> list(scattered([0, 1, 2, 3, 4, 5]))
        [0, 4, 1, 5, 2, 3]
    """
    step = max(1, int(math.sqrt(len(values))) * 2)
    for start in range(step):
        yield from values[start::step]


def _decoder(metrics: Sequence[str]) -> msgspec.json.Decoder[Any] | None:
    """Return a decoder that skips everything but these keys, where they are plain names."""
    wanted = (TRAINING_ITERATION, *metrics, TIME_TOTAL_S)
    if any("/" in name or not name.isprintable() for name in wanted) or len(set(wanted)) < len(wanted):
        return msgspec.json.Decoder(_Nested)
    fields = [(f"f{place}", float, math.nan) for place in range(len(wanted))]
    names = {f"f{place}": name for place, name in enumerate(wanted)}
    return msgspec.json.Decoder(msgspec.defstruct("LoggedResult", fields, rename=names, gc=False))


class _Nested(msgspec.Struct):
    """_Nested refuses every line, so that nested keys are read the slow way."""

    muster_has_no_such_key: int


def _slowly(lines: bytes, metrics: Sequence[str]) -> Iterator[tuple[float, ...]]:
    for line in lines.splitlines():
        try:
            result = json.loads(line)
        except ValueError:
            continue
        if isinstance(result, dict):
            flat = flatten(result)
            found = [number_of(flat.get(key)) for key in (TRAINING_ITERATION, *metrics, TIME_TOTAL_S)]
            yield tuple(math.nan if number is None else number for number in found)
