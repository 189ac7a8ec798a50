"""What only a real cluster shows; the promises of every engine are in tests/contracts/test_ray_engine.py."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import msgspec
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.contracts.engine_contract.misbehaving import is_gone
from tests.ray_clusters import clear
from tests.support.ray_cluster import AUTH
from tests.support.trainables import TRAINABLES

import muster
from muster import tune
from muster.base.forecast import Forecast, RunningTrial
from muster.base.resources import Resources
from muster.engines.ray import engine as ray_engine
from muster.engines.ray.connect import connect, import_ray, open_ray_engine
from muster.engines.ray.engine import RayOptions
from muster.errors import TuneError
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.kv_board import (
    PRICES,
    SPACE,
    VERDICTS,
    GangVerdict,
    GcsForecastBoard,
    PublishedPrices,
    PublishedVerdicts,
)
from muster.session import report
from muster.trials.events import StopTrial, TrialFailureKind, TrialNoticed, TrialReported, TrialStarted
from muster.trials.placement_group import PlacementGroupFactory

pytestmark = pytest.mark.ray
PREEMPTION = 2  # of Ray's DrainNodeReason
JOIN_S = 120.0


def uses_its_gang(config):
    """Works in the second bundle of its placement group, from inside the trial."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy as InGroup

    group = ray.util.get_current_placement_group()
    where = InGroup(group, placement_group_bundle_index=1)
    work = ray.remote(num_cpus=1, scheduling_strategy=where)(lambda x: x + 1)
    report({"bundles": group.bundle_specs, "answer": ray.get(work.remote(41))})


def shows_its_gpus(config):
    import ray

    report({"ids": ray.get_gpu_ids(), "visible": os.environ["CUDA_VISIBLE_DEVICES"]})


def shows_its_package(config):
    import muster

    report({"file": muster.__file__, "version": muster.__version__})


def shows_its_labels(config):
    import ray

    report({"tier": ray.get_runtime_context().get_node_labels().get("tier")})


class NotesItsEnd:
    """Lives until the interpreter is taken apart; keeps what it needs by then."""

    def __init__(self, folder):
        self.make, self.folder = os.mkdir, folder

    def __del__(self):
        self.make(self.folder)


def notes_its_end(config):
    import atexit
    import sys

    atexit.register(os.mkdir, config["folder"] + "/at_exit")
    sys.muster_test_end = NotesItsEnd(config["folder"] + "/taken_apart")
    report({"pid": os.getpid()})


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raises_mute(config):
    raise Mute


TRIALS = (uses_its_gang, shows_its_gpus, shows_its_package, shows_its_labels, notes_its_end, raises_mute)
OWN = {made.__name__: made for made in TRIALS}


@pytest.fixture(scope="module")
def cluster(plain_head):
    os.environ.update(AUTH)
    clear(plain_head)
    ray = import_ray()
    connect(ray, plain_head.address)
    yield plain_head
    ray.shutdown()


def opened(idle_warning_s=(60.0, 60.0), **more):
    cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["x"]))
    blobs = {name: cloudpickle.dumps(made) for name, made in {**TRAINABLES, **OWN}.items()}
    options = RayOptions(kill_after_s=0.3, idle_warning_s=idle_warning_s)
    return open_ray_engine(trainables=blobs, options=options, **more)


@pytest.fixture
def driver(cluster, tmp_path):
    with opened() as engine:
        yield Driver(engine, tmp_path)


def failure(driver, trial_id):
    found = driver.to_exit(trial_id).failure
    assert found is not None
    return found.kind, found.message


def wait_for(done, within_s=JOIN_S):
    give_up = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < give_up, "gave up waiting"
        time.sleep(0.2)


def join(cluster, name, mark, **more):
    """Another node with a separate resource; the engine opened afterwards knows it."""
    ray = import_ray()
    for _ in range(3):  # on a busy machine Ray gives up after 30 s
        node = cluster.add_worker(name, {"CPU": 1, mark: 1}, **more)
        wait_for(lambda node=node: ray.cluster_resources().get(mark) or node.process.poll() is not None)
        if node.process.poll() is None:
            return
    raise AssertionError("the node did not join")


def test_a_gang_is_placed_together_and_the_trial_may_use_all_of_it(driver):
    gang = PlacementGroupFactory([{"CPU": 1}, {"CPU": 1}])
    driver.start("a", "uses_its_gang", resources=gang)
    assert driver.to_exit("a").is_done
    assert driver.results("a", "bundles") == [[{"CPU": 1.0}, {"CPU": 1.0}]]
    assert driver.results("a", "answer") == [42]


