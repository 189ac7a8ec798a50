"""What a budget and a deadline allow, asked directly; whole runs are in tests/sim/tune/test_budget.py."""

from __future__ import annotations

import re
from math import inf

import pytest

from muster.trials.budget import PRICE_WAIT_S, STOP_S, BudgetGuard
from muster.trials.model import Trial
from muster.trials.spend import SpendBook
from muster.trials.template import SUSPEND_GRACE_S, Limits

RATE = 3.6  # $ per hour: a tenth of a cent each second


class World:
    """A guard with trials whose prices and reports are told by hand."""

    def __init__(self, **limits):
        self.book = SpendBook()
        self.guard = BudgetGuard(Limits(**limits), self.book)
        self.trials = {}

    def start(self, name, at, rate=RATE, stop=None):
        trial = self.trials[name] = self.trials.get(name) or Trial("f", trial_id=name)
        trial.stopping_criterion = {} if stop is None else {"training_iteration": stop}
        self.guard.note_start(trial, at)
        if rate is not None:
            self.book.price(trial, at, rate)
            self.guard.note_price(trial, at, rate)
        return trial

    def report(self, name, at, *, has_checkpoint=False):
        self.guard.note_report(self.trials[name], at, has_checkpoint=has_checkpoint)
        return self.guard.may_continue(self.trials[name], at)

    def end(self, name, at):
        self.book.close(self.trials[name], at)
        self.guard.note_exit(self.trials[name], at, is_over=True)

    def may_start(self, name, at):
        return self.guard.may_start(self.trials.get(name) or Trial("f", trial_id=name), at)


def test_without_any_knowledge_trials_start():
    assert World(cost_budget=0.001).may_start("a", 0.0)


def test_a_trial_starts_only_if_it_can_finish_like_those_before_it():
    world = World(cost_budget=0.1)
    world.start("a", 0.0)
    world.report("a", 10.0)
    world.end("a", 40.0)  # cost 4 cents; 6 are left
    assert world.may_start("b", 40.0)
    world.start("b", 40.0)
    assert not world.may_start("c", 40.0)
    assert world.guard.reason == "budget"


def test_a_trial_goes_on_while_its_next_step_fits_and_leaves_when_it_does_not():
    world = World(cost_budget=0.1)
    world.start("a", 0.0)
    answers = [world.report("a", 10.0 * step) for step in range(1, 10)]
    assert answers == [True] * 8 + [False]  # the tenth would end at the last cent


def test_the_steps_of_the_others_are_counted_too():
    world = World(cost_budget=0.1)
    world.start("a", 0.0)
    world.start("b", 0.0)
    assert world.report("a", 20.0)
    assert world.report("b", 20.0)
    assert not world.report("a", 40.0)  # 8 cents are spent; it would need 2, and the step of b 2 more
    assert world.guard.reason == "budget"


def test_trials_near_their_end_keep_the_money_that_they_need():
    world = World(cost_budget=0.2)
    world.start("usual", 0.0)
    world.report("usual", 10.0)
    world.end("usual", 50.0)  # trials take 50 s
    world.start("near", 60.0)
    world.start("far", 80.0)
    for at in (70.0, 80.0, 90.0):
        assert world.report("near", at)
    assert world.report("far", 90.0)
    world.guard.limits = Limits(cost_budget=0.125)  # 9 cents are spent: 2 are for the rest of `near`
    assert not world.guard.may_continue(world.trials["far"], 90.0)
    assert world.guard.may_continue(world.trials["near"], 90.0)


def test_a_function_leaves_at_a_checkpoint_rather_than_between_two():
    world = World(cost_budget=0.1)
    world.start("a", 0.0)
    for step in range(1, 6):  # a step takes 5 s, every third brings a checkpoint
        assert world.report("a", 5.0 * step, has_checkpoint=step % 3 == 0)
    assert world.report("a", 30.0, has_checkpoint=True)
    for step in range(7, 16):
        assert world.report("a", 5.0 * step, has_checkpoint=step % 3 == 0)
    world.guard.limits = Limits(cost_budget=0.098)
    assert not world.report("a", 90.0, has_checkpoint=True)


def test_saving_takes_its_time_off_what_is_left():
    world = World(deadline=105.0)
    trial = world.start("a", 0.0, rate=None)
    assert world.report("a", 45.0)
    world.guard.note_saved(trial, 55.0)  # it took ten seconds
    assert not world.report("a", 55.0 + 45.0 - 20.0)


