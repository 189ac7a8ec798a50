"""The line that starts a lease on a host, run by a real bash."""

from __future__ import annotations

import asyncio
import os
import time

import psutil
import pytest
from tests.remote.local_runner import LocalRunner

from muster.config.schema import ClusterConfig, MusterConfig, ProviderConfig
from muster.remote.lease import lease_line
from muster.remote.runner import RunWhere
from muster.remote.steps import NodeSetup, RunCommand, update_steps


def config(minutes):
    return ClusterConfig(provider=ProviderConfig(type="local"), muster=MusterConfig(lease_minutes=minutes))


def test_without_lease_minutes_nothing_is_started():
    assert lease_line(config(None)) == ""


def test_a_machine_is_shut_down_and_a_shared_host_only_given_back():
    assert "--lease-s 1800 --drain-s 60 --power-off " in lease_line(config(30))
    assert "--lease-s 30 --drain-s 60 --lock '~/a b.lock' " in lease_line(config(0.5), lock="~/a b.lock")


@pytest.mark.slow
def test_the_line_starts_one_watcher_and_repeating_it_replaces_it(tmp_path):
    line = lease_line(config(30), port=1, lock=f"{tmp_path}/lock")
    mark = f"test-{os.getpid()}"
    environment = {"RAY_HEAD_IP": "127.0.0.1", "RAY_CLOUD_INSTANCE_ID": mark}

    def watchers():
        found = []
        for process in psutil.process_iter(["cmdline"]):
            words = process.info["cmdline"] or [""]
            # Not bash, setsid, nohup or a wrapper of Python, which become it one after the other.
            if words[-1] == f"{tmp_path}/lock" and words[1] == "-c" and "python" in words[0]:
                found.append(process)
        return found

    def wait_for(is_wanted):
        """Return what was seen: a watcher that starts a program is two for a moment."""
        give_up = time.monotonic() + 60
        while not is_wanted(found := watchers()):
            assert time.monotonic() < give_up, found
            time.sleep(0.02)
        return found

    asyncio.run(LocalRunner(tmp_path).run(line, environment=environment))
    (first,) = wait_for(lambda found: len(found) == 1)
    asyncio.run(LocalRunner(tmp_path).run(line, environment=environment))
    (second,) = wait_for(lambda found: len(found) == 1 and found != [first])
    second.kill()
    wait_for(lambda found: not found)
    assert list(tmp_path.iterdir()) == []


def test_the_lease_starts_on_the_machine_itself_after_ray():
    setup = NodeSetup(start_commands=("ray start",), start_environment={"A": "1"}, lease="watch")
    (*_, step) = update_steps(setup, {})
    assert step.work == (
        RunCommand(command="ray start", environment={"A": "1"}),
        RunCommand(command="watch", where=RunWhere.HOST, environment={"A": "1"}),
    )
