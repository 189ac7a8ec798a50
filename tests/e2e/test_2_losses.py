"""What is lost comes back once: nodes, a killed monitor, the head; edits of the file, drains, objects."""

from __future__ import annotations

import time

import pytest
from bench.live_cluster import wait_for
from bench.live_driver import Driver
from tests.e2e.conftest import CONFIG, DEMANDS, IDLE_S
from tests.support.ray_cluster import AUTH

from muster.cluster.model import NodeStatus
from muster.cluster.states import InstanceState
from muster.runtimes.ray.native import set_up
from muster.stores.ledger.history import open_history

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SEAT = {"CPU": 1, "seat": 1}


def test_only_the_lost_bundle_is_bought_again_and_an_object_keeps_its_node(stage):
    """E2E-6, E2E-7: a node of a gang is killed; later an object lies on one of its nodes."""
    driver, watch, before = stage.driver, stage.watch, stage.came_up()
    driver.ask("gang", name="pair", bundles=[SEAT] * 2, strategy="STRICT_SPREAD")
    assert driver.ask("ready", name="pair")
    driver.ask("tenants", name="actors", gang="pair", num_cpus=0.5)
    stays, dies = driver.ask("homes", name="actors")
    assert stage.cluster.kill_node(stage.cloud_id_of(dies)) > 3

    wait_for(watch.now, lambda snapshot: dies not in living(snapshot), "the node is seen dead")
    wait_for(watch.now, lambda snapshot: len(snapshot.workers) == 2, "a new node")
    first, second = wait_for(
        lambda: driver.ask("homes", name="actors"), lambda at: dies not in at, "both again"
    )
    assert first == stays
    assert second not in (stays, dies)
    assert stage.came_up() - before in (3, 4)  # one more may come and go while Ray's view lags
    assert {stays, second} == living(watch.now())

    driver.ask("drop", names=["actors", "pair"])
    driver.ask("put", name="object", megabytes=5, num_cpus=1, resources={"seat": 1})
    holder = wait_for(
        watch.now, lambda snapshot: len(snapshot.workers) == 1, "the node without the object goes"
    )
    time.sleep(IDLE_S + 1.5)
    assert living(watch.now()) == living(holder)
    driver.ask("forget", name="object")
    stage.wait_for_quiet()


def living(snapshot):
    return {node.node_id for node in snapshot.workers}


def test_a_killed_monitor_is_followed_by_one_that_finds_every_node(stage):
    """One node runs, two are on their way when the monitor is killed; a second monitor refuses."""
    driver, cluster, before, gate = stage.driver, stage.cluster, stage.came_up(), stage.gate()
    driver.ask("tasks", name="first", until=str(gate), num_cpus=1, resources={"seat": 1})
    stage.wait_for_nodes(small=1)
    driver.ask("tasks", name="more", until=str(gate), count=2, num_cpus=1, resources={"seat": 1})
    wait_for(lambda: len(small_records(cluster)), lambda count: count == 3, "three nodes are written down")
    old = cluster.kill_monitor()
    gone = cluster.muster("status", "e2e")
    assert (gone.returncode, "is gone, so nothing scales" in " ".join(gone.stdout.split())) == (3, True)
    assert "with a new monitor" in cluster.up()
    assert cluster.monitor_pid() != old
    said = cluster.muster("monitor", str(cluster.file), "--home", str(cluster.home.path), "--once")
    assert (said.returncode, said.stderr.count("\n") + said.stdout.count("\n")) == (2, 1)
    assert f"process {cluster.monitor_pid()}" in said.stderr + said.stdout

    stage.wait_for_nodes(small=3)
    wait_for(stage.watch.now, lambda snapshot: not snapshot.report.demands, "every task runs")
    stage.stays(1.5, small=3)
    assert agent_ports(cluster) == {one.cloud_id: one.ports.agent_http for one in small_records(cluster)}
    gate.touch()
    assert len(set(driver.ask("nodes", name="first") + driver.ask("nodes", name="more"))) == 3
    stage.wait_for_quiet()
    assert stage.came_up() - before in (3, 4)  # one more may come and go while Ray's view lags


