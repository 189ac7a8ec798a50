"""Nodes that have no directory in common with the driver: a real Ray node in a mount namespace of its own,
and a real S3 server on loopback.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.ray_clusters import clear, join
from tests.support.ray_cluster import AUTH, can_hide

from muster import tune
from muster.base.clock import SystemClock
from muster.engines.ray.connect import connect, import_ray, open_ray_engine
from muster.engines.ray.engine import RayOptions
from muster.engines.ray.remote_storage import RemoteStorage
from muster.host.scratch_directory import ScratchDirectory
from muster.stores.mirror import Mirror
from muster.stores.storage import Storage
from muster.stores.uploads import Uploader
from muster.trials.events import TrialReported
from muster.trials.model import CheckpointRef
from muster.tune.trainable import stored_object

pytestmark = [
    pytest.mark.skipif(not can_hide(), reason="needs root and Linux mount namespaces (unshare --mount)"),
    pytest.mark.ray,
]
APART, HERE = {"apart": 1}, {"here": 1}


def trains(config, pad=b""):
    """Count from its checkpoint; as told, dies or fail once, before the report of that step."""
    import signal
    from pathlib import Path

    from muster import tune

    checkpoint, first = tune.get_checkpoint(), 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            first = int(Path(folder, "step").read_text()) + 1
    for step in range(first, config["steps"]):
        sys.stdout.write(f"step {step}\n")
        Path("artifact").write_text(str(step))
        if step == config.get("dies_at") and first == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if step == config.get("fails_at") and not Path(config["repaired"]).exists():
            raise RuntimeError("not yet")
        made = Path("made")
        made.mkdir(exist_ok=True)
        (made / "step").write_text(str(step))
        tune.report(
            {"step": step, "first": first, "score": -step, "dir": os.getcwd(), "pad": len(pad)},
            checkpoint=tune.Checkpoint.from_directory(made),
        )


@pytest.fixture(scope="module")
def hidden(tmp_path_factory):
    """The driver's cache directory, which one node does not see."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def cluster(plain_head, bucket, hidden):
    """Two workers that know the bucket: one sees the driver's directories, one does not."""
    os.environ.update(AUTH)
    clear(plain_head)
    ray = import_ray()
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    workers = [
        join(plain_head, "here-0", {"CPU": 2, "here": 2}),
        join(plain_head, "apart-0", {"CPU": 2, "apart": 2}, hides=hidden),
    ]
    connect(ray, plain_head.address)
    yield plain_head
    ray.shutdown()
    for worker in workers:
        worker.kill()


@pytest.fixture
def home(hidden, monkeypatch):
    """`~` of the driver, so that its staging directories are those that one node does not see."""
    monkeypatch.setenv("HOME", str(hidden))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    return hidden


class Parts:
    """An engine with remote storage, driven by hand."""

    def __init__(self, engine, folder, storage):
        self.driver, self.folder, self.storage = Driver(engine, folder), folder, storage

    def steps(self, trial_id):
        return [
            (each.result["step"], each.result["first"]) for each in self.driver.of(trial_id, TrialReported)
        ]

    def again(self, trial_id, config, resources, **more):
        """From its newest checkpoint; its earlier events are forgotten."""
        made = self.driver.of(trial_id, TrialReported)[-1].checkpoint
        self.driver.events.clear()
        ref = CheckpointRef(path=made.path, index=made.index)
        more.update(resources=resources, checkpoint=ref, checkpoint_index=made.index)
        self.driver.start(trial_id, "trains", config, **more)


@pytest.fixture
def parts(cluster, hidden, request):
    name = f"by-hand-{abs(hash(request.node.name))}"
    folder, storage = hidden / name, Storage(f"s3://bucket/{name}")
    folder.mkdir()
    storage.validate()
    reach = RemoteStorage(uri=storage.uri, filesystem=None, root=str(folder))
    options = RayOptions(kill_after_s=0.3, remote_storage=reach)
    with open_ray_engine(trainables={"trains": cloudpickle.dumps(trains)}, options=options) as engine:
        yield Parts(engine, folder, storage)


def test_a_trial_whose_node_is_gone_goes_on_elsewhere_from_the_storage(parts):
    driver = parts.driver
    config = {"steps": 4, "dies_at": 2}
    driver.start("a", "trains", config, resources=APART, log_to_file=("out", None))
    assert driver.to_exit("a").failure is not None
    assert parts.steps("a") == [(0, 0), (1, 0)]
    assert not list(parts.folder.glob("a/checkpoint_*"))  # never here
    names = parts.storage.sizes("a")
    assert [name for name in names if name.endswith("step")] == [
        "checkpoint_000000/step",
        "checkpoint_000001/step",
    ]
    parts.storage.upload_file(__file__, "a/checkpoint_000002/left")  # as a process that was killed does
    parts.again("a", config, HERE, log_to_file=("out", None))
    assert driver.to_exit("a").is_done
    assert parts.steps("a") == [(2, 2), (3, 2)]
    assert (parts.folder / "a/checkpoint_000003/step").read_text() == "3"
    assert "a/checkpoint_000002/left" not in parts.storage.sizes()
    # What was sent of its log with its checkpoints is continued.
    assert (parts.folder / "a/out").read_text().split("\n")[:2] == ["step 0", "step 1"]


