"""Results of Ray Train's workers reach the tuner: with a stand-in for the session, and on a real Ray."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from tests.ray_clusters import clear
from tests.support.ray_cluster import AUTH

from muster import tune
from muster.engines.ray.connect import connect, import_ray
from muster.session.session import TrialStopped, install, uninstall
from muster.tune.integration import ray_train
from muster.tune.integration.ray_train import TuneReportCallback


class Reports:
    """A session that keeps what is reported, or raises."""

    def __init__(self):
        self.seen, self.error = [], None

    def report(self, metrics, checkpoint=None):
        if self.error is not None:
            raise self.error
        self.seen.append(dict(metrics))


@pytest.fixture
def session(monkeypatch):
    monkeypatch.setattr(ray_train, "_LOOK_S", 0.05)
    made = Reports()
    token = install(made, whole_process=True)
    yield made
    uninstall(token)


def threads():
    return [each.name for each in threading.enumerate() if each.name == "muster-train"]


def soon(is_so):
    give_up = time.monotonic() + 60
    while not is_so() and time.monotonic() < give_up:
        time.sleep(0.05)
    return is_so()


def test_the_metrics_of_rank_0_are_reported_with_the_path_of_a_checkpoint(session):
    callback = TuneReportCallback()
    callback.after_report(None, [{"loss": 1.0}, {"loss": 2.0}], None)
    callback.after_report(run_context=None, metrics=[{"loss": 0.5}], checkpoint=SimpleNamespace(path="/c"))
    assert session.seen == [{"loss": 1.0}, {"loss": 0.5, "checkpoint_path": "/c"}]


def test_a_stopped_trial_ends_the_training_without_a_word(session, caplog):
    callback, session.error = TuneReportCallback(), TrialStopped()
    try:
        with pytest.raises(RuntimeError, match="stopped"):
            callback.after_report(None, [{"loss": 1.0}], None)
        ray_train.logging.getLogger("ray.train").error("the training failed")
    finally:
        ray_train.logging.disable(ray_train.logging.NOTSET)
    assert caplog.messages == []


def test_a_result_that_is_refused_ends_the_training_and_says_why(session):
    callback, session.error = TuneReportCallback(), TypeError("the reported value 'a' has 60 MB")
    with pytest.raises(RuntimeError, match=r"TypeError.*MB"):
        callback.after_report(None, [{"a": 1.0}], None)
    session.error = None
    callback.after_report(None, [{"a": 2.0}], None)
    assert session.seen == [{"a": 2.0}]


def test_nothing_is_left_when_the_trial_has_ended():
    session = Reports()
    token = install(session, whole_process=True)
    used, unused = TuneReportCallback(), TuneReportCallback()
    used.after_report(None, [{"loss": 1.0}], None)
    uninstall(token)
    folders = [os.path.dirname(each._path) for each in (used, unused)]
    assert soon(lambda: not threads() and not any(map(os.path.exists, folders)))
    try:
        with pytest.raises(RuntimeError, match="stopped"):
            used.after_report(None, [{"loss": 1.0}], None)
    finally:
        ray_train.logging.disable(ray_train.logging.NOTSET)


REPORTS_ELSEWHERE = """
import pickle, sys
sys.modules["muster"] = None  # as on a node that was sent the package
with open(sys.argv[1], "rb") as stream:
    pickle.load(stream).after_report(None, [{"loss": 1.0}], None)
