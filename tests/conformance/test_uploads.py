"""Check remote storage that fails or hangs, relative paths and removed variables."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import ClassVar

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from muster import tune
from muster.tune import RunConfig, SyncConfig, Tuner

pytestmark = pytest.mark.slow


class Moody(MemoryFileSystem):
    """The memory file system; while `gate` is closed uploads hang, and names with a part in `broken` fail."""

    protocol = "moody"
    gate = threading.Event()
    broken: ClassVar[set[str]] = set()

    def put_file(self, lpath, rpath, **options):
        type(self).gate.wait()
        if any(part in rpath for part in type(self).broken):
            raise ConnectionError("reset by peer")
        super().put_file(lpath, rpath, **options)


@pytest.fixture
def moody(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # where the files are before they are copied
    Moody.gate.set()
    Moody.broken.clear()
    yield Moody()
    Moody.gate.set()
    Moody.broken.clear()


def train(config):
    Path("made_by_the_trial.txt").write_text("hello")
    Path("kept").mkdir()
    Path("kept", "weights").write_text(str(config["x"]))
    tune.report({"score": config["x"]}, checkpoint=tune.Checkpoint.from_directory("kept"))


def tuner(tmp_path, filesystem, **sync):
    return Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=RunConfig(
            name="exp",
            storage_path=f"/{tmp_path.name}",
            storage_filesystem=filesystem,
            sync_config=SyncConfig(**sync),
            verbose=0,
        ),
    )


def stored(tmp_path):
    place = f"/{tmp_path.name}/exp/"
    return {name.removeprefix(place) for name in Moody().find(place)}


def errors(caplog):
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR]


@pytest.mark.conformance("C-247")
def test_a_storage_that_hangs_costs_no_more_than_the_timeout(tmp_path, moody, caplog, capsys, monkeypatch):
    monkeypatch.setattr("muster.tune.execution.upload.SOON_S", 0.1)
    Moody.gate.clear()
    asked = tuner(tmp_path, moody, sync_timeout=0.5)
    asked._spec.run.verbose = 1
    grid = asked.fit()  # it never returns when it waits for the storage
    assert f"Copying the results to /{tmp_path.name}/exp, for 0.5 s at most." in capsys.readouterr().out
    assert [result.metrics["score"] for result in grid] == [1, 2]
    assert [Path(result.checkpoint.path, "weights").read_text() for result in grid] == ["1", "2"]
    (told,) = errors(caplog)
    assert told.startswith(f"not everything was copied to /{tmp_path.name}/exp within 0.5 s: ")
    assert "checkpoint_000000/weights" in told
    assert "SyncConfig(sync_timeout=...)" in told

    Moody.gate.set()
    Tuner.restore(f"/{tmp_path.name}/exp", train, storage_filesystem=moody).fit()
    kept = {name for name in stored(tmp_path) if name.endswith("checkpoint_000000/weights")}
    assert len(kept) == 2


@pytest.mark.conformance("C-247")
def test_a_failed_upload_is_logged_by_its_name_with_the_reason(tmp_path, moody, caplog):
    Moody.broken.add("weights")
    grid = tuner(tmp_path, moody, sync_timeout=3).fit()
    assert grid.num_errors == 0
    (told,) = errors(caplog)
    assert "4 files" in told  # and the manifests, which go last
    assert "checkpoint_000000/weights" in told
    assert "ConnectionError: reset by peer" in told
    assert "result.json" not in told


@pytest.mark.conformance("C-247")
def test_a_storage_that_recovers_gets_everything(tmp_path, moody, caplog):
    Moody.broken.add("weights")
    threading.Timer(1.0, Moody.broken.clear).start()
    grid = tuner(tmp_path, moody, sync_timeout=60).fit()
    assert errors(caplog) == []
    names = {name.partition("/")[2] for name in stored(tmp_path) if name.startswith("train_")}
    assert {"result.json", "progress.csv", "params.json", "checkpoint_000000/weights"} <= names
    assert [result.metrics["score"] for result in grid] == [1, 2]


@pytest.mark.conformance("C-247")
def test_a_file_system_is_not_written_down_with_its_password(tmp_path, moody):
    secret = Moody(token="open sesame")
    tuner(tmp_path, secret).fit()
    saved = moody.cat_file(f"/{tmp_path.name}/exp/tuner.pkl")
    assert b"open sesame" not in saved
    again = Tuner.restore(f"/{tmp_path.name}/exp", train, storage_filesystem=secret).fit()
    assert [result.metrics["score"] for result in again] == [1, 2]


@pytest.mark.conformance("C-247")
@pytest.mark.parametrize("wanted", [True, False])
def test_files_of_trials_are_copied_when_that_is_asked_for(tmp_path, moody, wanted):
    tuner(tmp_path, moody, sync_artifacts=wanted).fit()
    names = {name.partition("/")[2] for name in stored(tmp_path)}
    assert ("made_by_the_trial.txt" in names) is wanted


@pytest.mark.conformance("C-248")
def test_a_relative_storage_path_counts_from_where_the_driver_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(name):
        return Tuner(
            train, param_space={"x": 3}, run_config=RunConfig(name=name, storage_path="./results", verbose=0)
        )

    made = run("exp")
    grid = made.fit()
    place = tmp_path / "results" / "exp"
    assert (Path(grid[0].path).parent, Path(grid[0].path, "made_by_the_trial.txt").exists()) == (place, True)
    assert Path(grid[0].checkpoint.path, "weights").read_text() == "3"
    assert sorted(os.listdir(tmp_path)) == ["results"]
    for path in ("results/exp", "./results/exp/", place, f"file://{place}"):
        assert Tuner.can_restore(path), path
        assert [result.metrics["score"] for result in Tuner.restore(path, train).get_results()] == [3], path
        assert len(tune.ExperimentAnalysis(path).trials) == 1, path
    monkeypatch.chdir(place)
    for path in (".", "../exp"):
        assert Tuner.can_restore(path), path
        restored = Tuner.restore(path, train)
        again = restored.fit()
        assert ([r.metrics["score"] for r in again], again.experiment_path) == ([3], str(place)), path
        assert restored._spec.run.name == "exp"
    monkeypatch.chdir(tmp_path)
    analysis = tune.run(train, config={"x": 4}, name="run", storage_path="results", verbose=0)
    assert Path(analysis.experiment_path) == tmp_path / "results" / "run"


@pytest.mark.conformance("C-248")
def test_the_driver_may_go_elsewhere_between_two_calls(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    made = Tuner(
        train, param_space={"x": 3}, run_config=RunConfig(name="exp", storage_path="results", verbose=0)
    )
    grid = made.fit()
    restored = Tuner.restore("results/exp", train)
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert made.get_results()[0].metrics["score"] == 3
    assert restored.fit().experiment_path == grid.experiment_path == str(tmp_path / "results" / "exp")
    assert os.listdir(".") == []


@pytest.mark.conformance("C-249")
@pytest.mark.parametrize("variable", ["TUNE_RESULT_DIR", "RAY_AIR_LOCAL_CACHE_DIR"])
def test_removed_variables_are_refused_before_anything_runs(tmp_path, monkeypatch, variable):
    monkeypatch.setenv(variable, str(tmp_path / "old"))
    run = RunConfig(name="exp", storage_path=str(tmp_path), verbose=0)
    experiment = tune.Experiment("exp", train, storage_path=str(tmp_path))
    for attempt in (
        lambda: Tuner(train, run_config=run).fit(),
        lambda: tune.run(train, storage_path=str(tmp_path), verbose=0),
        lambda: tune.run(experiment, verbose=0),
        lambda: tune.run_experiments(experiment, verbose=0),
    ):
        with pytest.raises(DeprecationWarning, match=f"{variable}.*storage_path"):
            attempt()
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} == {".pkl"}  # of the Tuner


@pytest.mark.conformance("C-249")
def test_local_dir_is_refused(tmp_path):
    with pytest.raises(DeprecationWarning, match="storage_path"):
        RunConfig(local_dir=str(tmp_path))
    with pytest.raises(DeprecationWarning, match="storage_path"):
        tune.run(train, local_dir=str(tmp_path))
