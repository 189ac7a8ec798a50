"""Callbacks: who is called, with what, in which order, and what happens when one fails."""

from __future__ import annotations

import threading
import warnings

import pytest

from muster.errors import TuneError
from muster.session.checkpoint import Checkpoint
from muster.trials.model import CheckpointRef, Trial
from muster.tune.callback import RAY_HOOKS, Callback, CallbackList


class Recorder(Callback):
    def __init__(self, name="r", seen=None):
        self.name, self.seen = name, [] if seen is None else seen

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        self.seen.append((self.name, "setup", stop, num_samples, total_num_samples, info))

    def __getattribute__(self, hook):
        if hook in RAY_HOOKS and hook.startswith("on_"):
            return lambda **info: self.seen.append((self.name, hook, info))
        return super().__getattribute__(hook)


def trial(**more):
    return Trial("f", trial_id="t1", **more)


def test_callbacks_are_called_in_order_with_keywords_and_may_change_the_result():
    seen = []

    class Adds(Callback):
        def on_trial_result(self, iteration, trials, trial, result):
            result["added"] = iteration

    the_trial, result = trial(), {"loss": 1}
    hooks = CallbackList([Recorder("a", seen), Adds(), Recorder("b", seen)])
    hooks.fire("on_trial_result", iteration=3, trials=[the_trial], trial=the_trial, result=result)
    expected = {"iteration": 3, "trials": [the_trial], "trial": the_trial, "result": {"loss": 1, "added": 3}}
    assert seen == [("a", "on_trial_result", expected), ("b", "on_trial_result", expected)]


def test_every_hook_of_ray_reaches_a_callback_and_the_end_has_no_iteration():
    recorder = Recorder()
    hooks = CallbackList([recorder])
    names = [name for name in RAY_HOOKS if name.startswith("on_")]
    for name in names:
        info = {"checkpoint": CheckpointRef(path="/c", index=0)} if name == "on_checkpoint" else {}
        hooks.fire(name, iteration=1, trials=[], trial=trial(), **info)
    assert [hook for _, hook, _ in recorder.seen] == names
    assert [hook for _, hook, info in recorder.seen if "iteration" not in info] == ["on_experiment_end"]


def test_a_checkpoint_is_given_as_the_object_users_know():
    recorder = Recorder()
    ref = CheckpointRef(path="/exp/t/checkpoint_000000", index=0)
    CallbackList([recorder]).fire("on_checkpoint", iteration=0, trials=[], trial=trial(), checkpoint=ref)
    given = recorder.seen[0][2]["checkpoint"]
    assert (type(given), given.path) == (Checkpoint, "/exp/t/checkpoint_000000")


def test_a_start_from_a_checkpoint_is_followed_by_a_restore():
    recorder = Recorder()
    restored = trial(checkpoints=(CheckpointRef(path="/c", index=0),))
    hooks = CallbackList([recorder])
    hooks.fire("on_trial_start", iteration=0, trials=[], trial=trial())
    hooks.fire("on_trial_start", iteration=1, trials=[], trial=restored)
    assert [(hook, info["iteration"]) for _, hook, info in recorder.seen] == [
        ("on_trial_start", 0),
        ("on_trial_start", 1),
        ("on_trial_restore", 1),
    ]


def test_a_callback_that_only_restores_is_told():
    class Restores(Callback):
        seen = 0

        def on_trial_restore(self, iteration, trials, trial, **info):
            self.seen += 1

    callback = Restores()
    restored = trial(checkpoints=(CheckpointRef(path="/c", index=0),))
    CallbackList([callback]).fire("on_trial_start", iteration=1, trials=[], trial=restored)
    assert callback.seen == 1


def test_objects_with_some_hooks_will_do():
    class Duck:
        seen = 0

        def on_step_end(self, iteration, trials, **info):
            self.seen += 1

    duck = Duck()
    hooks = CallbackList([duck])
    hooks.fire("on_step_begin", iteration=0, trials=[])
    hooks.fire("on_step_end", iteration=0, trials=[])
    assert (duck.seen, hooks.get_state()) == (1, None)


def test_a_failing_callback_is_named_with_its_hook_and_cause():
    class Bad(Callback):
        def on_trial_complete(self, iteration, trials, trial, **info):
            raise KeyError("loss")

    with pytest.raises(TuneError, match=r"Bad\.on_trial_complete.*KeyError.*loss") as caught:
        CallbackList([Bad()]).fire("on_trial_complete", iteration=0, trials=[], trial=trial())
    assert isinstance(caught.value.__cause__, KeyError)


def test_setup_gets_rays_arguments():
    recorder = Recorder()
    CallbackList([recorder]).setup(stop={"a": 1}, num_samples=2, total_num_samples=4, time_budget_s=9)
    assert recorder.seen == [("r", "setup", {"a": 1}, 2, 4, {"time_budget_s": 9})]


def test_an_old_setup_is_called_without_arguments_and_warned_about():
    class Old(Callback):
        called = 0

        def setup(self):
            self.called += 1

    old = Old()
    with pytest.warns(FutureWarning, match="Old.setup"):
        CallbackList([old]).setup(stop=None, num_samples=1, total_num_samples=1, time_budget_s=None)
    assert old.called == 1


def test_a_type_error_inside_setup_is_not_mistaken_for_an_old_signature():
    class Broken(Callback):
        def setup(self, **info):
            raise TypeError("inside")

    with warnings.catch_warnings(), pytest.raises(TuneError, match="TypeError"):
        warnings.simplefilter("error")
        CallbackList([Broken()]).setup(stop=None)


class Stateful(Callback):
    def __init__(self, value=None):
        self.value = value

    def get_state(self):
        return None if self.value is None else {"value": self.value}

    def set_state(self, state):
        self.value = state["value"]


@pytest.mark.conformance("C-203")
def test_state_is_kept_by_position_and_only_where_there_is_some():
    saved = CallbackList([Callback(), Stateful(1), Stateful(), Stateful(3)])
    assert saved.get_state() == {1: {"value": 1}, 3: {"value": 3}}
    fresh = [Callback(), Stateful(), Stateful(), Stateful()]
    CallbackList(fresh).restore_state(saved.save_state())
    assert [c.value for c in fresh[1:]] == [1, None, 3]


@pytest.mark.conformance("C-203")
def test_without_state_nothing_is_saved_and_restoring_says_so():
    hooks = CallbackList([Callback(), Stateful()])
    assert hooks.save_state() is None
    with pytest.raises(RuntimeError, match="callback"):
        hooks.restore_state(hooks.save_state())


def test_a_state_that_cannot_be_pickled_names_the_callback():
    with pytest.raises(TuneError, match=r"\bStateful\b.*_thread\.lock"):
        CallbackList([Stateful(threading.Lock())]).save_state()


def test_a_container_must_pass_on_every_hook():
    with pytest.raises(TypeError, match="on_step_begin"):

        class Half(Callback):
            IS_CALLBACK_CONTAINER = True

            def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
                pass