def agent_ports(cluster):
    """What the nodes said of their agents when they joined; -1 where a node did not know it in time."""
    from ray.core.generated.gcs_pb2 import GcsNodeInfo

    found = set_up(AUTH).GcsClient(address=cluster.address).get_all_node_info(timeout=60).values()
    alive = [one for one in found if one.state == GcsNodeInfo.GcsNodeState.ALIVE]
    return {
        one.instance_id: one.dashboard_agent_listen_port for one in alive if one.node_type_name == "small"
    }


def small_records(cluster):
    return [one for one in cluster.node_records() if one.node_type == "small" and one.state != "terminated"]


def test_edits_of_the_file_are_taken_up_and_a_busy_node_may_finish(stage):
    """A minimum comes and goes; a maximum below a busy node drains it; an invalid edit changes nothing."""
    driver, cluster, gate = stage.driver, stage.cluster, stage.gate()
    small = "small: {resources: {CPU: 1, seat: 1}, min_workers: 0, max_workers: 5}"
    cluster.edit(CONFIG.replace(small, small.replace("min_workers: 0", "min_workers: 2")))
    idle = stage.wait_for_nodes(small=2)
    wait_for(
        stage.watch.now,
        lambda snapshot: all(n.idle_s > IDLE_S + 1 for n in snapshot.workers),
        "idle, and kept",
    )
    assert living(stage.watch.now()) == living(idle)

    driver.ask("tasks", name="busy", until=str(gate), num_cpus=1, resources={"seat": 1})
    wait_for(gate.with_name(f"{gate.name}.began").exists, bool, "it runs")
    cluster.edit(CONFIG.replace(small, small.replace("max_workers: 5", "max_workers: 0")))
    draining = wait_for(
        stage.watch.now,
        lambda snapshot: [node.status for node in snapshot.workers] == [NodeStatus.DRAINING],
        "the idle one is gone, the busy one drains",
    )
    cluster.edit(CONFIG.replace("max_workers: 8", "max_workers: many"))
    wait_for(lambda: cluster.muster_json("status", "e2e"), lambda said: said["config_problem"], "it is shown")
    assert "max_workers" in cluster.muster("status", "e2e").stdout
    assert living(stage.watch.now()) == living(draining)  # the last good one holds
    gate.touch()
    assert driver.ask("nodes", name="busy") == sorted(living(draining))
    stage.wait_for_quiet()
    wait_for(lambda: were_drained(cluster, 2), lambda how: how == [(True, True)] * 2, "drained and gone")

    cluster.edit(CONFIG)
    wait_for(lambda: cluster.published().config_problem, lambda said: not said, "the next good one counts")
    assert stage.type_of(driver.ask("run", num_cpus=1, resources={"seat": 1})) == "small"
    stage.wait_for_quiet()


def were_drained(cluster, count):
    """Whether the newest machines ran, were asked to stop and are gone, and nothing went wrong with them."""
    with open_history(cluster.home.ledger) as history:
        ran = [record for record in history.find() if record.entered(InstanceState.RAY_RUNNING)]
    newest = sorted(ran, key=lambda record: record.history[0].at)[-count:]
    return [
        (bool(record.entered(InstanceState.RAY_STOP_REQUESTED)), record.state is InstanceState.TERMINATED)
        for record in newest
    ]


def test_a_new_head_gets_nodes_too(stage):
    """The head dies with its GCS, all nodes go; `muster up` makes a new one that scales."""
    cluster = stage.cluster
    gate = stage.gate()
    stage.driver.ask("tasks", name="lost", until=str(gate), num_cpus=1, resources={"seat": 1})
    stage.wait_for_nodes(small=1)
    (head,) = [one for one in cluster.node_records() if one.node_type == "head"]
    assert cluster.kill_node(head.cloud_id) > 3
    said = cluster.up()
    assert f"export RAY_ADDRESS={cluster.address}" in said
    assert f"export RAY_AUTH_TOKEN_PATH={cluster.home.token}" in said
    driver = Driver(DEMANDS, cluster.environment(), cluster.folder / "second-driver.log")
    try:
        driver.ask("tasks", name="again", until=str(gate), num_cpus=1, resources={"seat": 1})
        gate.touch()
        assert len(driver.ask("nodes", name="again")) == 1
    finally:
        driver.close()
