"""Completes result files after a crash with what the store knows and the files may lack.

A CatchUp collects the events that a restore replays and gives them to the LogWriter, so that every result is
in the files once: rows after a restart replace those that the restart made void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.tune.logger.files.failure_files import failure_text
from muster.tune.logger.files.repair import iteration_of
from muster.tune.logger.logger import restored_iteration, trial_directory

if TYPE_CHECKING:
    from muster.trials.events import TrialFailure
    from muster.trials.model import Trial
    from muster.tune.logger.files.writer import LogWriter


class _TrialHistory:
    """A _TrialHistory holds what happened to one trial after the last snapshot."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.base: int | None = None  # rows up to here are in the files; later ones are written again
        self.is_sure = True  # False: iterations do not identify rows
        self.rows: list[dict[str, Any]] = []
        self.failures: list[tuple[int, TrialFailure]] = []

    def started(self) -> None:
        iteration = restored_iteration(self.trial)
        if iteration is None:
            self.is_sure = False
            return
        self.rows = [row for row in self.rows if iteration_of(row) <= iteration]
        self._lower(iteration)

    def reported(self, row: dict[str, Any]) -> None:
        iteration = iteration_of(row)
        self.is_sure = self.is_sure and iteration > 0
        self._lower(iteration - 1)
        self.rows.append(row)

    def _lower(self, iteration: int) -> None:
        self.base = iteration if self.base is None else min(self.base, iteration)


class CatchUp:
    """A CatchUp collects, as hooks, the events that a restore replays."""

    def __init__(self) -> None:
        self._histories: dict[str, _TrialHistory] = {}

    def fire(self, hook: str, **info: Any) -> None:  # noqa: ANN401 - Ray's hook arguments
        if hook == "on_trial_result":
            self._of(info["trial"]).reported(dict(info["result"]))
        elif hook == "on_trial_start":
            self._of(info["trial"]).started()
        elif hook == "on_trial_failure":
            trial = info["trial"]
            self._of(trial).failures.append((trial.num_failures, info["failure"]))

    def write_to(self, writer: LogWriter, kinds: int, experiment_dir: str, at: float) -> None:
        """Gives everything to the writer; trials that run again close their files by themselves."""
        for history in self._histories.values():
            trial = history.trial
            log = writer.log(trial.trial_id, trial_directory(experiment_dir, trial))
            if kinds and history.is_sure and history.base is not None:
                writer.start(log, kinds, trial.config, history.base)
                for row in history.rows:
                    writer.row(log, kinds, row)
            elif kinds and history.rows:
                writer.catch_up(log, kinds, history.rows)
            for number, failure in history.failures:
                text = failure_text(number, failure, at).encode("utf-8", "replace")
                writer.fail(log, text, failure.exception, unless=b"Failure # %d (" % number)
            if trial.is_finished():
                writer.end(trial.trial_id, failed=trial.status == "ERROR")

    def _of(self, trial: Trial) -> _TrialHistory:
        found = self._histories.get(trial.trial_id)
        if found is None:
            found = self._histories[trial.trial_id] = _TrialHistory(trial)
        return found