def test_a_checkpoint_of_the_drivers_machine_is_waited_for_where_it_is_not_seen(parts):
    driver = parts.driver
    driver.start("b", "trains", {"steps": 2}, resources=HERE)
    assert driver.to_exit("b").is_done
    assert not parts.storage.exists("b/checkpoint_000001")
    parts.again("b", {"steps": 3}, APART)
    assert driver.quiet_for(3) == []
    uploader = Uploader(Mirror(parts.folder, parts.storage, clock=SystemClock()))
    uploader.changed()
    assert driver.to_exit("b").is_done
    uploader.close()
    assert parts.steps("b") == [(2, 2)]
    assert parts.storage.read("b/checkpoint_000002/step") == b"2"


def tuner_for(trainable, config, **run):
    space = {**config, "number": tune.grid_search([1, 2])}
    run = {
        "engine": "ray",
        "storage_path": "s3://bucket/tuned",
        "verbose": 0,
        "log_to_file": ("out", "err"),
        **run,
    }
    return tune.Tuner(
        trainable,
        param_space=space,
        tune_config=tune.TuneConfig(metric="score", mode="max", reuse_actors=True),
        run_config=tune.RunConfig(**run),
    )


def test_an_experiment_keeps_restores_and_finds_what_was_made_apart(cluster, home, tmp_path, monkeypatch):
    config = {"steps": 5, "dies_at": 2, "fails_at": 4, "repaired": str(tmp_path / "repaired")}
    seen = []

    class Sees(tune.Callback):
        def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
            with checkpoint.as_directory() as folder:
                seen.append(int(Path(folder, "step").read_text()))

    (home / "tmp").mkdir(parents=True, exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(home / "tmp"))  # of the driver: the node does not see it
    monkeypatch.setattr(stored_object, "_scratch", ScratchDirectory("muster-parameters-"))
    with_pad = tune.with_parameters(trains, pad=bytes(1_000_000))
    tuner = tuner_for(
        tune.with_resources(with_pad, {"CPU": 1, "apart": 1}),
        config,
        name="e",
        callbacks=[Sees()],
        failure_config=tune.FailureConfig(max_failures=1),
        checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
        sync_config=tune.SyncConfig(sync_artifacts=True),
    )
    grid = tuner.fit()
    assert sorted(seen) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [str(each.error) for each in grid] == ["not yet", "not yet"]
    assert {(each.metrics["step"], each.metrics["pad"]) for each in grid} == {(3, 1_000_000)}
    assert not any(str(home) in each.metrics["dir"] for each in grid)
    storage = Storage("s3://bucket/tuned/e")
    for result in grid:
        folder = result.path.rpartition("/")[2]
        kept = {name.partition("/")[0] for name in storage.sizes(folder) if name.startswith("checkpoint_")}
        assert kept == {"checkpoint_000002", "checkpoint_000003"}
        assert storage.read(f"{folder}/artifact") == b"4"
        assert storage.read(f"{folder}/out").split(b"\n")[-2] == b"step 4"
        with result.checkpoint.as_directory() as made:
            assert Path(made, "step").read_text() == "3"

    (tmp_path / "repaired").touch()
    monkeypatch.setenv("HOME", str(tmp_path))  # another machine: nothing of the experiment is here
    stored_object._scratch.remove()  # the driver's node is gone
    again = tune.Tuner.restore(
        "s3://bucket/tuned/e", tune.with_resources(with_pad, {"CPU": 1, "here": 1}), resume_errored=True
    )
    results = again.fit()
    assert {each.metrics["pad"] for each in results} == {1_000_000}
    assert (results.num_errors, {each.metrics["step"] for each in results}) == (0, {4})
    assert {each.metrics["first"] for each in results} == {4}
    best = results.get_best_result(metric="step", mode="max").checkpoint
    with best.as_directory() as made:
        assert Path(made, "step").read_text() == "4"


def test_a_storage_that_goes_away_is_named_with_what_to_do(parts, bucket, tmp_path):
    """The last one: it has no storage afterwards."""
    driver = parts.driver
    driver.start("c", "trains", {"steps": 2}, resources=APART)
    driver.poll_until(lambda: len(driver.of("c", TrialReported)) == 1, answer=False)
    bucket.close()
    driver.go_on("c")
    failure = driver.to_exit("c").failure
    assert "StoreError: node " in failure.message
    expected = f"{parts.storage.uri}/c/checkpoint_000001 ", " 4 ", "Tuner.restore"
    assert [word for word in expected if word not in failure.message] == []
    driver.start("d", "trains", {"steps": 2}, resources=APART)
    message = driver.to_exit("d").failure.message
    assert all(word in message for word in (f" {parts.folder} ", f" {parts.storage.uri}: "))
