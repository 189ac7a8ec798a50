"""Another user of a rack's host can make it unavailable, and nothing else. Needs root, to be that user."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.providers.rack.local_hosts import Racks, workers
from tests.rack import RackCluster, wait_until

from muster.base.clock import ManualClock
from muster.cluster.model import FailureKind
from muster.providers.rack.host_lock import LOCK

HOSTS = 2
STRANGER = "nobody"
AS_STRANGER = ("setpriv", f"--reuid={STRANGER}", "--clear-groups")
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as another user")


def forged(cluster: str, **fields: object) -> str:
    """Return a lock as a stranger would write it: this cluster's, with a program of the stranger."""
    held = {
        "cluster": cluster,
        "cloud_id": "forged",
        "launcher": "\x1b[2Jyou\r",
        "taken_at": 1.0,
        "boot": BOOT,
        "container": "x",
        "container_program": "/tmp/program",
        **fields,
    }
    return json.dumps(held, separators=(",", ":"))


# What the stranger makes in place of the lock; $1 is the forged text.
SHAPES = {
    "directory": 'mkdir "$L" && printf "%s\\n" "$1" > "$L/holder" && chmod -R a+rX "$L"',
    "private directory": 'mkdir -m 700 "$L" && printf "%s\\n" "$1" > "$L/holder"',
    "link": 'mkdir -m 700 /tmp/other && printf "%s\\n" "$1" > /tmp/other/holder && ln -s /tmp/other "$L"',
    "link to the user's directory": 'ln -s /root "$L"',
    "file": 'printf "%s\\n" "$1" > "$L"',
    "pipe": 'mkfifo "$L"',
    "dangling link": 'ln -s /nowhere "$L"',
}
PROGRAM = "printf '#!/bin/sh\\nid > /tmp/ran\\n' > /tmp/program && chmod 755 /tmp/program"


@pytest.fixture
def rack(hosts, tmp_path):
    made = RackCluster(hosts, tmp_path)
    made.write()
    yield made
    for host in hosts:
        hosts.run_on(host, ["bash", "-c", "rm -rf /tmp/muster* /tmp/other /tmp/program /tmp/ran ~/holder"])


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_a_stranger_runs_no_code_and_is_named(rack, shape):
    head = rack.hosts[0]
    script = f"L=/tmp/{LOCK.partition('/')[0]}; {PROGRAM}; {SHAPES[shape]}"
    made = rack.hosts.run_on(head, [*AS_STRANGER, "bash", "-c", script, "-", forged("rack", is_head=True)])
    assert made.returncode == 0, made.stderr
    up = rack.run("up", "FILE", "-y", "--no-check")
    down = rack.run("down", "FILE", "-y")
    gc = rack.run("gc", "FILE", "--json")
    assert (up.returncode, down.returncode, json.loads(gc.stdout)["machines"]) == (2, 0, [])
    assert repr(STRANGER) in up.stderr and "\x1b" not in up.stderr + down.stderr + gc.stderr
    assert not head.path("/tmp/ran").exists()
    assert not (head.home / "holder").exists()
    assert rack.run("up", "FILE", "-y").returncode == 2


@pytest.fixture
def racks(tmp_path):
    made = Racks(tmp_path, workers(2, "big"), ManualClock(1e9))
    yield made
    made.close()


@needs_root
def test_a_stranger_does_not_stop_a_cluster(racks):
    """The forged lock names a head that answers, as if it had replaced this one."""
    provider, failures = racks.provider(head="10.0.0.1:6379"), []
    with socket.create_server(("127.0.0.1", 0)) as other:
        tags = {"muster-head": f"127.0.0.1:{other.getsockname()[1]}"}
        racks.write_lock("h0", forged("c", tags=tags) + "\n")
        shutil.chown(racks.lock("h0").parent, STRANGER)
        provider.launch("r-1", {"big": 2})
        wait_until(lambda: failures.extend(provider.poll_launch_failures()) or failures, "one is missing")
    (failure,) = failures
    assert (failure.kind, repr(STRANGER) in failure.message) == (FailureKind.CAPACITY, True)
    assert [one.internal_ip for one in provider.list_instances().values()] == ["h1"]


@needs_root
@pytest.mark.slow
def test_a_marked_process_of_a_stranger_removes_no_directory_of_the_user(racks, tmp_path):
    """A session's directory is named by the processes that use it, and any user can start one."""
    provider, session = racks.provider(), tmp_path / "session_of_root"
    session.mkdir()
    provider.launch("r-1", {"big": 1})
    wait_until(lambda: not provider.under_way("r-1"), "a host is taken")
    (node,) = provider.list_instances()
    stranger = subprocess.Popen(
        [*AS_STRANGER, "sh", "-c", "sleep 60; true", "sh", f"--session-dir={session}"],
        env={"PATH": os.environ["PATH"], "RAY_CLOUD_INSTANCE_ID": node},
        start_new_session=True,
    )
    try:
        wait_until(lambda: b"--session-dir" in Path(f"/proc/{stranger.pid}/cmdline").read_bytes(), "it runs")
        provider.terminate_machines([node])
    finally:
        stranger.kill()
        stranger.wait()
    assert session.exists()
