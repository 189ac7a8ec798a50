"""Fills the trial table from what the store holds: whole trials many at a time, then facts one by one.

For one experiment; the session that owns it holds the lock. What is damaged is counted and left out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby
from typing import Any

from muster.page.trial_arrays import TIMES, TrialArrays
from muster.stores.experiment import values
from muster.stores.experiment.codec import (
    ADMITTED,
    CREATED,
    DECIDED,
    ENDED,
    EXHAUSTED,
    EXITED,
    FAILED,
    REPORTED,
    REPORTED_SAVED,
    RESIZED,
    STARTED,
    StoredFact,
)
from muster.stores.experiment.summary import Digest, Kept
from muster.trials.controller_view import PAUSED
from muster.trials.metrics import flatten, tried_config
from muster.trials.spend import COST_KEY
from muster.tune.analysis.result_keys import AUTO_RESULT_KEYS

_AUTO = frozenset(AUTO_RESULT_KEYS) - {COST_KEY}  # what a trial has cost is a column
_OWN = ("training_iteration", "time_total_s")
_COUNTS = ("starts", "reports", "failures")
_PLAIN = frozenset({int, float, type(None)})
_DECODE = values.decode


class _Columns:
    """_Columns are what some digests say, one list for each column of the table."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.statuses: list[str] = []
        self.counts: list[tuple[int, int, int]] = []
        self.times: list[tuple[float | None, float | None, float | None, float | None]] = []  # as TIMES
        self.machines: list[str | None] = []
        self.params: list[dict[str, Any]] = []  # what was searched
        self.results: list[dict[str, Any]] = []  # the last one


