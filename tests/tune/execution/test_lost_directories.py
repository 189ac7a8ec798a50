"""Directories that a lost machine uploaded, of trials that the store on the storage does not know.

They reach the storage before that store. A restore makes trials of the same ids and deletes these
directories, on this machine before the storage. A driver that is killed in between leaves the second half.
"""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from fsspec.implementations.local import LocalFileSystem
from tests.support.memory_trial_store import MemoryTrialStore
from tests.trials.scripted import Noted

from muster.base.clock import SteadyClock
from muster.trials.experiment import ExperimentState
from muster.trials.plugins import Plugins
from muster.trials.template import Settings, TrialTemplate
from muster.tune.execution.paths import ExperimentPaths, directory_namer
from muster.tune.execution.restore import Restorer
from muster.tune.schedulers import FIFOScheduler
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.tune_config import ResumeConfig

AT = 1_700_000_000.0
LOST = "train_abc_00000_0_2023-11-14_00-00-00"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """An experiment on a remote storage, and its directory on this machine."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "machine"))
    made = ExperimentPaths(str(tmp_path / "bucket"), "exp", LocalFileSystem())
    made.prepare()
    return made


def put(folder, name):
    (folder / name).mkdir(parents=True)
    (folder / name / "result.json").write_text("{}\n")


def new_state(place, **more):
    search = BasicVariantGenerator(id_prefix="abc")
    search.add_configurations([TrialTemplate(trainable_name="train", param_space={}, num_samples=1, **more)])
    return ExperimentState(
        Settings(name="exp", experiment_dir=str(place.directory), metric="score", mode="max"),
        Plugins(search=search, scheduler=FIFOScheduler(), stopper=None, hooks=Noted()),
        capacity={"CPU": 1.0},
        directory_for=directory_namer(place.directory, SteadyClock()),
        place=place,
    )


def resume(place, state):
    """Restore, then suggest and start the trial; returns its directory, and those to delete."""
    saver = SimpleNamespace(restore=lambda *given: None)
    Restorer(ResumeConfig(), place, SteadyClock()).restore(saver, state, MemoryTrialStore().load(), None)
    state.advance(AT)
    (trial,) = state.trials.values()
    paths = [each.ref.path for each in state.facts.checkpoints_to_delete]
    return trial.relative_logdir, [path.removeprefix(f"{place.directory}/") for path in paths]


@pytest.mark.parametrize("folders", [["here", "there"], ["there"], ["here"]])
def test_a_trial_that_is_made_again_deletes_what_an_unknown_one_left(place, tmp_path, folders):
    for each in folders:
        put(place.directory if each == "here" else tmp_path / "bucket" / "exp", LOST)
    name, deleted = resume(place, new_state(place))
    assert (name != LOST, deleted) == (True, [LOST])


def test_a_later_restore_deletes_what_a_killed_one_left_on_the_storage(place, tmp_path):
    state = new_state(place)
    name, deleted = resume(place, state)
    assert deleted == []
    for each in (name, LOST, "plots_abc_00000_mine"):  # the last is a user's
        put(tmp_path / "bucket" / "exp", each)
    assert resume(place, state) == (name, [LOST])


def test_no_new_trial_gets_a_directory_that_is_to_be_deleted_on_the_storage(place, tmp_path):
    put(tmp_path / "bucket" / "exp", "train_abc_00000_mine")
    state = new_state(place, trial_dirname_creator=lambda trial: f"train_{trial.trial_id}_mine")
    name, deleted = resume(place, state)
    assert name.startswith("train_abc_00000_mine_")
    assert deleted == ["train_abc_00000_mine"]
