"""Tuner.restore: what continues, what begins again, what stays; moved directories and damaged checkpoints."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from fsspec.implementations.dirfs import DirFileSystem
from fsspec.implementations.local import LocalFileSystem

from muster import tune
from muster.errors import TuneError
from muster.session.checkpoint import as_fsspec
from muster.session.publish import publish_copy
from muster.stores.storage import Storage
from muster.trials.model import CheckpointRef, Trial
from muster.tune import Callback, CheckpointConfig, ResumeConfig, RunConfig, TuneConfig, Tuner
from muster.tune.execution.launch import ExperimentOutcome
from muster.tune.execution.paths import ExperimentPaths

pytestmark = pytest.mark.slow


def make_train():
    """Count to 3, a checkpoint at each step; fail at step 3 while the file `config["broken"]` exists."""

    def train(config):
        start = 0
        checkpoint = tune.get_checkpoint()
        if checkpoint is not None:
            with checkpoint.as_directory() as directory:
                start = json.loads(Path(directory, "state.json").read_text())["step"]
        for step in range(start + 1, 4):
            if step == 3 and config["index"] % 2 and Path(config["broken"]).exists():
                raise RuntimeError(f"trial {config['index']} is broken")
            with tempfile.TemporaryDirectory() as directory:
                Path(directory, "state.json").write_text(json.dumps({"step": step}))
                tune.report(
                    {"step": step, "began_at": start}, checkpoint=tune.Checkpoint.from_directory(directory)
                )

    return train


@pytest.fixture
def half_broken(tmp_path):
    """An experiment of four trials of which two have failed, and the path to it. Now they could continue."""
    broken = tmp_path / "broken"
    broken.touch()
    tuner = Tuner(
        make_train(),
        param_space={"index": tune.grid_search([0, 1, 2, 3]), "broken": str(broken)},
        tune_config=TuneConfig(metric="step", mode="max"),
        run_config=RunConfig(name="exp", storage_path=str(tmp_path / "results"), verbose=0),
    )
    grid = tuner.fit()
    assert [result.metrics["step"] for result in grid] == [3, 2, 3, 2]
    assert [str(error).split()[1] for error in grid.errors] == ["1", "3"]
    broken.unlink()
    return Path(grid.experiment_path)


def seen(grid):
    """Where each trial ended, and where its last attempt had begun."""
    return [(result.metrics["step"], result.metrics["began_at"]) for result in grid]


def steps_logged(grid):
    return [[row["step"] for row in result.metrics_history] for result in grid]


def test_results_of_an_earlier_run_can_be_looked_at_without_running_anything(half_broken):
    restored = Tuner.restore(half_broken, make_train())
    grid = restored.get_results()
    assert (len(grid), grid.num_errors, grid.num_terminated) == (4, 2, 2)
    assert [str(error).split()[1] for error in grid.errors] == ["1", "3"]
    again = restored.fit()
    assert (len(again), again.num_errors, again.num_terminated) == (4, 2, 2)
    assert steps_logged(again) == [[1, 2, 3], [1, 2], [1, 2, 3], [1, 2]]


@pytest.mark.conformance("C-231")
def test_resume_errored_goes_on_from_the_newest_checkpoint(half_broken):
    grid = Tuner.restore(half_broken, make_train(), resume_errored=True).fit()
    assert seen(grid) == [(3, 0), (3, 2), (3, 0), (3, 2)]
    assert (grid.num_errors, grid.errors) == (0, [])
    assert steps_logged(grid) == [[1, 2, 3]] * 4
    assert not list(half_broken.glob("*/error.*"))


@pytest.mark.conformance("C-231")
def test_restart_errored_begins_again_and_replaces_the_rows(half_broken):
    grid = Tuner.restore(half_broken, make_train(), restart_errored=True).fit()
    assert seen(grid) == [(3, 0)] * 4
    assert steps_logged(grid) == [[1, 2, 3]] * 4
    assert grid.num_errors == 0


def test_finished_trials_can_be_begun_again_too(half_broken):
    again = ResumeConfig.ResumeType.RESTART
    rules = ResumeConfig(finished=again, errored=again)
    grid = Tuner.restore(half_broken, make_train(), _resume_config=rules).fit()
    assert seen(grid) == [(3, 0)] * 4
    assert steps_logged(grid) == [[1, 2, 3]] * 4


@pytest.mark.conformance("C-023")
def test_a_trial_that_runs_again_is_known_to_later_restores(half_broken):
    Tuner.restore(half_broken, make_train(), resume_errored=True).fit()
    grid = Tuner.restore(half_broken, make_train()).get_results()
    assert (grid.num_errors, grid.num_terminated) == (0, 4)
    assert [result.metrics["step"] for result in grid] == [3, 3, 3, 3]


@pytest.mark.conformance("C-236")
def test_a_moved_directory_goes_on_where_it_is_now(half_broken, tmp_path):
    moved = tmp_path / "elsewhere" / "renamed"
    shutil.copytree(half_broken, moved)
    shutil.rmtree(half_broken.parent)
    grid = Tuner.restore(moved, make_train(), resume_errored=True).fit()
    assert seen(grid) == [(3, 0), (3, 2), (3, 0), (3, 2)]
    assert grid.experiment_path == str(moved)
    assert all(Path(result.checkpoint.path).is_relative_to(moved) for result in grid)
    assert not half_broken.parent.exists()


@pytest.mark.conformance("C-244")
def test_a_checkpoint_that_is_gone_is_passed_over_for_an_older_one(half_broken, caplog):
    for newest in half_broken.glob("*/checkpoint_000001"):
        shutil.rmtree(newest)
    grid = Tuner.restore(half_broken, make_train(), resume_errored=True).fit()
    assert seen(grid) == [(3, 0), (3, 1), (3, 0), (3, 1)]
    assert steps_logged(grid) == [[1, 2, 3]] * 4
    assert caplog.text.count("checkpoint_000001") == 2


@pytest.mark.conformance("C-244")
def test_a_checkpoint_that_lacks_a_file_is_passed_over_too(half_broken):
    for newest in half_broken.glob("*/checkpoint_000001/state.json"):
        newest.unlink()
    grid = Tuner.restore(half_broken, make_train(), resume_errored=True).fit()
    assert seen(grid) == [(3, 0), (3, 1), (3, 0), (3, 1)]


def test_without_any_usable_checkpoint_a_trial_begins_again(half_broken):
    for checkpoint in half_broken.glob("*/checkpoint_*"):
        shutil.rmtree(checkpoint)
    grid = Tuner.restore(half_broken, make_train(), resume_errored=True).fit()
    assert seen(grid) == [(3, 0)] * 4
    assert steps_logged(grid) == [[1, 2, 3]] * 4


@pytest.mark.conformance("C-234")
def test_another_trainable_is_refused(half_broken):
    def other(config):
        pass

    with pytest.raises(ValueError, match=r"train.*other"):
        Tuner.restore(half_broken, other)


@pytest.mark.conformance("C-240")
def test_a_space_with_other_keys_is_refused(half_broken):
    with pytest.raises(ValueError, match=r": broken; .*: fixed"):
        Tuner.restore(half_broken, make_train(), param_space={"index": tune.grid_search([0]), "fixed": 2})


@pytest.mark.conformance("C-239", "C-245")
def test_restore_is_asked_of_the_class_and_of_an_experiment(half_broken, tmp_path):
    tuner = Tuner.restore(half_broken, make_train())
    with pytest.raises(AttributeError, match=r"Tuner\.restore\("):
        tuner.restore(half_broken, make_train())
    with pytest.raises(FileNotFoundError, match=r"tuner\.pkl"):
        Tuner.restore(tmp_path, make_train())
    assert Tuner.can_restore(half_broken)
    assert not Tuner.can_restore(half_broken.parent)
    assert not Tuner.can_restore(next(half_broken.glob("train_*")))


class StopAfter(Callback):
    """Interrupts the run as Ctrl-C would, after some results; counts them over the experiment's lives."""

    def __init__(self, results):
        self.limit, self.total = results, 0

    def on_trial_result(self, iteration, trials, trial, result, **info):
        import os
        import signal

        self.total += 1
        if self.total == self.limit:
            os.kill(os.getpid(), signal.SIGUSR1)

    def get_state(self):
        return {"total": self.total}

    def set_state(self, state):
        self.total = state["total"]


