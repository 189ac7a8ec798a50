"""The lease of a worker: a pure decision, and the real watcher against a port that goes away."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from muster.host import node_lease
from muster.host.node_lease import DRAIN, END, HOLD, decide, free_lock, silence_after

SLEEPER = (sys.executable, "-c", "import time; time.sleep(600)")


def test_a_silent_head_is_waited_for_then_the_node_is_drained_then_ended():
    found = [decide(silent_s, lease_s=600, drain_s=60) for silent_s in (0, 599, 600, 659, 660, 9999)]
    assert found == [HOLD, HOLD, DRAIN, DRAIN, END, END]


def test_an_answer_renews_the_lease_and_a_suspended_machine_has_not_seen_a_silent_head():
    assert silence_after(500.0, 15.0, is_answered=True) == 0.0
    assert silence_after(500.0, 15.0, is_answered=False) == 515.0
    assert silence_after(500.0, 86_400.0, is_answered=False) == 535.0


def test_only_the_nodes_own_lock_is_removed(tmp_path):
    lock = tmp_path / "muster-host.lock" / "holder"
    lock.parent.mkdir()
    lock.write_text(json.dumps({"cluster": "c", "cloud_id": "h1/2"}, separators=(",", ":")))
    assert (free_lock(str(lock), "h1/1"), lock.exists()) == (False, True)
    assert (free_lock(str(lock), "h1/2"), lock.parent.exists()) == (True, False)
    assert free_lock(str(lock), "h1/2") is False


@pytest.mark.slow
def test_the_watcher_holds_while_the_head_answers_and_then_ends_the_node_and_frees_the_host(tmp_path):
    """Run as on a host without muster: in isolated mode, from the file alone."""
    mark = f"test-{os.getpid()}"
    lock = tmp_path / "muster-host.lock" / "holder"
    lock.parent.mkdir()
    lock.write_text(f'{{"cloud_id":"{mark}"}}')
    environment = {"PATH": os.environ["PATH"], node_lease.MARK: mark}
    node = subprocess.Popen(SLEEPER, env=environment)
    other = subprocess.Popen(SLEEPER, env={**environment, node_lease.MARK: f"{mark}-other"})
    with socket.create_server(("127.0.0.1", 0)) as head:
        port = head.getsockname()[1]
        options = ["--lease-s", "1", "--drain-s", "0.2", "--look-s", "0.1", "--lock", str(lock)]
        command = [sys.executable, "-I", "-S", node_lease.__file__, "--head", f"127.0.0.1:{port}", *options]
        watcher = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True)
        for _ in range(20):  # more connections than the lease has looks: it is renewed by each
            head.accept()[0].close()
        with open(f"/proc/{watcher.pid}/status") as stream:
            memory_kb = int(next(line for line in stream if line.startswith("VmRSS")).split()[1])
        assert (watcher.poll(), node.poll(), lock.exists()) == (None, None, True)
    _, said = watcher.communicate(timeout=60)
    assert watcher.returncode == 0
    assert node.wait(60) < 0
    assert (other.poll(), lock.exists()) == (None, False)
    other.kill()
    other.wait()
    assert "asking the node to end" in said and said.endswith("the host is released\n")
    assert memory_kb < 40_000


def test_no_answer_comes_from_a_port_that_nobody_has_or_an_address_that_is_none():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert [node_lease.answers(one) for one in (f"127.0.0.1:{port}", "nonsense", "")] == [False] * 3
