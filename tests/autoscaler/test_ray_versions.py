"""The monitor, the shadow and the sidecar of KubeRay with the oldest Ray, not the one of this environment.

`make test-ray-versions` makes an environment with it. Everything runs there, in processes of its own: the
head, the nodes, the drivers and `muster`; here only their files are read.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
import yaml
from tests.kube.api_server import NAMESPACE, running_api
from tests.kube.operator import OperatorDouble, worker_group
from tests.kube.world import KubeWorld

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import read_status
from muster.base.clock import SystemClock
from muster.providers.process.head import stop_everything
from muster.providers.process.ray_command import (
    NodeIdentity,
    NodePorts,
    NodeSize,
    free_ports,
    head_command,
    node_environment,
    worker_command,
)
from muster.stores.ledger.history import open_history

ROOT = Path(__file__).parents[2]
VERSION = "2.48.0"
PYTHON = Path(os.environ.get("MUSTER_OTHER_RAY", ROOT / "build" / "ray-2.48" / "bin" / "python"))
pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(
        not PYTHON.exists(), reason=f"no Python with Ray {VERSION}: make test-ray-versions installs one"
    ),
]
PATIENCE_S = 200.0
CONFIG = """
cluster_name: old
provider: {type: process}
head_node_type: head
max_workers: 1
idle_timeout_minutes: 0.05
available_node_types:
  head: {resources: {CPU: 1}, node_config: {}}
  worker: {resources: {CPU: 2, launched: 1}, max_workers: 1, labels: {tier: gold}, node_config: {}}
"""
# A task with a label, a gang and a size: every kind of demand that the GCS reports.
DRIVER = """
import json, sys, time, ray
from ray.util.placement_group import placement_group
from muster.autoscaler.sdk import get_cluster_status, request_resources
from muster.errors import EngineMissing

address = sys.argv[1]
ray.init(address=address, logging_level="error", log_to_driver=False)
told = {"version": ray.__version__}
request_resources(bundles=[{"CPU": 2, "launched": 1}])
try:
    request_resources(bundles=[{"CPU": 1}], bundle_label_selectors=[{"tier": "gold"}])
except EngineMissing as error:
    told["refused"] = str(error)

@ray.remote(num_cpus=1, resources={"launched": 0.5}, label_selector={"tier": "gold"})
def where():
    return ray.get_runtime_context().get_node_id()

waiting = where.remote()
group = placement_group([{"CPU": 1, "launched": 0.5}], strategy="STRICT_PACK")
while not told.get("seen"):
    status = get_cluster_status(address)
    asked = status.resource_demands
    counts = [len(asked.ray_task_actor_demand), len(asked.placement_group_demand)]
    told["seen"] = counts if len(asked.cluster_constraint_demand) == 1 and min(counts) else None
    time.sleep(0.2)
print(json.dumps(told), flush=True)
told["node"] = ray.get(waiting, timeout=150)
ray.get(group.ready(), timeout=150)
request_resources()
print(json.dumps(told), flush=True)
"""


POD_TASK = """
import sys, ray
ray.init(address=sys.argv[1], logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=1, resources={"podded": 1})
def work():
    return "done"

