"""`up` and `down` on this computer with a cheap head (it listens) and a cheap monitor (it publishes)."""

from __future__ import annotations

import asyncio
import os
import re
import stat
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.mistakes.views import assert_line

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lifecycle.down import ClusterDown, DownOptions, StoppedCluster
from muster.autoscaler.lifecycle.here import HeadHere
from muster.autoscaler.lifecycle.open import (
    LaunchContext,
    OpenCluster,
    Programs,
    RunningCluster,
    open_to_stop,
)
from muster.autoscaler.status_files import read_record, write_record
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.errors import ClusterError, ConfigError, ProviderMisconfigured
from muster.host.processes import identify, is_alive
from muster.providers.process.head import running_head
from muster.providers.process.launch_queue import NodeProgram

CLUSTER = """\
cluster_name: tiny
provider: {type: process}
head_node_type: head
max_workers: 1
available_node_types:
  head: {resources: {CPU: 1}}
  worker: {resources: {CPU: 1}}
"""
LISTEN = """
import socket, sys, time
server = socket.socket()
server.bind(("127.0.0.1", int(sys.argv[1])))
server.listen()
time.sleep(300)
"""
PUBLISH = """
import os, signal, sys, time
from pathlib import Path
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import PublishedStatus
from muster.autoscaler.status_files import write_status
from muster.cluster.model import Instance, NodeKind
from muster.cluster.states import InstanceState
from muster.cluster.status import StatusSnapshot

home = ClusterHome(Path(sys.argv[sys.argv.index("--home") + 1]))
head = Instance(instance_id="i", node_type="head", state=InstanceState.RAY_RUNNING, kind=NodeKind.HEAD)
now = time.time()
status = StatusSnapshot(at=now, instances={}, price_per_hour=0, spent=0, verdicts=(), quarantined=())
write_status(home, PublishedStatus(
    cluster_name="tiny", at=now, tick_id="t", version=1, interval_s=1, monitor_pid=os.getpid(),
    status=status, instances=(head,), runtime=None))
time.sleep(300)
"""
CHEAP = Programs(
    head=NodeProgram(command=lambda record, ports: [sys.executable, "-c", LISTEN, str(ports.gcs)]),
    monitor=(sys.executable, "-c", PUBLISH),
)


class Site:
    """A root for clusters, a cluster file, and a launcher over both."""

    def __init__(self, folder: Path) -> None:
        self.root, self.file = folder / "clusters", folder / "tiny.yaml"
        self.file.write_text(CLUSTER, encoding="utf-8")
        self.home = ClusterHome.of("tiny", self.root)
        self.told: list[str] = []

    def context(self, programs: Programs = CHEAP) -> LaunchContext:
        return LaunchContext(
            root=self.root,
            environment=dict(os.environ),
            clock=SystemClock(),
            ids=RandomIds(),
            report=lambda node, step: self.told.append(step),
            programs=programs,
        )

    def up(
        self, file: Path | None = None, *, port: int | None = None, programs: Programs = CHEAP
    ) -> RunningCluster:
        with OpenCluster(self.context(programs), file or self.file) as cluster:
            return HeadHere(cluster, port).up()

    def down(self, *, purge: bool = False) -> StoppedCluster:
        with open_to_stop("tiny", self.context()) as cluster:
            return asyncio.run(ClusterDown(cluster, DownOptions(purge=purge)).run())


@pytest.fixture
def site(tmp_path: Path):
    made = Site(tmp_path)
    yield made
    if made.home.path.exists():
        assert made.down().left == {}


def test_a_cluster_comes_up_is_reachable_and_goes_with_all_its_processes(site: Site):
    brought = site.up()
    record = read_record(site.home)
    assert record == brought.record
    assert (brought.is_new, brought.is_changed) == (True, True)
    assert record.auth == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(site.home.token)}
    assert len(site.home.token.read_text()) == 64
    assert [stat.S_IMODE(p.stat().st_mode) for p in (site.home.path, site.home.token, site.home.cluster)] == [
        0o700,
        0o600,
        0o600,
    ]
    head = running_head(site.home.nodes)
    mark = identify(head.pid)
    assert (head.address, is_alive(mark), is_alive(record.monitor)) == (record.address, True, True)
    ended = site.down()
    assert (ended.monitor_pid, len(ended.nodes), ended.nothing) == (record.monitor_pid, 1, False)
    assert (is_alive(mark), is_alive(record.monitor), running_head(site.home.nodes)) == (False, False, None)
    assert not site.home.cluster.exists() and not site.home.token.exists()
    assert not Path(record.temp_dir).exists()
    assert site.home.monitor_log.exists()  # history is kept
    assert site.down().nothing


