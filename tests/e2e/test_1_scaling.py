"""Nodes come for what waits, as many as needed, of the right type, and go when they idle (AS-1, E2E-*)."""

from __future__ import annotations

import time

import pytest
from bench.live_cluster import wait_for
from tests.e2e.conftest import IDLE_S

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
SEAT = {"CPU": 1, "seat": 1}


def test_the_usage_tag_says_v2(stage):
    """E2E-4."""
    told = stage.watch.client.kv_get("extra_usage_tag_autoscaler_version", "usage_stats")
    assert told == b"v2"


@pytest.mark.conformance("AS-1")
def test_a_requested_size_comes_stays_and_shrinks_then_tasks_and_gangs_grow_it(stage):
    """AS-1, E2E-1, 2, 3, 5, 8: constraint to 3, to 1, tasks to 3, spread to 5, pack to 6, and too large."""
    driver, watch, before, began = stage.driver, stage.watch, stage.came_up(), time.monotonic()

    driver.ask("request", bundles=[SEAT] * 3)
    stage.wait_for_nodes(small=3)
    idle_long = wait_for(
        watch.now,
        lambda snapshot: all(node.idle_s > IDLE_S + 1 for node in snapshot.workers),
        "idle for long",
    )
    assert idle_long.counts() == {"small": 3}  # asked for, so it stays in spite of the timeout
    driver.ask("request", bundles=[SEAT])
    stage.wait_for_nodes(small=1)

    gate, asked = stage.gate(), time.monotonic()
    driver.ask("tasks", name="held", until=str(gate), count=3, num_cpus=1, resources={"seat": 1})
    wait_for(watch.now, busy(3), "three busy nodes")
    wait_for(watch.now, lambda snapshot: not snapshot.report.demands, "no demand for tasks that run")
    assert max(snapshot.counts().get("small", 0) for snapshot in watch.since(asked)) <= 3 + 1
    driver.ask("request", bundles=[])
    driver.ask("gang", name="spread", bundles=[SEAT] * 2, strategy="STRICT_SPREAD")
    assert driver.ask("ready", name="spread")
    driver.ask("gang", name="pack", bundles=[{"CPU": 1}] * 2, strategy="STRICT_PACK")
    assert driver.ask("ready", name="pack")
    stage.wait_for_nodes(small=5, big=1)

    impossible = driver.ask("gang", name="never", bundles=[{"CPU": 3}], strategy="STRICT_PACK")
    assert_told_impossible(stage, impossible)
    assert stage.watch.now().counts() == {"small": 5, "big": 1}
    assert stage.came_up() - before in (8, 9)  # 3 + 2 + 2 + 1; E2E-1 lets one more come and go

    driver.ask("drop", names=["never", "spread", "pack"])
    wait_for(watch.now, busy(3), "nodes of gangs that are gone are free, those of the tasks are not")
    gate.touch()
    assert len(set(driver.ask("nodes", name="held"))) == 3
    stage.wait_for_quiet()
    driver.ask("forget", name="held")
    assert_told_consistently(watch.since(began))


def busy(count):
    return lambda snapshot: sum("CPU" not in node.available for node in snapshot.workers) == count


def assert_told_impossible(stage, gang_id):
    """In `ray status`, `muster why` and `muster status`; nothing is launched for it."""
    why = wait_for(
        lambda: stage.cluster.muster_json("why", gang_id, "e2e"),
        lambda said: said["pending"],
        "a verdict about the gang",
    )
    (row,) = why["pending"]
    assert (row["reason"], row["shape"]) == ("infeasible", "STRICT_PACK of 1 x {CPU: 3}")
    told = stage.cluster.ray("status")
    assert "{'CPU': 3.0} * 1 (STRICT_PACK)" in told
    assert "infeasible" in stage.cluster.muster("status", "e2e").stdout


def assert_told_consistently(snapshots):
    """E2E-3, 8: gangs wait or run but not both, totals do not move."""
    totals: dict[str, set[str]] = {}
    for snapshot in snapshots:
        held = {label for node in snapshot.workers for label in node.labels if label.startswith("_PG_")}
        assert not held & {gang.label for gang in snapshot.report.gangs}
        for node in snapshot.workers:
            totals.setdefault(node.node_id, set()).add(str(node.total.get("CPU")))
    assert all(len(seen) == 1 for seen in totals.values())


def test_selectors_and_priorities_choose_the_type(stage):
    """E2E-9, 10, 11, 12: a task, an actor and a bundle with label selectors; the type that comes first."""
    driver, gate = stage.driver, stage.gate()
    driver.ask("tasks", name="gold", until=str(gate), num_cpus=1, label_selector={"tier": "gold"})
    driver.ask("tenant", name="silver", num_cpus=1, label_selector={"tier": "in(silver,bronze)"})
    driver.ask("gang", name="bundle", bundles=[{"CPU": 1}], strategy="PACK", selectors=[{"tier": "silver"}])
    driver.ask("tasks", name="ranked", until=str(gate), resources={"ranked": 1}, num_cpus=1)
    assert driver.ask("ready", name="bundle")
    (silver,) = driver.ask("homes", name="silver")
    wait_for(stage.watch.now, lambda snapshot: not snapshot.report.demands, "everything runs")
    gate.touch()
    (gold,), (ranked,) = driver.ask("nodes", name="gold"), driver.ask("nodes", name="ranked")
    assert [stage.type_of(node) for node in (gold, silver, ranked)] == ["gold", "silver", "first"]
    assert stage.watch.now().counts()["silver"] == 2
    driver.ask("drop", names=["bundle", "silver", "gold", "ranked"])
    stage.wait_for_quiet()