def test_an_actor_runs_exit_functions_and_is_gone_without_taking_the_interpreter_apart(driver, tmp_path):
    driver.start("a", "notes_its_end", {"folder": str(tmp_path)})
    assert driver.to_exit("a").is_done
    (pid,) = driver.results("a", "pid")
    wait_for(lambda: is_gone(pid))
    assert [(tmp_path / name).exists() for name in ("at_exit", "taken_apart")] == [True, False]


def test_an_error_that_cannot_show_itself_is_reported_with_its_type(driver):
    driver.start("a", "raises_mute")
    kind, message = failure(driver, "a")
    assert (kind, "Mute" in message) == (TrialFailureKind.USER_ERROR, True)


def test_two_trials_share_a_gpu(driver):
    half = PlacementGroupFactory([{"CPU": 0.5, "GPU": 0.5}])
    for name in ("a", "b"):
        driver.start(name, "shows_its_gpus", resources=half)
    driver.poll_until(
        lambda: len(driver.of("a", TrialReported) + driver.of("b", TrialReported)) == 2, answer=False
    )
    assert [driver.results(name, "visible") for name in ("a", "b")] == [["0"], ["0"]]
    for name in ("a", "b"):
        driver.go_on(name)
    driver.to_exit("a", "b")


def test_an_idle_actor_makes_room_for_other_sizes(driver):
    driver.start("a", "counts", may_reuse=True, resources={"CPU": 2})
    assert driver.to_exit("a").reusable
    driver.start("b", "counts", resources={"CPU": 1})
    assert driver.to_exit("b").is_done


def test_what_no_node_can_hold_fails_and_says_so(cluster, tmp_path):
    with opened(capacity={"CPU": 8}) as engine:
        driver = Driver(engine, tmp_path)
        driver.start("a", "counts", resources={"CPU": 3})
        kind, message = failure(driver, "a")
        assert (kind, message[-6:]) == (TrialFailureKind.START, "CPU: 3")


def test_the_autoscalers_verdict_ends_a_trial_that_can_never_be_placed(cluster, tmp_path):
    link = GcsClient(cluster.address)
    with opened(capacity={"ghost": 1}) as engine:
        link.kv_put(VERDICTS, msgspec.json.encode(PublishedVerdicts(at=time.time())), SPACE)
        driver = Driver(engine, tmp_path)
        driver.start("a", "counts", resources={"ghost": 1})
        (placement,) = engine._pool.placements.values()
        assert driver.quiet_for(8) == []  # somebody may buy a machine for it
        verdict = GangVerdict(reason="infeasible", detail="no node type has ghost")
        board = PublishedVerdicts(at=time.time(), gangs={placement.group.id.hex(): verdict})
        link.kv_put(VERDICTS, msgspec.json.encode(board), SPACE)
        told = (TrialFailureKind.START, "can never start: infeasible: no node type has ghost")
        assert failure(driver, "a") == told
    link.kv_put(VERDICTS, msgspec.json.encode(PublishedVerdicts()), SPACE)


def test_a_driver_that_cannot_be_reached_is_met_at_a_relay(cluster, tmp_path):
    with opened() as engine:
        engine._actor_setup.addresses = [("127.0.0.1", 1)]
        driver = Driver(engine, tmp_path)
        driver.start("a", "counts", {"steps": 20}, may_reuse=True)
        assert driver.to_exit("a").reusable
        driver.start("b", "saves", {"steps": 2})
        assert driver.to_exit("b").is_done
        assert driver.results("a", "step") == list(range(20))
        assert driver.results("b", "checkpoint_dir_name") == ["checkpoint_000000", "checkpoint_000001"]
        driver.start("c", "waits")
        driver.to_report("c")
        import_ray().kill(engine._actor_setup._relay._actor)  # the trial loses its driver with it
        assert not driver.to_exit("c").is_done
        driver.start("d", "counts", {"steps": 2})
        assert driver.to_exit("d").is_done


def test_a_node_that_does_not_see_the_storage_is_named(driver, tmp_path):
    driver.engine._actor_setup._marker_files[str(tmp_path)] = str(tmp_path / "nobody_sees_this")
    driver.start("a", "counts")
    kind, message = failure(driver, "a")
    assert kind is TrialFailureKind.START
    assert f" {tmp_path}; set RunConfig(storage_path=...)" in message


