"""The sidecar's loop on a real Ray: the operator's pods are real Ray nodes, and a trial survives its pod."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading

import pytest
from tests.kube.operator import OperatorDouble, worker_group
from tests.ray_clusters import clear, wait_for
from tests.support.ray_cluster import AUTH

from muster.autoscaler.build import MonitorOptions, build_monitor
from muster.autoscaler.connect import HeadAddress
from muster.autoscaler.home import ClusterHome
from muster.cluster.model import NodeStatus
from muster.providers.kuberay.source import RayClusterSource
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

pytestmark = [pytest.mark.ray, pytest.mark.in_memory_server]
STEPS = 24
TRIAL = """
import json, os, tempfile, time
from muster import tune

def train(config):
    import ray
    step, found = 0, tune.get_checkpoint()
    if found is not None:
        with found.as_directory() as folder:
            step = int(open(os.path.join(folder, "step")).read())
    while step < {steps}:
        step += 1
        time.sleep(0.25)
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "step"), "w") as file:
                file.write(str(step))
            host = ray.get_runtime_context().get_node_id()
            with open(config["mark"], "a") as file:  # before the report: a trial that is moved ends in it
                file.write(f"{{step}} {{host}}\\n")
            tune.report({{"step": step, "host": host}}, checkpoint=tune.Checkpoint.from_directory(folder))

run = tune.RunConfig(name="evicted", storage_path={storage!r}, engine="ray", verbose=0)
grid = tune.Tuner(
    tune.with_resources(train, {{"cpu": 1, "podded": 1}}), param_space={{"mark": {mark!r}}}, run_config=run
).fit()
print(json.dumps({{"step": grid[0].metrics["step"], "errors": list(map(str, grid.errors))}}))
"""


class PodsAsNodes:
    """Starts and ends a real Ray node for each pod of a worker; notes how the nodes were when they ended."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._source = GcsNodeSource(GcsClient(cluster.address, AUTH))
        self.at_end = {}

    def start(self, pod):
        if pod["metadata"]["labels"]["ray.io/node-type"] == "worker":
            self._cluster.add_worker(pod["metadata"]["name"], {"CPU": 1, "podded": 1}, node_type="small")

    def stop(self, pod):
        name = pod["metadata"]["name"]
        self.at_end[name] = self.status(name)
        if name in self._cluster.nodes:
            self._cluster.nodes.pop(name).kill()

    def status(self, name):
        return next((node.status for node in self._source.read().nodes if node.cloud_id == name), None)


@pytest.fixture
def stage(plain_head, world, tmp_path):
    """A RayCluster whose head is real; its operator and its monitor run."""
    os.environ.update(AUTH)
    clear(plain_head)
    nodes = PodsAsNodes(plain_head)
    world.operator = OperatorDouble(world.admin, "demo", start=nodes.start, stop=nodes.stop)
    group = worker_group("small", 0, maxReplicas=2, rayStartParams={"resources": '{"podded": 1}'})
    group["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1"}
    world.create(group, autoscalerOptions={"idleTimeoutSeconds": 2})
    provider = world.provider(threads=True)
    stop = threading.Event()
    options = MonitorOptions(
        config=tmp_path / "unused",
        home=ClusterHome(tmp_path / "home"),
        head=HeadAddress(plain_head.address, AUTH),
        source=RayClusterSource(provider, {}),
        metrics_port=0,
    )
    loop = threading.Thread(target=lambda: build_monitor(options, os.environ, stop).run(stop))
    loop.start()
    world.operator.run(0.1)
    yield world, nodes
    stop.set()
    loop.join(60)
    world.operator.close()
    clear(plain_head)


@pytest.mark.in_memory_server
def test_a_shadow_reads_the_cluster_and_changes_nothing(plain_head, world, api, tmp_path):
    os.environ.update(AUTH)
    world.create(worker_group("small", 1, minReplicas=2, maxReplicas=3))
    token = api.token("kuberay-1.3")
    provider = world.provider(token=token, threads=True)
    stop = threading.Event()
    options = MonitorOptions(
        config=tmp_path / "unused",
        home=ClusterHome(tmp_path / "home"),
        head=HeadAddress(plain_head.address, AUTH),
        source=RayClusterSource(provider, {}),
        shadow=True,
    )
    build_monitor(options, os.environ, stop).run(stop, once=True)
    assert (tmp_path / "home").exists()
    assert [api.count(method, token=token) for method in ("PATCH", "POST", "DELETE")] == [0, 0, 0]
    assert world.size() == (1, [])


def test_demand_brings_pods_a_trial_survives_the_loss_of_its_pod_and_idle_pods_are_drained_first(
    stage, plain_head, tmp_path
):
    world, nodes = stage
    mark = tmp_path / "mark"
    script = TRIAL.format(steps=STEPS, storage=str(tmp_path / "storage"), mark=str(mark))
    driver = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, **AUTH, "RAY_ADDRESS": plain_head.address},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        wait_for(lambda: mark.exists() and len(mark.read_text().splitlines()), lambda lines: lines > 3)
        (evicted,) = world.operator.workers("small")
        world.operator.held.add(evicted)
        world.admin.delete_pod(evicted)  # as `kubectl drain` or a preemption does: with grace
        wait_for(lambda: nodes.status(evicted), lambda status: status is NodeStatus.DRAINING)
        world.operator.held.clear()
        said = driver.communicate(timeout=300)[0]
    finally:
        driver.kill()
    assert json.loads(said.splitlines()[-1]) == {"step": STEPS, "errors": []}, said
    lines = [line.split() for line in mark.read_text().splitlines()]
    hosts = list(dict.fromkeys(host for _, host in lines))
    assert len(hosts) == 2
    steps = [int(step) for step, _ in lines]
    assert sorted(set(steps)) == list(range(1, STEPS + 1))
    assert len(steps) <= STEPS + 2  # it went on from its newest checkpoint
    wait_for(lambda: world.operator.workers("small"), lambda left: left == [])
    wait_for(lambda: set(nodes.at_end) - {evicted}, bool)  # the list is empty before the last has ended
    replacement = next(name for name in nodes.at_end if name != evicted)
    assert world.size()[0] == 0
    assert nodes.at_end[replacement] in (NodeStatus.DEAD, NodeStatus.DRAINING)  # drained before it was named
    assert set(nodes.at_end) == {evicted, replacement}  # nothing was doubled
