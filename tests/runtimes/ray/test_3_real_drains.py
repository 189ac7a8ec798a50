"""GcsDrainer on a real Ray: nobody's work is killed. The last use of the shared cluster: it loses workers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.mistakes.views import assert_line
from tests.runtimes.ray.conftest import node_of, wait_for
from tests.runtimes.ray.driver import RayDriver

from muster.base.ids import InstanceId, NodeId, RequestId
from muster.cluster.model import DrainFailure, NodeStatus, StopCause
from muster.cluster.plan import Drain
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_requests import GcsDrainer
from muster.runtimes.ray.node_source import GcsNodeSource

pytestmark = pytest.mark.ray


@pytest.fixture
def drainer(link: GcsClient) -> Iterator[GcsDrainer]:
    drainer = GcsDrainer(link)
    yield drainer
    drainer.close()


def drain(node_id: str, cause: StopCause) -> Drain:
    return Drain(
        request_id=RequestId(f"r-{node_id[:6]}-{cause.name}"),  # one decision, one id
        instance_id=InstanceId("i-1"),
        node_id=NodeId(node_id),
        cause=cause,
        deadline_s=120.0,
    )


def test_a_busy_node_refuses_to_go_as_idle_and_finishes_its_work_when_it_must_go(
    drainer: GcsDrainer, driver: RayDriver, source: GcsNodeSource, tmp_path: Path
) -> None:
    started, may_end = tmp_path / "started", tmp_path / "may_end"
    driver.run(f"""
import os, time
@ray.remote(num_cpus=1, resources={{"one": 1}}, max_retries=0)
def long():
    open({str(started)!r}, "w").close()
    while not os.path.exists({str(may_end)!r}):
        time.sleep(0.1)
    return "finished"
running = long.remote()
""")
    wait_for(started.exists, bool)  # Ray takes work that has not started from a node that is drained
    busy = wait_for(lambda: node_of(source, "w-1"), lambda node: node.status is NodeStatus.RUNNING)
    drainer.drain(drain(busy.node_id, StopCause.IDLE))
    refused = wait_for(drainer.poll, bool)
    assert refused == (
        DrainFailure(
            instance_id=InstanceId("i-1"), message="The node to be idle terminated is no longer idle."
        ),
    )
    drainer.drain(drain(busy.node_id, StopCause.MAX_NODES))
    wait_for(lambda: node_of(source, "w-1"), lambda node: node.status is NodeStatus.DRAINING)
    may_end.touch()
    assert driver.run("answer = ray.get(running)") == "finished"
    wait_for(lambda: node_of(source, "w-1"), lambda node: node.status is NodeStatus.DEAD)
    assert drainer.poll() == ()


def test_an_idle_node_goes_when_asked(drainer: GcsDrainer, source: GcsNodeSource) -> None:
    idle = wait_for(lambda: node_of(source, "w-2"), lambda node: node.status is NodeStatus.IDLE)
    drainer.drain(drain(idle.node_id, StopCause.IDLE))
    gone = wait_for(lambda: node_of(source, "w-2"), lambda node: node.status is NodeStatus.DEAD)
    assert gone.node_id == idle.node_id
    assert drainer.poll() == ()


def test_a_node_that_is_not_there_counts_as_drained(drainer: GcsDrainer) -> None:
    drainer.drain(drain("ab" * 28, StopCause.OUTDATED))
    drainer.close(drop=False)
    assert drainer.poll() == ()


def test_an_id_that_is_not_hex_is_an_error_because_ray_would_say_yes(drainer: GcsDrainer) -> None:
    drainer.drain(drain("\x01\x02", StopCause.IDLE))
    (failure,) = wait_for(drainer.poll, bool)
    assert_line("runtimes", "drain of an id that is not hex", failure.message)
