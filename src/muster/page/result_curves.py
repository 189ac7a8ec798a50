"""Reads the results that trials logged, a little at a time, and rolls them up for the curves.

The store keeps only the last result of a trial, so curves come from `result.json` in the trials' directories.
Files are read from where the last look ended, in a scattered order, so that a part stands for the whole.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from muster.host.regular_file import MOST_BYTES, open_regular
from muster.page.trial_arrays import number_of
from muster.trials.metrics import TRAINING_ITERATION, flatten
from muster.tune.analysis.result_files import EXPR_RESULT_FILE

BUCKETS = 160
QUANTILES = (0.0, 0.1, 0.5, 0.9, 1.0)
MAX_METRICS = 8
MAX_RAW_POINTS = 1500  # of one trial
NO_BUCKET = 255  # for a result without a number
MAX_ROWS = 2_000_000  # results kept: then long trials are thinned out, and more trials are left unread
LONG_TRIAL = 2_000  # results
FEW_BUCKETS = 16  # more that changed: all are made anew
Floats = npt.NDArray[np.float32]


class ResultRows:
    """ResultRows are all results read so far: trial, iteration and metrics, in growing arrays."""

    def __init__(self, metrics: Sequence[str]) -> None:
        self.metrics = tuple(metrics[:MAX_METRICS])
        self.count = 0
        self.version = 0  # another one: not only new results were added
        self.trials: npt.NDArray[np.int32] = np.zeros(1024, dtype=np.int32)
        self.values: Floats = np.zeros((1 + len(self.metrics), 1024), dtype=np.float32)

    def add(self, trial: int, rows: npt.NDArray[np.float32]) -> None:
        """Adds results of one trial; `rows` has iteration and the metrics as columns."""
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
        """Drops the results of a trial, whose file was made anew."""
        keep = np.flatnonzero(self.trials[: self.count] != trial)
        self.trials[: len(keep)], self.values[:, : len(keep)] = self.trials[keep], self.values[:, keep]
        self.count = len(keep)
        self.version += 1

    def thin_out(self) -> None:
        """Keeps every second result of the trials that have many; their first and last ones stay."""
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
        """Returns the points of one trial: iterations and values, at most MAX_RAW_POINTS of them."""
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
    """CurveBands are quantiles of a metric by iteration; new results change only the buckets they are in."""

    def __init__(self, metric: str) -> None:
        self._metric = metric
        self._low, self._high, self._width = 0.0, -1.0, 1.0
        self._made_of: tuple[int, int] = (-1, 0)  # version of the rows, and how many of them
        self._buckets: npt.NDArray[np.uint8] = np.zeros(0, dtype=np.uint8)
        self._found: dict[int, list[float]] = {}  # quantiles by bucket
        self._points = 0

    def of(self, rows: ResultRows) -> dict[str, Any]:
        """Returns the bands of all trials."""
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
            touched = [int(each) for each in np.flatnonzero(np.bincount(more)) if each != NO_BUCKET]
            self._buckets = np.concatenate([self._buckets, more])
            self._points += int(usable.sum())
            if len(touched) <= FEW_BUCKETS:
                for bucket in touched:
                    self._found[bucket] = _quantiles(values[np.flatnonzero(self._buckets == bucket)])
                return
        self.make(rows.iterations, values)

    def make(self, iterations: Floats, values: Floats) -> None:
        """Makes everything anew."""
        usable = np.isfinite(values) & np.isfinite(iterations)
        self._points, self._found = int(usable.sum()), {}
        if not self._points:
            self._high, self._buckets = self._low - 1.0, np.full(len(values), NO_BUCKET, dtype=np.uint8)
            return
        kept = iterations if self._points == len(values) else iterations[usable]
        self._low, self._high = float(kept.min()), float(kept.max())
        self._width = max(1.0, math.ceil((self._high - self._low + 1) / BUCKETS))
        places = (iterations - self._low) / self._width
        self._buckets = np.where(usable, places, NO_BUCKET).astype(np.uint8)
        order = np.argsort(self._buckets, kind="stable")  # a radix sort, for bytes
        in_order, counts = values[order], np.bincount(self._buckets, minlength=1)
        ends = np.cumsum(counts)
        for bucket in np.flatnonzero(counts[:NO_BUCKET]):
            part = in_order[ends[bucket] - counts[bucket] : ends[bucket]]
            self._found[int(bucket)] = _quantiles(part)

    def plain(self) -> dict[str, Any]:
        buckets = sorted(self._found)
        x = [self._low + bucket * self._width + (self._width - 1) / 2 for bucket in buckets]
        bands = [[self._found[bucket][place] for bucket in buckets] for place in range(len(QUANTILES))]
        return {"metric": self._metric, "x": x, "bands": bands, "points": self._points}


def rollup(rows: ResultRows, metric: str, keep: npt.NDArray[np.bool_] | None = None) -> dict[str, Any]:
    """Returns quantiles of a metric by iteration, over all trials or those that `keep` names."""
    bands, found = CurveBands(metric), rows.column(metric)
    if found is not None and rows.count:
        if keep is None or not len(keep):
            bands.make(rows.iterations, found)
        else:
            passes = keep[np.minimum(rows.trials[: rows.count], len(keep) - 1)]
            bands.make(rows.iterations[passes], found[passes])
    return bands.plain()


def _quantiles(part: Floats) -> list[float]:
    places = [round(q * (len(part) - 1)) for q in QUANTILES]
    parted = np.partition(part, sorted(set(places)))
    return [float(f"{parted[place]:.6g}") for place in places]


def _plain(values: Floats) -> list[float | None]:
    return [float(f"{v:.6g}") if math.isfinite(v) else None for v in values.tolist()]


class ResultReader:
    """A ResultReader brings the ResultRows of an experiment up to date, for a limited time per call."""

    def __init__(self, directory: str, monotonic: Callable[[], float]) -> None:
        self._directory = directory
        self._root = f"{os.path.realpath(directory)}/"
        self._monotonic = monotonic
        self.rows: ResultRows | None = None
        self._offsets: dict[int, int] = {}
        self._known: dict[int, str] = {}  # all rows that were ever asked for
        self._waiting: dict[int, str] = {}  # rows of the table whose files have more, and their folders
        self._decoder: msgspec.json.Decoder[Any] | None = None
        self._bands: dict[str, CurveBands] = {}  # by metric
        self.done = 0  # files read, each time counted
        self._most = MAX_ROWS
        self.left_out = 0  # trials that were not read because there is too much

    def start(self, metrics: Sequence[str]) -> None:
        """Chooses the metrics; called again when there are others, which reads everything anew."""
        chosen = tuple(metrics[:MAX_METRICS])
        if self.rows is not None and self.rows.metrics == chosen:
            return
        self.rows, self._offsets, self._bands = ResultRows(chosen), {}, {}
        self._waiting = dict(self._known)
        self._decoder = _decoder(chosen)

    def want(self, row: int, folder: str) -> None:
        """Asks for what is new in a trial's directory."""
        self._waiting[row] = self._known[row] = folder

    @property
    def behind(self) -> int:
        """The number of trials whose results are still to be read."""
        return len(self._waiting)

    def bands(self, metric: str) -> dict[str, Any]:
        """Returns the bands of a metric over all results that were read."""
        if self.rows is None:
            return {}
        if metric not in self._bands:
            self._bands[metric] = CurveBands(metric)
        return self._bands[metric].of(self.rows)

    def read(self, budget_s: float, most: int | None = None) -> bool:
        """Reads files until the time is up, or so many were read; returns whether anything was added."""
        if self.rows is None or not self._waiting:
            return False
        deadline, before = self._monotonic() + budget_s, self.rows.count
        self._make_room()
        rows = scattered(list(self._waiting))  # the list is short, but for the first few seconds
        for row in rows if most is None else islice(rows, most):
            self._read_one(row, self._waiting.pop(row))
            self.done += 1
            if self._monotonic() >= deadline:
                break
        return self.rows.count != before

    def _make_room(self) -> None:
        """Thins out what is known when it is too much; when that does not help, new trials are left out."""
        if self.rows is None or self.rows.count < self._most:
            return
        self.rows.thin_out()
        self._most = max(MAX_ROWS, int(self.rows.count * 1.2))
        if self.rows.count > 0.75 * MAX_ROWS:
            unread = [row for row in self._waiting if row not in self._offsets]
            for row in unread:
                del self._waiting[row]
            self.left_out += len(unread)

    def read_rows(self, wanted: Sequence[int]) -> None:
        """Reads what is new of these trials, whatever else waits."""
        for row in wanted:
            if self.rows is not None and row in self._waiting:
                self._read_one(row, self._waiting.pop(row))

    def _read_one(self, row: int, folder: str) -> None:
        rows = self.rows
        path = os.path.join(self._directory, folder, EXPR_RESULT_FILE)
        if rows is None or not os.path.realpath(path).startswith(self._root):  # links followed
            return
        offset = self._offsets.get(row, 0)
        try:
            with open_regular(path) as stream:
                size = os.fstat(stream.fileno()).st_size
                if size < offset:
                    rows.remove(row)
                    offset = 0
                stream.seek(offset)
                content = stream.read(MOST_BYTES)
        except OSError:
            return  # not logged, or not yet
        whole = content[: content.rfind(b"\n") + 1]
        self._offsets[row] = offset + len(whole)
        found = self._decoded(whole)
        if found:
            rows.add(row, np.array(found, dtype=np.float64).astype(np.float32))

    def _decoded(self, lines: bytes) -> list[tuple[float, ...]]:
        decoder, rows = self._decoder, self.rows
        if decoder is None or rows is None or not lines:
            return []
        try:
            return list(map(msgspec.structs.astuple, decoder.decode_lines(lines)))
        except (msgspec.MsgspecError, ValueError):  # NaN, which is no JSON, text, or a line cut by a crash
            return list(_slowly(lines, rows.metrics))


def scattered(values: list[int]) -> Iterator[int]:
    """Yields all values, far apart from each other, so that the first few stand for the whole.

    Example:
        >>> list(scattered([0, 1, 2, 3, 4, 5]))
        [0, 4, 1, 5, 2, 3]
    """
    step = max(1, int(math.sqrt(len(values))) * 2)
    for start in range(step):
        yield from values[start::step]


def _decoder(metrics: Sequence[str]) -> msgspec.json.Decoder[Any] | None:
    """Returns a decoder that skips everything but these keys, where they are not nested."""
    wanted = (TRAINING_ITERATION, *metrics)
    if any("/" in name for name in wanted):
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
            found = [number_of(flat.get(key)) for key in (TRAINING_ITERATION, *metrics)]
            yield tuple(math.nan if number is None else number for number in found)
