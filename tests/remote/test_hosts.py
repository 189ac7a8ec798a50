"""The hosts that other tests use: each is a machine of its own, and they can be cut off and switched off."""

from __future__ import annotations

import sys

import pytest
from tests.hosts import Hosts, HostsMissing, _namespaces

pytestmark = pytest.mark.slow
HOSTS = 2


def test_a_host_has_a_name_a_home_and_processes_of_its_own(hosts):
    one, two = hosts
    hosts.run_on(two, ["sh", "-c", "sleep 1000 >/dev/null 2>&1 &"])
    asked = "hostname; echo here > ~/mark; touch /tmp/mark; cat /proc/1/comm"
    done = hosts.run_in_controller([*hosts.ssh(one), asked])
    assert (done.stdout.split(), done.stderr) == (["h1", "sshd"], "")
    assert (one.home / "mark").read_text() == "here\n"
    assert one.path("/tmp/mark").exists() and not two.path("/tmp/mark").exists()
    assert (hosts.commands(one), hosts.commands(two)) == ([], ["sleep 1000"])


def test_the_environment_of_the_tests_works_on_a_host(hosts):
    python = [sys.executable, "-c", "import muster, socket; print(socket.gethostname())"]
    assert hosts.run_in_controller([*hosts.ssh(hosts[0]), *map(repr, python)]).stdout == "h1\n"


def test_nothing_leaves_the_hosts_network(hosts):
    routes = hosts.run_in_controller(["ip", "route", "show"]).stdout
    assert "default" not in routes and "10.231.7.0/24" in routes


def test_a_host_that_is_cut_off_or_switched_off_does_not_answer_until_it_is_back(hosts):
    def answer() -> int:
        quick = ["ssh", "-o", "ConnectTimeout=1", *hosts.ssh(hosts[1])[1:], "true"]
        return hosts.run_in_controller(quick).returncode

    answers = [answer()]
    hosts.cut_off(hosts[1])
    answers.append(answer())
    hosts.reconnect(hosts[1])
    hosts.power_off(hosts[1])
    answers.append(answer())
    hosts.boot(hosts[1])
    answers.append(answer())
    assert answers == [0, 255, 255, 0]


def test_closed_hosts_leave_no_namespace_and_no_directory():
    try:
        made = Hosts(1)
    except HostsMissing as missing:
        pytest.skip(str(missing))
    made.close()
    assert (_namespaces(made.prefix), made.directory.exists()) == ([], False)
