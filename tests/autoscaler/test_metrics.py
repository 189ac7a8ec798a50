"""Prometheus metrics by Ray's names (MR-1, MR-2), also those that Ray's second autoscaler never feeds."""

from __future__ import annotations

import logging
import socket
import urllib.error
import urllib.request

import pytest
from msgspec.structs import replace
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import HEAD_NODE, node, spec
from tests.support.builders import amounts, demand, gang, node_type

from muster.autoscaler.metrics import Metrics, MetricsServer, gauges_of, host_for, start_metrics_server
from muster.autoscaler.monitor import MonitorHealth
from muster.base.clock import ManualClock
from muster.cluster.model import DrainFailure, NodeStatus, Notice, NoticeKind, Offer, TerminateFailure
from muster.cluster.ports import NoticeReport
from muster.cluster.snapshot import ProviderTraits
from muster.errors import CapacityExhausted, ClusterError

IN_ALL = {"SessionName": "session_1", "ClusterName": "demo"}
CPU, GPU = node_type("cpu"), node_type("gpu", {"CPU": 8, "GPU": 2})


@pytest.fixture
def metrics():
    return Metrics("session_1", "demo")


@pytest.fixture
def scene(metrics):
    return Scene(wishes=spec(CPU, GPU, idle_timeout_s=60.0), outlets=[metrics], metrics=metrics)


def values(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, {**IN_ALL, **labels})


def by(metrics, name, label):
    family = next(f for f in metrics.registry.collect() if f.name == name)
    return {s.labels[label]: s.value for s in family.samples if not s.name.endswith("_created")}


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


@pytest.mark.conformance("MR-1")
def test_nodes_by_type_and_resources_as_machines_come_and_go(scene, metrics):
    scene.tick()
    scene.stage.runtime.demands = [demand({"GPU": 2})]
    scene.tick()
    assert by(metrics, "autoscaler_pending_nodes", "NodeType") == {"head": 0, "cpu": 0, "gpu": 1}
    assert by(metrics, "autoscaler_active_nodes", "NodeType") == {"head": 1, "cpu": 0, "gpu": 0}
    assert by(metrics, "autoscaler_recently_failed_nodes", "NodeType") == {"head": 0, "cpu": 0, "gpu": 0}
    assert by(metrics, "autoscaler_pending_resources", "resource") == {"CPU": 8, "GPU": 2}


def test_resources_are_what_the_nodes_report_of_those_that_are_configured(scene, metrics):
    placement_group = {"CPU_group_0_4f": 1, "CPU_group_4f": 1, "bundle_group_4f": 1000, "node:10.0.0.1": 1}
    launched(scene, total=amounts({"CPU": 1, "odd": 3, **placement_group}))
    assert by(metrics, "autoscaler_cluster_resources", "resource") == {"CPU": 1, "GPU": 0}
    assert by(metrics, "autoscaler_pending_resources", "resource") == {"CPU": 0, "GPU": 0}
    lose(scene)
    assert by(metrics, "autoscaler_cluster_resources", "resource") == {"CPU": 0, "GPU": 0}
    assert values(metrics, "autoscaler_stopped_nodes_total") == 1


def lose(scene):
    """The worker of `launched`, its machine as well."""
    scene.stage.runtime.nodes = [HEAD_NODE]
    del scene.stage.provider.machines["c-w"]
    for _ in range(4):
        scene.tick(40)


@pytest.mark.conformance("MR-2")
def test_a_type_or_resource_that_leaves_the_config_keeps_its_nodes_and_then_has_no_series(scene, metrics):
    launched(scene)
    scene.stage.spec.answers["current"] = (spec(node_type("tpu", {"TPU": 4})), "")
    scene.tick()
    assert by(metrics, "autoscaler_active_nodes", "NodeType") == {"head": 1, "cpu": 1, "tpu": 0}
    assert by(metrics, "autoscaler_cluster_resources", "resource") == {"TPU": 0}
    lose(scene)
    assert by(metrics, "autoscaler_active_nodes", "NodeType") == {"head": 1, "tpu": 0}


