"""Resumption: an experiment that was interrupted, brought back to where it can go on."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from muster.base.clock import Clock
from muster.stores.checkpoints import CheckpointStore, sweep
from muster.trials.model import Trial
from muster.trials.resuming import ResumeRules, apply_rules
from muster.tune.config import ResumeConfig
from muster.tune.logger.catching_up import Witness
from muster.tune.logger.trial_log import ERRORS, PICKLED_ERROR
from muster.tune.place import Place
from muster.tune.sound_start import drop_unusable

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState
    from muster.trials.ports import SavedExperiment
    from muster.trials.restore import MakeTrial
    from muster.tune.callback import CallbackList
    from muster.tune.execution import Execution
    from muster.tune.logger.writer import LogWriter

logger = logging.getLogger(__name__)


class Resumption:
    """Used once, by `launch`, before the first step."""

    def __init__(self, config: ResumeConfig, place: Place, clock: Clock) -> None:
        self._rules = ResumeRules(
            finished=config.finished.value, unfinished=config.unfinished.value, errored=config.errored.value
        )
        self._place, self._clock = place, clock
        self._witness = Witness()

    def revive(
        self, execution: Execution, state: ExperimentState, saved: SavedExperiment, make_trial: MakeTrial
    ) -> None:
        """Trials, searcher and scheduler stand where they stood; then the rules are applied."""
        execution.resume(saved, make_trial, self._witness)
        apply_rules(state, self._rules, self._clock.now(), self._forget_failure)
        checkpoints = CheckpointStore(self._place.local)
        for trial in state.roster.live.values():
            if trial.local_path is not None:
                sweep(trial.local_path)
            drop_unusable(trial, checkpoints)

    def repair_logs(self, writer: LogWriter, hooks: CallbackList) -> None:
        """Results that the store has and the files may lack."""
        self._witness.tell(writer, hooks.file_kinds, str(self._place.directory), self._clock.now())

    def _forget_failure(self, trial: Trial) -> None:
        """A trial that runs again has no error any more."""
        for name in (ERRORS, PICKLED_ERROR):
            with suppress(OSError):
                os.unlink(f"{trial.local_path}/{name}")
