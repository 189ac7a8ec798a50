"""What people see of a cluster at rest, and its end. The cluster is the second one of these tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from bench.live_cluster import wait_for
from tests.support.ray_cluster import AUTH

from muster.autoscaler.status_files import read_record
from muster.host.processes import is_alive, table, was_started_with

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]


def left_of(cluster):
    """Drivers of these tests are our children, and no part of the cluster."""
    entry = f"MUSTER_HOME={cluster.folder / 'home'}"
    others = (one for one in table() if one.is_alive and one.parent != os.getpid())
    return [f"{one.pid} {one.name}" for one in others if was_started_with(one.pid, entry)]


def test_a_cluster_at_rest_is_shown_and_goes_without_a_trace(cluster, driver, watch):
    driver.close()  # both have lost their head
    watch.close()
    cluster.up()
    record = read_record(cluster.home)
    seen = wait_for(
        lambda: cluster.muster_json("status", "e2e"),
        lambda said: (said["problem"], len(said["nodes"])) == ("", 1),
        "only the head is left",
    )
    assert seen["address"] == record.address
    assert [(row["is_head"], row["instance_state"]) for row in seen["nodes"]] == [(True, "RAY_RUNNING")]
    why = cluster.muster("why", "head", "e2e")
    assert (why.returncode, "RAY_RUNNING" in why.stdout) == (0, True)
    assert "e2e is up already" in cluster.up()
    assert is_alive(record.monitor)

    down = cluster.muster("down", str(cluster.file), "-y")
    assert down.returncode == 0, down.stdout + down.stderr
    assert down.stdout.startswith(f"e2e is down: stopped its monitor (process {record.monitor_pid}) and ")
    assert left_of(cluster) == []
    assert not Path(record.temp_dir).exists()
    assert cluster.down().stdout.splitlines()[0] == "e2e was down already"
    told = cluster.muster("why", "head", "e2e")
    assert (told.returncode, "TERMINATED" in told.stdout or "RAY_RUNNING" in told.stdout) == (0, True)
    said = cluster.home.monitor_log.read_text(encoding="utf-8", errors="replace")
    assert said.splitlines()[-1].endswith("the monitor has ended")
    assert AUTH["RAY_AUTH_TOKEN"] not in said
