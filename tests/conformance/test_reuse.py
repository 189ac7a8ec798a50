"""Check one process that serves several trials."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.conformance.trainables import ALL_CPUS, Counter, checkpoints, column, fit

from muster import tune
from muster.errors import TuneError
from muster.host.machine import cpu_count
from muster.tune import CheckpointConfig, PlacementGroupFactory, Trainable
from muster.tune.schedulers import FIFOScheduler, TrialScheduler

ONE = {"stop": {"training_iteration": 1}}
TWO = {"stop": {"training_iteration": 2}, "checkpoint_config": CheckpointConfig(checkpoint_at_end=False)}


def grid_of(count):
    return {"i": tune.grid_search(list(range(count)))}


class Late(tune.search.Searcher):
    """Its next suggestion comes only when the last trial has ended."""

    def __init__(self):
        super().__init__(metric="at", mode="max")
        self.made = self.live = 0

    def suggest(self, trial_id):
        if self.live:
            return None
        self.made, self.live = self.made + 1, 1
        return {"i": self.made}

    def on_trial_complete(self, trial_id, result=None, error=False):
        self.live = 0


@pytest.mark.conformance("C-029")
def test_a_trial_that_comes_later_takes_over_the_idle_process(tmp_path):
    grid = fit(Counter, tmp_path, run=ONE, search_alg=Late(), num_samples=3, reuse_actors=True)
    assert (column(grid, "resets"), len(set(column(grid, "process")))) == ([0, 1, 2], 1)


@pytest.mark.conformance("C-050")
def test_without_reuse_nothing_is_reset(tmp_path):
    grid = fit(Counter, tmp_path, grid_of(3), run=ONE, reuse_actors=False)
    assert (column(grid, "resets"), len(set(column(grid, "process")))) == ([0, 0, 0], 3)


class Pauses(FIFOScheduler):
    def on_trial_result(self, tune_controller, trial, result):
        return TrialScheduler.PAUSE


@pytest.mark.conformance("C-051")
def test_four_trials_paused_after_each_step_share_one_process(tmp_path):
    alone = tune.with_resources(Counter, ALL_CPUS)
    grid = fit(alone, tmp_path, grid_of(4), run=TWO, scheduler=Pauses(), reuse_actors=True)
    assert column(grid, "resets") == [4, 5, 6, 7]
    assert (column(grid, "at"), column(grid, "training_iteration")) == ([2] * 4, [2] * 4)


@pytest.mark.conformance("C-052", "C-056")
def test_a_failed_process_is_not_used_again(tmp_path):
    alone = tune.with_resources(Counter, ALL_CPUS)
    space = {
        "i": tune.grid_search([0, 1, 2, 3]),
        "fails": tune.sample_from(lambda config: config["i"] in (0, 1)),
    }
    grid = fit(alone, tmp_path, space, run=TWO, reuse_actors=True)
    assert grid.num_errors == 2
    assert column(grid, "resets") == [0, 0, 0, 1]
    assert len(set(column(grid, "process"))) == 3


class NoReset(Trainable):
    def step(self):
        return {"done": True}


@pytest.mark.conformance("C-053")
@pytest.mark.slow
def test_a_class_that_cannot_be_reset_ends_the_run_with_an_error(tmp_path):
    alone = tune.with_resources(NoReset, ALL_CPUS)
    with pytest.raises(TuneError, match="Trials did not complete") as caught:
        tune.run(alone, config=grid_of(2), reuse_actors=True, name="e", storage_path=str(tmp_path), verbose=0)
    failed = caught.value.args[1]
    assert [trial.status for trial in failed] == ["ERROR"]
    (text,) = [path.read_text() for path in (tmp_path / "e").glob("*/error.txt")]
    assert "NoReset.reset_config did not return True" in text


@pytest.mark.conformance("C-054")
def test_each_log_file_holds_what_its_own_trial_wrote(tmp_path):
    alone = tune.with_resources(Counter, ALL_CPUS)
    grid = fit(alone, tmp_path, grid_of(3), run={**TWO, "log_to_file": True}, reuse_actors=True)
    assert column(grid, "resets") == [0, 1, 2]
    written = [Path(result.path, "stdout").read_text() for result in grid]
    assert written == [f"step 1 of {i}\nstep 2 of {i}\n" for i in range(3)]


def meets(config):
    """Report once, then wait until so many trials have come as can run at once."""
    Path(config["place"], str(os.getpid())).touch()
    tune.report({"process": os.getpid()})
    while len(os.listdir(config["place"])) < config["together"]:
        tune.report({"process": os.getpid()})


@pytest.mark.conformance("C-055")
@pytest.mark.slow
@pytest.mark.skipif(cpu_count() < 2, reason="two trials run at once")
def test_two_processes_serve_four_trials(tmp_path):
    place = tmp_path / "place"
    place.mkdir()
    half = tune.with_resources(meets, {"cpu": cpu_count() / 2})
    space = {**grid_of(4), "place": str(place), "together": 2}
    grid = fit(half, tmp_path, space, reuse_actors=True)
    first, second, *later = column(grid, "process")
    assert first != second
    assert set(later) <= {first, second}


@pytest.mark.conformance("C-057")
def test_six_trials_one_after_the_other(tmp_path):
    grid = fit(Counter, tmp_path, grid_of(6), run=ONE, max_concurrent_trials=1, reuse_actors=True)
    assert column(grid, "resets") == [0, 1, 2, 3, 4, 5]


@pytest.mark.conformance("C-058")
@pytest.mark.slow
def test_processes_are_reused_for_the_resources_they_were_made_with(tmp_path):
    kinds = [[{"CPU": 1}], [{"CPU": 0.5}], [{"CPU": 0.25}, {"CPU": 0.25}]]
    by_number = tune.with_resources(Counter, lambda config: PlacementGroupFactory(kinds[config["i"] % 3]))
    grid = fit(by_number, tmp_path, grid_of(6), run=ONE, max_concurrent_trials=1, reuse_actors=True)
    assert column(grid, "resets") == [0, 0, 0, 1, 1, 1]


@pytest.mark.conformance("C-059")
@pytest.mark.slow
def test_each_trial_keeps_its_own_checkpoints(tmp_path):
    alone = tune.with_resources(Counter, ALL_CPUS)
    run = {"stop": {"training_iteration": 2}, "checkpoint_config": CheckpointConfig(checkpoint_frequency=1)}
    grid = fit(alone, tmp_path, grid_of(3), run=run, reuse_actors=True)
    assert column(grid, "resets") == [0, 1, 2]
    assert [checkpoints(result) for result in grid] == [["checkpoint_000000", "checkpoint_000001"]] * 3
    assert [Path(r.path, "checkpoint_000001", "at.json").read_text() for r in grid] == ["2"] * 3
