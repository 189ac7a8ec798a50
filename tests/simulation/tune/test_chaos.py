"""Run random event sequences with faults, per scheduler: none gets stuck. MUSTER_TUNE_SEEDS=2000: all."""

from __future__ import annotations

import os

import pytest
from tests.series import length
from tests.simulation.tune.chaos import longest_s, random_experiment, run_to_end

from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings, NotInstalled
from muster.sim.tune.experiment import SimulatedExperiment, StuckExperiment
from muster.tune.schedulers import FIFOScheduler

ASKED = os.environ.get("MUSTER_TUNE_SEEDS")  # then every scheduler gets so many
SEEDS = int(ASKED or length(60, 200))
FEWER = {} if ASKED else {"pb2": length(12, 40)}  # it fits a Gaussian process before most of its decisions


def or_skip(name):
    space = random_experiment("fifo", 0).space
    try:
        SCHEDULERS[name].make(CandidateSettings(space=space))
    except (NotInstalled, RuntimeError) as missing:
        pytest.skip(str(missing))


@pytest.mark.slow
@pytest.mark.timeout(600 + SEEDS)
@pytest.mark.parametrize("name", SCHEDULERS)
def test_no_random_sequence_of_events_gets_stuck(name):
    or_skip(name)
    seeds = range(FEWER.get(name, SEEDS))
    assert [told for seed in seeds if (told := run_to_end(name, seed))] == []


def test_a_trial_that_is_copied_is_not_kept_from_its_worker_by_its_copy():
    """One worker: the copy was run first, sent back and run first again, for minutes of thought."""
    or_skip("pb2")
    run = random_experiment("pb2", 718).begin()
    run.run(300)
    assert run.state.is_finished


@pytest.mark.slow
def test_the_seeds_bring_everything_that_can_happen():
    resumed_runs = [random_experiment("asha_promotion", seed).run() for seed in range(120)]
    trials = [trial for run in resumed_runs for trial in run.state.trials.values()]
    assert sum(run.history.failures for run in resumed_runs) > 100
    assert {trial.status for trial in trials} == {"TERMINATED", "ERROR"}
    assert sum(trial.num_failures > 0 and trial.status == "TERMINATED" for trial in trials) > 10
    assert sum(len(trial.checkpoints) > 0 for trial in trials) > 100
    assert {run.experiment.reuse_actors for run in resumed_runs} == {True, False}
    assert any("training_iteration" not in trial.last_result for trial in trials)  # it never reported


class Sleeper(FIFOScheduler):
    """A Sleeper never lets a paused trial resume."""

    def on_trial_result(self, tune_controller, trial, result):
        return self.PAUSE

    def choose_trial_to_run(self, tune_controller):
        trial = super().choose_trial_to_run(tune_controller)
        return None if trial is None or trial.status == "PAUSED" else trial


def test_a_scheduler_that_forgets_a_paused_trial_is_found_out():
    experiment = SimulatedExperiment(
        curve=lambda config, t: {"loss": 1.0},
        space={},
        metric="loss",
        mode="min",
        num_samples=2,
        make_scheduler=Sleeper,
        max_t=3,
    )
    with pytest.raises(StuckExperiment, match=r"Sleeper starts none .*\{'PAUSED': 2\}"):
        experiment.run()


def test_an_experiment_takes_no_longer_than_its_work_can():
    run = random_experiment("fifo", 5).run()
    assert 0.0 < run.clock.monotonic() <= longest_s(run.experiment)
