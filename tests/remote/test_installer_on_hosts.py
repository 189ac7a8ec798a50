"""The installer on real hosts: files, commands, variables and secrets arrive; a bad host fails alone."""

from __future__ import annotations

import time

import psutil
import pytest
from tests.hosts import PATIENCE_S
from tests.remote.scripted import Tags

from muster.base.ids import CloudId, InstanceId, RequestId
from muster.cluster.plan import Install
from muster.config.node_launch import RuntimeHashes
from muster.remote.installer import NodeInstaller
from muster.remote.node_setup import Timing
from muster.remote.runner import Host
from muster.remote.ssh import SshRunner
from muster.remote.steps import NodeSetup

pytestmark = pytest.mark.slow
HOSTS = 3
TIMING = Timing(interval_s=0.1, ready_s=PATIENCE_S)


@pytest.fixture
def rack(hosts, tmp_path):
    """Yield a function that makes an installer for a set-up; what it started is closed."""
    made = []

    def make(setup: NodeSetup):
        def runner_of(cloud_id: str) -> SshRunner:
            pins = str(tmp_path / "known_hosts")
            return SshRunner(Host(ip=cloud_id, user="root", private_key=str(hosts.key), known_hosts=pins))

        access = Tags(setup, runner_of)
        with hosts.inside():  # its thread stays in this network
            made.append(NodeInstaller(access, tmp_path / "logs", timing=TIMING))
        return made[-1], access

    yield make
    for installer in made:
        installer.close()


def install(ip: str) -> Install:
    return Install(
        request_id=RequestId(f"r-{ip}"),
        instance_id=InstanceId(f"m-{ip}"),
        cloud_id=CloudId(ip),
        node_type="w",
    )


def install_all(hosts, installer, ips):
    with hosts.inside():
        for ip in ips:
            installer.start(install(ip))
    wait_until(lambda: not any(installer.under_way(RequestId(f"r-{ip}")) for ip in ips))


def test_hosts_get_their_files_and_run_their_commands(hosts, rack, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text("print('hello')\n")
    setup = NodeSetup(
        file_mounts={"~/my code": str(tmp_path / "code")},
        initialization_commands=("echo init >> ~/order",),
        setup_commands=('cat ~/"my code"/train.py >> ~/order; echo $RAY_HEAD_IP >> ~/order',),
        start_commands=('echo "$RAY_HEAD_IP ${#TOKEN}" >> ~/order; echo token $TOKEN',),
        setup_environment={"RAY_HEAD_IP": "10.0.0.1"},
        start_environment={"RAY_HEAD_IP": "10.0.0.1"},
        secrets={"TOKEN": "abcdef-123456"},
        hashes=RuntimeHashes("r", None),
    )
    installer, access = rack(setup)
    install_all(hosts, installer, [host.ip for host in hosts])
    assert list(installer.poll()) == []
    assert {(host.home / "order").read_text() for host in hosts} == {
        "init\nprint('hello')\n10.0.0.1\n10.0.0.1 13\n"
    }
    assert {tags["ray-node-status"] for tags in access.now.values()} == {"up-to-date"}
    log = (tmp_path / "logs" / hosts[0].ip / "start.log").read_text()
    assert log.endswith("token ***\n") and "abcdef" not in log
    assert [hosts.commands(host) for host in hosts] == [[], [], []]


def test_a_host_that_fails_does_so_alone_and_says_where_and_why(hosts, rack, tmp_path):
    setup = NodeSetup(setup_commands=("test $(hostname) != h2 || { echo no such package >&2; exit 100; }",))
    installer, access = rack(setup)
    install_all(hosts, installer, [host.ip for host in hosts])
    [failure] = installer.poll()
    assert failure.instance_id == "m-10.231.7.2"
    assert setup.setup_commands[0].partition(" ||")[0] in failure.message
    assert "no such package" in failure.message and str(tmp_path / "logs" / "10.231.7.2") in failure.message
    statuses = [access.now[host.ip]["ray-node-status"] for host in hosts]
    assert statuses == ["up-to-date", "update-failed", "up-to-date"]


def test_a_host_that_is_switched_off_while_it_is_set_up_is_tried_again_when_it_is_back(hosts, rack):
    setup = NodeSetup(
        setup_commands=("echo x >> ~/tried; [ $(wc -l < ~/tried) -ge 2 ] || sleep 600",),
        start_commands=("true",),
    )
    installer, access = rack(setup)
    one = hosts[0]
    with hosts.inside():
        installer.start(install(one.ip))
    wait_until((one.home / "tried").exists)
    hosts.power_off(one)
    wait_until(lambda: "trying again" in _log(installer, one.ip))
    hosts.boot(one)
    wait_until(lambda: not installer.under_way(RequestId(f"r-{one.ip}")))
    assert list(installer.poll()) == [] and access.now[one.ip]["ray-node-status"] == "up-to-date"


def test_a_closed_installer_leaves_no_process_here_and_there(hosts, rack):
    installer, _ = rack(NodeSetup(setup_commands=("echo on > ~/started; sleep 777",)))
    with hosts.inside():
        installer.start(install(hosts[1].ip))
    wait_until((hosts[1].home / "started").exists)
    installer.close()
    wait_until(lambda: hosts.commands(hosts[1]) == [])
    wait_until(lambda: not [child for child in psutil.Process().children() if child.name() == "ssh"])


def _log(installer, ip: str) -> str:
    path = installer._logs / ip / "setup.log"
    return path.read_text() if path.exists() else ""


def wait_until(condition) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < give_up, f"it did not happen within {PATIENCE_S:g} s"
        time.sleep(0.02)
