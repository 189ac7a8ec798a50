"""`muster up` and its misfortunes on real hosts over SSH; Ray itself is in tests/e2e/test_rack.py."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.mistakes.views import assert_line, assert_view
from tests.rack import RackCluster, interrupt, wait_until

pytestmark = pytest.mark.slow
HOSTS = 2


@pytest.fixture
def rack(hosts, tmp_path):
    made = RackCluster(hosts, tmp_path)
    made.write()
    yield made
    for host in hosts:
        hosts.run_on(host, ["bash", "-c", "rm -rf /tmp/muster-host.lock ~/ray_bootstrap* ~/.muster"])


def test_a_command_that_fails_is_named_with_its_last_output_and_nothing_is_left(rack):
    rack.write("setup_commands: ['echo not this one', 'echo out of cheese >&2; exit 3']\n")
    done = rack.run("up", "FILE", "-y", "--no-check")
    assert done.returncode == 2
    last = done.stderr.strip().splitlines()[-1]
    assert " setup " in last and "out of cheese" in last
    assert rack.left() == {}


def test_ctrl_c_gives_the_head_back_and_ends_what_runs_there(rack):
    rack.write("setup_commands: ['touch /tmp/begun; sleep 1000']\n")
    begun = rack.hosts[0].path("/tmp/begun")
    process = rack.start("up", "FILE", "-y", "--no-check")
    try:
        wait_until(begun.exists, "the set-up command runs")
        assert rack.lock(0).exists()
        _, said = interrupt(process)
    finally:
        process.kill()
    begun.unlink()
    assert process.returncode != 0
    assert "giving everything back" in said and "Traceback" not in said
    wait_until(lambda: rack.left() == {}, f"nothing is left; {rack.left()}")
    assert rack.run("down", "FILE", "-y").stdout == "rack was down already\n"


def test_a_second_cluster_does_not_get_the_head_of_the_first(rack, tmp_path):
    boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    rack.write_lock(
        0, f'{{"cluster":"first","cloud_id":"x","launcher":"ann@desk","taken_at":1,"boot":"{boot}"}}\n'
    )
    done = rack.run("up", "FILE", "-y")
    assert done.returncode == 2
    assert done.stderr.count("error: ") == 1
    head = rack.hosts[0].ip
    assert f"error: {head}: " in done.stderr and "'first' (ann@desk, " in done.stderr
    forced = rack.run("up", "FILE", "-y", "--no-check")
    assert f"({head}: " in forced.stderr and "'first' (ann@desk, " in forced.stderr
    assert rack.lock(0).exists()


def test_a_worker_that_is_off_is_a_warning_and_a_head_that_is_off_an_error(rack):
    for host in rack.hosts:
        rack.hosts.power_off(host)
    try:
        done = rack.run("up", "FILE", "-y")
    finally:
        for host in rack.hosts:
            rack.hosts.boot(host)
    assert done.returncode == 2
    assert f"warning: {rack.hosts[1].ip}: " in done.stderr
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert line.startswith(f"error: {rack.hosts[0].ip}: ") and "nothing was started" in line


def test_a_key_that_others_may_read_is_refused_with_the_fix(rack, tmp_path):
    key = tmp_path / "key"
    shutil.copy(rack.hosts.key, key)
    os.chmod(key, 0o640)
    rack.file.write_text(rack.file.read_text().replace(str(rack.hosts.key), str(key)))
    done = rack.run("up", "FILE", "-y")
    assert done.returncode == 2
    assert_line("autoscaler", "key of others", done.stderr.strip().splitlines()[-1].replace(str(key), "KEY"))


def test_a_dry_run_shows_plan_price_and_pre_flight_and_touches_nothing(rack):
    rack.write(
        "available_node_types:\n  head: {resources: {CPU: 2}, price_per_hour: 0.5}\n"
        "  big: {resources: {CPU: 64}, price_per_hour: 2, min_workers: 1}\nhead_node_type: head\n",
        provider=", hosts: [{ip: 10.231.7.77, type: big}]",
    )
    done = rack.run("up", "FILE", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert_view("cli/up_rack_dry_run", done.stdout)
    assert "warning: 10.231.7.77: " in done.stderr
    assert rack.left() == {}


def test_a_monitor_that_is_kept_running_without_a_lock_is_found_and_ended(rack):
    """As after a reboot of the head whose host another cluster has taken meanwhile."""
    script = "env MUSTER_SERVICE=rack setsid sleep 1000 </dev/null >/dev/null 2>&1 &"
    head = rack.hosts[0]
    rack.hosts.run_on(
        head, ["bash", "-c", f"{script} echo '@reboot env MUSTER_SERVICE=rack true' | crontab -"]
    )
    wait_until(lambda: rack.hosts.commands(head) == ["sleep 1000"], "it runs")
    listed = json.loads(rack.run("gc", "FILE", "--json").stdout)["machines"]
    assert [(one["kind"], one["ip"]) for one in listed] == [("monitor", head.ip)]
    assert rack.run("gc", "FILE", "--end", "-y").returncode == 0
    assert rack.left() == {}
    rack.hosts.run_on(head, ["bash", "-c", script])
    assert rack.run("down", "FILE", "-y").returncode == 0
    assert rack.left() == {}