print(ray.get(work.remote(), timeout=150), flush=True)
"""


def environment() -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("RAY_")}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), "PYTHONDONTWRITEBYTECODE": ""}


def wait_until(true, what):
    give_up = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < give_up, f"not within {PATIENCE_S:.0f} s: {what}"
        time.sleep(0.1)


@pytest.fixture(scope="module")
def address():
    """A head of the other Ray, without Ray's own autoscaler."""
    temp_dir = Path(tempfile.mkdtemp(prefix="mo-", dir="/tmp"))
    gcs, client, *agent = free_ports(5)
    ports = NodePorts(gcs=gcs, client=client, agent_http=agent[0], agent_grpc=agent[1], metrics=agent[2])
    command = [str(PYTHON), *head_command(NodeSize(resources={"CPU": 1}), ports, temp_dir)[1:]]
    command = [part for part in command if not part.startswith("--ray-client-server-port")]
    identity = NodeIdentity(cloud_id="head-0", node_type="head")
    with (temp_dir / "head.log").open("wb") as log:
        head = subprocess.Popen(
            command,
            env=node_environment(environment(), identity, {}),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        wait_until(
            lambda: b"Ray runtime started" in (temp_dir / "head.log").read_bytes() or head.poll() is not None,
            "the head",
        )
        assert head.poll() is None, (temp_dir / "head.log").read_text()[-2000:]
        yield f"127.0.0.1:{gcs}"
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(head.pid, signal.SIGKILL)
        head.wait()
        shutil.rmtree(temp_dir, ignore_errors=True)


def monitor(config, address, home, *more):
    command = [str(PYTHON), "-m", "muster.cli.main", "monitor", str(config), "--address", address]
    return subprocess.Popen(
        [*command, "--home", str(home.path), "--interval", "0.5", "--metrics-port", "0", *more],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


class PodsAsNodes:
    """A node of the other Ray for each pod of a worker."""

    def __init__(self, address, folder):
        self._address, self._folder = address, folder
        self.nodes = {}

    def start(self, pod):
        name = pod["metadata"]["name"]
        if pod["metadata"]["labels"]["ray.io/node-type"] != "worker":
            return
        http, grpc, metrics, runtime_env = free_ports(4)
        ports = NodePorts(agent_http=http, agent_grpc=grpc, metrics=metrics, runtime_env=runtime_env)
        size = NodeSize(resources={"CPU": 1, "podded": 1})
        command = worker_command(size, ports, self._address, self._folder / name)
        self.nodes[name] = subprocess.Popen(
            [str(PYTHON), *command[1:]],
            env=node_environment(environment(), NodeIdentity(cloud_id=name, node_type="small"), {}),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def stop(self, pod):
        node = self.nodes.pop(pod["metadata"]["name"], None)
        if node is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(node.pid, signal.SIGKILL)
            node.wait()


def kubeconfig(server, folder):
    """Log in with the Role that KubeRay 1.3 makes."""
    sections = {
        "clusters": [{"name": "c", "cluster": {"server": server.url}}],
        "users": [{"name": "u", "user": {"token": server.token("kuberay-1.3")}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}],
    }
    file = folder / "kubeconfig"
    file.write_text(yaml.safe_dump({"current-context": "x", **sections}), encoding="utf-8")
    return file


def test_the_sidecar_of_a_raycluster_scales_pods_of_the_oldest_ray(address, tmp_path):
    folder = Path(tempfile.mkdtemp(prefix="mp-", dir="/tmp"))
    group = worker_group("small", 0, maxReplicas=2, rayStartParams={"resources": '{"podded": 1}'})
    group["template"]["spec"]["containers"][0]["resources"]["limits"] = {"cpu": "1"}
    with running_api() as server:
        world, pods = KubeWorld(server), PodsAsNodes(address, folder)
        world.operator = OperatorDouble(world.admin, "demo", start=pods.start, stop=pods.stop)
        world.create(group, autoscalerOptions={"idleTimeoutSeconds": 2})
        world.operator.run(0.1)
        command = [str(PYTHON), "-m", "muster.cli.main", "kuberay-autoscaler", "--cluster-name", "demo"]
        command += ["--cluster-namespace", NAMESPACE, "--kubeconfig", str(kubeconfig(server, tmp_path))]
        log = tmp_path / "sidecar.log"
        with log.open("wb") as stream:
            sidecar = subprocess.Popen(
                [*command, "--address", address, "--home", str(tmp_path / "home")],
                env=environment(),
                stdout=stream,
                stderr=stream,
            )
        driver = subprocess.Popen(
            [str(PYTHON), "-c", POD_TASK, address], env=environment(), stdout=subprocess.PIPE, text=True
        )
        try:
            told = driver.communicate(timeout=PATIENCE_S)[0]
            assert told.splitlines()[-1:] == ["done"], log.read_text()
            wait_until(lambda: world.operator.workers("small") == [], "idle pods go")
            assert world.size()[0] == 0, log.read_text()
        finally:
            driver.kill()
            driver.wait()
            sidecar.terminate()
            sidecar.wait(PATIENCE_S)
            world.close()
            for name in list(pods.nodes):
                pods.stop({"metadata": {"name": name}})
            shutil.rmtree(folder, ignore_errors=True)


def ended(process):
    process.send_signal(signal.SIGTERM)
    return process.communicate(timeout=PATIENCE_S)[0]


def test_the_monitor_and_the_shadow_scale_a_cluster_of_the_oldest_ray(address, tmp_path):
    config, home = tmp_path / "cluster.yaml", ClusterHome(tmp_path / "home")
    shadow_home = ClusterHome(tmp_path / "shadow")
    config.write_text(CONFIG, encoding="utf-8")
    driver = subprocess.Popen(
        [str(PYTHON), "-c", DRIVER, address], env=environment(), stdout=subprocess.PIPE, text=True
    )
    first = json.loads(driver.stdout.readline())
    shadow = monitor(config, address, shadow_home, "--shadow")
    try:
        wait_until(lambda: shadow_home.shadow.exists() and b"worker" in shadow_home.shadow.read_bytes(), "it")
    finally:
        log = ended(shadow)
    assert "shadow: would launch 1 x worker" in log, log
    assert (first["version"], first["seen"]) == (VERSION, [1, 1])
    assert first["refused"].startswith(f"Ray {VERSION} takes no labels in request_resources: ")

    runs = monitor(config, address, home)
    try:
        told = json.loads(driver.communicate(timeout=PATIENCE_S)[0].splitlines()[-1])
        wait_until(lambda: "worker" not in read_status(home).status.instances, "the worker is gone")
    finally:
        driver.kill()
        driver.wait()
        log = ended(runs)
        stop_everything(home.nodes, SystemClock())
    with open_history(home.ledger) as history:
        (worker,) = [record for record in history.find() if record.node_type == "worker"]
    story = [change.state.name for change in worker.history]
    assert story[:5] == ["QUEUED", "REQUESTED", "ALLOCATED", "RAY_RUNNING", "RAY_STOP_REQUESTED"], log
    assert story[-1] == "TERMINATED"
    assert worker.node_id == told["node"]
    assert (runs.returncode, "rror" in log) == (0, False), log
