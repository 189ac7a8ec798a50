"""Check what is known of an experiment after it ran, from the objects and from the files."""

from __future__ import annotations

import pickle
import shutil
from pathlib import Path

import numpy
import pytest

from muster import tune
from muster.tune import ExperimentAnalysis, RunConfig, TuneConfig, Tuner


class OwnError(ValueError):
    """A user's exception with more than a text."""

    def __init__(self, code, where):
        super().__init__(code, where)
        self.code, self.where = code, where


def train(config):
    if config["x"] == 3:
        raise OwnError(42, "here")
    for step in (1, 2, 3):
        tune.report(
            {
                "loss": float("nan") if config["x"] == 4 else (config["x"] - step) ** 2 + 0.1,
                "nested": {"deep": {"value": step * 0.1}},
                "flag": step == 2,
                "text": 'a,b\n"c"',
                "array": numpy.arange(3),
                "number": numpy.float32(1.5),
                "nothing": None,
            }
        )


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    place = tmp_path_factory.mktemp("analysis")
    return Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2, 3, 4]), "net": {"width": 8}},
        tune_config=TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="exp", storage_path=str(place), verbose=0),
    ).fit()


@pytest.mark.conformance("C-211")
@pytest.mark.slow
def test_the_best_trial_by_scope(grid):
    analysis = ExperimentAnalysis(grid.experiment_path, default_metric="loss", default_mode="min")
    for scope, best in (("last", 2), ("all", 1), ("avg", 2), ("last-5-avg", 2)):
        assert grid.get_best_result(scope=scope).config["x"] == best, scope
        assert analysis.get_best_trial(scope=scope).config["x"] == best, scope
    assert grid.get_best_result("loss", "max", filter_nan_and_inf=False).config["x"] in (1, 4)
    assert grid.get_best_result("loss", "max").config["x"] == 1


@pytest.mark.conformance("C-212")
def test_tables_of_json_and_csv_are_equal(grid, tmp_path):
    import pandas

    copy = tmp_path / "copy"
    shutil.copytree(grid.experiment_path, copy)
    for file in copy.glob("*/result.json"):
        file.unlink()
    by_json = ExperimentAnalysis(grid.experiment_path).trial_dataframes
    by_csv = ExperimentAnalysis(str(copy)).trial_dataframes
    assert len(by_json) == 4
    assert list(by_json) == list(by_csv)
    for name, frame in by_json.items():
        other = by_csv[name]
        assert sorted(other.columns) == sorted(frame.columns), name  # params.json has its keys in order
        numbers = [column for column in frame.columns if frame[column].dtype.kind in "fi"]
        pandas.testing.assert_frame_equal(frame[numbers], other[numbers], check_dtype=False)
        for column in set(frame.columns) - set(numbers) - {"array", "nothing"}:
            assert list(frame[column]) == list(other[column]), (name, column)


@pytest.mark.conformance("C-212")
def test_missing_files_only_warn(grid, tmp_path, caplog):
    copy = tmp_path / "copy"
    shutil.copytree(grid.experiment_path, copy)
    for file in (*copy.glob("*x=1*/result.json"), *copy.glob("*x=1*/progress.csv")):
        file.unlink()
    frames = ExperimentAnalysis(str(copy)).trial_dataframes
    assert sorted(len(frame) for frame in frames.values()) == [0, 0, 3, 3]
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


@pytest.mark.conformance("C-214")
def test_a_pickled_analysis_is_usable(grid):
    analysis = ExperimentAnalysis(grid.experiment_path, default_metric="loss", default_mode="min")
    again = pickle.loads(pickle.dumps(analysis))
    assert (again.best_config, again.best_result["training_iteration"]) == ({"x": 2, "net": {"width": 8}}, 3)
    assert len(again.dataframe()) == len(analysis.dataframe())


@pytest.mark.conformance("C-215")
def test_the_repr_hides_what_was_filled_in(grid):
    shown = repr(grid[0])
    assert "loss" in shown
    assert not any(name in shown for name in ("hostname", "pid", "node_ip", "time_since_restore"))


@pytest.mark.conformance("C-216")
def test_errors_are_those_that_were_raised_with_all_they_held(grid):
    (error,) = grid.errors
    assert (type(error), error.code, error.where) == (OwnError, 42, "here")
    assert (grid.num_errors, grid.num_terminated, len(grid)) == (1, 3, 4)
    (result,) = [result for result in grid if result.error is not None]
    assert "OwnError" in Path(result.path, "error.txt").read_text()


@pytest.mark.conformance("C-213")
def test_without_a_checkpoint_there_is_none_to_find(grid):
    analysis = ExperimentAnalysis(grid.experiment_path, default_metric="loss", default_mode="min")
    assert (analysis.best_checkpoint, analysis.get_last_checkpoint(), grid[0].checkpoint) == (
        None,
        None,
        None,
    )
