"""ASHA of promotion type: Algorithm 2 of Li et al., and an end for every trial."""

import itertools
import math
import pickle
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mistakes.views import assert_view
from tests.tune.schedulers.fleet import Ended, Failed, Fleet, Search

from muster.trials.model import Trial
from muster.trials.states import TrialState
from muster.tune.schedulers import ASHAScheduler

pytestmark = pytest.mark.slow

NAN = math.nan


def asha(**parameters):
    defaults = {"metric": "score", "mode": "min", "max_t": 9, "reduction_factor": 3, "type": "promotion"}
    return ASHAScheduler(**{**defaults, **parameters})


# Bracket 0 of the paper: r = 1, R = 9, eta = 3, nine configurations; rung 1 gets 1, 6, 8 and rung 2 gets 8.
LOSS_AT_RUNG = {
    1: {1: 0.30, 2: 0.90, 3: 0.80, 4: 0.70, 5: 0.60, 6: 0.20, 7: 0.65, 8: 0.10, 9: 0.95},
    3: {1: 0.28, 6: 0.15, 8: 0.05},
    9: {8: 0.01},
}


def paper_loss(name, time):
    return LOSS_AT_RUNG[time][int(name[1:])] if time in LOSS_AT_RUNG else 0.5


def test_nine_trials_are_promoted_as_in_the_paper():
    fleet = Fleet(asha(), Search(9), paper_loss, workers=1).run()
    jobs = [(name, time) for name, time, _ in fleet.decisions if time in (1, 3, 9)]
    assert jobs == [
        ("t1", 1),
        ("t2", 1),
        ("t3", 1),
        ("t1", 3),  # the best of three
        ("t4", 1),
        ("t5", 1),
        ("t6", 1),
        ("t6", 3),  # among the best two of six
        ("t7", 1),
        ("t8", 1),
        ("t8", 3),  # among the best two of eight
        ("t8", 9),  # the best of three at rung 1
        ("t9", 1),
    ]
    assert [one for one in fleet.decisions if one[1] in (1, 3, 9) and one[2] != "PAUSE"] == [
        ("t6", 1, "CONTINUE"),  # promoted where it stands, without a restart
        ("t8", 1, "CONTINUE"),
        ("t8", 3, "CONTINUE"),
        ("t8", 9, "STOP"),
    ]
    assert fleet.jobs == ["t1@0", "t2@0", "t3@0", "t1@1", "t4@0", "t5@0", "t6@0", "t7@0", "t8@0", "t9@0"]
    assert fleet.statuses() == {f"t{index}": "TERMINATED" for index in range(1, 10)}
    assert fleet.reports == 9 + 3 * 2 + 6
    assert_view("schedulers/asha_promotion", fleet.scheduler.debug_string())


def algorithm_2(losses, eta, rungs):
    """The paper's get_job in its plainest form, one worker: the jobs as (configuration, rung)."""
    seen = [{} for _ in range(rungs)]
    promoted = [set() for _ in range(rungs)]
    new, jobs = iter(range(1, len(losses) + 1)), []
    while True:
        job = next_job(seen, promoted, eta, new)
        if job is None:
            return jobs
        config, rung = job
        jobs.append(job)
        seen[rung][config] = losses[config - 1][rung]


def next_job(seen, promoted, eta, new):
    for rung in reversed(range(len(seen) - 1)):
        ranked = sorted(seen[rung], key=lambda c: (math.isnan(seen[rung][c]), seen[rung][c]))
        for config in ranked[: int(len(ranked) / eta)]:
            if config not in promoted[rung] and not math.isnan(seen[rung][config]):
                promoted[rung].add(config)
                return config, rung + 1
    config = next(new, None)
    return None if config is None else (config, 0)


LOSSES = st.lists(
    st.lists(st.one_of(st.integers(0, 9).map(float), st.just(NAN)), min_size=4, max_size=4),
    min_size=1,
    max_size=20,
)


@given(LOSSES, st.sampled_from([2, 3]), st.integers(2, 4))
def test_one_worker_does_the_jobs_of_algorithm_2_in_its_order(losses, eta, rungs):
    losses = [[0.0 if math.isnan(x) else x for x in row] for row in losses]
    check_against_algorithm_2(losses, eta, rungs)


@pytest.mark.conformance("C-154")
@given(LOSSES, st.sampled_from([2, 3]), st.integers(2, 4))
def test_nan_is_never_promoted_and_counts_as_the_worst(losses, eta, rungs):
    check_against_algorithm_2(losses, eta, rungs)


def check_against_algorithm_2(losses, eta, rungs):
    milestones = [eta**k for k in range(rungs)]

    def curve(name, time):
        return losses[int(name[1:]) - 1][milestones.index(time)] if time in milestones else 0.0

    scheduler = asha(max_t=milestones[-1], reduction_factor=eta)
    fleet = Fleet(scheduler, Search(len(losses)), curve, workers=1).run()
    ours = [
        (int(name[1:]), milestones.index(time)) for name, time, _ in fleet.decisions if time in milestones
    ]
    expected = algorithm_2(losses, eta, rungs)
    assert ours[: len(expected)] == expected
    extra = ours[len(expected) :]
    if any(rung == rungs - 1 for _, rung in expected):
        assert extra == []
    else:  # the best one is brought to the end, rung by rung, each from a higher rung or a later choice
        assert all(rung >= 1 for _, rung in extra)


