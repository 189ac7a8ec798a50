"""Trials that grow and shrink, in random experiments: none stuck, no step lost, a crash changes nothing."""

from dataclasses import replace

import pytest
from tests.series import length
from tests.simulation.tune.crash_matrix import matrix, recorded, resumed_runs
from tests.simulation.tune.faults import FaultRates
from tests.tune.schedulers.elastic import BASES, JUMPS, Watched, elastic

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("base", BASES)
def test_random_experiments_end_and_lose_no_step_but_a_first_one_without_checkpoint(base):
    changes = 0
    for seed in range(length(30, 220)):
        asked = elastic(seed, base)
        watched = Watched(asked).run()
        state = watched.life.state
        assert len(state.trials) == asked.num_samples
        assert {trial.status for trial in state.trials.values()} == {"TERMINATED"}
        for trial_id, steps in watched.iterations.items():
            while steps[:2] == [1, 1]:
                del steps[0]
            assert base in JUMPS or steps == list(range(1, len(steps) + 1)), (
                f"seed {seed}, {trial_id}: {steps}"
            )
        changes += watched.changes
    assert changes > length(12, 100)


@pytest.mark.parametrize("base", BASES)
def test_random_experiments_with_faults_end(base):
    for seed in range(length(15, 70)):
        asked = elastic(seed, base, faults=FaultRates.swarm(seed, hour_s=30.0))
        watched = Watched(asked).run()
        trials = watched.life.state.trials.values()
        assert len(trials) == asked.num_samples
        assert {trial.status for trial in trials} <= {"TERMINATED", "ERROR"}


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("seed", range(length(2, 6)))
def test_restored_at_any_commit_it_decides_as_if_nothing_had_happened(base, seed):
    commits, told = matrix(elastic(seed, base, faults=FaultRates.swarm(seed, hour_s=40.0)))
    assert told == []
    assert commits > 1


@pytest.mark.parametrize("base", BASES)
def test_a_killed_experiment_is_run_to_its_end_by_the_next_driver(base):
    for seed in (1, 4):
        asked = elastic(seed, base)
        commits = recorded(asked)
        for life in resumed_runs(asked, commits[:: max(1, len(commits) // 12)]):
            assert {trial.status for trial in life.state.trials.values()} == {"TERMINATED"}
            assert len(life.state.trials) == asked.num_samples


@pytest.mark.parametrize("workers", [1, 12])
def test_it_goes_on_where_there_is_less_or_more_room_than_before(workers):
    for seed, base in enumerate([*BASES] * length(1, 3)):
        asked = elastic(seed, base)
        commits = recorded(asked)
        elsewhere = replace(asked, workers=workers)
        for life in resumed_runs(elsewhere, commits[:: max(1, len(commits) // 5)]):
            assert {trial.status for trial in life.state.trials.values()} == {"TERMINATED"}