def test_a_tuner_finds_the_cluster_by_itself(cluster, tmp_path):
    from muster import tune

    space = {"steps": tune.grid_search([1, 2, 3])}
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    reuse = tune.TuneConfig(reuse_actors=True)
    grid = tune.Tuner(TRAINABLES["saves"], param_space=space, run_config=run, tune_config=reuse).fit()
    assert (len(grid), grid.num_errors) == (3, 0)
    assert [each.metrics["step"] for each in grid] == [0, 1, 2]
    assert [each.checkpoint is not None for each in grid] == [True] * 3
    assert import_ray().is_initialized()  # it was not ours to shut down


def steps_slowly(config):
    """Steps of a tenth of a second, each with a checkpoint."""
    import tempfile

    start = 0
    if (given := tune.get_checkpoint()) is not None:
        with given.as_directory() as folder:
            start = int(Path(folder, "step").read_text()) + 1
    for step in range(start, 40):
        time.sleep(0.1)
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step))
            tune.report({"step": step}, checkpoint=tune.Checkpoint.from_directory(folder))


@pytest.fixture
def link(cluster):
    made = GcsClient(cluster.address, AUTH)
    yield made
    made.kv_delete(PRICES, SPACE)


def test_a_budget_of_cents_ends_an_experiment_and_resumes_with_more(link, tmp_path):
    """The price is the one that the monitor publishes."""
    (node,) = [each["NodeID"] for each in import_ray().nodes() if each["Alive"]]
    price = 7.2  # an hour, for two CPUs: a trial with one costs a tenth of a cent each second
    board = PublishedPrices(at=time.time(), nodes={node: price})
    link.kv_put(PRICES, msgspec.json.encode(board), SPACE)
    cloudpickle.register_pickle_by_value(__import__(__name__, fromlist=["x"]))
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    limited = tune.TuneConfig(cost_budget=0.003)
    grid = tune.Tuner(steps_slowly, run_config=run, tune_config=limited).fit()
    (ended,) = grid
    assert (grid.ended_by, grid.num_errors, grid.num_terminated) == ("budget", 0, 0)
    assert grid.cost_usd > 0.0
    assert ended.metrics.get("cost_usd", 0.0) <= grid.cost_usd
    more = tune.Tuner.restore(str(tmp_path / "e"), steps_slowly, cost_budget=1.0).fit()
    (whole,) = more
    assert (more.ended_by, whole.error, whole.metrics["step"]) == ("", None, 39)
    assert [row["step"] for row in whole.metrics_history] == list(range(40))
    assert more.cost_usd > grid.cost_usd


def test_a_forecast_is_there_while_the_engine_is_open_and_expects_nothing_afterwards(link, tmp_path):
    board = GcsForecastBoard(link)
    with opened() as engine:
        driver = Driver(engine, tmp_path)
        driver.start("a", "waits")
        driver.to_report("a")
        (begun,) = driver.of("a", TrialStarted)
        running = RunningTrial(trial_id="a", node_id=begun.location["node_id"], shape=Resources.of(CPU=1))
        engine.publish(Forecast(experiment="e", at=time.time(), trials=(running,)))
        wait_for(lambda: [one for one in board.read().forecasts if one.experiment == "e"])
        (found,) = [one for one in board.read().forecasts if one.experiment == "e"]
        driver_id = import_ray().get_runtime_context().get_job_id()
        assert (found.experiment, found.driver, found.trials) == ("e", driver_id, (running,))
        assert running.node_id in [each["NodeID"] for each in import_ray().nodes() if each["Alive"]]
    (over,) = [one for one in board.read().forecasts if one.experiment == "e"]
    assert (over.experiment, over.trials, over.is_complete, over.done) == ("e", (), True, 1.0)


def test_a_budget_is_refused_where_nobody_publishes_prices(cluster, tmp_path):
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0)
    tuner = tune.Tuner(steps_slowly, run_config=run, tune_config=tune.TuneConfig(cost_budget=1.0))
    with pytest.raises(TuneError, match="nothing says what the machines cost"):
        tuner.fit()


BY_CLIENT = """
import json, sys
from muster import tune

def train(config):
    for step in range(3):
        tune.report({"score": config["x"] * step})

run = tune.RunConfig(name="by_client", storage_path=sys.argv[1], verbose=0)
sized = tune.with_resources(train, lambda config: {"cpu": 1, "ghost": config["x"] // 3})
grid = tune.Tuner(sized, param_space={"x": tune.grid_search([1, 2, 3])}, run_config=run).fit()
scores = [each.metrics["score"] for each in grid if each.error is None]
print(json.dumps({"scores": scores, "errors": list(map(str, grid.errors))}))
"""


