"""Complete result files after a crash with what the store knows and the files may lack.

A CatchUp collects the events that a restore replays and gives them to the LogWriter, so that every result is
in the files once: rows after a restart replace those that the restart made void.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from muster.tune.logger.files.writer import failure_text, pickled_failure
from muster.tune.logger.logger import restored_iteration, trial_directory

if TYPE_CHECKING:
    from muster.trials.events import TrialFailure
    from muster.trials.model import Trial
    from muster.tune.logger.files.writer import LogWriter


class _TrialHistory:
    """Holds what happened to one trial after the last snapshot."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.base = trial.num_rows  # so many rows are in the files for certain; later ones are written again
        self.rows: list[dict[str, Any]] = []  # those after the base
        self.iteration: int | None = trial.last_result.get("training_iteration", 0)  # of the base
        self.failures: list[tuple[int, TrialFailure]] = []

    def started(self) -> None:
        kept = self.trial.num_rows
        self.base = min(self.base, kept)
        del self.rows[kept - self.base :]
        found = restored_iteration(self.trial)
        self.iteration = None if found is None or self.iteration is None else min(found, self.iteration)


class CatchUp:
    """A CatchUp collects, as hooks, the events that a restore replays."""

    def __init__(self) -> None:
        self._histories: dict[str, _TrialHistory] = {}

    def fire(self, hook: str, **info: Any) -> None:  # noqa: ANN401 - Ray's hook arguments
        if hook == "on_trial_result":
            self._of(info["trial"]).rows.append(dict(info["result"]))
        elif hook == "on_trial_start":
            self._of(info["trial"]).started()
        elif hook == "on_trial_failure":
            trial = info["trial"]
            self._of(trial).failures.append((trial.num_failures, info["failure"]))

    def write_to(self, writer: LogWriter, kinds: int, experiment_dir: str, at: float) -> None:
        """Give everything to the writer; trials that run again close their files by themselves."""
        for history in self._histories.values():
            trial = history.trial
            log = writer.log(trial.trial_id, trial_directory(experiment_dir, trial))
            if kinds:
                writer.start(log, kinds, trial.config, (history.base, history.iteration))
                for row in history.rows:
                    writer.row(log, kinds, row)
            for number, failure in history.failures:
                text = failure_text(number, failure, at).encode("utf-8", "replace")
                writer.fail(log, text, pickled_failure(failure), unless=b"Failure # %d (" % number)
            if trial.is_finished():
                writer.end(trial.trial_id, failed=trial.status == "ERROR")

    def _of(self, trial: Trial) -> _TrialHistory:
        found = self._histories.get(trial.trial_id)
        if found is None:
            found = self._histories[trial.trial_id] = _TrialHistory(trial)
        return found
