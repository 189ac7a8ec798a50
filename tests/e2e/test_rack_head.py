"""What may happen to the head of a rack, with real Ray: its monitor dies, it reboots, it is lost for good."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

import msgspec
import pytest
from tests.hosts import ROOT
from tests.rack import BIN, RackCluster, wait_until

from muster.autoscaler.status_files import PublishedStatus
from muster.base import codec
from muster.cluster.model import NodeKind

pytestmark = [pytest.mark.slow, pytest.mark.ray]
HOSTS = 3  # a head, a worker, and the next head


@pytest.fixture
def shared():
    """A directory that all hosts see, as one that a rack mounts."""
    with tempfile.TemporaryDirectory(prefix=".rack-", dir=ROOT) as made:
        yield made


needs_cron = pytest.mark.skipif(shutil.which("crontab") is None, reason="crontab is missing (apt: cron)")


@pytest.fixture
def rack(hosts, tmp_path, shared):
    made = RackCluster(hosts, tmp_path)
    write(made, hosts[0], shared)
    yield made
    made.run("down", "FILE", "-y")


def write(rack, head, shared):
    ray = f"{BIN}/ray start --object-store-memory=80000000 --disable-usage-stats"
    start = f"{ray} --head --port=6379 --num-cpus=0 --include-dashboard=false --node-ip-address={head.ip}"
    worker = f"{ray} --address=$RAY_HEAD_IP:6379 --num-cpus=2 --node-ip-address={rack.hosts[1].ip}"
    rack.file.write_text(
        f"cluster_name: rack\n"
        f"provider: {{type: local, head_ip: {head.ip}, hosts: [{{ip: {rack.hosts[1].ip}, type: small}}]}}\n"
        f"auth: {{ssh_user: root, ssh_private_key: {rack.hosts.key}}}\n"
        f"head_start_ray_commands: ['{start}']\nworker_start_ray_commands: ['{worker}']\n"
        "head_node_type: head\navailable_node_types:\n  head: {resources: {CPU: 0}}\n"
        "  small: {resources: {CPU: 2}, min_workers: 1}\n"
        f"muster: {{monitor: {{interval_s: 0.5}}, lease_minutes: 30, backup: {{to: {shared}}}}}\n"
    )


def status(rack, index):
    """Return what the monitor on a host has published; None before it has."""
    try:
        text = (rack.hosts[index].home / ".muster/clusters/rack/status.json").read_bytes()
        return codec.convert(msgspec.json.decode(text), PublishedStatus)
    except (OSError, ValueError):
        return None


def nodes(rack, index, *, not_pid=0):
    """Return the kinds of the nodes that run, by a monitor other than that one."""
    found = status(rack, index)
    if found is None or found.monitor_pid == not_pid:
        return []
    return sorted(i.kind.name for i in found.instances if i.state.name == "RAY_RUNNING")


BOTH = sorted([NodeKind.HEAD.name, NodeKind.WORKER.name])


def watchers(rack):
    """Return the leases that run on the worker."""
    return [line for line in rack.hosts.commands(rack.hosts[1]) if "--lease-s 1800" in line]


@needs_cron
@pytest.mark.timeout(480)
def test_the_cluster_survives_its_monitor_its_head_and_the_loss_of_the_heads_machine(rack, shared):
    hosts, home = rack.hosts, rack.hosts[0].home / ".muster/clusters/rack"
    up = rack.run("up", "FILE", "-y")
    assert up.returncode == 0, up.stderr
    wait_until(lambda: nodes(rack, 0) == BOTH, "head and worker run")

    killed = status(rack, 0).monitor_pid
    assert hosts.run_on(hosts[0], ["kill", "-9", str(killed)]).returncode == 0
    wait_until(lambda: nodes(rack, 0, not_pid=killed) == BOTH, "the monitor is back")

    held = json.loads(rack.lock(0).read_text())
    (line,) = hosts.run_on(hosts[0], ["crontab", "-l"]).stdout.splitlines()
    hosts.boot(hosts[0])
    (home / "status.json").unlink()
    hosts.run_on(hosts[0], ["sh", "-c", f"setsid {line.removeprefix('@reboot ')} &"])  # as cron does
    wait_until(lambda: nodes(rack, 0) == BOTH, "head, Ray and worker are back after a reboot")
    wait_until(lambda: len(watchers(rack)) == 1, "the worker has a lease")
    again = json.loads(rack.lock(0).read_text())  # /tmp was emptied
    assert (again["cloud_id"], again["tags"]) == (held["cloud_id"], held["tags"])

    worker = json.loads(rack.lock(1).read_text())["cloud_id"]
    hosts.power_off(hosts[0])
    write(rack, hosts[2], shared)
    up = rack.run("up", "FILE", "-y", "--wait-for-workers", "200")
    assert up.returncode == 0, up.stderr
    assert f"note: an earlier head at {hosts[0].ip} could not be ended (it does not answer)" in up.stderr
    assert up.stderr.endswith("1 of 1 worker running\n")
    wait_until(lambda: nodes(rack, 2) == BOTH, "the new head has the worker")
    log = (hosts[2].home / ".muster/clusters/rack/monitor.log").read_text()
    assert "this head starts from a copy of the ledger: rack.0" in log
    assert (
        json.loads(rack.lock(1).read_text())["cloud_id"] == worker
    )  # the same node: nothing was taken again
    found = json.loads(rack.run("gc", "FILE", "--json").stdout)
    assert found["head"]["state"] == "runs"
    assert [(one["kind"], one["ip"]) for one in found["machines"]] == [("head", hosts[0].ip)]

    hosts.boot(hosts[0])
    rack.write_lock(0, json.dumps(held, separators=(",", ":")) + "\n")  # its /tmp was not emptied
    again = rack.run("up", "FILE", "-y")
    assert f"[{hosts[0].ip}] stopping an earlier head\n" in again.stderr
    assert (again.returncode, nodes(rack, 2)) == (0, BOTH)
    assert not rack.lock(0).exists() and hosts.run_on(hosts[0], ["crontab", "-l"]).stdout == ""
    down = rack.run("down", "FILE", "-y")
    assert down.returncode == 0, down.stderr
    assert rack.left() == {}
    assert list(Path(shared).iterdir()) == []
