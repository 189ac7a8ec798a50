"""Resumption: an experiment that was interrupted, brought back to where it can go on."""

from __future__ import annotations

import logging
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from muster.base.clock import Clock
from muster.errors import StoreError
from muster.session.publish import MANIFEST
from muster.stores.checkpoints import CheckpointStore, delete_directory, sweep
from muster.trials.model import CheckpointRef, Trial
from muster.trials.resuming import ResumeRules, apply_rules
from muster.tune.config import ResumeConfig
from muster.tune.execution.checkpoint_check import drop_unusable
from muster.tune.execution.paths import Place
from muster.tune.logger.files.catching_up import Witness
from muster.tune.logger.files.trial_log import ERRORS, PICKLED_ERROR

if TYPE_CHECKING:
    from muster.trials.experiment import ExperimentState
    from muster.trials.ports import SavedExperiment
    from muster.trials.restore import MakeTrial
    from muster.tune.callback import CallbackList
    from muster.tune.execution.loop import Execution
    from muster.tune.logger.files.writer import LogWriter

logger = logging.getLogger(__name__)
_CHECKPOINT = re.compile(r"([^/]+)/(checkpoint_\d{6,})/")


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
        checkpoints = self._place.checkpoints()
        for trial in state.roster.live.values():
            drop_unusable(trial, checkpoints)
        state.give_up(self._forgotten(state, checkpoints))

    def _forgotten(self, state: ExperimentState, checkpoints: CheckpointStore) -> list[CheckpointRef]:
        """Checkpoints that a crash kept from being deleted, or from being noted: no trial knows of them."""
        known = {ref.path for trial in state.roster.order for ref in trial.checkpoints}
        known |= state.roster.borrowed
        found = []
        for trial in state.roster.order:
            if trial.relative_logdir is None or not os.path.isdir(str(trial.local_path)):
                continue
            sweep(str(trial.local_path))
            for index, path in checkpoints.listed(trial.relative_logdir):
                if index > trial.checkpoint_index:
                    delete_directory(Path(path))  # now: the trial is about to use this name again
                elif path not in known:
                    found.append(CheckpointRef(path=path, index=index))
        return [*found, *self._forgotten_there(state, known | {ref.path for ref in found})]

    def _forgotten_there(self, state: ExperimentState, known: set[str]) -> list[CheckpointRef]:
        """The same in a remote storage, where nodes of a cluster may have put them."""
        there, found = self._place.elsewhere, []
        if there is None:
            return []
        numbers = {trial.relative_logdir: trial.checkpoint_index for trial in state.roster.order}
        try:
            names = there.sizes()
            for folder, name in sorted(
                {(each[1], each[2]) for each in map(_CHECKPOINT.match, names) if each}
            ):
                path, index = f"{self._place.directory}/{folder}/{name}", int(name.rpartition("_")[2])
                if folder not in numbers or path in known:
                    continue
                if index > numbers[folder]:
                    there.delete_dir(f"{folder}/{name}")  # now, as above
                elif f"{folder}/{name}/{MANIFEST}" in names:
                    found.append(CheckpointRef(path=path, index=index))
        except StoreError as error:
            logger.warning("what a crash left in the storage stays: %s", error)
        return found

    def repair_logs(self, writer: LogWriter, hooks: CallbackList) -> None:
        """Results that the store has and the files may lack."""
        self._witness.tell(writer, hooks.file_kinds, str(self._place.directory), self._clock.now())

    def _forget_failure(self, trial: Trial) -> None:
        """A trial that runs again has no error any more."""
        for name in (ERRORS, PICKLED_ERROR):
            with suppress(OSError):
                os.unlink(f"{trial.local_path}/{name}")