def test_no_labelled_gauge_keeps_a_series_whose_subject_is_gone(scene, metrics):
    launched(scene)

    def series():
        families = [family for family in metrics.registry.collect() if family.type == "gauge"]
        return {(s.name, tuple(sorted(s.labels.items()))) for family in families for s in family.samples}

    scene.tick()
    before = series()
    scene.stage.provider.answers["launch"] = CapacityExhausted("sold out")
    scene.stage.runtime.demands = [demand({"GPU": 2}), demand({"odd": 1}), demand({"node:10.0.0.9": 1})]
    wishes, _ = scene.stage.spec.answers["current"]
    scene.stage.spec.answers["current"] = (
        spec(CPU, GPU, node_type("tpu", {"TPU": 1}, price_per_hour=1.0)),
        "",
    )
    for _ in range(3):
        scene.tick(1)
    assert {"TPU", "odd"} < {dict(labels).get("resource") for _, labels in series()}
    assert "node:10.0.0.9" not in {dict(labels).get("resource") for _, labels in series()}
    scene.stage.runtime.demands, scene.stage.provider.answers["launch"] = [], None
    scene.stage.spec.answers["current"] = (wishes, "")
    scene.tick(60)  # nothing is backed off any more
    assert series() == before


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
    before = values(metrics, "muster_spend_total")
    scene.tick(1000)
    assert values(metrics, "muster_price_per_hour") == 3.6
    assert by(metrics, "muster_type_price_per_hour", "NodeType") == {"cpu": 3.6}
    assert values(metrics, "muster_spend_total") - before == pytest.approx(1.0)
    assert values(metrics, "muster_verdicts", subject="node", reason="kept-head") == 1


def test_spend_continues_after_a_restart_and_never_falls():
    scene = Scene(wishes=spec(node_type("cpu", price_per_hour=3.6)))
    launched(scene)
    scene.tick(1000)
    fresh = Metrics("session_1", "demo")
    fresh.on_tick(scene.tick(1000))
    assert values(fresh, "muster_spend_total") == pytest.approx(2.0, rel=0.05)
    fresh.on_tick(scene.heard.ticks[-2])  # an older total
    assert values(fresh, "muster_spend_total") == pytest.approx(2.0, rel=0.05)


def test_the_time_of_the_last_tick_is_that_of_the_last_one_that_decided(scene, metrics):
    tick = scene.tick()
    assert values(metrics, "muster_last_tick_timestamp_seconds") == tick.plan.at
    scene.stage.store.commit = None
    scene.stage.runtime.demands = [demand()]
    assert not scene.tick(60).is_decided
    assert values(metrics, "muster_last_tick_timestamp_seconds") == tick.plan.at


def test_a_file_that_is_not_in_force_is_shown_while_that_lasts(scene, metrics):
    scene.tick()
    told = [values(metrics, "muster_config_not_in_force")]
    wishes, _ = scene.stage.spec.answers["current"]
    for problem, restart_needed in (("line 3", False), ("", True), ("", False)):
        scene.stage.spec.answers["current"], metrics.restart_needed = (wishes, problem), restart_needed
        scene.tick()
        told.append(values(metrics, "muster_config_not_in_force"))
    assert told == [0, 1, 1, 0]


def test_launch_failures_are_counted_by_type_and_kind(scene, metrics):
    scene.tick()
    for kind in ("capacity", "timeout"):  # `increase` misses a first failure that begins its series
        assert values(metrics, "muster_launch_failures_total", NodeType="gpu", kind=kind) == 0
    scene.stage.provider.answers["launch"] = CapacityExhausted("sold out")
    scene.stage.runtime.demands = [demand({"GPU": 2})]
    scene.tick()
    scene.tick(1)
    assert values(metrics, "muster_launch_failures_total", NodeType="gpu", kind="capacity") == 1
    assert by(metrics, "muster_backoff_seconds", "NodeType") == {"head": 0, "cpu": 0, "gpu": 5}
    scene.stage.provider.answers["launch"] = None
    for _ in range(5):
        scene.tick(700)  # nothing comes, four times
    assert values(metrics, "muster_launch_failures_total", NodeType="gpu", kind="timeout") == 1
    assert values(metrics, "muster_launch_failures_total", NodeType="gpu", kind="capacity") == 1


