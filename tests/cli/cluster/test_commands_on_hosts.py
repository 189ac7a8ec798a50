"""The commands for a cluster that runs, on real hosts over SSH: exec, attach, rsync, logs and the like.

No Ray runs here: head and worker are two hosts that carry the lock of this cluster, as `muster up` leaves it.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.hosts import USER_HOME
from tests.rack import PATIENCE_S, RackCluster, wait_until
from tests.support.builders import plan, record

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import ClusterRecord, HeadRecord, write_record
from muster.base.clock import SystemClock
from muster.remote.service import OWN_HOME
from muster.stores.ledger.store import SqliteInstanceStore

pytestmark = pytest.mark.slow
HOSTS = 2
HOME = f"{USER_HOME}/.muster/clusters/rack"  # on the head
MARK = "RAY_CLOUD_INSTANCE_ID"


def take(rack, index, kind):
    """Leave the lock of a node on a host."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    held = {
        "cluster": "rack",
        "cloud_id": kind,
        "launcher": "x",
        "taken_at": 1.0,
        "boot": boot,
        "is_head": kind == "head",
        "node_type": "local.cluster.node",
        "tags": {"ray-node-status": "up-to-date"},
    }
    rack.write_lock(index, json.dumps(held, separators=(",", ":")) + "\n")


@pytest.fixture
def rack(hosts, tmp_path):
    made = RackCluster(hosts, tmp_path)
    made.write()
    take(made, 0, "head")
    take(made, 1, "worker")
    there = hosts[0].home / ".muster/clusters/rack"
    (there / "install" / hosts[1].ip).mkdir(parents=True)
    (there / OWN_HOME).touch()
    (there / "monitor.log").write_text("".join(f"line {n}\n" for n in range(5)))
    (there / "install" / hosts[1].ip / "setup.log").write_text("$ pip install ray\n")
    head = HeadRecord(ip=hosts[0].ip, node_id="head", home=HOME, python=sys.executable, is_up=True)
    left = ClusterRecord(cluster_name="rack", config=str(made.file), address=f"{hosts[0].ip}:6379", head=head)
    here = tmp_path / "home/clusters/rack"
    here.mkdir(parents=True)
    write_record(ClusterHome(here), left)
    yield made
    for host in hosts:
        hosts.run_on(host, ["bash", "-c", "rm -rf /tmp/muster-host.lock /tmp/seen ~/*.txt ~/.muster"])


def test_exec_has_the_clusters_address_and_the_exit_code_and_a_copy_of_the_ledger_stays_here(rack):
    ledger = rack.hosts[0].home / ".muster/clusters/rack/ledger.db"
    with SqliteInstanceStore(ledger, clock=SystemClock()) as store:
        store.commit(0, plan(record("a")))
    done = rack.run("exec", "FILE", "hostname; echo $RAY_ADDRESS $RAY_AUTH_TOKEN_PATH; exit 7")
    assert (done.returncode, done.stdout) == (7, f"h1\n{rack.hosts[0].ip}:6379 {HOME}/auth_token\n")
    here = rack.folder / "home/clusters/rack"
    (copy,) = (here / "backups").iterdir()
    assert copy.read_bytes()[:15] == b"SQLite format 3"
    assert not (ledger.parent / ".ledger.pulled").exists()
    copy.unlink()
    assert rack.run("exec", "FILE", "true").returncode == 0
    assert list((here / "backups").iterdir()) == []  # at most one a minute


def test_a_command_in_tmux_goes_on_without_anybody_and_a_missing_program_is_named(rack):
    seen = rack.hosts[0].path("/tmp/seen")
    done = rack.run("exec", "FILE", "echo $RAY_ADDRESS > /tmp/seen", "--tmux")
    if shutil.which("tmux") is None:
        assert re.fullmatch(r"error: .* tmux: `.* tmux` .* --tmux .*", done.stderr.splitlines()[-1])
        return
    assert done.returncode == 0, done.stderr
    assert f" {rack.file} --tmux` " in done.stderr
    wait_until(lambda: seen.exists() and seen.read_text(), "the command in tmux has run")
    assert seen.read_text() == f"{rack.hosts[0].ip}:6379\n"
    if shutil.which("screen") is None:
        missing = rack.run("exec", "FILE", "true", "--screen")
        assert missing.returncode == 127
        assert re.fullmatch(r"error: .* screen: `.* screen` .* --screen .*", missing.stderr.splitlines()[-1])


def typed(rack, *words, keys):
    """Run a command whose terminal somebody types on; returns its exit code and what was shown."""
    process = rack.start(*words, stdin=subprocess.PIPE)
    said, errors = process.communicate(keys, timeout=PATIENCE_S)
    return process.returncode, said + errors