"""


@pytest.mark.slow
def test_it_reports_from_a_process_that_lacks_this_package(session, tmp_path):
    blob = tmp_path / "callback"
    blob.write_bytes(import_ray().cloudpickle.dumps(TuneReportCallback()))
    subprocess.run([sys.executable, "-c", REPORTS_ELSEWHERE, str(blob)], check=True, timeout=100)
    assert session.seen == [{"loss": 1.0}]


def test_outside_of_a_trial_it_says_where_it_belongs():
    with pytest.raises(RuntimeError, match=r"^TuneReportCallback .*fit\(\)"):
        TuneReportCallback()


@pytest.fixture(scope="module")
def cluster(plain_head):
    pytest.importorskip("pyarrow", reason="Ray Train needs it")
    os.environ.update(AUTH)
    clear(plain_head)
    ray = import_ray()
    connect(ray, plain_head.address)
    yield plain_head
    ray.shutdown()


def trainable(storage):
    """Return a function whose two workers report three epochs, with a checkpoint from rank 0 in the last."""

    def epochs(config):
        import tempfile

        import ray
        from ray import train

        rank, group = train.get_context().get_world_rank(), ray.util.get_current_placement_group()
        for epoch in range(3):
            metrics = {"epoch": epoch, "loss": config["x"] / (epoch + 1) + rank}
            metrics["bundles"] = len(group.bundle_specs)
            if epoch == 2 and rank == 0:
                with tempfile.TemporaryDirectory() as folder:
                    train.report(metrics, checkpoint=train.Checkpoint.from_directory(folder))
            else:
                train.report(metrics)

    needs = tune.PlacementGroupFactory([{"CPU": 0.5}] * 3)
    return tune.with_resources(fitting(epochs, storage, workers=2), needs)


def fitting(loop, storage, workers, each=0.5):
    """Return a function that trains with so many workers."""

    def trial(config):
        os.environ["RAY_TRAIN_HEALTH_CHECK_INTERVAL_S"] = "0.2"  # reports arrive so often
        os.environ["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"  # a process less
        from ray import train
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        from muster.tune.integration.ray_train import TuneReportCallback

        DataParallelTrainer(
            loop,
            train_loop_config=config,
            scaling_config=train.ScalingConfig(num_workers=workers, resources_per_worker={"CPU": each}),
            run_config=train.RunConfig(
                name=f"x{config['x']}", storage_path=storage, callbacks=[TuneReportCallback()]
            ),
        ).fit()
        tune.report({"after": "fit", "loss": 0.0})

    return trial


def column(result, name):
    return [None if value != value else value for value in result.metrics_dataframe[name]]


def group_states():
    return {each["state"] for each in import_ray().util.placement_group_table().values()}


@pytest.mark.ray
def test_workers_train_in_the_group_of_their_trial_and_a_stop_ends_them(cluster, tmp_path):
    """One trial reserves three quarters of all CPUs: another group for its workers could not be placed."""
    stop = lambda _, result: result["config"]["x"] == 6 and result["training_iteration"] == 2  # noqa: E731
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, stop=stop, trial_time_limit_s=200)
    settings = tune.TuneConfig(reuse_actors=True)
    space = {"x": tune.grid_search([6, 12])}
    made = trainable(str(tmp_path / "train"))
    first, second = tune.Tuner(made, param_space=space, run_config=run, tune_config=settings).fit()
    assert (first.error, second.error) == (None, None)
    assert [column(each, "loss") for each in (first, second)] == [[6, 3], [12, 6, 4, 0]]
    assert column(second, "epoch") == [0, 1, 2, None]  # of rank 0; the last is the function's own report
    assert column(second, "bundles") == [3, 3, 3, None]
    paths = column(second, "checkpoint_path")
    assert paths[:2] == [None, None]
    assert os.path.dirname(paths[2]) == str(tmp_path / "train" / "x12")
    assert os.path.isdir(paths[2])
    assert soon(lambda: group_states() == {"REMOVED"})


@pytest.mark.ray
def test_workers_that_would_wait_forever_fail_their_trial_at_once(cluster, tmp_path):
    """As in ray#54305: trials hold all CPUs, and want another one for a worker."""
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, trial_time_limit_s=200)
    made = fitting(lambda config: None, str(tmp_path / "train"), workers=1, each=1)
    (result,) = tune.Tuner(tune.with_resources(made, {"cpu": 2}), param_space={"x": 1}, run_config=run).fit()
    assert "PlacementGroupFactory([{'CPU': 2.0}, {'CPU': 1}])" in str(result.error)


@pytest.mark.parametrize("is_free", [True, False])
@pytest.mark.parametrize("may_wait", [True, False])
def test_workers_beside_the_group_wait_only_if_trials_are_limited(monkeypatch, may_wait, is_free):
    callback = object.__new__(ray_train.TrialGroupCallback)
    vars(callback).update(_group=object(), _bundles=[{"CPU": 1.0}], _may_wait=may_wait)
    asked = []
    monkeypatch.setattr(ray_train, "_is_free", lambda wanted: asked.append(wanted) or is_free)
    context = SimpleNamespace(resources_per_worker={"CPU": 1}, num_workers=2)
    if may_wait or is_free:
        callback.before_worker_group_start(context)
    else:
        with pytest.raises(RuntimeError, match="max_concurrent_trials"):
            callback.before_worker_group_start(context)
    assert asked == ([] if may_wait else [{"CPU": 2}])


@pytest.mark.parametrize(
    ("each", "count", "bundles", "places"),
    [
        ({"CPU": 1}, 2, [{"CPU": 1}, {"CPU": 1}, {"CPU": 1}], [1, 2]),
        ({"CPU": 1}, 2, [{}, {"CPU": 1}, {"CPU": 1}], [0, 1]),  # Ray gets no empty first bundle
        ({"CPU": 1}, 3, [{"CPU": 1}, {"CPU": 2}, {"CPU": 1}], [1, 1, 2]),
        ({"CPU": 1, "GPU": 1}, 1, [{"CPU": 1}, {"CPU": 1}], None),
        ({"CPU": 0.1}, 3, [{"CPU": 1}, {"CPU": 0.3}], [1, 1, 1]),
        ({"CPU": 1}, 1, [{"CPU": 4}], None),  # that is the trial's own
    ],
)
def test_each_worker_gets_a_bundle_that_holds_it(each, count, bundles, places):
    assert ray_train.places_for(each, count, bundles) == places


@pytest.mark.ray
def test_rays_own_report_fails_a_trial_on_ray(cluster, tmp_path):
    def train(config):
        from ray import tune as rays

        for step in range(1000):
            rays.report({"step": step})

    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, trial_time_limit_s=200)
    (result,) = tune.Tuner(tune.with_resources(train, {"cpu": 0.5}), run_config=run).fit()
    assert isinstance(result.error, RuntimeError)
    assert " compat" in str(result.error)
