"""Check how runs end, what they must report, and how many trials run at once."""

from __future__ import annotations

import math
import time
from datetime import timedelta
from pathlib import Path

import pytest
from tests.conformance.trainables import Counter, Wants, column, fit, nested_steps, report_steps

from muster import tune
from muster.errors import TuneError
from muster.host.machine import cpu_count
from muster.tune import Callback, Stopper
from muster.tune.experiment.trial import ExportFormat
from muster.tune.schedulers import FIFOScheduler
from muster.tune.search import BasicVariantGenerator, ConcurrencyLimiter

pytestmark = pytest.mark.slow


@pytest.mark.conformance("C-080")
def test_a_nested_key_ends_a_trial(tmp_path):
    grid = fit(nested_steps, tmp_path, run={"stop": {"a/b/c": 2}})
    assert column(grid, "step") == [2]


class Judge:
    def ends(self, trial_id, result):
        return result["step"] >= 3


@pytest.mark.conformance("C-081")
@pytest.mark.parametrize("stop", [lambda trial_id, result: result["step"] >= 3, Judge().ends])
def test_functions_and_methods_end_trials(tmp_path, stop):
    assert column(fit(report_steps, tmp_path, {"steps": 50}, run={"stop": stop}), "step") == [3]


@pytest.mark.conformance("C-081")
def test_a_stop_function_of_one_argument_is_an_error(tmp_path):
    with pytest.raises(TuneError, match="trial_id"):
        fit(report_steps, tmp_path, {"steps": 2}, run={"stop": lambda result: True})


class AtOnce(Stopper):
    def __call__(self, trial_id, result):
        return False

    def stop_all(self):
        return True


def late_report(config):
    time.sleep(0.5)  # the stopper is asked after the first trials have started
    tune.report({"step": 1})


@pytest.mark.conformance("C-082")
def test_a_stopper_may_end_everything_before_any_result(tmp_path):
    grid = fit(late_report, tmp_path, run={"stop": AtOnce()}, num_samples=3)
    assert (grid.num_errors, grid.num_terminated) == (0, len(grid))
    assert all("step" not in result.metrics for result in grid)


def endless(config):
    while True:
        time.sleep(0.01)
        tune.report({"x": 1})


@pytest.mark.conformance("C-083")
@pytest.mark.parametrize("budget", [0.4, timedelta(seconds=0.4)])
def test_a_budget_ends_the_run(tmp_path, budget):
    grid = fit(endless, tmp_path, time_budget_s=budget)
    assert (grid.num_terminated, grid.num_errors) == (1, 0)


class Ends(Callback):
    """How many trials had not begun when the experiment ended."""

    waiting = -1

    def on_experiment_end(self, trials, **info):
        self.waiting = sum(trial.start_time is None for trial in trials)


@pytest.mark.conformance("C-084")
def test_samples_without_end_end_with_the_budget(tmp_path, monkeypatch):
    monkeypatch.setenv("TUNE_MAX_PENDING_TRIALS_PG", "1")
    ends_ = Ends()
    grid = fit(report_steps, tmp_path, run={"callbacks": [ends_]}, num_samples=-1, time_budget_s=0.6)
    assert grid.num_terminated == len(grid)
    assert 0 <= ends_.waiting <= 1 + cpu_count()  # one in the queue, and those whose process was coming up


@pytest.mark.conformance("C-085")
def test_infinity_is_a_metric(tmp_path):
    def train(config):
        tune.report({"score": math.inf})
        tune.report({"score": -math.inf if config["x"] else math.inf})

    grid = fit(train, tmp_path, {"x": tune.grid_search([0, 1])}, metric="score", mode="max")
    assert column(grid, "score") == [math.inf, -math.inf]
    assert grid.get_best_result(filter_nan_and_inf=False).config["x"] == 0


class Watches(Callback):
    """The most trials that were unfinished at once, and who decided."""

    def __init__(self):
        self.most = 0

    def on_step_end(self, iteration, trials, **info):
        self.most = max(self.most, sum(not trial.is_finished() for trial in trials))


@pytest.mark.conformance("C-100")
@pytest.mark.parametrize("search", [None, BasicVariantGenerator(), Wants()])
def test_no_more_trials_at_once_than_asked_for(tmp_path, monkeypatch, search):
    monkeypatch.setenv("TUNE_DISABLE_STRICT_METRIC_CHECKING", "1")
    watches = Watches()
    run = {"callbacks": [watches], "stop": {"training_iteration": 2}}
    grid = fit(Counter, tmp_path, run=run, search_alg=search, num_samples=5, max_concurrent_trials=2)
    assert (len(grid), watches.most) == (5, 2)


@pytest.mark.conformance("C-100")
def test_two_limits_that_differ_are_refused(tmp_path):
    limited = ConcurrencyLimiter(Wants(), max_concurrent=3)
    with pytest.raises(ValueError, match=r"max_concurrent_trials=2.*max_concurrent=3"):
        fit(Counter, tmp_path, search_alg=limited, max_concurrent_trials=2)


class Exports(Counter):
    def _export_model(self, export_formats, export_dir):
        Path(export_dir, "model.txt").write_text(f"{export_formats} after {self.at}")
        return dict.fromkeys(export_formats, str(Path(export_dir, "model.txt")))


@pytest.mark.conformance("C-097")
def test_models_of_trials_that_ended_well_are_in_their_directories(tmp_path):
    told = {"name": "e", "storage_path": str(tmp_path), "verbose": 0, "raise_on_failed_trial": False}
    space = {"fails": tune.grid_search([False, True])}
    found = tune.run(Exports, config=space, stop={"at": 3}, export_formats=["model", "h5"], **told)
    assert [trial.status for trial in found.trials] == ["TERMINATED", "ERROR"]
    written = {path.parent.name: path.read_text() for path in tmp_path.glob("e/*/model.txt")}
    assert written == {Path(found.trials[0].path).name: "['model', 'h5'] after 3"}
    # What a class that knows only the usual formats asks before it exports:
    with pytest.raises(TuneError, match="fake"):
        ExportFormat.validate(["model", "fake"])


class Clumsy(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return result["no such key"]


def judges_badly(trial_id, result):
    return result["no such key"]


@pytest.mark.parametrize(
    ("run", "config", "who"),
    [
        ({}, {"scheduler": Clumsy()}, "Clumsy.on_trial_result"),
        ({"stop": judges_badly}, {}, "FunctionStopper.__call__"),
    ],
)
def test_a_slip_in_a_scheduler_or_stopper_is_an_error_that_names_it(tmp_path, run, config, who):
    with pytest.raises(TuneError, match=f"{who}.*KeyError"):
        fit(report_steps, tmp_path, run=run, **config)
