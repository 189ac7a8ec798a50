"""Follow one experiment for all clients of the page: its table, its curves, its headline, its lineage.

`refresh` may be called by any number of clients; it works at most ten times a second. Read-only.
"""

from __future__ import annotations

import json
import math
import os
import threading
from contextlib import suppress
from shlex import quote
from typing import Any

import numpy as np
import numpy.typing as npt

from muster.base.clock import Clock
from muster.errors import MusterError, StoreError
from muster.host.machine import program
from muster.host.regular_file import read_regular
from muster.page.fact_loader import FactLoader
from muster.page.remote_files import RemoteFiles
from muster.page.result_curves import ResultReader, rollup
from muster.page.trial_arrays import OVER, STATUSES, TrialArrays, cut
from muster.stores.experiment.follower import ExperimentFollower, follow
from muster.stores.experiment.reader import is_experiment, open_trials
from muster.stores.experiment.summary import Digest
from muster.trials.experiment import ENDLESS

PERIOD_S = 0.1
LOG_BUDGET_S = 0.06  # of one refresh, for reading result files, until so many trials are read
SAMPLE = 120
QUIET_S = 3.0  # then nothing for so long: the page is being loaded
SLOW_BUDGET_S = 0.012  # and from then on: the rest makes the bands exact, and must not take a whole core
_POLICY = "pbt_global.txt"
NOTE = "note.txt"  # of `muster tune add-note`
PILOTS = ".slurm/pilots.txt"  # where the pilots of SlurmEngine are, in words


