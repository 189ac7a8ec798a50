"""Check experiments that are interrupted and resumed."""

from __future__ import annotations

import os
import signal

import pytest
from tests.conformance.trainables import ALL_CPUS, Counter, Interrupts, checkpoints, column, fit, resumed

from muster import tune
from muster.stores.experiment.reader import open_trials
from muster.tune import Callback, CheckpointConfig


@pytest.mark.conformance("C-005")
def test_the_last_two_checkpoints_remain_also_after_a_resume(tmp_path):
    run = {
        "stop": {"training_iteration": 5},
        "checkpoint_config": CheckpointConfig(num_to_keep=2, checkpoint_frequency=1),
        "callbacks": [Interrupts(3)],
    }
    (result,) = fit(Counter, tmp_path, run=run)
    assert result.metrics["training_iteration"] == 3
    (result,) = resumed(tmp_path, Counter).fit()
    assert (result.metrics["training_iteration"], result.metrics["at"]) == (5, 5)
    assert [metrics["at"] for _, metrics in result.best_checkpoints] == [4, 5]
    assert checkpoints(result) == ["checkpoint_000003", "checkpoint_000004"]


def fails_if_told(config):
    tune.report({"step": 1})
    if config["fails"] and not os.path.exists(config["repaired"]):
        raise RuntimeError("on purpose")
    tune.report({"step": 2})


def failing(tmp_path):
    space = {"fails": tune.grid_search([False, True]), "repaired": str(tmp_path / "repaired")}
    grid = fit(fails_if_told, tmp_path, space)
    assert (column(grid, "step"), grid.num_errors) == ([2, 1], 1)
    (tmp_path / "repaired").touch()


@pytest.mark.conformance("C-020")
@pytest.mark.slow
def test_an_errored_trial_stays_or_is_run_again(tmp_path):
    failing(tmp_path)
    skipped = resumed(tmp_path, fails_if_told).fit()
    assert (skipped.num_errors, column(skipped, "step")) == (1, [2, 1])
    again = resumed(tmp_path, fails_if_told, resume_errored=True).fit()
    assert (again.num_errors, column(again, "step")) == (0, [2, 2])


class InterruptsThird(Callback):
    """Ends the run when the third trial has reported once."""

    def on_trial_result(self, iteration, trials, trial, result, **info):
        if trial.config["i"] == 2:
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.mark.conformance("C-021", "C-022")
def test_only_the_trial_that_ran_runs_again_and_all_are_known(tmp_path):
    def train(config):
        tune.report({"step": 1})
        if config["i"] == 1:
            raise RuntimeError("on purpose")
        tune.report({"step": 2})

    space = {"i": tune.grid_search([0, 1, 2])}
    trainable = tune.with_resources(train, ALL_CPUS)
    fit(trainable, tmp_path, space, run={"callbacks": [InterruptsThird()]}, max_concurrent_trials=1)
    with open_trials(tmp_path / "e") as reader:
        before = [(trial.status, trial.result["training_iteration"]) for trial in reader.trials()]
    assert before == [("TERMINATED", 2), ("ERROR", 1), ("RUNNING", 1)]
    grid = resumed(tmp_path, trainable).fit()
    assert [(result.metrics["step"], result.error is None) for result in grid] == [
        (2, True),
        (1, False),
        (2, True),
    ]
    rows = [[row["step"] for row in result.metrics_history] for result in grid]
    assert rows == [[1, 2], [1], [1, 2]]  # it had no checkpoint: its first row was replaced


class Net:
    """A Net cannot be compared; `made` is the run that made it."""

    def __init__(self, name, made):
        self.name, self.made = name, made


def space_made(run):
    return {
        "fixed": {"net": Net("fixed", run), "depth": 2},
        "option": tune.grid_search([Net("a", run), Net("b", run)]),
        "drawn": {"layers": tune.choice([Net("c", run), Net("d", run), 7])},
        "wrapped": tune.choice([{"net": Net("e", run), "width": 1}, {"net": Net("f", run), "width": 2}]),
        "derived": tune.sample_from(lambda config: Net(config["option"].name * 2, run)),
        "number": tune.sample_from(lambda config: 0.5),
        "rate": tune.uniform(0, 1),
    }


def described(config):
    """Return names of objects with the run that made them, and everything else as it is."""
    if isinstance(config, dict):
        return {key: described(value) for key, value in config.items()}
    return (config.name, config.made) if hasattr(config, "made") else config


def made_by(config, run):
    """The same, had this run made all of its objects."""
    if isinstance(config, dict):
        return {key: made_by(value, run) for key, value in config.items()}
    return (config[0], run) if isinstance(config, tuple) else config


def says_config(config):
    tune.report({"seen": described(config)})
    tune.report({"seen": described(config)})


@pytest.mark.conformance("C-019")
def test_old_trials_get_the_new_objects_of_the_same_space(tmp_path, caplog):
    run = {"callbacks": [Interrupts(1)]}
    settings = {"num_samples": 4, "max_concurrent_trials": 2}
    before = fit(says_config, tmp_path, space_made(1), run=run, **settings)
    assert 0 < len(before) <= 8 and before.num_terminated < 8
    grid = resumed(tmp_path, says_config, param_space=space_made(2)).fit()
    assert (len(grid), grid.num_errors) == (8, 0)
    known = {result.metrics["trial_id"]: described(result.config) for result in before}
    for result in grid:
        config = described(result.config)
        assert config == made_by(config, 2)
        if result.metrics["trial_id"] in known:
            assert config == made_by(known[result.metrics["trial_id"]], 2)
    again = [result.metrics["seen"] for result in grid if result.metrics["trial_id"] not in known]
    assert again == [made_by(seen, 2) for seen in again]
    assert "does not repeat itself" not in caplog.text
