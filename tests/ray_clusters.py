"""The Ray heads of the tests: how many there may be, which tests share one, in which order they run.

A plugin of tests/conftest.py. Tests that need only a cluster take `plain_head`: one head for all of them, to
which they bring workers, resources, labels and namespaces of their own, and which they leave without workers.
A story that kills the head, or that is about `muster up`, has a cluster of its own.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TypeVar

import psutil
import pytest
from tests.support.ray_cluster import AUTH, RayCluster, RayDidNotStart, RayNode

from muster.cluster.model import NodeReport, NodeStatus
from muster.errors import EngineError
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.runtimes.ray.publish import AUTOSCALER_SPACE, CLUSTER_CONFIG

T = TypeVar("T")
# In one run of the tests: eight are started today, one more where a start is repeated on a busy computer;
# those that `muster up` starts on hosts have an environment of their own and are not counted (four).
MOST_HEADS = 10
SAMPLE_S = 0.5
PATIENCE_S = 200.0  # Ray may give up on a start, more than once, on a busy computer
WORKER_TRIES = 5
MARK = "MUSTER_TEST_RUN"
SESSION = re.compile(r"^--session-name=(.+)$", re.MULTILINE)

# Files that start Ray, in the order in which they run. Those with a cluster of their own come first: they end
# with it. The others share `plain_head`: first the tests that want to be the first to tell the GCS something,
# last the test that ends the head and starts it again.
ORDER = (
    "tests/e2e/test_1_scaling.py",
    "tests/e2e/test_1_tuner.py",
    "tests/e2e/test_1_money.py",
    "tests/e2e/test_2_losses.py",
    "tests/e2e/test_3_down.py",
    "tests/e2e/test_slurm.py",
    "tests/e2e/test_rack.py",
    "tests/e2e/test_rack_head.py",
    "tests/e2e/test_rack_in_containers.py",
    "tests/autoscaler/test_ray_versions.py",
    "tests/autoscaler/test_gcs_restart.py",
    "tests/autoscaler/test_head_by_hand.py",
    "tests/autoscaler/test_shadow_on_ray.py",
    "tests/runtimes/ray/test_1_real_nodes.py",
    "tests/runtimes/ray/test_2_real_messages.py",
    "tests/runtimes/ray/test_3_notices_to_drain.py",
    "tests/runtimes/ray/test_3_real_drains.py",
    "tests/contracts/test_ray_engine.py",
    "tests/engines/ray/test_on_a_cluster.py",
    "tests/tune/test_on_ray_example.py",
    "tests/tune/test_preemption_on_ray.py",
    "tests/tune/commands/test_on_ray.py",
    "tests/tune/test_workers_on_ray.py",
    "tests/tune/integration/test_ray_train.py",
    "tests/bench/test_tune_ray_bench.py",
    "tests/parity/test_ray_sdk.py",
    "tests/engines/ray/test_apart.py",
    "tests/tune/crash/test_kill_on_ray.py",
    "tests/providers/process/test_ray_nodes.py",
    "tests/providers/kuberay/test_on_ray.py",
    "tests/autoscaler/test_real_ray.py",
    "tests/runtimes/ray/test_4_real_restart.py",
)
COUNT = pytest.StashKey["HeadCount"]()


def place(file: Path, root: Path) -> int:
    """Where a file that starts Ray stands in the order; those that nobody has put into it come last."""
    name = file.relative_to(root).as_posix()
    return ORDER.index(name) if name in ORDER else len(ORDER)


def wait_for(look: Callable[[], T], happens: Callable[[T], object]) -> T:
    """The first look that shows it; an early exit, and a generous end."""
    give_up = time.monotonic() + PATIENCE_S
    while True:
        seen = look()
        if happens(seen):
            return seen
        assert time.monotonic() < give_up, f"it did not happen in {PATIENCE_S:.0f} s; last seen: {seen}"
        time.sleep(0.1)


def join(cluster: RayCluster, cloud_id: str, resources: dict[str, float], **more: object) -> RayNode:
    """A worker that has joined; tried again where Ray gives up because the machine is busy."""
    source = GcsNodeSource(GcsClient(cluster.address, AUTH))
    for _ in range(WORKER_TRIES):
        worker = cluster.add_worker(cloud_id, resources, **more)  # type: ignore[arg-type]
        while worker.process.poll() is None:
            if cloud_id in living(source):
                return worker
            time.sleep(0.1)
        worker.kill()
    raise RayDidNotStart(cloud_id, (cluster.temp_dir / f"{cloud_id}.log").read_text(errors="replace")[-2000:])


def living(source: GcsNodeSource) -> dict[str, NodeReport]:
    """By cloud id, without those that are dead: earlier tests have left some."""
    return {str(node.cloud_id): node for node in source.read().nodes if node.status is not NodeStatus.DEAD}


@pytest.fixture(scope="session")
def plain_head() -> Iterator[RayCluster]:
    """Two processors, a graphics processor, the label tier=gold; no worker, no autoscaler."""
    with RayCluster(resources={"GPU": 1}, labels={"tier": "gold"}) as cluster:
        source = GcsNodeSource(GcsClient(cluster.address, AUTH))
        wait_for(lambda: _count(source), bool)
        yield cluster


def clear(cluster: RayCluster) -> None:
    """Only the head, which nobody has told of an autoscaler: whatever tests before have left is ended."""
    for cloud_id in [name for name in cluster.nodes if name != "head-0"]:
        cluster.nodes.pop(cloud_id).kill()
    link = GcsClient(cluster.address, AUTH)
    link.kv_put(CLUSTER_CONFIG, b"", AUTOSCALER_SPACE)
    wait_for(lambda: set(living(GcsNodeSource(link))), lambda nodes: nodes == {"head-0"})


def _count(source: GcsNodeSource) -> int:
    try:
        return len(source.read().nodes)
    except EngineError:  # not yet
        return 0


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Generator[None, object, object]:
    """A cluster that did not start is one error; the other tests that wanted it are skipped."""
    try:
        return (yield)
    except RayDidNotStart as error:
        if error.is_told:
            pytest.skip(f"{error.what} did not start: the first test that needed it says why")
        error.is_told = True
        raise


class HeadCount:
    """The sessions of all `gcs_server` that this run started, looked for twice a second.

    Nodes outlive those who start them, so they are known by a mark in their environment. A GCS that is killed
    and started alone has the session of before: it is not a new head.
    """

    def __init__(self) -> None:
        self.sessions: set[str] = set()
        os.environ[MARK] = self._mark = secrets.token_hex(8)
        atexit.register(self._end_all)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="head-count", daemon=True)
        self._thread.start()

    def close(self) -> int:
        self._stop.set()
        self._thread.join()
        return len(self.sessions)

    def _end_all(self) -> None:
        """End what an interrupted run has left: after Ctrl-C the processes of xdist tear nothing down."""
        owner = os.getpid()
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.pid != owner and process.environ().get(MARK) == self._mark:
                    process.kill()

    def _run(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            for process in psutil.process_iter():
                with contextlib.suppress(psutil.Error):
                    if process.name() == "gcs_server" and process.environ().get(MARK) == self._mark:
                        self.sessions.update(SESSION.findall("\n".join(process.cmdline())))


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # not in the processes of xdist, whose heads have our mark too
        config.stash[COUNT] = HeadCount()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if COUNT in session.config.stash and session.config.stash[COUNT].close() > MOST_HEADS:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    count = len(config.stash[COUNT].sessions)
    too_many = count > MOST_HEADS
    terminalreporter.write_line(
        f"Ray heads started: {count}, at most {MOST_HEADS} are allowed", red=too_many, green=not too_many
    )
