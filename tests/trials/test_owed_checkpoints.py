"""A driver that ends between a result and the checkpoint due with it: the next one makes it first."""

from __future__ import annotations

from collections import deque

import pytest
from tests.trials.scripted import First, Stage, steps, trials

from muster.trials.events import CheckpointSaved, ExperimentResumed, StartTrial, TrialAdmitted
from muster.trials.model import CheckpointPolicy, TrialPolicies
from muster.trials.plugins import CONTINUE, PAUSE, STOP
from muster.trials.restore import ResumeRules, apply_resume_rules, reset_trial, restore
from muster.trials.states import TrialState
from muster.trials.template import TrialTemplate

POLICY = CheckpointPolicy(frequency=2)
TEMPLATE = TrialTemplate(trainable_name="f", param_space={}, policies=TrialPolicies(checkpoint_policy=POLICY))


def stage(decision=CONTINUE, script=None, **more):
    """A trial that reports four times and saves every second time; `decision` is on its last result."""
    scheduler = First(lambda trial, result: decision if result["training_iteration"] == 4 else CONTINUE)
    scheduler.seen = []
    decide, scheduler._decide = scheduler._decide, lambda *about: noted(scheduler.seen, decide, *about)
    return Stage(
        script or steps(4),
        trials(1, policies=TrialPolicies(checkpoint_policy=POLICY)),
        scheduler=scheduler,
        **more,
    )


def noted(seen, decide, trial, result):
    seen.append(result["training_iteration"])
    return decide(trial, result)


def facts_until_it_saves(decision):
    """Of a run that ends while the checkpoint of the fourth result is being made."""
    killed = stage(decision)
    while killed.scheduler.seen != [1, 2, 3, 4]:
        killed.step()
    return killed.facts


def resumed(decision=CONTINUE, **more):
    again = stage(decision, **more)
    restore(again.state, None, facts_until_it_saves(decision), TEMPLATE.make)
    again.scheduler.seen.clear()
    again.hooks.fired.clear()
    return again


@pytest.mark.parametrize(("decision", "starts"), [(CONTINUE, 1), (STOP, 1), (PAUSE, 2)])
def test_what_was_decided_follows_the_checkpoint_and_nobody_sees_a_result_twice(decision, starts):
    again = resumed(decision).run()
    trial = again.trial("t0")
    assert (trial.status, again.scheduler.seen, trial.num_rows) == ("TERMINATED", [], 4)
    assert sum(isinstance(command, StartTrial) for command in again.engine.commands) == starts
    assert [ref.metrics["training_iteration"] for ref in trial.checkpoints] == [2, 4]
    assert [ref.rows for ref in trial.checkpoints] == [2, 4]


def test_the_rows_after_its_last_checkpoint_are_written_again():
    again = resumed()
    while not again.trial("t0").checkpoints[-1].index:
        again.step()
    written = [hook for hook, *_ in again.hooks.fired if hook in ("on_trial_start", "on_trial_result")]
    assert written == ["on_trial_start", "on_trial_result", "on_trial_result"]
    assert again.trial("t0").metric_n_steps["loss"]["10"] == deque([1, 1 / 2, 1 / 3, 1 / 4])


def test_plug_ins_see_a_trial_that_saves_from_the_first_choice_on():
    again = resumed()
    again.step()
    assert again.trial("t0").is_saving
    assert again.facts == [
        ExperimentResumed(at=again.facts[0].at),
        TrialAdmitted(trial_id="t0", at=again.facts[1].at, repeats=True),
    ]
    (start,) = (command for command in again.engine.commands if isinstance(command, StartTrial))
    assert start.checkpoint.metrics["training_iteration"] == 2


def test_without_room_for_it_the_trial_waits_like_the_others():
    again = resumed(capacity={"CPU": 0.5}, max_pending=0)
    again.state.index.is_bounded = False  # another machine may come
    again.step()
    assert (again.trial("t0").state, again.trial("t0").live.owed) == (TrialState.PENDING, None)


def test_a_trial_that_fails_on_the_way_is_tried_again_in_the_ordinary_way():
    fails = iter([True])

    def script(config, start):
        for step in range(start, 4):
            if step == 3 and next(fails, False):
                yield ValueError("once")
                return
            yield {"loss": 1.0}

    again = resumed(script=script)
    again.trial("t0").max_failures = 1
    again.run()
    assert (again.trial("t0").num_failures, again.scheduler.seen) == (1, [3, 4])
    assert again.statuses == {"t0": "TERMINATED"}


def test_an_experiment_that_ends_on_the_way_ends_the_trial():
    again = resumed()
    again.step()
    again.state.end(again.engine.now)
    again.run(20)
    assert again.statuses == {"t0": "TERMINATED"}
    assert not again.trial("t0").live.repeats


def test_a_trial_that_is_to_begin_anew_owes_nothing():
    again = resumed()
    reset_trial(again.state, again.trial("t0"))
    again.step()
    assert again.trial("t0").state is TrialState.STARTING


def test_a_second_end_on_the_way_changes_nothing():
    first = resumed()
    before = [*facts_until_it_saves(CONTINUE)]
    while first.trial("t0").num_rows != 3:
        first.step()
    second = stage()
    restore(second.state, None, [*before, *first.facts], TEMPLATE.make)
    second.scheduler.seen.clear()
    second.run()
    assert second.scheduler.seen == []
    assert any(isinstance(fact, CheckpointSaved) for fact in second.facts)
    assert [ref.rows for ref in second.trial("t0").checkpoints] == [2, 4]


def test_a_trial_that_is_not_to_go_on_owes_nothing():
    again = resumed()
    apply_resume_rules(again.state, ResumeRules(unfinished="skip"), 0.0)
    assert (again.statuses, again.trial("t0").live.owed) == ({"t0": "TERMINATED"}, None)
