"""An experiment's directory before its first trial: an old record is kept, the new one begun."""

from __future__ import annotations

import logging
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from muster.errors import TuneError
from muster.host.file_lock import holder_of
from muster.stores.experiment.reader import STORE_NAME
from muster.stores.experiment.store import SqliteTrialStore
from muster.tune.execution.restore import SavedTuner

if TYPE_CHECKING:
    from muster.tune.execution.launch import ExperimentSpec

logger = logging.getLogger(__name__)


def prepare(asked: ExperimentSpec) -> None:
    """TuneError when the place cannot be written, or when the experiment could not be resumed later."""
    asked.place.prepare()
    if asked.resume is None:
        set_old_store_aside(asked.place.directory)
        _write_down(asked)


def set_old_store_aside(directory: Path) -> None:
    """A new experiment under an old name: the old one's record is kept beside it, its trials stay on disk."""
    store = directory / STORE_NAME
    if not store.exists() or holder_of(store) is not None:
        return  # in use: opening it says by whom
    with SqliteTrialStore(directory):
        pass  # what a crash left in its log goes into the file
    kept = next(
        name for number in count(1) if not (name := directory / f"{STORE_NAME}.{number}.old").exists()
    )
    store.rename(kept)
    logger.warning(
        "%s already held an experiment: a new one begins. The old record is %s; to go on with an experiment "
        "use Tuner.restore",
        directory,
        kept.name,
    )


def _write_down(asked: ExperimentSpec) -> None:
    """What `restore` needs, with the plug-ins as they are before the first trial."""
    saved = SavedTuner(
        trainable_name=asked.trainable_name,
        param_space=asked.param_space,
        tune_config=asked.tune,
        run_config=asked.run,
        overrides=asked.overrides,
    )
    try:
        saved.write(asked.place.directory, asked.code)
    except TuneError as error:
        if asked.must_be_resumable:
            raise
        logger.warning("%s", error)