def test_lost_nodes_are_counted_and_drained_ones_are_not(scene, metrics):
    launched(scene)
    assert by(metrics, "muster_lost_nodes", "NodeType") == {"head": 0, "cpu": 0, "gpu": 0}
    lose(scene)
    assert values(metrics, "muster_lost_nodes_total", NodeType="cpu") == 1
    scene.stage.provider.calls.clear()
    scene.stage.runtime.demands = [demand()]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    scene.machine_for("w", request)
    scene.stage.runtime.demands = []
    scene.tick()
    idle = node("w", NodeStatus.IDLE, idle_s=61.0, available=amounts({"CPU": 1}), total=amounts({"CPU": 1}))
    scene.stage.runtime.nodes = [HEAD_NODE, idle]
    scene.tick()
    scene.stage.runtime.nodes = [HEAD_NODE, node("w", NodeStatus.DEAD)]
    scene.tick()
    assert values(metrics, "autoscaler_stopped_nodes_total") == 1
    assert values(metrics, "muster_lost_nodes_total", NodeType="cpu") == 1


def test_notices_are_counted_once_by_kind(scene, metrics):
    launched(scene)
    (name,) = [one for one in scene.stage.provider.machines if one != "c-head"]
    risk = Notice(cloud_id=name, kind=NoticeKind.REBALANCE, at=scene.stage.clock.now())
    scene.stage.notices.answers["read"] = NoticeReport(notices=(risk,))
    scene.tick()
    scene.tick()
    assert values(metrics, "muster_notices_total", kind="rebalance") == 1


def test_pending_demand_is_shown_by_resource_with_its_longest_wait(scene, metrics):
    scene.tick()
    scene.stage.runtime.demands = [demand({"GPU": 2, "CPU": 1}, 3)]
    scene.stage.runtime.gangs = [gang([{"CPU": 64}] * 2, gang_id="pg")]
    scene.tick()
    scene.stage.runtime.demands = [demand({"CPU": 128}), demand({"GPU": 2, "CPU": 1}, 2)]
    scene.tick(100)

    def shown(resource):
        return sum(
            sample.value
            for family in metrics.registry.collect()
            for sample in family.samples
            if sample.name == "muster_pending_demand" and sample.labels["resource"] == resource
        )

    assert (shown("GPU"), shown("CPU")) == (4, 128 + 2 + 128)
    infeasible = {"resource": "CPU", "reason": "infeasible"}
    assert values(metrics, "muster_pending_demand", **infeasible) == 256
    assert by(metrics, "muster_pending_demand_wait_seconds", "resource") == {"CPU": 100, "GPU": 100}
    scene.stage.runtime.gangs, scene.stage.runtime.demands = [], [demand({"CPU": 128})]
    scene.tick(10)
    assert by(metrics, "muster_pending_demand_wait_seconds", "resource") == {"CPU": 10}


def test_the_wait_of_a_gang_survives_a_restart_of_the_monitor(scene):
    scene.stage.runtime.gangs = [gang([{"CPU": 64}] * 2, gang_id="pg")]
    scene.tick()
    fresh = Metrics("session_1", "demo")
    fresh.on_tick(scene.tick(50))
    assert by(fresh, "muster_pending_demand_wait_seconds", "resource") == {"CPU": 50}


def test_inputs_set_aside_and_refused_terminates_are_counters(scene, metrics):
    launched(scene)
    scene.stage.provider.answers["poll_terminate_failures"] = (TerminateFailure(cloud_id="c-w"),)
    scene.stage.provider.answers["list_instances"] = OSError("away")
    scene.tick()
    scene.tick()
    assert values(metrics, "muster_terminate_exceptions_total") == 1
    assert values(metrics, "muster_quarantined_total") == 2


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
    assert {(s.labels["SessionName"], s.labels["ClusterName"]) for f in families for s in f.samples} == {
        ("session_1", "demo")
    }
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
    assert line.startswith(f"metrics: port {wished} ")


def test_metrics_listen_on_the_address_of_the_head_and_never_on_every_interface():
    addresses = (
        "127.0.0.1:1",
        "localhost:1",
        "[::1]:1",
        "10.0.0.1:6379",
        "head.example:6379",
        "[fd00::1]:6379",
    )
    assert [host_for(address) for address in addresses] == [
        *["127.0.0.1"] * 3,
        "10.0.0.1",
        "head.example",
        "fd00::1",
    ]


