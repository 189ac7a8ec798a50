"""Prometheus metrics by Ray's names (MR-1, MR-2), also those that Ray's second autoscaler never feeds."""

from __future__ import annotations

import logging
import socket
import urllib.request

import pytest
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import HEAD_NODE, node, spec

from muster.autoscaler.metrics import Metrics, MetricsServer, gauges_of, host_for
from muster.cluster.model import DrainFailure, NodeStatus
from muster.errors import CapacityExhausted
from muster.testing.builders import amounts, demand, node_type

CPU, GPU = node_type("cpu"), node_type("gpu", {"CPU": 8, "GPU": 2})


@pytest.fixture
def metrics():
    return Metrics("session_1")


@pytest.fixture
def scene(metrics):
    return Scene(wishes=spec(CPU, GPU, idle_timeout_s=60.0), outlets=[metrics], metrics=metrics)


def values(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, {"SessionName": "session_1", **labels})


def by(metrics, name, label):
    family = next(f for f in metrics.registry.collect() if f.name == name)
    return {sample.labels[label]: sample.value for sample in family.samples}


def launched(scene, **reported):
    """One cpu worker, asked for, found and running."""
    scene.tick()
    scene.stage.runtime.demands = [demand()]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    scene.machine_for("w", request, **reported)
    scene.stage.runtime.demands = []
    scene.tick(7)
    scene.tick()


def test_nodes_by_type_and_resources_as_machines_come_and_go(scene, metrics):
    scene.tick()
    scene.stage.runtime.demands = [demand({"GPU": 2})]
    scene.tick()
    assert by(metrics, "autoscaler_pending_nodes", "NodeType") == {"head": 0, "cpu": 0, "gpu": 1}
    assert by(metrics, "autoscaler_active_nodes", "NodeType") == {"head": 1, "cpu": 0, "gpu": 0}
    assert by(metrics, "autoscaler_recently_failed_nodes", "NodeType") == {"head": 0, "cpu": 0, "gpu": 0}
    assert by(metrics, "autoscaler_pending_resources", "resource") == {"CPU": 8, "GPU": 2}


def test_resources_are_what_the_nodes_report_and_fall_to_zero_when_they_go(scene, metrics):
    launched(scene, total=amounts({"CPU": 1, "odd": 3}))
    assert by(metrics, "autoscaler_cluster_resources", "resource") == {"CPU": 1, "odd": 3}
    assert by(metrics, "autoscaler_pending_resources", "resource") == {"CPU": 0}
    scene.stage.runtime.nodes = [HEAD_NODE]
    del scene.stage.provider.machines["c-w"]
    for _ in range(3):
        scene.tick(40)
    assert by(metrics, "autoscaler_cluster_resources", "resource") == {"CPU": 0, "odd": 0}
    assert values(metrics, "autoscaler_stopped_nodes_total") == 1


def test_a_type_that_leaves_the_config_keeps_its_nodes_and_then_reports_zero(scene, metrics):
    launched(scene)
    scene.stage.spec.answers["current"] = (spec(GPU), "")
    scene.tick()
    assert by(metrics, "autoscaler_active_nodes", "NodeType") == {"head": 1, "cpu": 1, "gpu": 0}
    scene.stage.runtime.nodes = [HEAD_NODE]
    del scene.stage.provider.machines["c-w"]
    for _ in range(3):
        scene.tick(40)
    assert by(metrics, "autoscaler_active_nodes", "NodeType") == {"head": 1, "cpu": 0, "gpu": 0}


def test_starts_are_counted_and_timed(scene, metrics):
    launched(scene)
    assert values(metrics, "autoscaler_started_nodes_total") == 2  # the head, and the worker
    assert values(metrics, "autoscaler_worker_create_node_time_seconds_count") == 1
    assert values(metrics, "autoscaler_worker_create_node_time_seconds_sum") == 7
    assert values(metrics, "autoscaler_running_workers_nodes") == 1
    assert values(metrics, "autoscaler_update_time_seconds_count") == len(scene.heard.ticks)


