"""What callbacks and schedulers see of a trial; the orders are those of the same runs on Ray Tune 2.60."""

from __future__ import annotations

import logging
import os
import tempfile
from copy import deepcopy

import pytest

from muster import tune
from muster.errors import TuneError
from muster.tune import Callback, CheckpointConfig, RunConfig, TuneConfig, Tuner
from muster.tune.execution import experiment_run
from muster.tune.schedulers import FIFOScheduler

pytestmark = pytest.mark.slow


def saves_twice(config):
    for step in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            with open(f"{folder}/step", "w") as stream:
                stream.write(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))


def saves_nothing(config):
    for step in (1, 2, 3):
        tune.report({"step": step})


class Counts(tune.Trainable):
    def setup(self, config):
        self.step_ = 0

    def step(self):
        self.step_ += 1
        return {"step": self.step_, "done": self.step_ == 2}

    def save_checkpoint(self, checkpoint_dir):
        return {"step": self.step_}

    def load_checkpoint(self, checkpoint):
        self.step_ = checkpoint["step"]


def name_of(checkpoint):
    return None if checkpoint is None else os.path.basename(checkpoint.path)[-1]


class Order(Callback):
    def __init__(self):
        self.seen = []

    def on_trial_start(self, iteration, trials, trial, **info):
        self.seen.append(("start", name_of(trial.checkpoint)))

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self.seen.append((f"result {result['step']}", name_of(trial.checkpoint)))

    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        self.seen.append((f"checkpoint {name_of(checkpoint)}", name_of(trial.checkpoint)))

    def on_trial_save(self, iteration, trials, trial, **info):
        self.seen.append(("save", name_of(trial.checkpoint)))

    def on_trial_complete(self, iteration, trials, trial, **info):
        self.seen.append(("complete", name_of(trial.checkpoint)))

    def on_trial_error(self, iteration, trials, trial, **info):
        self.seen.append(("error", name_of(trial.checkpoint)))


class PausesOnce(FIFOScheduler):
    has_paused = False

    def on_trial_result(self, tune_controller, trial, result):
        if self.has_paused or result["step"] != 2:
            return self.CONTINUE
        self.has_paused = True
        return self.PAUSE


def fitted(trainable, folder, *callbacks, scheduler=None, **checkpoints):
    return Tuner(
        trainable,
        tune_config=TuneConfig(scheduler=scheduler),
        run_config=RunConfig(
            storage_path=str(folder),
            name="e",
            verbose=0,
            callbacks=list(callbacks),
            checkpoint_config=CheckpointConfig(**checkpoints),
        ),
    ).fit()


TWO_SAVES = [
    ("start", None),
    ("result 1", None),
    ("checkpoint 0", None),
    ("save", "0"),
    ("result 2", "0"),
    ("checkpoint 1", "0"),
    ("save", "1"),
    ("complete", "1"),
]


def test_every_saved_checkpoint_is_followed_by_on_trial_save(tmp_path):
    of_function, of_class = Order(), Order()
    fitted(saves_twice, tmp_path / "function", of_function)
    fitted(Counts, tmp_path / "class", of_class, checkpoint_frequency=1)
    assert (of_function.seen, of_class.seen) == (TWO_SAVES, TWO_SAVES)


def test_a_pause_of_a_function_without_a_checkpoint_is_a_save_too(tmp_path):
    order = Order()
    fitted(saves_nothing, tmp_path, order, scheduler=PausesOnce())
    once = ["start", "result 1", "result 2"]
    assert [what for what, _ in order.seen] == [*once, "save", *once, "result 3", "complete"]


def test_a_checkpoint_whose_callback_raises_is_kept_and_the_error_logged(tmp_path, caplog):
    class Raises(Callback):
        def on_checkpoint(self, **info):
            raise KeyError("disk")

    with caplog.at_level(logging.WARNING):
        grid = fitted(saves_twice, tmp_path, Raises())
    assert (grid[0].error, name_of(grid[0].checkpoint)) == (None, "1")
    assert "Raises.on_checkpoint" in caplog.text


def test_setup_gets_exactly_rays_arguments(tmp_path):
    class Exact(Callback):
        def setup(self, stop, num_samples, total_num_samples, time_budget_s):
            self.seen = (stop, num_samples, total_num_samples, time_budget_s)

    exact = Exact()
    fitted(saves_nothing, tmp_path, exact)
    assert exact.seen == ({}, 1, 1, None)


class CannotSave(Counts):
    def save_checkpoint(self, checkpoint_dir):
        raise NotImplementedError


class LosesFiles(Counts):
    def save_checkpoint(self, checkpoint_dir):
        os.rmdir(checkpoint_dir)


