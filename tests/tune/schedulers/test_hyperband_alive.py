"""HyperBand, with and without BOHB, in random experiments: none gets stuck, a crash changes nothing."""

import pytest
from tests.series import length
from tests.simulation.tune.crash_matrix import matrix, recorded, resumed_runs
from tests.tune.schedulers.storms import storm

from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.trial import FunctionCurve
from muster.tune.schedulers import HyperBandForBOHB, HyperBandScheduler
from muster.tune.search.space import grid_search

pytestmark = pytest.mark.slow

KINDS = [HyperBandScheduler, HyperBandForBOHB]


def maker(kind, seed):
    parameters = {"max_t": 8, "reduction_factor": 2 + seed % 2, "stop_last_trials": seed % 3 > 0}
    return lambda: kind(**parameters)


@pytest.mark.parametrize("kind", KINDS)
def test_random_experiments_end_by_themselves(kind):
    for seed in range(length(150, 700)):
        asked = storm(maker(kind, seed), seed)
        life = asked.run()  # raises when it is stuck
        trials = life.state.trials.values()
        assert len(trials) == asked.num_samples
        assert {trial.status for trial in trials} <= {"TERMINATED", "ERROR"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", range(5))
def test_restored_at_any_commit_it_decides_as_if_nothing_had_happened(kind, seed):
    commits, told = matrix(storm(maker(kind, seed), seed))
    assert told == []
    assert commits > 1


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("seed", [3, 6])
def test_a_killed_experiment_is_run_to_its_end_by_the_next_driver(kind, seed):
    asked = storm(maker(kind, seed), seed)
    commits = recorded(asked)
    for life in resumed_runs(asked, commits[:: max(1, len(commits) // 20)]):
        trials = life.state.trials.values()
        assert len(trials) == asked.num_samples
        assert {trial.status for trial in trials} <= {"TERMINATED", "ERROR"}


@pytest.mark.parametrize(("kind", "first", "later"), [(HyperBandScheduler, 3, 14), (HyperBandForBOHB, 9, 8)])
def test_a_trial_that_does_not_report_holds_up_its_own_bracket_only(kind, first, later):
    asked = SimulatedExperiment(
        curve=FunctionCurve(
            lambda config, t: {"loss": config["i"] / t},
            seconds=lambda config, t: 1e6 if config["i"] == 0 else 1.0,
        ),
        space={"i": grid_search(list(range(first + later)))},
        metric="loss",
        mode="min",
        num_samples=1,
        make_scheduler=lambda: kind(max_t=9),
        workers=4,
    )
    life = asked.run()
    trials = life.state.index.order
    began = min(trial.start_time for trial in trials)
    assert {trial.status for trial in trials} == {"TERMINATED"}
    assert trials[0].last_result_time - began >= 9e6
    assert max(trial.last_result_time for trial in trials[first:]) - began < 100
