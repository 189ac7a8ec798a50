"""Fill the trial table from the digests of trials, many at a time.

For one experiment; the session that owns it holds the lock. What is damaged is counted and left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any, Protocol

from muster.page.result_curves import LastResult, last_result
from muster.page.trial_arrays import COUNTS, TIMES, TrialArrays
from muster.page.trial_drawer import error_lines
from muster.stores.experiment import values
from muster.stores.experiment.codec import CREATED, DECIDED, EXITED, REPORTED, STARTED
from muster.stores.experiment.summary import Digest
from muster.trials.metrics import flatten, tried_config
from muster.trials.plugins import STOPPED
from muster.trials.spend import COST_KEY
from muster.tune.analysis.result_files import AUTO_RESULT_KEYS

_AUTO = frozenset(AUTO_RESULT_KEYS) - {COST_KEY}  # what a trial has cost is a column
_OWN = ("training_iteration", "time_total_s")
_PLAIN = frozenset({int, float, type(None)})
_DECODE = values.decode
_KINDS = (CREATED, STARTED, REPORTED, EXITED)  # the facts whose times are TIMES
_FULL = re.compile(r"it reached |its result said done|.* reached the limit ")  # reasons of an ordinary end


def is_early(status: str, decision: str | None, reason: str | None) -> bool:
    """Return whether the last decision on a trial was to stop it before its ordinary end."""
    return status == "TERMINATED" and decision == STOPPED and not _FULL.match(reason or "")


_Facts = tuple[Any, ...]  # row, status, TIMES, COUNTS, machine, errors, what was searched, the last result


class WantResults(Protocol):
    """Asks for the results of a row, in a folder, up to the last one."""

    def __call__(self, row: int, folder: str, last: LastResult, *, is_running: bool) -> None: ...


class FactLoader:
    """Knows where each trial's files are; `want` is called with rows that have new results."""

    def __init__(self, table: TrialArrays, want: WantResults) -> None:
        self._table = table
        self._want = want
        self.folders: list[str] = []  # by row
        self.tags: list[str] = []
        self.unreadable = 0

    def row_of(self, trial_id: str) -> int:
        """Return the row of a trial, which may be new; it counts as changed."""
        row = self._table.row_of(trial_id)
        while len(self.folders) <= row:
            self.folders.append("")
            self.tags.append("")
        return row

    def take_digests(self, digests: Sequence[Digest], is_running: bool) -> None:
        """Take whole trials; those with the same names of parameters and metrics together, as columns."""
        if not (found := list(self._decode_all(digests))):
            return
        rows, statuses, times, counts, machines, errors, params, results = zip(*found, strict=True)
        table, gone = self._table, "RUNNING" if is_running else "INTERRUPTED"  # nobody runs what was running
        for name, column in zip(TIMES, zip(*times, strict=True), strict=True):
            table.set_times(rows, name, column)
        for name, column in zip(COUNTS, zip(*counts, strict=True), strict=True):
            table.set_column(rows, name, column)
        table.set_column(rows, "status", [gone if s == "RUNNING" else s for s in statuses])
        table.set_column(rows, "machine", machines)
        if any(map(any, errors)) or table.columns["trial/error"].words:
            for name, texts in zip(("error", "failed_at"), zip(*errors, strict=True), strict=True):
                table.set_column(rows, name, texts)
        for name in _OWN:
            values_of = [result.get(name) for result in results]
            if not _PLAIN.issuperset(map(type, values_of)):
                values_of = [value if isinstance(value, int | float) else None for value in values_of]
            table.set_column(rows, name, values_of)
        self._take_block("config", rows, params, frozenset())
        self._take_block("metric", rows, results, _AUTO)
        for row, (reports, *_), result in zip(rows, counts, results, strict=True):
            if reports and self.folders[row]:
                self._want(row, self.folders[row], last_result(result), is_running=is_running)

    def _decode_all(self, digests: Sequence[Digest]) -> Iterator[_Facts]:
        for digest in digests:
            try:
                yield self._decode(digest)
            except (ValueError, TypeError, IndexError, AttributeError):
                self.unreadable += 1

    def _decode(self, digest: Digest) -> _Facts:
        row, kept = self.row_of(digest.trial_id), digest.kept
        bodies = [_DECODE(*kept[kind]) if kind in kept else None for kind in _KINDS]
        created, started, reported, exited = bodies
        params: dict[str, Any] = {}
        if created is not None:
            _, config, searched, tag, _, folder, *_ = created
            self.folders[row] = str(folder or "")
            self.tags[row] = str(tag or "").partition("@perturbed[")[0]
            params = searched or config or {}  # all of a config of constants
        place = (started[1] if started else None) or {}
        machine = place.get("node_ip") or place.get("hostname")
        result = {} if reported is None else reported[1]
        if digest.starts > 1:  # nearly always one
            result = dict(digest.last_result(result, None if reported is None else reported[0]))
        if created is not None and tried_config(result, created[1]) != created[1]:
            tried = flatten(result["config"])
            params = {key: tried.get(key, value) for key, value in flatten(params).items()}
        dict.keys(params), dict.keys(result)  # TypeError for what is not a dict: before anything is added
        failure = None if exited is None or exited[1] is None else exited[1]
        decided = None if exited and exited[2] else kept.get(DECIDED)
        is_stopped = decided is not None and is_early(digest.status, *_DECODE(*decided)[1:])
        return (
            row,
            "STOPPED" if is_stopped else digest.status or "PENDING",
            [body[0] if body else None for body in bodies],
            (digest.reports, digest.starts, digest.failures),
            None if machine is None else str(machine),
            (None, None) if failure is None else error_lines(failure[2] or failure[1]),
            params,
            result,
        )

    def _take_block(
        self, group: str, rows: Sequence[int], dicts: Sequence[dict[str, Any]], left_out: frozenset[str]
    ) -> None:
        start = 0
        for keys, part in groupby(dicts, key=tuple):
            members = list(part)
            end = start + len(members)
            columns = {key: [one[key] for one in members] for key in keys if key not in left_out}
            self._table.set_block(rows[start:end], group, columns)
            start = end