def interrupted(tmp_path, limit=3, **run):
    tuner = Tuner(
        make_train(),
        param_space={"index": tune.grid_search([0, 2, 4, 6]), "broken": str(tmp_path / "none")},
        tune_config=TuneConfig(metric="step", mode="max", max_concurrent_trials=1),
        run_config=RunConfig(
            name="exp", storage_path=str(tmp_path), verbose=0, callbacks=[StopAfter(limit)], **run
        ),
    )
    return tuner.fit()


@pytest.mark.conformance("C-030", "C-232")
def test_an_interrupted_run_goes_on_with_its_callbacks_where_they_were(tmp_path, capsys):
    grid = interrupted(tmp_path)
    assert grid.num_terminated < 4
    assert "Tuner.restore" in capsys.readouterr().err
    restored = Tuner.restore(grid.experiment_path, make_train())
    grid = restored.fit()
    assert [result.metrics["step"] for result in grid] == [3, 3, 3, 3]
    assert steps_logged(grid) == [[1, 2, 3]] * 4
    assert restored._spec.run.callbacks[0].total == 12


@pytest.mark.conformance("C-232")
def test_unfinished_trials_may_be_left_alone(tmp_path):
    grid = interrupted(tmp_path, limit=4)
    grid = Tuner.restore(grid.experiment_path, make_train(), resume_unfinished=False).fit()
    assert (len(grid), grid.num_terminated) == (4, 4)
    assert sum(len(rows) for rows in steps_logged(grid)) < 12


