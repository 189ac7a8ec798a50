"""Read `ray_experiment`, which Ray Tune 2.60 wrote (names of hosts and paths were replaced)."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import pytest

from muster import tune
from muster.errors import RestoreError, StoreError
from muster.tune.analysis.ray_results import convert
from muster.tune.search.optuna import OptunaSearch

WRITTEN = Path(__file__).with_name("ray_experiment")


class Trap:
    """Leaves a file when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return Path.touch, (self.place,)


@pytest.fixture
def rays(tmp_path):
    """Ray's directory, with pickles that must not be opened."""
    place = tmp_path / "rays"
    shutil.copytree(WRITTEN, place)
    trap = pickle.dumps(Trap(tmp_path / "opened"))
    for folder in (place, *place.glob("work_*")):
        for name in ("tuner.pkl", "params.pkl", "error.pkl", "trainable.pkl"):
            (folder / name).write_bytes(trap)
    yield place
    assert not (tmp_path / "opened").exists()


def test_results_checkpoints_and_errors_are_read(rays, tmp_path):
    assert convert(rays, tmp_path / "ours") == 3
    grid = tune.ResultGrid(tune.ExperimentAnalysis(tmp_path / "ours"))
    assert [(each.config["x"], each.config["net"]) for each in grid] == [(x, {"width": 8}) for x in (1, 2, 3)]
    best = grid.get_best_result("loss", "min")
    assert [row["loss"] for row in best.metrics_history] == [1, 0.5, 1 / 3]
    assert [row["loss"] for row in grid[1].metrics_history] == [2, 1, 2 / 3]  # from progress.csv
    assert (Path(best.checkpoint.path) / "state.json").read_text() == '{"i": 3}'
    assert [metrics["loss"] for _, metrics in best.best_checkpoints] == [0.5, 1 / 3]
    assert (grid.num_errors, "ValueError: no data" in str(grid.errors[0])) == (1, True)


def test_a_searcher_starts_from_them(rays, tmp_path):
    convert(rays, tmp_path / "ours")
    made = OptunaSearch({"x": tune.uniform(0, 5)}, metric="loss", mode="min")
    made.add_evaluated_trials(str(tmp_path / "ours"), "loss")
    assert [each.params for each in made._ot_study.get_trials()] == [{"x": 1}, {"x": 2}, {"x": 3}]


def test_without_rays_state_file_the_files_of_the_trials_are_enough(rays, tmp_path):
    next(rays.glob("experiment_state-*")).write_text('{"trial_data": [["{')  # torn by a crash
    convert(rays, tmp_path / "ours")
    trials = tune.ExperimentAnalysis(tmp_path / "ours").trials
    assert [(each.trial_id, each.status, each.evaluated_params) for each in trials] == [
        (f"2c203_0000{x - 1}", "ERROR" if x == 3 else "TERMINATED", {"x": x, "net/width": 8})
        for x in (1, 2, 3)
    ]


def test_damaged_results_leave_nothing_behind(rays, tmp_path):
    next(rays.glob("*00000_0*/result.json")).write_text('{"loss"\n{"loss": 1}\n')
    with pytest.raises(StoreError, match="00000_0"):
        convert(rays, tmp_path / "ours")
    assert not (tmp_path / "ours").exists()


def test_rays_directory_cannot_be_restored_and_says_what_to_do(rays, caplog):
    assert not tune.Tuner.can_restore(rays)
    assert " --experiment" in caplog.text
    for attempt in (lambda: tune.Tuner.restore(rays, print), lambda: tune.ExperimentAnalysis(rays)):
        with pytest.raises((RestoreError, ValueError), match="--experiment"):
            attempt()