def test_too_few_trials_for_a_promotion_still_give_one_full_run():
    fleet = Fleet(asha(max_t=9), Search(2), lambda name, time: {"t1": 2.0, "t2": 1.0}[name]).run()
    assert fleet.jobs == ["t1@0", "t2@0", "t2@1", "t2@3"]
    assert fleet.time == {"t1": 1, "t2": 9}


def test_the_best_one_that_fails_on_its_last_way_is_replaced_by_the_next():
    def curve(name, time):
        if name == "t2" and time == 5:
            raise Failed
        return {"t1": 2.0, "t2": 1.0}[name]

    fleet = Fleet(asha(max_t=9), Search(2), curve).run()
    assert fleet.statuses() == {"t1": "TERMINATED", "t2": "ERROR"}
    assert fleet.time == {"t1": 9, "t2": 5}


def test_a_front_runner_that_ends_by_itself_is_enough():
    def curve(name, time):
        if time == 6:
            raise Ended
        return {"t1": 2.0, "t2": 1.0}[name]

    fleet = Fleet(asha(max_t=9), Search(2), curve).run()
    assert fleet.time == {"t1": 1, "t2": 6}


def test_a_limit_on_concurrent_trials_does_not_stop_the_stream():
    fleet = Fleet(asha(), Search(9, limit=2), paper_loss, workers=2).run()
    assert len(fleet.time) == 9
    assert fleet.time["t8"] == 9
    assert set(fleet.statuses().values()) == {"TERMINATED"}


def test_the_highest_rung_is_served_first():
    fleet = Fleet(asha(max_t=9), Search(0), paper_loss, workers=2)
    add_paused(fleet, ["b0", "b1", "b2"], 1, iter([-1, 5, 6]))
    add_paused(fleet, ["a0", "a1", "a2"], 3, iter([1, 2, 3]))
    fleet.time = dict.fromkeys(fleet.index.trials, 0)
    fleet.fill()
    assert fleet.jobs == ["a0@0", "b0@0"]


def add_paused(fleet, names, time, losses):
    for name in names:
        trial = Trial("f", trial_id=name)
        fleet.index.add(trial)
        fleet.scheduler.on_trial_add(fleet.view, trial)
        for hop in (TrialState.STARTING, TrialState.RUNNING):
            fleet.index.move(trial, hop)
        # The first of three cannot know yet that it will be the best.
        fleet.scheduler.on_trial_result(
            fleet.view, trial, {"training_iteration": time, "score": next(losses)}
        )
        trial.intent = TrialState.PAUSED
        fleet.index.move(trial, TrialState.STOPPING)
        fleet.index.move(trial, TrialState.PAUSED)


def test_a_trial_whose_checkpoint_is_still_being_written_does_not_block_the_others():
    fleet = Fleet(asha(max_t=27, reduction_factor=3), Search(0), paper_loss)
    add_paused(fleet, [f"a{i}" for i in range(6)], 1, itertools.count())
    first = fleet.view.get_trial("a0")
    first.state = TrialState.SAVING
    fleet.index.paused.pop("a0")
    assert fleet.scheduler.choose_trial_to_run(fleet.view).trial_id == "a1"
    first.state = TrialState.STOPPING
    assert fleet.scheduler.choose_trial_to_run(fleet.view).trial_id == "a1"
    first.state = TrialState.PAUSED
    assert fleet.scheduler.choose_trial_to_run(fleet.view).trial_id == "a0"


def test_a_promoted_trial_waits_at_its_new_rung_and_no_longer_at_the_old_one():
    fleet = Fleet(asha(max_t=27), Search(0), paper_loss)
    add_paused(fleet, ["a0", "a1", "a2"], 1, iter([0, 1, 2]))
    first = fleet.view.get_trial("a0")
    assert fleet.scheduler.choose_trial_to_run(fleet.view) is first
    for hop in (TrialState.PENDING, TrialState.STARTING, TrialState.RUNNING):
        fleet.index.move(first, hop)
    result = {"training_iteration": 3, "score": 0}
    assert fleet.scheduler.on_trial_result(fleet.view, first, result) == "PAUSE"
    fleet.index.move(first, TrialState.SAVING)
    assert fleet.scheduler.choose_trial_to_run(fleet.view) is None  # its checkpoint is being written
    first.intent = TrialState.PAUSED
    fleet.index.move(first, TrialState.STOPPING)
    fleet.index.move(first, TrialState.PAUSED)
    new = Trial("f", trial_id="new")
    fleet.index.add(new)
    assert fleet.scheduler.choose_trial_to_run(fleet.view) is new
    add_paused(fleet, ["b0", "b1"], 3, iter([5, 6]))
    assert fleet.scheduler.choose_trial_to_run(fleet.view) is first