def test_numbering_and_retention_of_checkpoints_go_on_after_a_restore(tmp_path):
    keep = CheckpointConfig(num_to_keep=1)
    grid = interrupted(tmp_path, limit=2, checkpoint_config=keep)
    grid = Tuner.restore(grid.experiment_path, make_train()).fit()
    left = [sorted(path.name for path in Path(result.path).glob("checkpoint_*")) for result in grid]
    assert left == [["checkpoint_000002"]] * 4


def test_an_experiment_at_a_url_is_found_and_gone_on_with_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    broken = tmp_path / "broken"
    broken.touch()
    url = f"memory://{tmp_path.name}/results"
    grid = Tuner(
        make_train(),
        param_space={"index": tune.grid_search([0, 1]), "broken": str(broken)},
        tune_config=TuneConfig(metric="step", mode="max"),
        run_config=RunConfig(name="exp", storage_path=url, verbose=0),
    ).fit()
    assert grid.num_errors == 1
    broken.unlink()
    shutil.rmtree(tmp_path / "home")  # as if on another machine
    assert Tuner.can_restore(f"{url}/exp")
    grid = Tuner.restore(f"{url}/exp", make_train(), resume_errored=True).fit()
    assert seen(grid) == [(3, 0), (3, 2)]
    assert steps_logged(grid) == [[1, 2, 3]] * 2
    with grid[1].checkpoint.as_directory() as directory:
        assert json.loads(Path(directory, "state.json").read_text()) == {"step": 3}


class Account(DirFileSystem):
    """Has the same paths as every other, and files of its own."""

    def __init__(self, root):
        root.mkdir(parents=True)
        super().__init__(path=str(root), fs=LocalFileSystem())


