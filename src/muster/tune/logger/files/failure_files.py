"""Writes error.txt and error.pkl of failed trials; every experiment has this callback."""

from __future__ import annotations

import pickle
import time  # only for formatting; the time is read from a Clock
from typing import TYPE_CHECKING

from muster.base.clock import Clock, SystemClock
from muster.errors import TuneError
from muster.tune.callback import Callback
from muster.tune.logger.files.trial_log import ERRORS, PICKLED_ERROR
from muster.tune.logger.logger import trial_directory

if TYPE_CHECKING:
    from muster.trials.events import TrialFailure
    from muster.trials.model import Trial
    from muster.tune.logger.files.writer import LogWriter


class FailureFiles(Callback):
    """A FailureFiles appends every failure to error.txt and keeps the latest exception in error.pkl."""

    _writer: LogWriter | None = None
    _experiment_dir = ""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()

    def attach(self, writer: LogWriter, experiment_dir: str) -> None:
        self._writer, self._experiment_dir = writer, experiment_dir

    def on_trial_failure(
        self, iteration: int, trials: list[Trial], trial: Trial, failure: TrialFailure, **info: object
    ) -> None:
        trial.error_filename = ERRORS
        trial.pickled_error_filename = PICKLED_ERROR
        if self._writer is None:
            return
        text = failure_text(trial.num_failures, failure, self._clock.now()).encode("utf-8", "replace")
        log = self._writer.log(trial.trial_id, trial_directory(self._experiment_dir, trial))
        self._writer.fail(log, text, pickled_failure(failure))

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._end(trial, failed=False)

    def on_trial_error(self, iteration: int, trials: list[Trial], trial: Trial, **info: object) -> None:
        self._end(trial, failed=True)

    def _end(self, trial: Trial, *, failed: bool) -> None:
        """Closes the files of a trial; a file logger, where there is one, has done this already."""
        if self._writer is not None:
            self._writer.end(trial.trial_id, failed=failed)


def pickled_failure(failure: TrialFailure) -> bytes:
    """Returns error.pkl: the exception of the trial, else a TuneError with the reason."""
    return failure.exception or pickle.dumps(TuneError(failure.traceback or failure.message))


def failure_text(number: int, failure: TrialFailure, at: float) -> str:
    """Returns one entry of error.txt: which failure, when, and what happened."""
    date = time.strftime("%Y-%m-%d_%H-%M-%S", time.localtime(at))
    cause = (failure.traceback or failure.message).rstrip("\n")
    return f"Failure # {number} (occurred at {date})\n{cause}\n"
