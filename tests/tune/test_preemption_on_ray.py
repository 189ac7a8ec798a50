"""A node that is drained with a deadline: its trials save and continue elsewhere without a loss."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.ray_clusters import clear, join, living, wait_for
from tests.support.ray_cluster import AUTH
from tests.tune.preempted_driver import STEPS, WAITS_AT

from muster.host.node_notices import PREFIX, SPACE
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

DRIVER = Path(__file__).with_name("preempted_driver.py")
KINDS = ("function", "class")
pytestmark = pytest.mark.ray


def start(kind, folder, cluster):
    folder.mkdir()
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return subprocess.Popen(
        [sys.executable, str(DRIVER), kind, str(folder)],
        env={**inherited, **cluster.environment()},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def taken(folder):
    file = folder / "taken.txt"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def drain(cluster, node_id, seconds):
    """As somebody does by hand, without our monitor."""
    reason = ["--reason", "DRAIN_NODE_REASON_PREEMPTION", "--reason-message", "by hand"]
    asked = ["--address", cluster.address, "--node-id", node_id, "--deadline-remaining-seconds", str(seconds)]
    command = [sys.executable, "-m", "ray.scripts.scripts", "drain-node", *reason, *asked]
    subprocess.run(command, env={**os.environ, **cluster.environment()}, check=True, capture_output=True)


def announce(link, cloud_id):
    """As the watcher on the machine does."""
    notice = {"cloud_id": cloud_id, "kind": "interruption", "source": "a cloud", "at": time.time()}
    link.kv_put(f"{PREFIX}{cloud_id}", json.dumps(notice).encode(), SPACE)


def outcome(driver):
    out, log = driver.communicate(timeout=300)
    assert driver.returncode == 0, log[-3000:]
    return json.loads(out.splitlines()[-1]), log


def test_a_function_and_a_class_leave_a_drained_node_without_losing_a_step(plain_head, tmp_path):
    clear(plain_head)
    link = GcsClient(plain_head.address, AUTH)
    source = GcsNodeSource(link)
    join(plain_head, "moves-1", {"CPU": 2, "moves": 2})
    old = living(source)["moves-1"].node_id
    drivers = [start(kind, tmp_path / kind, plain_head) for kind in KINDS]
    try:
        for kind in KINDS:
            wait_for(lambda kind=kind: len(taken(tmp_path / kind)), lambda count: count > WAITS_AT)
        join(plain_head, "moves-2", {"CPU": 2, "moves": 2})
        new = living(source)["moves-2"].node_id
        announce(link, "moves-1")
        drain(plain_head, old, 120)
        ends = [outcome(driver) for driver in drivers]
    finally:
        for driver in drivers:
            driver.kill()
        link.kv_delete(f"{PREFIX}moves-1", SPACE)
    told = ["-"] * WAITS_AT + ["interruption by a cloud, True"] + ["-"] * (STEPS - WAITS_AT - 1)
    where = [old] * (WAITS_AT + 1) + [new] * (STEPS - WAITS_AT - 1)
    for kind, (end, log) in zip(KINDS, ends, strict=True):
        assert end["errors"] == []
        rows = [[step + 1, step, node, told[step]] for step, node in enumerate(where)]
        assert end["rows"] == rows, kind
        assert taken(tmp_path / kind) == [[str(step), node] for step, node in enumerate(where)], kind
        assert f"node {old[:8]} " in log
    clear(plain_head)