def test_experiments_of_two_accounts_with_one_path_do_not_mix(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    accounts = [Account(tmp_path / name) for name in ("one", "two")]
    for account, values in zip(accounts, ([0, 1, 2, 3], [5]), strict=True):
        run = RunConfig(name="exp", storage_path="results", storage_filesystem=account, verbose=0)
        Tuner(
            lambda config: {"y": config["x"]}, param_space={"x": tune.grid_search(values)}, run_config=run
        ).fit()
    for account, values in zip(accounts, ([0, 1, 2, 3], [5]), strict=True):
        grid = Tuner.restore(
            "results/exp", lambda config: {"y": config["x"]}, storage_filesystem=account
        ).fit()
        assert [result.metrics["y"] for result in grid] == values
        trials = [name for name in account.ls("results/exp", detail=False) if "_x=" in name]
        assert len(trials) == len(values)


def test_a_storage_that_was_emptied_gets_nothing_of_the_experiment_before(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    account = Account(tmp_path / "account")
    run = RunConfig(name="exp", storage_path="results", storage_filesystem=account, verbose=0)
    for values in ([0, 1, 2], [7]):
        Tuner(
            lambda config: {"y": config["x"]}, param_space={"x": tune.grid_search(values)}, run_config=run
        ).fit()
        trials = [name for name in account.ls("results/exp", detail=False) if "_x=" in name]
        assert len(trials) == len(values)
        account.rm("results", recursive=True)


def test_a_trial_can_write_beside_its_results_on_a_remote_storage(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))

    def train(config):
        storage = tune.get_context().get_storage()
        remote = as_fsspec(storage.storage_filesystem)
        remote.makedirs(storage.trial_fs_path, exist_ok=True)
        remote.pipe_file(f"{storage.trial_fs_path}/note.txt", b"mine")
        return {"root": storage.storage_fs_path, "experiment": storage.experiment_fs_path}

    account = DirFileSystem(path=str(tmp_path), fs=LocalFileSystem())
    run = RunConfig(name="exp", storage_path="results", storage_filesystem=account, verbose=0)
    (result,) = Tuner(train, run_config=run).fit()
    assert (result.metrics["root"], result.metrics["experiment"]) == ("results", "results/exp")
    assert (tmp_path / result.path / "note.txt").read_text() == "mine"


def test_a_place_that_cannot_be_written_is_said_before_anything_starts(tmp_path):
    (tmp_path / "file").write_text("not a directory")
    tuner = Tuner(make_train(), run_config=RunConfig(name="exp", storage_path=str(tmp_path / "file")))
    with pytest.raises(TuneError, match=r"file/exp\b.*storage_path"):
        tuner.fit()


def test_checkpoints_that_only_the_storage_has_are_used_and_forgotten_ones_deleted_there(
    tmp_path, monkeypatch
):
    """As after a run on nodes that have no directory in common with this machine."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    broken = tmp_path / "broken"
    broken.touch()
    url = f"memory://{tmp_path.name}/apart"
    grid = Tuner(
        make_train(),
        param_space={"index": 1, "broken": str(broken)},
        run_config=RunConfig(
            name="exp", storage_path=url, verbose=0, checkpoint_config=CheckpointConfig(num_to_keep=1)
        ),
    ).fit()
    broken.unlink()
    storage, trial = Storage(f"{url}/exp"), grid[0].path.rpartition("/")[2]
    here = [each for each in (tmp_path / "home").rglob("checkpoint_*") if each.is_dir()]
    assert [each.name for each in here] == ["checkpoint_000001"]
    for name in ("checkpoint_000000", "checkpoint_000007"):  # retention had given it up; nobody heard of it
        storage.upload_dir(here[0], f"{trial}/{name}")
    storage.upload_file(__file__, f"{trial}/unknown")
    shutil.rmtree(here[0])
    grid = Tuner.restore(f"{url}/exp", make_train(), resume_errored=True).fit()
    assert seen(grid) == [(3, 2)]
    names = {name.partition("/")[0] for name in storage.sizes(trial)}
    assert {name for name in names if name.startswith(("checkpoint_", "unk"))} == {
        "checkpoint_000002",
        "unknown",
    }


def test_a_checkpoint_that_nobody_was_told_of_is_not_copied(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    url = f"memory://{tmp_path.name}/unheard"

    def leaves_another(config):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "state").write_text("1")
            tune.report({"step": 1}, checkpoint=tune.Checkpoint.from_directory(directory))
            publish_copy(directory, os.getcwd(), "checkpoint_000001")  # then it dies before it reports
        Path("checkpoint_000002").mkdir()
        Path("checkpoint_000002/own").write_text("of the trial's own")

    run = RunConfig(name="exp", storage_path=url, verbose=0)
    (result,) = Tuner(leaves_another, run_config=run).fit()
    names = {name.partition("/")[0] for name in Storage(f"{url}/exp").sizes(result.path.rpartition("/")[2])}
    assert {name for name in names if name.startswith("checkpoint_")} == {
        "checkpoint_000000",
        "checkpoint_000002",
    }


def test_a_checkpoint_of_a_remote_experiment_is_found_here_or_there(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    place = ExperimentPaths(f"memory://{tmp_path.name}", "exp")
    here = place.directory / "t" / "checkpoint_000000"
    here.mkdir(parents=True)
    assert place.checkpoint(str(here)) == tune.Checkpoint(str(here))
    there = place.checkpoint(str(here.with_name("checkpoint_000001")))
    assert there == tune.Checkpoint(f"memory://{tmp_path.name}/exp/t/checkpoint_000001")
    assert place.checkpoint("/elsewhere/checkpoint_000001") == tune.Checkpoint("/elsewhere/checkpoint_000001")
    of_trial = Trial("f", trial_id="t")
    of_trial.checkpoints = (CheckpointRef(path=str(here.with_name("checkpoint_000001")), index=1),)
    state = SimpleNamespace(index=SimpleNamespace(order=[of_trial]))
    launched = ExperimentOutcome(state=state, place=place, is_interrupted=False, is_uploaded=False)
    (record,) = launched._records()
    assert (record.checkpoint, record.best_checkpoints) == (there, [(there, {})])