def test_a_restored_scheduler_remembers_that_one_trial_got_to_the_end():
    fleet = Fleet(asha(), Search(9), paper_loss)
    while fleet.time.get("t8") != 9:
        fleet.step()
    state = fleet.scheduler.save_state()
    fleet.scheduler = asha()
    fleet.scheduler.restore_state(state)
    assert fleet.scheduler.save_state() == state
    assert sorted(fleet.run().time.values()) == [1] * 6 + [3, 3, 9]


def test_a_trial_paused_by_somebody_else_before_its_first_rung_goes_on():
    fleet = Fleet(asha(grace_period=3), Search(1), lambda name, time: 0.0)
    fleet.step()
    trial = fleet.view.get_trial("t1")
    trial.intent = TrialState.PAUSED
    fleet.index.move(trial, TrialState.STOPPING)
    fleet.index.move(trial, TrialState.PAUSED)
    assert fleet.run().statuses() == {"t1": "TERMINATED"}


def test_a_report_that_jumps_over_rungs_counts_in_all_of_them():
    scheduler = asha(max_t=9, mode="max")
    fleet = Fleet(scheduler, Search(0), paper_loss)
    add_paused(fleet, ["a"], 5, iter([1.5]))
    assert scheduler.debug_string().endswith("Iter 9.000: None | Iter 3.000: None | Iter 1.000: None")
    add_paused(fleet, ["b", "c"], 5, iter([0.5, 0.25]))
    assert scheduler.debug_string().endswith("Iter 9.000: None | Iter 3.000: 1.5 | Iter 1.000: 1.5")


def test_max_t_is_the_last_rung_also_when_it_is_no_power():
    lines = asha(max_t=10, reduction_factor=4, brackets=3).debug_string().splitlines()[1:]
    assert [re.findall(r"Iter (\S+): None", line) for line in lines] == [
        ["10.000", "4.000", "1.000"],
        ["10.000", "4.000"],
        ["10.000"],
    ]


CHAOS = {
    "count": st.integers(1, 14),
    "workers": st.integers(1, 4),
    "limit": st.one_of(st.none(), st.integers(1, 4)),
    "retries": st.integers(0, 2),
    "brackets": st.integers(1, 3),
    "stop_last": st.booleans(),
    "save_steps": st.integers(0, 3),
    "fates": st.lists(st.sampled_from(["good", "nan", "fails", "ends", "late"]), min_size=14, max_size=14),
    "scores": st.lists(st.integers(0, 5), min_size=14, max_size=14),
}


def chaotic(count, workers, limit, retries, brackets, stop_last, save_steps, fates, scores):
    def curve(name, time):
        index = int(name[1:]) - 1
        fate = fates[index]
        if fate == "fails" and time == 1 + index % 5:
            raise Failed
        if time > 12 or (fate == "ends" and time == 1 + index % 5):
            raise Ended
        return NAN if fate == "nan" or (fate == "late" and time > 2) else float(scores[index])

    scheduler = asha(max_t=8, reduction_factor=2, brackets=brackets, stop_last_trials=stop_last, seed=1)
    fleet = Fleet(scheduler, Search(count, limit), curve, workers)
    fleet.retries, fleet.save_steps = retries, save_steps
    return fleet


@settings(max_examples=200)
@given(st.fixed_dictionaries(CHAOS))
def test_every_experiment_ends_by_itself_with_failing_trials_and_nan(setting):
    fleet = chaotic(**setting).run(2000)
    assert len(fleet.index.order) == setting["count"]
    assert set(fleet.statuses().values()) <= {"TERMINATED", "ERROR"}


@given(st.fixed_dictionaries(CHAOS), st.integers(0, 40), st.booleans())
def test_a_scheduler_restored_at_any_step_makes_the_same_choices(setting, at, by_pickle):
    steady, moved = chaotic(**setting), chaotic(**setting)
    for step in range(2000):
        if step == at:
            state, old = moved.scheduler.save_state(), moved.scheduler
            moved.scheduler = pickle.loads(pickle.dumps(old)) if by_pickle else ASHAScheduler()
            if not by_pickle:
                moved.scheduler.restore_state(state)
            assert moved.scheduler.save_state() == state
        if not (steady.step() | moved.step()):
            break
        assert moved.jobs == steady.jobs
    assert (moved.jobs, moved.decisions) == (steady.jobs, steady.decisions)
    assert moved.scheduler.save_state() == steady.scheduler.save_state()


def test_promotion_needs_fewer_steps_than_stopping_for_the_same_winner():
    def curve(name, time):
        return float((int(name[1:]) * 37) % 64)

    spent = {}
    for kind in ("stopping", "promotion"):
        fleet = Fleet(asha(max_t=64, reduction_factor=4, type=kind), Search(64), curve, workers=4).run()
        best = min(fleet.time, key=lambda name: (curve(name, 1), name))
        assert fleet.time[best] == 64
        spent[kind] = fleet.reports
    assert spent["promotion"] < spent["stopping"]


@pytest.mark.parametrize("workers", [1, 3])
def test_all_nan_ends_without_promoting_anybody(workers):
    fleet = Fleet(asha(), Search(6), lambda name, time: NAN, workers).run()
    assert set(fleet.time.values()) == {1}
