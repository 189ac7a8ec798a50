"""The whole of it on this machine: processes, a store, ASHA, and a driver that stops and goes on."""

from __future__ import annotations

import threading

import cloudpickle
import pytest
from tests.trials.scripted import Noted

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.controller import TrialController
from muster.trials.experiment import ExperimentState
from muster.trials.plugins import Plugins
from muster.trials.template import Settings, TrialTemplate
from muster.tune.execution.saver import ExperimentSaver
from muster.tune.schedulers import ASHAScheduler
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.search.space import uniform


def make_train():
    def train(config):
        from muster.session.report import report

        for step in range(9):
            report({"score": config["x"] * (step + 1)})

    return train


TEMPLATE = TrialTemplate(trainable_name="train", param_space={"x": uniform(0.0, 1.0)}, num_samples=12)


def controller_of(directory, engine, store, logs=None):
    search = BasicVariantGenerator(random_state=3, id_prefix="abcde")
    search.add_configurations([TEMPLATE])
    state = ExperimentState(
        Settings(name="e", experiment_dir=str(directory), metric="score", mode="max"),
        Plugins(
            search=search,
            scheduler=ASHAScheduler(metric="score", mode="max", max_t=9, reduction_factor=3, seed=1),
            stopper=None,
            hooks=Noted(),
        ),
        capacity=engine.capacity(),
    )
    clock = SystemClock()
    saver = ExperimentSaver(state, store=store, clock=clock, logs=logs)
    return TrialController(state, engine=engine, store=store, clock=clock, saver=saver), saver


@pytest.fixture
def engine():
    with LocalEngine(
        clock=SystemClock(), trainables={"train": cloudpickle.dumps(make_train())}, capacity={"CPU": 2}
    ) as made:
        yield made


def test_an_experiment_runs_on_real_processes_and_bad_trials_stop_early(tmp_path, engine):
    with SqliteTrialStore(tmp_path) as store:
        state = controller_of(tmp_path, engine, store)[0].run()
    iterations = [t.last_result["training_iteration"] for t in state.trials.values()]
    assert (len(iterations), {t.status for t in state.trials.values()}) == (12, {"TERMINATED"})
    assert max(iterations) == 9 > min(iterations)
    steps = [hook for hook, *_ in state.plugins.hooks.fired if hook.startswith("on_step")]
    assert steps == ["on_step_begin", "on_step_end"] * state.plugins.iteration


@pytest.mark.slow
def test_a_stopped_driver_goes_on_in_a_new_process_with_every_trial_once(tmp_path, engine):
    looks = iter(range(10_000))
    with SqliteTrialStore(tmp_path) as store:
        first, _ = controller_of(tmp_path, engine, store)
        half = first.run(should_stop=lambda: next(looks) > 25)
        assert not half.is_finished
    with (
        LocalEngine(
            clock=SystemClock(), trainables={"train": cloudpickle.dumps(make_train())}, capacity={"CPU": 2}
        ) as fresh,
        SqliteTrialStore(tmp_path) as store,
    ):
        second, saver = controller_of(tmp_path, fresh, store)
        saver.restore(store.load(), TEMPLATE.make)
        state = second.run()
    assert sorted(state.trials) == [f"abcde_{n:05d}" for n in range(12)]
    assert {t.status for t in state.trials.values()} == {"TERMINATED"}
    assert [state.trials[t].config for t in half.trials] == [t.config for t in half.trials.values()]


class SlowLogs:
    """Logs that are never near and come only for those who wait long enough."""

    def __init__(self, need_s) -> None:
        self.need_s, self.asked = need_s, []

    def mark(self):
        return threading.Event()

    def flush(self, timeout_s):
        self.asked.append(timeout_s)
        return timeout_s >= self.need_s


def test_the_last_save_waits_for_logs_that_are_far_behind(tmp_path, engine):
    logs = SlowLogs(need_s=20.0)
    with SqliteTrialStore(tmp_path) as store:
        controller_of(tmp_path, engine, store, logs)[0].run()
        saved = store.load()
    assert logs.asked == [2.0, 30.0]
    assert (saved.snapshot is not None, saved.facts) == (True, ())