def test_attach_opens_a_terminal_on_the_head_and_on_a_worker(rack):
    code, said = typed(rack, "attach", "FILE", keys="echo I am $(hostname) of $RAY_ADDRESS; exit 3\n")
    assert (code, f"I am h1 of {rack.hosts[0].ip}:6379" in said) == (3, True), said
    code, said = typed(
        rack, "attach", "rack", "--node-ip", rack.hosts[1].ip, keys="echo I am $(hostname); exit\n"
    )
    assert (code, "I am h2" in said) == (0, True), said


def test_a_port_is_forwarded_while_a_command_runs(rack):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    serve = "import socket; s = socket.create_server(('127.0.0.1', 8123)); s.accept()[0].sendall(b'hello')"
    process = rack.start("exec", "FILE", f'{sys.executable} -c "{serve}"', "-p", f"{port}:8123")
    answer, give_up = b"", time.monotonic() + PATIENCE_S
    with rack.hosts.inside():
        while answer != b"hello" and time.monotonic() < give_up and process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)) as connection:
                answer = connection.recv(5)
            time.sleep(0.05)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (answer, process.returncode) == (b"hello", 0), errors


def test_files_go_to_all_nodes_and_come_back_from_each(rack, tmp_path):
    (tmp_path / "note.txt").write_text("hello")
    up = rack.run("rsync-up", "FILE", str(tmp_path / "note.txt"), "~/note.txt", "-A")
    assert up.returncode == 0, up.stderr
    assert [(host.home / "note.txt").read_text() for host in rack.hosts] == ["hello", "hello"]
    (rack.hosts[1].home / "note.txt").write_text("changed")
    down = rack.run("rsync-down", "FILE", "~/note.txt", str(tmp_path / "back"), "-A")
    assert down.returncode == 0, down.stderr
    back = [(tmp_path / "back" / host.ip / "note.txt").read_text() for host in rack.hosts]
    assert back == ["hello", "changed"]


def test_logs_addresses_and_a_killed_node(rack):
    head, worker = rack.hosts[0].ip, rack.hosts[1].ip
    assert rack.run("logs", "FILE", "-l", "2").stdout == "line 3\nline 4\n"
    assert "$ pip install ray\n" in rack.run("logs", "rack", worker).stdout
    assert rack.run("get-head-ip", "FILE").stdout == f"{head}\n"
    assert rack.run("get-worker-ips", "rack").stdout == f"{worker}\n"
    started = f"{MARK}=worker setsid sleep 1000 > /dev/null 2>&1 &"
    rack.hosts.run_on(rack.hosts[1], ["bash", "-c", started])
    assert rack.run("kill-random-node", "FILE", "-y").stdout == f"{worker}\n"
    assert (rack.hosts.commands(rack.hosts[1]), rack.lock(1).exists()) == ([], True)
    assert rack.run("kill-random-node", "FILE", "-y", "--hard").stdout == f"{worker}\n"
    assert not rack.lock(1).exists()
    none = rack.run("kill-random-node", "FILE", "-y")
    assert (none.returncode, none.stdout, "'rack'" in none.stderr) == (2, "", True)


def test_exec_stop_ends_the_cluster_after_the_command_and_keeps_its_exit_code(rack):
    done = rack.run("exec", "FILE", "exit 4", "--stop")
    assert done.returncode == 4, done.stderr
    assert rack.left() == {}
    assert not (rack.folder / "home/clusters/rack/cluster.json").exists()
    gone = rack.run("exec", "FILE", "true")
    assert (gone.returncode, gone.stderr.count("\n"), f" {rack.file}` " in gone.stderr) == (2, 1, True)


@pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux is missing (apt-get install tmux)")
def test_after_a_command_in_tmux_the_head_ends_the_cluster_and_itself(rack):
    head, there = rack.hosts[0], rack.hosts[0].home / ".muster/clusters/rack"
    (head.home / "ray_bootstrap_config.yaml").write_text(
        rack.file.read_text().replace(str(rack.hosts.key), "~/ray_bootstrap_key.pem")
    )
    shutil.copy(rack.hosts.key, head.home / "ray_bootstrap_key.pem")
    record = (rack.folder / "home/clusters/rack/cluster.json").read_text()
    config = record.replace(str(rack.file), f"{USER_HOME}/ray_bootstrap_config.yaml")
    (there / "cluster.json").write_text(config)
    done = rack.run("exec", "FILE", "true", "--tmux", "--stop")
    assert done.returncode == 0, done.stderr
    wait_until(lambda: not rack.left().keys() & {"h1", "h2"}, "nothing is left on the hosts")
