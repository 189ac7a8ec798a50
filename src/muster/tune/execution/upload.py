"""Keep a remote `storage_path` up to date while an experiment runs, at little cost to the control loop.

The callback marks for the Uploader, a thread, what changed. Checkpoints are marked before the fact about them
is written, so that the facts on the storage never name a checkpoint that is not there.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.base.clock import Clock
from muster.session.publish import MANIFEST
from muster.stores.experiment.reader import STORE_NAME
from muster.stores.storage import PARAMETERS
from muster.trials.model import CheckpointRef, Trial
from muster.tune.callback import Callback
from muster.tune.config import RunConfig, SyncConfig, log_files
from muster.tune.execution.paths import ExperimentPaths
from muster.tune.logger.files.trial_log import (
    ERRORS,
    PARAMS,
    PICKLED_ERROR,
    PICKLED_PARAMS,
    PROGRESS,
    RESULTS,
)

if TYPE_CHECKING:
    from muster.engines.ray.remote_storage import RemoteStorage

logger = logging.getLogger(__name__)

SOON_S = 2.0  # without a message to the user
FIRST_S = 5.0  # for the store, before the first trial
SHOWN = 5  # names of files that were not copied
LOGS_EVERY_S = 10.0  # how often growing logs and the store are checked
_OWN_FILES = frozenset({ERRORS, PARAMS, PICKLED_ERROR, PICKLED_PARAMS, PROGRESS, RESULTS})
_CHECKPOINT = re.compile(r"[^/]+/checkpoint_\d{6,}(?=/)")
_OWN_PREFIXES = ("checkpoint_", "events.out.tfevents")


class Uploads(Callback):
    """Uploads copy the files of one experiment to its remote storage; call `finish` at the end."""

    def __init__(self, place: ExperimentPaths, run: RunConfig, sync: SyncConfig, clock: Clock) -> None:
        from muster.stores.mirror import Mirror
        from muster.stores.uploads import Uploader

        shared = {name for name in log_files(run.log_to_file) if name}
        # Without artifacts, what trials wrote to their working directory is left out.
        self._copied = None if sync.sync_artifacts else _OWN_FILES | shared | {""}
        self._noted: set[str] = set()  # checkpoints that the experiment knows of
        self._has_begun = False
        self._place, self._clock = place, clock
        self._uploader = Uploader(
            Mirror(
                place.directory,
                place.storage,
                clock=clock,
                wanted=self._is_wanted,
                shared=lambda name: name.partition("/")[2] in shared,
            )
        )
        self._timeout_s = sync.sync_timeout
        self._every_s = min(sync.sync_period, LOGS_EVERY_S)
        self._logs_at = clock.monotonic() + self._every_s

    def on_step_begin(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        """Copy the store before there are trials: restored elsewhere, it makes trials of the same ids."""
        if self._has_begun:
            return
        self._has_begun = True
        if trials:
            self._uploader.changed("")
        else:
            self._uploader.flush(min(FIRST_S, self._timeout_s))

    def on_trial_save(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        if trial.newest is not None:
            self._noted.add(trial.newest.path)
        self._changed(trial)

    def on_trial_complete(self, iteration: int, trials: list[Trial], trial: Trial, **info: Any) -> None:  # noqa: ANN401
        self._changed(trial)

    on_trial_error = on_trial_complete

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        if self._clock.monotonic() < self._logs_at:
            return
        self._logs_at = self._clock.monotonic() + self._every_s
        self._uploader.changed(STORE_NAME)
        for trial in trials:
            if trial.status == Trial.RUNNING:
                self._changed(trial)

    def note(self, trials: Iterable[Trial]) -> None:
        """Copy the checkpoints of these trials and no others: a node may be making one of the same name."""
        for trial in trials:
            self._noted.update(ref.path for ref in trial.checkpoints)
            if trial.adopted is not None:
                self._noted.add(trial.adopted.path)

    def discard(self, ref: CheckpointRef) -> bool:
        """Delete a checkpoint on the storage; False: and here, as soon as it is no longer being copied."""
        name = Path(ref.path)
        if name.is_relative_to(self._place.directory) and not self._uploader.discard(
            name.relative_to(self._place.directory).as_posix()
        ):
            return False
        self._noted.discard(ref.path)
        return True

    def take_problems(self) -> tuple[str, ...]:
        return self._uploader.poll_problems()

    def finish(self, note: Callable[[str], None] = logger.info) -> bool:
        """Copy everything; False, with an error that lists what is missing, when the time was not enough.

        `note` receives a message when it takes a while, so that the user knows what it waits for.
        """
        self._uploader.changed("")
        soon_s = min(SOON_S, self._timeout_s)
        is_done = self._uploader.flush(soon_s)
        if not is_done and self._timeout_s > soon_s:
            note(
                f"Copying the results to {self._place.address}, for {self._timeout_s:g} s at most. Ctrl-C "
                f"ends that; all of them are in {self._place.directory}"
            )
            is_done = self._uploader.flush(self._timeout_s - soon_s)
        self._uploader.close()
        if not is_done:
            self._tell_missing()
        return is_done

    def _is_wanted(self, name: str) -> bool:
        if name.startswith(f"{PARAMETERS}/"):  # written before the first trial
            return False
        checkpoint = _CHECKPOINT.match(name)
        if checkpoint is not None:
            place = f"{self._place.directory}/{checkpoint[0]}"
            if place not in self._noted and os.path.exists(f"{place}/{MANIFEST}"):
                return False
        inner = name.partition("/")[2]
        return self._copied is None or inner in self._copied or inner.startswith(_OWN_PREFIXES)

    def _tell_missing(self) -> None:
        missing, problems = self._uploader.missing(), self._uploader.poll_problems()
        shown = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        logger.error(
            "not everything was copied to %s within %g s: %d files are missing there or older (%s)%s. All "
            "of it is in %s. Tuner.restore(%r, ...).fit() on this machine copies the rest; "
            "SyncConfig(sync_timeout=...) sets how long to wait for a slow storage",
            *(self._place.address, self._timeout_s, len(missing), shown),
            f"; the last failure: {problems[-1].partition(' (failure')[0]}" if problems else "",
            *(self._place.directory, self._place.address),
        )

    def _changed(self, trial: Trial) -> None:
        self._uploader.changed(trial.relative_logdir or "")


def reach_of(place: ExperimentPaths, run: RunConfig) -> RemoteStorage | None:
    """Return what nodes of a cluster need to know about a remote storage."""
    from muster.engines.ray.remote_storage import RemoteStorage

    if not place.is_remote or run.sync_config is None:
        return None
    return RemoteStorage(
        uri=place.storage.uri,
        filesystem=place.filesystem,
        root=os.path.abspath(place.directory),
        with_artifacts=run.sync_config.sync_artifacts,
        reserved=tuple(sorted(_OWN_FILES)),
    )