def by_client(address, folder):
    """Its end; None where Ray gave up on the server of this client, which it does on a busy machine."""
    command = [sys.executable, "-c", BY_CLIENT, str(folder)]
    env = {**os.environ, **AUTH, "RAY_ADDRESS": address}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=150, check=False)
    except subprocess.TimeoutExpired:
        return None
    return None if "Initialization failure from server" in done.stderr else done


def test_a_tuner_works_through_ray_client(cluster, tmp_path):
    """Off the cluster: nothing but the port of Ray Client is used, and results come through the relay."""
    flag = "--ray-client-server-port="
    (port,) = [each for each in cluster.nodes["head-0"].process.args if each.startswith(flag)]
    address = f"ray://127.0.0.1:{port.removeprefix(flag)}"
    tries = (by_client(address, tmp_path / str(number)) for number in range(3))
    done = next(filter(None, tries))
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["scores"] == [2, 4], done.stderr[-3000:]
    (error,) = said["errors"]  # the head was asked what the cluster is
    assert re.search(r"\(CPU: 1, ghost: 1\).*\(CPU: 2, GPU: 1", error)


def test_a_trial_that_waits_for_room_is_reported_later_each_time(cluster, tmp_path, caplog, monkeypatch):
    """Somebody else holds the processors."""
    monkeypatch.setattr(ray_engine, "_JUDGE_AFTER_S", 0.1)
    group = import_ray().util.placement_group([{"CPU": 2}])
    import_ray().get(group.ready())
    waits = re.compile(r"trial a has waited (\d+) s")
    try:
        with opened(idle_warning_s=(0.2, 100.0)) as engine:
            Driver(engine, tmp_path).start("a", "counts")
            wait_for(lambda: engine.poll(0.1) or len(waits.findall(caplog.text)) >= 2, 60)
    finally:
        import_ray().util.remove_placement_group(group)
    first, second = map(int, waits.findall(caplog.text)[:2])
    assert second >= 2 * first - 1  # shown as whole seconds


def test_closing_gives_back_everything(cluster, tmp_path):
    ray = import_ray()
    with opened() as engine:
        driver = Driver(engine, tmp_path)
        driver.start("a", "waits")
        driver.start("b", "counts", resources={"CPU": 2})  # has to wait
        driver.to_report("a")
        engine.close()
        engine.close()
    states = {each["state"] for each in ray.util.placement_group_table().values()}
    assert states == {"REMOVED"}
    wait_for(lambda: ray.available_resources().get("CPU") == 2, 30)


def test_a_label_selector_chooses_the_node_and_a_lost_node_is_not_the_trials_fault(cluster, tmp_path):
    join(cluster, "lost-1", "lost", labels={"tier": "silver"})
    with opened() as engine:
        driver = Driver(engine, tmp_path)
        for name, tier in (("gold", "gold"), ("silver", "silver"), ("other", "!silver")):
            wanted = PlacementGroupFactory([{"CPU": 1}], bundle_label_selector=[{"tier": tier}])
            driver.start(name, "shows_its_labels", resources=wanted)
            assert driver.to_exit(name).is_done
        tiers = [driver.results(name, "tier") for name in ("gold", "silver", "other")]
        assert tiers == [["gold"], ["silver"], ["gold"]]
        driver.start("a", "waits", resources={"lost": 1})
        driver.to_report("a")
        cluster.nodes["lost-1"].kill()
        kind, message = failure(driver, "a")
    assert kind is TrialFailureKind.NODE_LOST
    assert message


