"""The monitor on a real Ray: a node comes for a task that does not fit, and goes when it idles.

The head is shared with others. Everything else is found and ended by what is written down in the home.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from tests.support.ray_cluster import AUTH

from muster.autoscaler.build import MonitorOptions, build_monitor
from muster.autoscaler.connect import HeadAddress
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import read_status
from muster.base.clock import SystemClock
from muster.cluster.states import InstanceState
from muster.providers.process.head import stop_everything
from muster.stores.history.files import read_history
from muster.stores.ledger.history import open_history

pytestmark = pytest.mark.ray
CLOCK = SystemClock()
PATIENCE_S = 200.0  # Ray may give up on a start, more than once, on a busy computer
CONFIG = """
cluster_name: real
provider: {type: process}
head_node_type: head
max_workers: 2
idle_timeout_minutes: 0.05
available_node_types:
  head: {resources: {CPU: 1}, node_config: {}}
  worker: {resources: {CPU: 2, launched: 1}, max_workers: 2, node_config: {}}
"""
TASK = """
import json, time, ray
ray.init(address={address!r}, logging_level="error", log_to_driver=False)

@ray.remote(num_cpus=2, resources={{"launched": 1}})
def where():
    return ray.get_runtime_context().get_node_id()

asked = time.time()
print(json.dumps({{"asked": asked, "node": ray.get(where.remote(), timeout=80)}}))
"""


def wait_until(true, what):
    give_up = CLOCK.monotonic() + PATIENCE_S
    while not true():
        assert CLOCK.monotonic() < give_up, f"not within {PATIENCE_S:.0f} s: {what}"
        CLOCK.sleep(0.1)


@pytest.fixture(scope="module")
def cluster(plain_head, tmp_path_factory):
    """The cluster file, the home, the address of the head."""
    folder = tmp_path_factory.mktemp("real")
    home = ClusterHome(folder / "home")
    home.path.mkdir()
    (folder / "cluster.yaml").write_text(CONFIG, encoding="utf-8")
    before = {key: value for key, value in os.environ.items() if key.startswith("RAY_AUTH")}
    try:
        yield folder / "cluster.yaml", home, plain_head.address
    finally:
        stop_everything(home.nodes, CLOCK)
        for key in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
            os.environ.pop(key, None)
        os.environ.update(before)


def daemon(cluster, home=None, token=None, *more):
    config, usual, address = cluster
    auth = {**AUTH, **({"RAY_AUTH_TOKEN": token} if token else {})}
    command = [sys.executable, "-m", "muster.cli.main", "monitor", str(config), "--address", address]
    return subprocess.Popen(
        [*command, "--home", str((home or usual).path), "--metrics-port", "0", *more],
        env={**os.environ, **auth},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def driver(address):
    return subprocess.Popen(
        [sys.executable, "-c", TASK.format(address=address)],
        env={**os.environ, **AUTH},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_a_second_monitor_refuses_to_start_and_the_first_ends_cleanly(cluster, tmp_path):
    _, home, _ = cluster
    first = daemon(cluster)
    try:
        wait_until(home.status.exists, "the first status")
        again = daemon(cluster)
        elsewhere = daemon(cluster, ClusterHome(tmp_path / "another"))
        said = again.communicate(timeout=PATIENCE_S)[0]
        assert (again.returncode, f"(process {first.pid})" in said, said.count("\n")) == (2, True, 1)
        said = elsewhere.communicate(timeout=PATIENCE_S)[0]
        assert (elsewhere.returncode, f"process {first.pid} on" in said, said.count("\n")) == (2, True, 1)
    finally:
        first.send_signal(signal.SIGTERM)
        said = first.communicate(timeout=PATIENCE_S)[0]
    assert first.returncode == 0
    assert said.splitlines()[-1].endswith("the monitor has ended")
    assert AUTH["RAY_AUTH_TOKEN"] not in said


def test_a_refused_token_is_said_in_one_line_and_not_in_it(cluster, tmp_path):
    wrong = daemon(cluster, ClusterHome(tmp_path / "home"), "f" * 64)
    said = wrong.communicate(timeout=PATIENCE_S)[0]
    *native, line = said.splitlines()
    assert (wrong.returncode, [each for each in native if "gcs_client.cc" not in each]) == (2, [])
    assert "does not accept the token" in line
    assert "f" * 64 not in said


def test_a_task_that_does_not_fit_gets_a_node_and_the_node_goes_when_it_idles(cluster):
    config, home, address = cluster
    stop = threading.Event()
    options = MonitorOptions(config=config, home=home, head=HeadAddress(address, AUTH), metrics_port=0)

    def run():  # a ledger belongs to the thread that opened it
        build_monitor(options, os.environ, stop).run(stop)

    loop = threading.Thread(target=run)
    loop.start()
    task = driver(address)
    try:
        told = json.loads(task.communicate(timeout=PATIENCE_S)[0].splitlines()[-1])
        wait_until(lambda: "worker" not in read_status(home).status.instances, "the worker is gone")
    finally:
        task.kill()
        task.wait()
        stop.set()
        loop.join()
    with open_history(home.ledger) as history:
        (worker,) = [record for record in history.find() if record.node_type == "worker"]
    story = [change.state.name for change in worker.history]  # its raylet may be missed before its node is
    assert story[:5] == ["QUEUED", "REQUESTED", "ALLOCATED", "RAY_RUNNING", "RAY_STOP_REQUESTED"]
    assert story[-1] == "TERMINATED"
    assert worker.node_id == told["node"]
    assert (
        worker.entered(InstanceState.REQUESTED)[0] - told["asked"] < 10
    )  # Ray's own share is about a second
    demands = [counts for entry in read_history(home.history) for counts in entry.demand.values()]
    assert {"waiting-for-launch": 1} in demands
    assert left_behind(home) == []


def left_behind(home: Path) -> list[str]:
    """Processes of workers; the head is the fixture's. A node's own processes die a moment after it."""
    give_up = CLOCK.monotonic() + 20
    while (found := _commands(str(home.nodes), "node-")) and CLOCK.monotonic() < give_up:
        CLOCK.sleep(0.1)
    return found


def _commands(*words: str) -> list[str]:
    commands = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if all(word in command for word in words):
                commands.append(command)
    return commands