@pytest.mark.parametrize("kind", [CannotSave, LosesFiles])
@pytest.mark.parametrize("when", ["checkpoint_frequency", "checkpoint_at_end", "pause"])
def test_a_checkpoint_that_is_not_made_fails_the_trial(kind, when, tmp_path):
    order = Order()
    asked = {} if when == "pause" else {when: 1}
    grid = fitted(kind, tmp_path, order, scheduler=PausesOnce() if when == "pause" else None, **asked)
    assert order.seen[-1] == ("error", None)
    assert isinstance(grid[0].error, NotImplementedError if kind is CannotSave else FileNotFoundError)
    assert grid[0].metrics["step"] == (1 if when == "checkpoint_frequency" else 2)


class Looks(Callback):
    """Reads a trial as callbacks written for Ray do."""

    def __init__(self):
        self.seen = {}

    def on_trial_save(self, iteration, trials, trial, **info):
        with trial.checkpoint.as_directory() as folder:
            files = os.listdir(folder)
        copied = trial.checkpoint.to_directory()
        storage, metadata = trial.storage, trial.run_metadata
        self.seen["files"] = "_dict_checkpoint.pkl" in files and "_dict_checkpoint.pkl" in os.listdir(copied)
        self.seen["filesystem"] = trial.checkpoint.filesystem.exists(trial.checkpoint.path)
        self.seen["result"] = trial.latest_checkpoint_result.metrics["step"]
        self.seen["paths"] = (
            storage.trial_fs_path == trial.path,
            storage.checkpoint_fs_path == trial.checkpoint.path,
            storage.experiment_fs_path == os.path.dirname(trial.path),
            storage.current_checkpoint_index,
        )
        self.seen["metadata"] = (metadata.last_result["step"], metadata.num_failures, metadata.start_time > 0)
        self.seen["error"] = (trial.get_error(), trial.get_pickled_error())
        trial.set_config({**trial.config, "added": 1})
        trial.set_experiment_tag("changed")


def test_a_trial_is_read_as_in_ray(tmp_path):
    looks = Looks()
    grid = fitted(Counts, tmp_path, looks)
    assert looks.seen == {
        "files": True,
        "filesystem": True,
        "result": 2,
        "paths": (True, True, True, 0),
        "metadata": (2, 0, True),
        "error": (None, None),
    }
    assert grid[0].error is None


def test_the_error_of_a_trial_can_be_read_from_the_trial(tmp_path):
    class Keeps(Callback):
        def on_trial_error(self, iteration, trials, trial, **info):
            self.trial, self.text, self.copied = trial, trial.get_error(), deepcopy(trial).get_pickled_error()

    def fails(config):
        raise KeyError("boom")

    keeps = Keeps()
    fitted(fails, tmp_path, keeps)
    assert ("Failure # 1" in keeps.text, type(keeps.copied)) == (True, KeyError)
    (of_analysis,) = tune.ExperimentAnalysis(str(tmp_path / "e")).trials
    for trial in (keeps.trial, of_analysis):
        assert "Failure # 1" in trial.get_error()
        assert type(trial.get_pickled_error()) is KeyError
        assert trial.run_metadata.num_failures == 1


class Reads(FIFOScheduler):
    """Uses what Ray lets schedulers use, what it only warns of, and a name that nobody has."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_trial_result(self, tune_controller, trial, result):
        executor = tune_controller.trial_executor
        executor.save(trial, result=result)
        self.seen.append(
            (
                executor.has_resources_for_trial(trial),
                executor._resource_updater.get_num_cpus() > 0,
                tune_controller._trials == tune_controller.get_trials(),
                hasattr(tune_controller, "nobody_has_this"),
            )
        )
        return self.CONTINUE


def test_the_controller_has_the_names_that_schedulers_use_and_warns_once_of_others(tmp_path, caplog):
    reads, order = Reads(), Order()
    with caplog.at_level(logging.WARNING):
        fitted(Counts, tmp_path, order, scheduler=reads, checkpoint_at_end=False)
    assert reads.seen == [(True, True, True, False)]
    assert ("save", "0") in order.seen
    assert [caplog.text.count(f"tune_controller.{name}`") for name in ("_trials", "nobody_has_this")] == [
        1,
        1,
    ]


def test_many_cpus_let_more_trials_wait_with_a_warning(tmp_path, caplog, monkeypatch):
    class Large(experiment_run.ExperimentState):
        def __init__(self, settings, *arguments, **named):
            assert settings.max_pending == 330
            raise TuneError("seen")

    monkeypatch.setattr(experiment_run, "ExperimentState", Large)
    monkeypatch.setattr("muster.engines.local.engine.LocalEngine.capacity", lambda self: {"CPU": 300})
    with caplog.at_level(logging.WARNING), pytest.raises(TuneError, match="seen"):
        fitted(saves_nothing, tmp_path)
    assert "TUNE_MAX_PENDING_TRIALS_PG" in caplog.text