def test_a_node_that_is_taken_back_is_told_apart(cluster, tmp_path):
    """Also once Ray knows that the node is dead, and has forgotten that it was to be taken back.

    Its trials are told, and nothing there is kept for another trial.
    """
    join(cluster, "spot-1", "spot")
    ray = import_ray()
    (node,) = [each["NodeID"] for each in ray.nodes() if each["Resources"].get("spot")]
    with opened() as engine:
        driver = Driver(engine, tmp_path)
        for name in ("a", "b"):
            driver.start(name, "waits", resources={"spot": 0.5}, may_reuse=True)
            driver.to_report(name)
        deadline_ms = int((time.time() + 60) * 1000)
        link = GcsClient(cluster.address)
        assert link.drain_node(node, PREEMPTION, "the spot market", deadline_ms) == (True, "")
        driver.poll_until(lambda: bool(driver.of("a", TrialNoticed) and driver.of("b", TrialNoticed)))
        (told,) = [event.info for event in driver.of("a", TrialNoticed)]
        assert (told.deadline_ms, told.kind, told.node_id) == (deadline_ms, "drain", node)
        engine.submit(StopTrial(trial_id="b", keep_process=True))
        assert driver.to_exit("b").failure is None
        assert (engine._pool.idle, engine._placements.vacant) == ([], [])
        cluster.nodes["spot-1"].kill()
        kind, message = failure(driver, "a")
    assert kind is TrialFailureKind.PREEMPTED, message


def test_nodes_without_the_package_are_sent_it(cluster, tmp_path, monkeypatch):
    hidden = tmp_path / "hides" / "muster"
    hidden.mkdir(parents=True)
    (hidden / "__init__.py").write_text(
        "raise ModuleNotFoundError(\"No module named 'muster'\", name='muster')"
    )
    monkeypatch.setenv("PYTHONPATH", str(hidden.parent))
    join(cluster, "bare-1", "bare")
    with opened() as engine:
        driver = Driver(engine, tmp_path)
        driver.start("a", "shows_its_package", resources={"bare": 1})
        assert driver.to_exit("a").is_done
        (file,) = driver.results("a", "file")
        assert "/muster-" in file
        driver.start("b", "counts")
        assert driver.to_exit("b").is_done
        assert [event.reused for event in driver.of("b", TrialStarted)] == [False]
    cluster.nodes["bare-1"].kill()


def test_nodes_with_another_version_are_sent_ours(cluster, tmp_path, monkeypatch):
    """First it only says another version; then it does not even understand what it is asked."""
    old = tmp_path / "old" / "muster"
    shutil.copytree(Path(muster.__file__).parent, old, ignore=shutil.ignore_patterns("__pycache__"))
    (old / "__init__.py").write_text('__version__ = "0.0.9"')
    monkeypatch.setenv("PYTHONPATH", str(old.parent))
    join(cluster, "old-1", "old")
    for trial_id in ("a", "b"):
        with opened() as engine:
            driver = Driver(engine, tmp_path)
            driver.start(trial_id, "shows_its_package", resources={"old": 1})
            assert driver.to_exit(trial_id).is_done
            assert driver.results(trial_id, "version") == [muster.__version__]
            assert "/muster-" in driver.results(trial_id, "file")[0]
        actor = old / "engines" / "ray" / "actor.py"
        actor.write_text(actor.read_text().replace("ActorSpec(*spec)", "ActorSpec(*spec, 'what is that')"))
    cluster.nodes["old-1"].kill()


@pytest.mark.parametrize(("fact", "told"), [("python_version", "Python 3.9.1"), ("ray", "Ray 2.59.0")])
def test_a_node_with_another_python_or_ray_ends_the_trial_in_one_line(driver, monkeypatch, fact, told):
    """The driver believes that it has another one: a node that has would not join."""
    if fact == "ray":
        driver.engine._actor_setup.ray_version = "2.59.0"
    else:
        monkeypatch.setattr("platform.python_version", lambda: "3.9.1")
    driver.start("a", "counts")
    kind, message = failure(driver, "a")
    assert (kind, message.count("\n")) == (TrialFailureKind.START, 0)
    assert f"the driver {told.split()[1]}: " in message


def test_an_object_of_the_driver_reaches_trials_by_its_ref(cluster, tmp_path):
    import ray

    ref = ray.put(list(range(1000)))

    def in_config(config):
        return {"sum": sum(ray.get(config["data"]))}

    def in_closure(config):
        return {"sum": sum(ray.get(ref))}

    def in_parameters(config, data):
        return {"sum": sum(ray.get(data["ref"])) + len(data["pad"])}

    large = tune.with_parameters(in_parameters, data={"ref": ref, "pad": b"x" * 100_000})
    for number, (trainable, space) in enumerate([(in_config, {"data": ref}), (in_closure, {}), (large, {})]):
        run = tune.RunConfig(
            name=f"refs{number}", storage_path=str(tmp_path), verbose=0, trial_time_limit_s=60
        )
        (result,) = tune.Tuner(trainable, param_space=space, run_config=run).fit()
        assert result.error is None
        assert result.metrics["sum"] == 499_500 + (100_000 if trainable is large else 0)
