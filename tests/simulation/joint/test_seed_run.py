"""Run seeds of the joint world, and proves that its checks find what they look for."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.series import length
from tests.simulation.__main__ import simulation
from tests.simulation.joint.seed_run import FAULTS, JointSeedRun, wrong_rows
from tests.simulation.run import sweep

from muster.trials.events import TrialReported

# Found: 78 (work of others was held back in the place of trials), 102 (a plan with fewer machines had dearer
# ones than the budget allows, and waited forever), 204 (the same after a failed launch), 3 (a used-up budget
# was not the reason that was given), 700038 and 710971 (a used-up budget ends what may be at work unseen, and
# the checker did not know, or the record gave another reason).
FOUND = (
    *(3, 78, 102, 204, 700_038, 710_971),
    950_013,  # a node whose id had been set right was not moved to the machine that has its ip
    460_000_011,  # a node with a cloned id held a dead machine that lists lacked, although it had another ip
)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_property_of_either_half():
    seeds = sorted({*range(length(8, 300)), *FOUND})
    reports = list(sweep(seeds, jobs=1, kind=JointSeedRun))
    assert {report.replay: report.violations for report in reports if report.violations} == {}
    assert sum(report.machines_launched for report in reports) > 0


def test_two_runs_of_one_seed_are_equal_and_say_how_to_repeat_them():
    one, two = JointSeedRun(110).to_end(), JointSeedRun(110).to_end()
    assert one == two
    assert one.replay.endswith(" --joint")


def rows_of(run):
    return [
        (tuner, store)
        for tuner, store in zip(run.group.tuners, run.stores, strict=True)
        if any(isinstance(fact, TrialReported) for fact in store.facts)
    ]


def test_rows_that_are_lost_doubled_or_wrong_are_found():
    run = JointSeedRun(103)
    run.to_end()
    tuner, store = rows_of(run)[0]
    assert list(wrong_rows(tuner, store, is_jumping=False)) == []
    whole = list(store.facts)
    (first, *_) = [fact for fact in whole if isinstance(fact, TrialReported)]
    store.facts = [*whole[: whole.index(first) + 1], first, *whole[whole.index(first) + 1 :]]
    assert any("reports iteration 1 after 1" in text for text in wrong_rows(tuner, store, is_jumping=False))
    metric = tuner.asked.experiment.metric
    changed = TrialReported(trial_id=first.trial_id, at=first.at, result={**first.result, metric: 1e9})
    store.facts = [changed if fact is first else fact for fact in whole]
    assert any("reports 1000000000.0 at 1" in text for text in wrong_rows(tuner, store, is_jumping=False))
    store.facts = []
    assert any("the best value is" in text for text in wrong_rows(tuner, store, is_jumping=False))


def test_the_faults_of_tuners_have_rates_of_their_own():
    drawn = {kind for seed in range(20) for kind in JointSeedRun(seed).faults.rates}
    assert set(FAULTS) <= drawn


def test_joint_and_another_cloud_is_refused():
    result = CliRunner().invoke(simulation, ["run", "--joint", "--cloud", "ec2", "--seed", "1"])
    assert result.exit_code == 2
    assert "leave out one of the two" in result.output