def test_failures_are_counted(scene, metrics):
    launched(scene)
    scene.stage.provider.answers["launch"] = CapacityExhausted("sold out")
    scene.stage.runtime.demands = [demand({"GPU": 2})]
    scene.tick()
    scene.tick(1)
    scene.stage.drainer.answers["poll"] = (DrainFailure(instance_id="i", message="no"),)
    scene.tick(1)
    assert values(metrics, "autoscaler_node_launch_exceptions_total") == 1
    assert values(metrics, "autoscaler_failed_create_nodes_total") == 1
    assert values(metrics, "autoscaler_drain_node_exceptions_total") == 1


def test_ticks_that_fail_and_invalid_edits_are_counted(scene, metrics):
    scene.tick()
    load, scene.stage.store.load = scene.stage.store.load, None
    scene.monitor.round()
    scene.stage.store.load = load
    wishes, _ = scene.stage.spec.answers["current"]
    scene.stage.spec.answers["current"] = (wishes, "line 3")
    scene.tick()
    scene.tick()
    assert values(metrics, "autoscaler_update_loop_exceptions_total") == 1
    assert values(metrics, "autoscaler_config_validation_exceptions_total") == 1


def test_money_and_verdicts_are_ours(metrics):
    scene = Scene(wishes=spec(node_type("cpu", price_per_hour=3.6)), outlets=[metrics])
    launched(scene)
    before = values(metrics, "muster_spend")
    scene.tick(1000)
    assert values(metrics, "muster_price_per_hour") == 3.6
    assert values(metrics, "muster_spend") - before == pytest.approx(1.0)
    assert values(metrics, "muster_verdicts", subject="node", reason="kept-head") == 1


def test_a_report_that_is_missing_leaves_the_resources_as_they_were(scene):
    scene.stage.runtime.answers["read"] = OSError("away")
    assert "cluster_resources" not in gauges_of(scene.tick())


def test_every_metric_carries_the_session_and_rays_names(scene, metrics):
    launched(scene)
    scene.stage.runtime.nodes = [
        HEAD_NODE,
        node("w", NodeStatus.IDLE, idle_s=61.0, available=amounts({"CPU": 1})),
    ]
    scene.tick()
    families = list(metrics.registry.collect())
    assert {s.labels.get("SessionName") for f in families for s in f.samples} == {"session_1"}
    ours = {family.name for family in families if family.name.startswith("muster_")}
    assert {family.name for family in families} - ours == {
        f"autoscaler_{name}"
        for name in (
            "pending_nodes",
            "active_nodes",
            "recently_failed_nodes",
            "stopped_nodes",
            "pending_resources",
            "cluster_resources",
            "worker_create_node_time_seconds",
            "worker_update_time_seconds",
            "update_time_seconds",
            "started_nodes",
            "updating_nodes",
            "recovering_nodes",
            "running_workers_nodes",
            "failed_create_nodes",
            "failed_updates",
            "successful_updates",
            "failed_recoveries",
            "successful_recoveries",
            "update_loop_exceptions",
            "node_launch_exceptions",
            "reset_exceptions",
            "config_validation_exceptions",
            "drain_node_exceptions",
        )
    }


def test_metrics_are_served_and_a_taken_port_is_no_reason_to_stop(metrics, caplog):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        wished = taken.getsockname()[1]
        server = MetricsServer(metrics, "127.0.0.1", wished)
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics", timeout=10) as answer:
                page = answer.read().decode()
        finally:
            server.close()
    assert "autoscaler_started_nodes_total" in page
    (line,) = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
    assert line.startswith(
        f"metrics: port {wished} cannot be used (address already in use); they are on port"
    )


def test_a_cluster_on_loopback_is_not_shown_to_the_network():
    assert [host_for(a) for a in ("127.0.0.1:1", "localhost:1", "10.0.0.1:6379")] == [
        "127.0.0.1",
        "127.0.0.1",
        "0.0.0.0",
    ]