class ExperimentSession:
    """One experiment that is open on the page; all methods lock."""

    def __init__(
        self, path: str, *, clock: Clock, address: str = "", remote: RemoteFiles | None = None
    ) -> None:
        self.path = path
        self.address = address or path  # what a command takes; of a copy, the URL
        self.name = os.path.basename(self.address.rstrip("/"))
        self.lock = threading.Lock()
        self.table = TrialArrays()
        self.problem = ""  # why nothing new can be shown
        self._clock = clock
        self._follower: ExperimentFollower = follow(path)
        self._settings = self._follower.settings()
        self._writer: int | None = -1  # not looked for yet
        self._note = ""  # of the user, about the experiment
        self._looked_at = -math.inf
        self._opened_at = clock.monotonic()
        self._encoded: tuple[str, int, bytes] = ("", -1, b"")
        self.curves = ResultReader(path, clock.monotonic)
        self._remote = remote  # where the trials' files are, when `path` is a copy of the store alone
        self._is_exhausted = False  # nothing is left to suggest; known when nobody runs it
        self._loader = FactLoader(self.table, self.curves.want if remote is None else remote.want)
        if remote is not None:
            remote.fetched = self.curves.want
        self.curve_change = 0
        self.curve_cost_s = 0.0  # of the last rollup
        self.refresh()

    # for clients

    def refresh(self) -> None:
        """Read what is new, unless that has just been done."""
        with self.lock:
            now, is_first = self._clock.monotonic(), self._looked_at < 0  # the table is wanted first
            if now - self._looked_at < PERIOD_S * 0.8:
                return
            try:
                self._follow()
                self.problem = ""
            except MusterError as error:
                self.problem = str(error)
                self._writer = None
            self._looked_at = self._clock.monotonic()  # the first look takes long
            if self._remote is not None:
                self._remote.start()
            left = SAMPLE - self.curves.done
            is_quiet = now - self._opened_at > QUIET_S or len(self.table) < 4 * SAMPLE
            budget_s = LOG_BUDGET_S if left > 0 else SLOW_BUDGET_S if is_quiet else 0.0
            if not is_first and budget_s and self.curves.read(budget_s, left if left > 0 else None):
                self.curve_change += 1

    @property
    def behind(self) -> int:
        """The number of trials whose results are still to be fetched or read."""
        return self.curves.behind + (0 if self._remote is None else self._remote.behind)

    def read_all(self) -> None:
        """Read every result that is logged, and waits for those of a remote experiment."""
        with self.lock:
            self.curves.hurry()
        while self.behind and self.curves.rows is not None:
            self.refresh()
            with self.lock:
                self.curves.read(1.0)
            if self._remote is not None and self._remote.behind:
                self._clock.sleep(0.1)

    def encoded(self, *, masks: bool = False) -> bytes:
        """Return the whole table; made once for each change."""
        with self.lock:
            if masks:
                return self.table.encode({"summary": self.summary()}, masks=True)
            made = self._encoded
            if made[:2] != (self.table.generation, self.table.change):
                content = self.table.encode({"summary": self.summary()})
                made = self._encoded = (self.table.generation, self.table.change, content)
            return made[2]

    def delta(self, change: int) -> dict[str, Any]:
        with self.lock:
            return {**self.table.delta(change), "summary": self.summary()}

    def curve_band(self, metric: str, keep: npt.NDArray[np.bool_] | None = None) -> dict[str, Any]:
        """Return the quantiles of a metric over iterations, of all trials or of some."""
        with self.lock:
            rows, began = self.curves.rows, self._clock.monotonic()
            is_part = rows is not None and keep is not None
            found = rollup(rows, metric, keep) if is_part else self.curves.bands(metric)  # type: ignore[arg-type]
            self.curve_cost_s = self._clock.monotonic() - began
            read = {"behind": self.behind, "left_out": self.curves.left_out, "trials": len(self.table)}
            return {**found, **read}

    def curves_of(self, rows: list[int], metric: str) -> dict[str, Any]:
        """Return the raw points of a few trials."""
        with self.lock:
            for row in rows:
                if self._remote is None and row < len(self._loader.folders) and self._loader.folders[row]:
                    self.curves.want(row, self._loader.folders[row])
            self.curves.read_rows(rows)
            known = self.curves.rows
            return {} if known is None else {str(row): known.of(row, metric) for row in rows}

    def trial(self, trial_id: str) -> Any:  # noqa: ANN401 - a TrialSummary or None
        with self.lock:
            return self._follower.trial(trial_id)

    def folder_of(self, trial_id: str) -> str | None:
        """Return the directory of a trial of this experiment, with its files; None for an unknown one."""
        with self.lock:
            row = self.table.rows.get(trial_id)
            folder = None if row is None else self._loader.folders[row] or None
        if folder is not None and self._remote is not None:
            self._remote.describe(folder)
        return folder

    def lineage(self) -> list[list[Any]]:
        """Return PBT's copies: donor's row, target's row, iteration of the target, of the donor."""
        try:
            lines = read_regular(os.path.join(self.path, _POLICY)).splitlines()[-5000:]
        except OSError:
            return []
        with self.lock:
            by_tag = {tag: row for row, tag in enumerate(self._loader.tags) if tag}
        found = []
        for line in lines:
            try:
                target, donor, target_iteration, donor_iteration, *_ = json.loads(line)
            except (ValueError, TypeError):
                continue
            if target in by_tag and donor in by_tag:
                found.append([by_tag[donor], by_tag[target], target_iteration, donor_iteration])
        return found

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()
        with self.lock:
            self._follower.close()

    # what the page shows at the top; the lock is held

    def summary(self) -> dict[str, Any]:
        table, metric, mode = self.table, self._settings.get("metric"), self._settings.get("mode")
        states = table.columns["trial/status"]
        codes = states.values[: len(table)]
        names = list(states.words)
        held = np.bincount(codes[~np.isnan(codes)].astype(np.int64), minlength=len(names))
        counts = {name: int(count) for name, count in zip(names, held, strict=False) if count}
        goals = metric if isinstance(metric, list) else [metric] if metric else []
        metrics = (column.key for column in self.table.columns.values() if column.group == "metric")
        over = sum(counts.get(state, 0) for state in OVER)
        raised = "" if self._writer is not None else str(self._settings.get("raised", ""))
        is_over = self._is_exhausted and over == len(self.table)
        ended = "failed" if raised else "finished" if is_over else "interrupted"
        guessed = next((key for key in metrics if key != "cost_usd"), "")
        policy_bytes, pilots = 0, b""
        with suppress(OSError):  # PBT's file of copies: clients ask for them when it has grown
            policy_bytes = os.stat(os.path.join(self.path, _POLICY)).st_size
        with suppress(OSError):
            pilots = read_regular(os.path.join(self.path, PILOTS), beginning=4000)
        return {
            "name": self.name,
            "metric": goals[0] if goals else guessed,
            "goals": goals,
            "mode": (mode[0] if isinstance(mode, list) else mode) or "max",
            "modes": mode if isinstance(mode, list) else [mode or "max"] * max(1, len(goals)),
            "constraints": self._settings.get("constraints") or {},
            "state": "running" if self._writer is not None else ended,
            "raised": cut(raised, 300),
            "note": self._note,
            "pilots": "" if self._writer is None else pilots.decode(errors="replace"),
            "address": self.address,
            "resume": "" if self._writer is not None or (is_over and not raised) else self._resume_command(),
            "counts": counts,
            "of": self._wanted(),
            "problem": self.problem,
            "unreadable": self._loader.unreadable,
            "scheduler": cut(str(self._settings.get("scheduler", ""))),
            "search_alg": cut(str(self._settings.get("search_alg", ""))),
            "budget_s": self._settings.get("time_budget_s"),
            "cost_budget": self._settings.get("cost_budget"),
            "deadline": self._settings.get("deadline"),
            "ended_by": "" if self._writer is not None else self._settings.get("ended_by", ""),
            "now": self._clock.now(),
            "policy_bytes": policy_bytes,
            "curve_change": self.curve_change,
            "behind": self.behind,
        }

    def _resume_command(self) -> str:
        more = {"budget": " --cost-budget ...", "deadline": " --deadline ..."}
        ended_by = self._settings.get("ended_by", "")
        return f"{program()} tune resume {quote(self.address)}{more.get(ended_by, '')}"

    def _wanted(self) -> int | None:
        """Return how many trials were asked for; None when that is not known."""
        total = self._settings.get("total_trials", self._settings.get("num_samples"))
        if isinstance(total, int) and max(2, len(self.table)) <= total < ENDLESS:
            return total
        return None if self._writer is not None else len(self.table)

    # reading; the lock is held

    def _follow(self) -> None:
        self._look_for_writer()
        before = self.table.change
        step = self._follower.poll(self._take_trials)
        self._loader.unreadable += step.unreadable
        if self.table.change == before:
            return
        self.table.begin_change()
        if self._writer is None:
            self._mark_interrupted()  # what the last facts left running
        if not self._settings:
            self._settings = self._follower.settings()
        self.curves.start(self._curve_metrics())

    def _take_trials(self, digests: list[Digest]) -> None:
        self.table.begin_change()
        self._loader.take_digests(digests, is_running=self._writer is not None)

    def _look_for_writer(self) -> None:
        """Ask at every look: the facts of a resumed experiment must not count as those of a dead one."""
        before, self._writer = self._writer, self._follower.writer()
        if before == self._writer:
            return
        self._settings = self._follower.settings() or self._settings  # other limits, or ended by one
        with suppress(OSError):
            self._note = read_regular(os.path.join(self.path, NOTE), beginning=4000).decode(errors="replace")
        self.table.begin_change()  # clients must see the state, whether or not a trial has changed
        if self._writer is None:
            self._mark_interrupted()
            with suppress(MusterError), open_trials(self.path) as reader:
                self._is_exhausted = reader.is_exhausted()

    def _mark_interrupted(self) -> None:
        running = float(STATUSES.index("RUNNING"))
        for row in np.flatnonzero(self.table.columns["trial/status"].values[: len(self.table)] == running):
            self.table.set(int(row), "status", "INTERRUPTED")
            self.table.row_changes[row] = self.table.change
            if self._remote is None and self._loader.folders[row]:
                self.curves.want(int(row), self._loader.folders[row])  # a killed one may have logged more

    def _curve_metrics(self) -> list[str]:
        metric = self._settings.get("metric")  # a name, a list of names, or None
        goals = [str(each) for each in metric] if isinstance(metric, list) else [metric] if metric else []
        own = [
            column.key
            for column in self.table.columns.values()
            if column.group == "metric" and column.kind == "number" and len(column.key) <= 200
        ]
        return list(dict.fromkeys([*goals, *own]))


def open_session(
    path: str, *, clock: Clock, address: str = "", remote: RemoteFiles | None = None
) -> ExperimentSession:
    """Open the experiment in a directory; raise StoreError with a hint when there is none."""
    place = os.path.abspath(os.path.expanduser(path))
    if not is_experiment(place):
        what = "there is no such directory" if not os.path.exists(place) else "it has no experiment.sqlite"
        fix = "give the one of fit(), <storage_path>/<name>"
        raise StoreError(f"{path} is not an experiment directory: {what}", fix=fix)
    return ExperimentSession(place, clock=clock, address=address, remote=remote)