def test_up_again_changes_nothing(site: Site):
    first = site.up()
    again = site.up()
    assert not again.is_changed
    assert again.record == first.record


@pytest.mark.slow
def test_a_monitor_that_was_killed_is_replaced_and_the_head_stays(site: Site):
    first = site.up()
    os.kill(first.record.monitor_pid, 9)
    os.waitpid(first.record.monitor_pid, 0)
    again = site.up()
    assert (again.is_new, again.is_changed) == (False, True)
    assert again.record.address == first.record.address
    assert again.record.monitor_pid != first.record.monitor_pid
    assert is_alive(again.record.monitor)


@pytest.mark.slow
def test_a_head_that_died_is_replaced(site: Site):
    first = site.up()
    head = running_head(site.home.nodes)
    os.kill(head.pid, 9)
    SystemClock().sleep(0.2)
    again = site.up()
    assert again.is_new
    assert running_head(site.home.nodes).pid != head.pid
    assert again.record.address != first.record.address or again.record.temp_dir != first.record.temp_dir


def test_when_the_monitor_fails_nothing_is_left_and_its_last_words_are_told(site: Site):
    broken = replace(CHEAP, monitor=(sys.executable, "-c", "raise SystemExit('error: the token is refused')"))
    with pytest.raises(ClusterError) as told:
        site.up(programs=broken)
    said = str(told.value).replace(str(site.home.path), "HOME")
    assert_line("autoscaler", "monitor ended at once", re.sub(r"process \d+", "process PID", said))
    assert running_head(site.home.nodes) is None
    assert not site.home.cluster.exists() and not site.home.token.exists()


def test_a_head_that_does_not_start_is_told_in_one_line(site: Site):
    dying = NodeProgram(command=lambda record, ports: [sys.executable, "-c", "raise SystemExit('no raylet')"])
    with pytest.raises(ClusterError) as told:
        site.up(programs=replace(CHEAP, head=dying))
    assert_line("autoscaler", "head did not start", str(told.value))
    assert not site.home.cluster.exists()


def test_another_file_with_the_same_cluster_name_is_refused_while_it_is_up(site: Site, tmp_path: Path):
    site.up()
    other = tmp_path / "other.yaml"
    other.write_text(CLUSTER, encoding="utf-8")
    with pytest.raises(ClusterError, match="tiny"):
        site.up(other)


def test_a_port_in_use_is_told_and_nothing_is_started(site: Site):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ProviderMisconfigured, match=f"{port}"):
            site.up(port=port)
    assert running_head(site.home.nodes) is None
    assert not site.home.cluster.exists()


def test_a_cluster_of_another_provider_is_refused(site: Site):
    site.file.write_text(CLUSTER.replace("type: process", "type: spark"), encoding="utf-8")
    with pytest.raises(ConfigError, match="spark"):
        site.up()
    assert not site.home.path.exists()


def test_a_file_with_a_mistake_names_the_line(site: Site):
    site.file.write_text(CLUSTER.replace("max_workers", "max_worker"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"tiny\.yaml:4: .*max_worker"):
        site.up()


@pytest.mark.slow
def test_a_record_whose_processes_are_gone_is_no_obstacle(site: Site):
    brought = site.up()
    site.down()
    write_record(site.home, brought.record)  # as after a power cut
    again = site.up()
    assert (again.is_new, again.is_changed) == (True, True)


def test_a_process_that_only_has_the_monitors_number_is_left_alone(site: Site):
    brought = site.up()
    site.down()
    impostor = identify(os.getpid())
    from msgspec.structs import replace as changed

    stale = changed(brought.record, monitor=changed(impostor, started="1"), monitor_pid=impostor.pid)
    write_record(site.home, stale)
    assert site.down().monitor_pid is None


def test_purge_forgets_everything(site: Site):
    site.up()
    site.down(purge=True)
    assert not site.home.path.exists()
