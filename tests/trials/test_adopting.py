"""A trial that continues from a checkpoint of another: what is kept, saved, restored and deleted."""

from __future__ import annotations

from copy import deepcopy

from tests.trials.scripted import First, Stage, steps, trials

from muster.trials.checkpoints import adopt, deletable, register
from muster.trials.controller import TrialController
from muster.trials.events import CheckpointToDelete
from muster.trials.model import CheckpointPolicy, CheckpointRef, Trial
from muster.trials.plugins import CONTINUE, NOOP, PAUSE
from muster.trials.restore import replay, reset_trial, snapshot

OTHERS = CheckpointRef(path="/x/b/checkpoint_000007", index=7, metrics={"score": 1.0, "trial_id": "b"})


def ref(index):
    return CheckpointRef(path=f"/x/a/checkpoint_{index:06d}", index=index)


def test_an_adopted_checkpoint_is_where_the_trial_goes_on_until_it_makes_its_own():
    trial = Trial("f", trial_id="a")
    register(trial, ref(3))
    adopt(trial, OTHERS)
    assert trial.newest == CheckpointRef(path=OTHERS.path, index=7, metrics={"score": 1.0, "trial_id": "a"})
    assert (trial.checkpoints, trial.checkpoint_index) == ((ref(3),), 3)
    assert register(trial, ref(4)) == ()
    assert (trial.newest, trial.adopted) == (ref(4), None)


def test_it_does_not_count_among_those_the_trial_keeps_and_is_never_given_up_by_it():
    trial = Trial("f", trial_id="a", checkpoint_policy=CheckpointPolicy(num_to_keep=1))
    register(trial, ref(3))
    adopt(trial, OTHERS)
    assert register(trial, ref(4)) == (ref(3),)


class Adopting(First):
    """t1 pauses after its second result and continues from what t0 has then."""

    def __init__(self):
        super().__init__(self._judge)
        self.is_done = False

    def _judge(self, trial, result):
        is_time = trial.trial_id == "t1" and result["training_iteration"] == 2 and not self.is_done
        return PAUSE if is_time else CONTINUE

    def choose_trial_to_run(self, tune_controller):
        trial = tune_controller.first_waiting()
        donor = tune_controller.get_trial("t0")
        if trial is not None and trial.trial_id == "t1" and trial.status == "PAUSED" and not self.is_done:
            if donor.newest is None:
                return None
            self.is_done = True
            tune_controller.adopt_checkpoint(trial, donor.newest)
        return trial


def stage():
    policy = CheckpointPolicy(frequency=3, num_to_keep=1)
    return Stage(steps(9), trials(2, checkpoint_policy=policy), scheduler=Adopting())


def test_the_choice_that_adopted_is_made_again_on_a_restore_and_only_that_one():
    original = stage()
    moments = []
    while original.step():
        moments.append((len(original.facts), deepcopy(snapshot(original.state))))
    assert original.scheduler.is_done
    borrowed = 0
    for count, seen in moments:
        again = stage()
        replay(
            again.state,
            None,
            original.facts[:count],
            lambda trial_id, *_: next(t for t in trials(2) if t.trial_id == trial_id),
        )
        assert {**snapshot(again.state), "iteration": 0} == {**seen, "iteration": 0}
        borrowed += any("adopted" in record for record in seen["trials"])
    assert borrowed > 1


def test_a_picture_brings_it_back_and_a_directory_in_use_is_not_deleted():
    original = stage()
    while not original.state.index.borrowed:
        original.step()
    again = stage()
    replay(again.state, snapshot(original.state), [], lambda trial_id, *_: Trial("f", trial_id=trial_id))
    assert again.trial("t1").newest == original.trial("t1").newest
    (path,) = again.state.index.borrowed
    assert path.startswith("/x/t0/")

    class Nothing:
        def append(self, facts):
            pass

    controller = TrialController(again.state, engine=again.engine, store=Nothing(), clock=None)
    again.state.facts.schedule_deletion([CheckpointRef(path=path, index=0)])
    controller._durable = 10_000
    again.trial("t0").checkpoints = ()
    assert controller.take_deletable() == ()
    reset_trial(again.state, again.trial("t1"))
    assert again.trial("t1").checkpoint is None
    assert path in [each.path for each in controller.take_deletable()]
    assert deletable([CheckpointToDelete(ref=OTHERS, after=0)], 0, {OTHERS.path})[0] == ()


def test_a_save_that_the_scheduler_asks_for_comes_before_its_answer():
    class Saving(First):
        def __init__(self, answer):
            super().__init__()
            self.answer = answer

        def on_trial_result(self, tune_controller, trial, result):
            tune_controller._schedule_trial_save(trial)
            return self.answer

    for answer in (CONTINUE, NOOP):
        seen = Stage(steps(3), trials(1), scheduler=Saving(answer)).run()
        kinds = [type(command).__name__ for command in seen.engine.commands]
        assert kinds == ["StartTrial", *["SaveTrial", "ContinueTrial"] * 3]
        assert seen.trial("t0").newest.metrics == {"training_iteration": 3}