def test_everything_stops_a_little_before_the_last_cent():
    world = World(cost_budget=0.1)
    world.start("a", 0.0)
    assert world.guard.wake_at(0.0) == pytest.approx(100.0 - STOP_S, abs=0.01)
    assert [world.guard.is_over(at) for at in (94.9, 95.1)] == [False, True]


def test_a_small_budget_keeps_a_tenth_for_stopping():
    world = World(cost_budget=0.01)
    world.start("a", 0.0)
    assert [world.guard.is_over(at) for at in (8.9, 9.1)] == [False, True]


@pytest.mark.parametrize(
    ("limits", "grace_s"),
    [
        ({"cost_budget": 1.0}, SUSPEND_GRACE_S),
        ({"deadline": 1000.0}, SUSPEND_GRACE_S),
        ({"cost_budget": 0.01}, 0.3),  # ten seconds: one is kept
        ({"deadline": 10.0, "cost_budget": 1.0}, 0.3),
        ({"cost_budget": 1e-6}, 0.25),
    ],
)
def test_the_time_to_stop_fits_into_what_is_kept_for_it(limits, grace_s):
    world = World(**limits)
    world.start("a", 0.0)
    assert world.guard.grace_s(0.0) == pytest.approx(grace_s)


def test_a_deadline_needs_no_price_and_a_budget_without_one_is_never_over():
    late = World(deadline=100.0)
    late.start("a", 0.0, rate=None)
    assert [late.guard.is_over(at) for at in (94.9, 95.1)] == [False, True]
    unpriced = World(cost_budget=0.1)
    unpriced.start("a", 0.0, rate=None)
    assert not unpriced.guard.is_over(1e9)
    assert unpriced.guard.wake_at(0.0) == inf


def test_nothing_starts_that_cannot_finish_before_the_deadline():
    world = World(deadline=100.0)
    world.start("a", 0.0, rate=None)
    world.report("a", 30.0)
    world.end("a", 30.0)
    assert (world.may_start("b", 60.0), world.may_start("b", 66.0)) == (True, False)
    assert world.guard.reason == "deadline"


def test_once_a_trial_had_to_leave_nothing_starts():
    world = World(cost_budget=100.0)
    world.guard.is_closing = True
    assert not world.may_start("a", 0.0)


def test_a_trial_without_a_price_is_named_once_when_there_is_a_budget():
    world = World(cost_budget=1.0)
    trial = world.start("a", 0.0, rate=None)
    world.report("a", 10.0)
    assert world.guard.warning(PRICE_WAIT_S, trial, 1, 1) == ""
    assert {"trial", "a", "price"} <= set(re.findall(r"\w+", world.guard.warning(61.0, trial, 1, 1)))
    assert world.guard.warning(62.0, trial, 1, 1) == ""


def test_a_warning_waits_until_something_is_known():
    world = World(deadline=1000.0)
    trial = world.start("a", 0.0, rate=None, stop=100)
    texts = []
    for step in range(1, 6):
        world.report("a", 34.0 * step)
        texts.append(world.guard.warning(34.0 * step, trial, 120, 2))
    assert [bool(text) for text in texts] == [False, False, True, False, False]
    assert re.findall(r"\d+ \w+", texts[2]) == ["34 s", "120 trials", "2 d", "15 min"]


def test_waiting_for_a_machine_is_no_work():
    """Four trials of two steps were started, one has a machine after 200 s; a step takes 10 s, not 210 s."""
    world = World(deadline=400.0)
    for name in "abcd":
        world.start(name, 0.0, rate=None, stop=2)
    world.guard.note_running(world.trials["a"], 200.0)
    assert world.report("a", 210.0)
    assert world.guard.usual.step_s == 10.0


def test_trials_that_wait_long_for_a_machine_do_not_count_as_workers_in_the_early_warning():
    """Three steps of 100 s are known; three more trials wait for machines that may still come."""
    world = World(deadline=2200.0)
    for name in "abcd":
        world.start(name, 0.0, rate=None, stop=10)
    world.guard.note_running(world.trials["a"], 0.0)
    for at in (100.0, 200.0, 300.0):
        world.report("a", at)
    sample = world.trials["a"]
    assert world.guard.warning(300.0, sample, 4, 4) == ""
    text = world.guard.warning(301.0, sample, 4, 4)
    assert re.findall(r"\d+ \w+", text) == ["2 min", "4 trials", "62 min", "32 min"]
