"""The whole of it on this machine: processes, a store, ASHA, and a driver that stops and continues."""

from __future__ import annotations

import threading

import cloudpickle
import pytest
from tests.trials.scripted import Noted

from muster.base.clock import ManualClock, SystemClock
from muster.engines.local.engine import LocalEngine
from muster.sim.tune.experiment import SimulatedExperiment
from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.controller import TrialController
from muster.trials.experiment import ExperimentState
from muster.trials.plugins import Plugins
from muster.trials.template import Settings, TrialTemplate
from muster.tune.execution.between_steps import ExperimentSaver, decode_snapshot
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


class SlowStore:
    """A store in which a snapshot takes a second."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock

    def snapshot(self, trials, plugins, statuses, ended) -> None:
        self.clock.advance(1.0)
        self.archives = [len(decode_snapshot(trials, [each])["ended"]) for each in ended]


def test_trials_that_ended_are_saved_in_parts_and_do_not_make_the_next_save_rare():
    clock = ManualClock()
    state = simulated(250).run().state
    saver = ExperimentSaver(state, store=SlowStore(clock), clock=clock)
    saver.save(lambda: None)
    assert saver._store.archives == [100, 100, 50]
    assert not saver.is_due()
    clock.advance(1.1)  # a twentieth of the time would be 20 s, had the ended trials been counted
    assert saver.is_due()


def test_a_save_comes_early_when_many_trials_wait_for_it():
    clock = ManualClock()
    state = simulated(600).run().state
    saver = ExperimentSaver(state, store=SlowStore(clock), clock=clock)
    waiting = dict(state.index.unarchived)
    saver.save(lambda: None)
    clock.advance(0.5)
    assert not saver.is_due()
    state.index.unarchived.update(waiting)
    assert saver.is_due()


class BehindLogs:
    """Logs that write some rows per second of virtual time, for whoever waits and while nobody does."""

    def __init__(self, clock: ManualClock, rows_per_s: float) -> None:
        self.clock, self.rows_per_s, self.rows, self._since = clock, rows_per_s, 0.0, clock.monotonic()

    def behind(self) -> float:
        """Return how many of the rows so far are not written."""
        now = self.clock.monotonic()
        self.rows, self._since = max(0.0, self.rows - self.rows_per_s * (now - self._since)), now
        return self.rows

    def mark(self):
        return Mark(self.clock, self.clock.monotonic() + self.behind() / self.rows_per_s)

    def flush(self, timeout_s):
        return self.mark().wait(timeout_s)


class Mark:
    def __init__(self, clock: ManualClock, at: float) -> None:
        self.clock, self.at = clock, at

    def is_set(self):
        return self.clock.monotonic() >= self.at

    def wait(self, timeout_s):
        self.clock.advance(max(0.0, min(timeout_s, self.at - self.clock.monotonic())))
        return self.is_set()


class NoStore:
    def snapshot(self, trials, plugins, statuses, ended) -> None:
        pass


@pytest.mark.parametrize("rows_per_s", [50, 300, 1000, 100_000])
def test_the_trials_that_wait_to_be_saved_are_few_however_slow_the_disk_is(rows_per_s):
    """Their facts, rows and records take memory until then."""
    clock = ManualClock()
    state = simulated(1).run().state
    logs = BehindLogs(clock, rows_per_s)
    saver = ExperimentSaver(state, store=NoStore(), clock=clock, logs=logs)
    (trial,) = state.index.trials.values()
    waiting, behind = [], []
    for number in range(5000):
        clock.advance(1 / 3000)
        state.index.unarchived[f"t{number}"] = trial
        logs.rows = logs.behind() + 3
        if saver.is_due():
            saver.save(lambda: None)
        waiting.append(len(state.index.unarchived))
        behind.append(logs.behind())
    assert max(waiting) < 1200
    assert max(behind) < 3600


def test_saves_are_as_far_apart_as_the_user_wants():
    clock = ManualClock()
    saver = ExperimentSaver(simulated(2).run().state, store=SlowStore(clock), clock=clock)
    saver.min_period_s = 50.0
    saver.save(lambda: None)
    clock.advance(49.0)
    assert not saver.is_due()
    clock.advance(1.1)
    assert saver.is_due()


def simulated(count: int) -> SimulatedExperiment:
    return SimulatedExperiment(
        curve=lambda config, iteration: {"loss": config["x"]},
        space={"x": uniform(0.0, 1.0)},
        metric="loss",
        mode="min",
        num_samples=count,
        max_t=1,
    )


class Busy:
    """Logs and a store that note in which order they are asked."""

    def __init__(self, did: list) -> None:
        self.did = did

    def mark(self):
        self.did.append("mark")

    def flush(self, timeout_s):
        self.did.append("logs")
        return True

    def snapshot(self, trials, plugins, statuses=None, ended=()):
        self.did.append("snapshot")


def test_the_log_writer_catches_up_while_a_snapshot_is_made_and_before_it_is_stored(monkeypatch):
    did: list = []
    state, busy = simulated(3).run().state, Busy(did)
    monkeypatch.setattr(state.plugins.search, "save_state", lambda: did.append("state"))
    saver = ExperimentSaver(state, store=busy, clock=ManualClock(), logs=busy)
    saver.save(lambda: did.append("facts"))
    assert did == ["mark", "state", "logs", "facts", "snapshot"]