class FactLoader:
    """A FactLoader knows where each trial's files are; `want` is called with rows that have new results."""

    def __init__(self, table: TrialArrays, want: Callable[[int, str], None]) -> None:
        self._table = table
        self._want = want
        self.folders: list[str] = []  # by row
        self.tags: list[str] = []
        self.unreadable = 0
        self.is_exhausted = False
        self._paused: set[int] = set()  # rows whose last decision was to pause

    def row_of(self, trial_id: str) -> int:
        """Returns the row of a trial, which may be new; it counts as changed."""
        row = self._table.row_of(trial_id)
        while len(self.folders) <= row:
            self.folders.append("")
            self.tags.append("")
        return row

    def take_digests(self, digests: Sequence[Digest], is_running: bool) -> None:
        """Takes whole trials; those with the same names of parameters and metrics together, as columns."""
        found, table = _Columns(), self._table
        for digest in digests:
            try:
                self._decode(digest, found)
            except (ValueError, TypeError, IndexError, AttributeError):
                self.unreadable += 1
        rows = found.rows
        if not rows:
            return
        for name, times in zip(TIMES, zip(*found.times, strict=True), strict=True):
            table.set_times(rows, name, times)
        for name, counts in zip(_COUNTS, zip(*found.counts, strict=True), strict=True):
            table.set_column(rows, name, counts)
        gone = "RUNNING" if is_running else "INTERRUPTED"  # nobody runs what was running
        table.set_column(rows, "status", [gone if s == "RUNNING" else s for s in found.statuses])
        table.set_column(rows, "machine", found.machines)
        for name in _OWN:
            values_of = [result.get(name) for result in found.results]
            if not _PLAIN.issuperset(map(type, values_of)):
                values_of = [value if isinstance(value, int | float) else None for value in values_of]
            table.set_column(rows, name, values_of)
        self._take_block("config", rows, found.params, frozenset())
        self._take_block("metric", rows, found.results, _AUTO)
        for row, (_, reports, _) in zip(rows, found.counts, strict=True):
            if reports:
                self._wanted(row)

    def _decode(self, digest: Digest, found: _Columns) -> None:
        row, get = self.row_of(digest.trial_id), digest.kept.get
        created, started = _body(get(CREATED)), _body(get(STARTED))
        reported, exited = _body(get(REPORTED)), _body(get(EXITED))
        params = {} if created is None else self._identified(row, created)
        machine = _machine(started)
        result = {} if reported is None else reported[1]
        if created is not None and tried_config(result, created[1]) != created[1]:
            tried = flatten(result["config"])
            params = {key: tried.get(key, value) for key, value in flatten(params).items()}
        times = (_at(created), _at(started), _at(reported), _at(exited))
        dict.keys(params), dict.keys(result)  # TypeError for what is no dict: before anything is added
        found.rows.append(row)
        found.statuses.append(digest.status or "PENDING")
        found.counts.append((digest.starts, digest.reports, digest.failures))
        found.times.append(times)
        found.machines.append(machine)
        found.params.append(params)
        found.results.append(result)

    def _take_block(
        self, group: str, rows: list[int], dicts: list[dict[str, Any]], left_out: frozenset[str]
    ) -> None:
        start = 0
        for keys, part in groupby(dicts, key=tuple):
            members = list(part)
            end = start + len(members)
            columns = {key: [one[key] for one in members] for key in keys if key not in left_out}
            self._table.set_block(rows[start:end], group, columns)
            start = end

    def take_status(self, trial_id: str, status: str) -> None:
        row = self._table.rows.get(trial_id)
        words = self._table.columns["trial/status"].words
        if row is not None and self._table.get(row, "status") != words.get(status):
            self._table.set(self.row_of(trial_id), "status", status)

    def take_fact(self, fact: StoredFact) -> None:
        if fact.kind in (EXHAUSTED, ENDED):
            self.is_exhausted = True
        if not fact.trial_id:
            return
        try:
            self._apply(self.row_of(fact.trial_id), fact.kind, _DECODE(fact.body, fact.pickles))
        except (ValueError, TypeError, IndexError, KeyError, AttributeError):
            self.unreadable += 1

    def _apply(self, row: int, kind: int, body: list[Any]) -> None:
        table = self._table
        if kind == CREATED:
            table.set_many(row, "config", flatten(self._identified(row, body)))
            table.set_time(row, "created", body[0])
        if kind in (CREATED, ADMITTED, RESIZED):
            table.set(row, "status", "PENDING")
            table.set(row, "ended", None)
        elif kind == STARTED:
            self._paused.discard(row)
            table.set_time(row, "started", body[0])
            table.set(row, "machine", _machine(body))
            table.set(row, "status", "RUNNING")
            table.set(row, "ended", None)
            table.set(row, "starts", table.get(row, "starts") + 1)
        elif kind in (REPORTED, REPORTED_SAVED):
            self._reported(row, body)
        elif kind == DECIDED and body[1] == PAUSED:
            self._paused.add(row)
        elif kind == DECIDED:
            self._paused.discard(row)
        elif kind in (EXITED, FAILED):
            self._ended(row, kind, body)

    def _reported(self, row: int, body: list[Any]) -> None:
        table, (at, result, _) = self._table, body
        table.set_time(row, "reported", at)
        for name in _OWN:
            value = result.get(name)
            table.set(row, name, value if isinstance(value, int | float) else None)
        own = {key: value for key, value in result.items() if key not in _AUTO}
        table.set_many(row, "metric", flatten(own))
        tried = flatten(tried_config(result, {}))
        table.set_many(row, "config", {key: tried[key] for key in tried if f"config/{key}" in table.columns})
        table.set(row, "reports", table.get(row, "reports") + 1)
        self._wanted(row)

    def _ended(self, row: int, kind: int, body: list[Any]) -> None:
        table = self._table
        is_paused = row in self._paused and not body[2]
        table.set(row, "status", "ERROR" if kind == FAILED else "PAUSED" if is_paused else "TERMINATED")
        table.set_time(row, "ended", body[0])
        table.set(row, "failures", table.get(row, "failures") + (kind == FAILED))
        self._wanted(row)

    def _identified(self, row: int, created: list[Any]) -> dict[str, Any]:
        """Notes where a trial's files are; returns what was searched, or all of a config of constants."""
        _, config, params, tag, _, folder, *_ = created
        self.folders[row] = str(folder or "")
        self.tags[row] = str(tag or "").partition("@perturbed[")[0]
        return params or config or {}

    def _wanted(self, row: int) -> None:
        if self.folders[row]:
            self._want(row, self.folders[row])


def _body(kept: Kept | None) -> list[Any] | None:
    """Returns a fact's content, decoded."""
    return None if kept is None else _DECODE(*kept)


def _at(body: list[Any] | None) -> float | None:
    return body[0] if body else None


def _machine(started: list[Any] | None) -> str | None:
    place = (started[1] if started else None) or {}
    machine = place.get("node_ip") or place.get("hostname")
    return None if machine is None else str(machine)