def test_metrics_of_a_head_on_another_computer_are_served_on_loopback_and_the_log_names_the_option(
    metrics, caplog
):
    server = start_metrics_server(metrics, "192.0.2.1", 0, None)  # an address for documents: nobody has it
    server.close()
    assert server.host == "127.0.0.1"
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith("metrics: 192.0.2.1 ")
    assert "--metrics-host" in line


def test_without_a_token_the_log_says_where_the_metrics_are_and_that_anyone_may_read_them(metrics, caplog):
    with caplog.at_level(logging.INFO):
        server = start_metrics_server(metrics, "0.0.0.0", 0, None)
        server.close()
    (line,) = [r.getMessage() for r in caplog.records]
    assert line.startswith(f"metrics: http://0.0.0.0:{server.port}/metrics, ")


def answer_to(server, *headers, path="metrics"):
    request = urllib.request.Request(f"http://{server.address}/{path}", headers=dict(headers))
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_metrics_with_a_token_are_shown_to_those_who_send_it_and_a_new_token_counts_at_once(
    metrics, tmp_path
):
    file = tmp_path / "token"
    file.write_text("first\n", encoding="utf-8")
    server = MetricsServer(metrics, "127.0.0.1", 0, file)
    try:
        first = ("Authorization", "Bearer first")
        seen = [answer_to(server)[0], answer_to(server, ("Authorization", "Bearer other"))[0]]
        status, page = answer_to(server, first)
        file.write_text("second", encoding="utf-8")
        after = [answer_to(server, first)[0], answer_to(server, ("Authorization", "Bearer second"))[0]]
        file.unlink()  # nobody is let in, rather than everybody
        without = answer_to(server, ("Authorization", "Bearer "))
    finally:
        server.close()
    assert (seen, status, after, without[0]) == ([401, 401], 200, [401, 200], 401)
    assert "autoscaler_started_nodes_total" in page
    assert "autoscaler" not in without[1]


def test_probes_are_answered_on_the_same_port_without_the_token(metrics, tmp_path):
    file = tmp_path / "token"
    file.write_text("t")
    metrics.wrap = MonitorHealth(ManualClock()).beside
    server = MetricsServer(metrics, "127.0.0.1", 0, file)
    found = {path: answer_to(server, path=path)[0] for path in ("healthz", "readyz", "metrics")}
    server.close()
    assert found == {"healthz": 200, "readyz": 503, "metrics": 401}


@pytest.mark.parametrize("text", [None, "", " \n"])
def test_a_token_file_without_a_token_is_refused_at_the_start(metrics, tmp_path, text):
    file = tmp_path / "token"
    if text is not None:
        file.write_text(text, encoding="utf-8")
    with pytest.raises(ClusterError, match=str(file)):
        MetricsServer(metrics, "127.0.0.1", 0, file)


def test_prices_back_off_and_failures_are_told_by_offer(metrics):
    offers = (Offer(zone="a", market="spot", price_per_hour=1.0), Offer(zone="b", price_per_hour=2.0))
    scene = Scene(wishes=spec(replace(CPU, offers=offers)), outlets=[metrics])
    provider = scene.stage.provider
    provider.answers["traits"] = ProviderTraits(buys_offers=True)
    provider.answers["launch"] = CapacityExhausted("none left")
    scene.tick()
    scene.stage.runtime.demands = [demand()]
    scene.tick()
    provider.answers["launch"] = None
    scene.tick()
    assert [call[1:] for call in provider.called("launch")] == [
        ({"cpu": 1}, "a/spot"),
        ({"cpu": 1}, "b/on-demand"),
    ]
    first = {"NodeType": "cpu", "Zone": "a", "Market": "spot"}
    other = {"NodeType": "cpu", "Zone": "b", "Market": "on-demand"}
    assert values(metrics, "muster_offer_price_per_hour", **first) == 1.0
    assert values(metrics, "muster_offer_price_per_hour", **other) == 2.0
    assert values(metrics, "muster_offer_backoff_seconds", **first) > 0.0
    assert values(metrics, "muster_offer_backoff_seconds", **other) == 0.0
    assert values(metrics, "muster_offer_launch_failures_total", **first, kind="capacity") == 1.0
    assert values(metrics, "muster_launch_failures_total", NodeType="cpu", kind="capacity") == 1.0
