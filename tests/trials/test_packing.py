"""Finished trials take little memory, and nobody who reads them notices."""

from __future__ import annotations

import copy
import pickle
import tracemalloc

from muster.sim.tune.experiment import SimulatedExperiment
from muster.trials.model import Trial
from muster.trials.restore import snapshot
from muster.trials.states import TrialState
from muster.trials.trial_index import KEPT_LATEST, KEPT_WHOLE, TrialIndex
from muster.tune.schedulers import ASHAScheduler
from muster.tune.search.space import loguniform, uniform


def finished(trial_id: str = "t0", config: dict | None = None, rows: int = 3) -> Trial:
    config = {"x": 0.5, "net": {"layers": [1, 2]}} if config is None else config
    trial = Trial(
        "train",
        trial_id=trial_id,
        config=config,
        evaluated_params={"x": 0.5},
        experiment_tag=f"{trial_id}_x=0.5",
        stopping_criterion={"training_iteration": 9},
    )
    trial.location, trial.start_time = {"pid": 7, "hostname": "here"}, 12.5
    for n in range(1, rows + 1):
        result = {"loss": 1 / n, "training_iteration": n, "config": dict(config), "done": n == rows}
        trial.note_result(result, {"loss": 1 / n, "training_iteration": n}, at=float(n))
    trial.state = TrialState.TERMINATED
    return trial


def read(trial: Trial) -> dict[str, object]:
    left_out = {"__weakref__", "statistics", "_packed", "_keys", "live"}
    names = [name for name in Trial.__slots__ if name not in left_out]
    return {**{name: getattr(trial, name) for name in names}, "statistics": trial.metric_analysis}


def test_a_packed_trial_reads_as_before():
    trial, whole = finished(), read(finished())
    trial.pack()
    assert trial.is_packed
    assert read(trial) == whole
    assert not trial.is_packed


def test_what_the_last_result_repeats_is_packed_once():
    trial = Trial("train", trial_id="t0")
    trial.location = {"pid": 7, "hostname": "here", "node_ip": "1.2.3.4"}
    result = {"loss": 3, "zero": -0.0, "flag": True, "hostname": "here", "pid": 8, "training_iteration": 1}
    trial.note_result(result, {"loss": 3, "zero": -0.0, "flag": True, "training_iteration": 1}, at=1.0)
    trial.state = TrialState.TERMINATED
    before = (trial.location, trial.metric_analysis, trial.statistics.saved())
    trial.pack()
    assert trial.is_packed
    after = (trial.location, trial.metric_analysis, trial.statistics.saved())
    assert repr(after) == repr(before)


def test_what_is_changed_after_reading_stays_changed():
    trial = finished()
    trial.pack()
    trial.config["x"] = 0.75
    trial.last_result["seen"] = True
    assert (trial.config["x"], trial.last_result["seen"]) == (0.75, True)
    trial.pack()
    assert (trial.config["x"], trial.last_result["seen"]) == (0.75, True)
    assert trial.last_result["config"]["x"] == 0.5  # what it was reported with


def test_what_is_assigned_to_a_packed_trial_counts():
    trial = finished()
    trial.pack()
    trial.last_result = {"loss": 9.0}
    assert (trial.config["x"], trial.last_result) == (0.5, {"loss": 9.0})


def test_objects_of_the_user_stay_the_same_objects():
    data = object()
    trial = finished(config={"data": data, "x": 1})
    trial.pack()
    assert trial.config["data"] is data
    assert trial.last_result["config"]["data"] is data


def test_a_trial_that_has_not_finished_is_not_packed():
    trial = finished()
    trial.state = TrialState.RUNNING
    trial.pack()
    assert not trial.is_packed


def test_copies_and_pickles_of_a_packed_trial_are_whole():
    trial, whole = finished(), read(finished())
    trial.pack()
    assert read(copy.copy(trial)) == whole
    trial.pack()
    assert read(pickle.loads(pickle.dumps(trial))) == whole


def test_the_index_packs_all_but_the_latest_finished_trials():
    index = TrialIndex({"CPU": 1})
    for number in range(KEPT_WHOLE + 10):
        index.add(finished(f"t{number}"))
    assert [trial.is_packed for trial in index.order] == [True] * 10 + [False] * KEPT_WHOLE
    index.note_archived()
    assert sum(not trial.is_packed for trial in index.order) == KEPT_LATEST
    assert not index.unarchived


def test_a_snapshot_of_packed_trials_is_that_of_whole_ones_and_leaves_them_packed():
    packed, whole = experiment(300).run().state, experiment(300).run().state
    for trial in packed.index.order:
        trial.pack()
    assert snapshot(packed) == snapshot(whole)
    assert all(trial.is_packed for trial in packed.index.order)


def experiment(count: int) -> SimulatedExperiment:
    return SimulatedExperiment(
        curve=lambda config, iteration: {"loss": config["x"] / iteration},
        space={"x": uniform(0, 1), "lr": loguniform(1e-4, 1e-1)},
        metric="loss",
        mode="min",
        num_samples=count,
        workers=16,
        make_scheduler=lambda: ASHAScheduler(max_t=5, grace_period=1, reduction_factor=4),
        max_t=5,
    )


def test_ten_thousand_finished_trials_take_less_than_thirteen_megabytes():
    experiment(100).run()  # what is loaded once
    tracemalloc.start()
    try:
        small, few = memory_of(500)
        large, many = memory_of(2500)
    finally:
        tracemalloc.stop()
    assert (len(few.trials), len(many.trials)) == (500, 2500)
    assert (large - small) / 2000 * 10_000 < 13e6


def memory_of(count: int):
    before = tracemalloc.get_traced_memory()[0]
    state = experiment(count).run().state
    state.index.note_archived()
    return tracemalloc.get_traced_memory()[0] - before, state
