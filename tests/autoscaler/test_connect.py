"""Whether Ray's own autoscaler runs beside ours, and what `muster monitor` refuses at once."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from types import SimpleNamespace

import pytest
from ray.core.generated import autoscaler_pb2 as pb

from muster.autoscaler.build import reach_head
from muster.autoscaler.connect import AGAIN_S, LOOK_S, WATCH_S, RivalAutoscaler, foreign_autoscaler
from muster.autoscaler.lease import AlreadyMonitored
from muster.base.clock import ManualClock
from muster.errors import EngineUnreachable
from muster.providers.process.ray_command import free_ports
from muster.runtimes.ray.client import GcsClient

ELSEWHERE = "203.0.113.7:6379"
CONFIG = """
cluster_name: c1
provider: {provider}
available_node_types:
  head: {{resources: {{CPU: 1}}}}
"""


class Gcs(GcsClient):
    """Answers one (status key, version, version seen) after the other, the last forever."""

    def __init__(self, *answers, address=ELSEWHERE):
        super().__init__(address)
        self.answers = list(answers)

    def kv_get(self, key, namespace=None):
        return self.answers[0][0]

    def cluster_status(self):
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        state = pb.AutoscalingState(
            autoscaler_state_version=answer[1], last_seen_cluster_resource_state_version=answer[2]
        )
        return pb.GetClusterStatusReply(autoscaling_state=state).SerializeToString()


def looked(link, **more):
    """What was found, and how long it took."""
    clock = ManualClock()
    began = clock.monotonic()
    return foreign_autoscaler(link, clock.sleep, clock, **more), clock.monotonic() - began


QUIET = (None, 0, 0)


def test_a_cluster_that_no_autoscaler_reported_to_is_free_at_once():
    assert looked(Gcs(QUIET)) == ("", 0)


@pytest.mark.parametrize(
    ("before", "after"),
    [((b"first", 0, 0), (b"second", 0, 0)), ((None, 2, 10), (None, 2, 15)), ((None, 2, 10), (None, 3, 10))],
    ids=["v1", "v2 sees more", "v2 decides"],
)
def test_reports_that_change_are_those_of_a_living_one(before, after):
    found, took_s = looked(Gcs(before, before, before, after))
    assert (found.endswith(f" {ELSEWHERE}"), took_s) == (True, 3 * LOOK_S)


def test_a_report_that_stays_was_left_by_one_that_is_gone():
    found, took_s = looked(Gcs((b"left", 4, 4)))
    assert (found, took_s) == ("", WATCH_S)


def test_our_own_last_report_is_not_watched():
    assert looked(Gcs((None, 7, 12)), own_version=7) == ("", 0)


def running(*words):
    """A process with these words in its command line."""
    command = [sys.executable, "-c", "print(flush=True); import time; time.sleep(60)", *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def test_where_the_gcs_is_seen_and_no_such_process_old_reports_mean_nothing():
    (port,) = free_ports(1)
    with running(f"--gcs_server_port={port}") as process:
        try:
            assert looked(Gcs((b"left", 4, 4), address=f"127.0.0.1:{port}")) == ("", 0)
        finally:
            process.kill()


def test_one_that_is_started_later_ends_the_monitor():
    clock = ManualClock()
    (port,) = free_ports(1)
    link = Gcs(QUIET, address=f"127.0.0.1:{port}")
    watch = RivalAutoscaler(link, clock)
    tick = SimpleNamespace(runtime=object())

    def later():
        clock.sleep(AGAIN_S)
        watch.on_tick(tick)

    link.answers = [(b"left", 0, 0)]
    for _ in range(3):
        later()  # a report that stays is one of the past
    link.answers = [(b"new", 0, 0)]
    with pytest.raises(AlreadyMonitored, match=r"autoscaler .* \(.* reported"):
        later()
    with running("ray/autoscaler/v2/monitor.py", f"--gcs-address=127.0.0.1:{port}") as process:
        try:
            with pytest.raises(AlreadyMonitored, match=f"{process.pid}"):
                later()
        finally:
            process.kill()


@pytest.mark.parametrize("folder", ["_private", "v2"])
def test_its_process_on_this_computer_is_seen_at_once(folder):
    (port,) = free_ports(1)
    words = [f"x/ray/autoscaler/{folder}/monitor.py", f"--gcs-address=192.0.2.2:{port}"]
    with running(*words) as process:
        try:
            here = looked(Gcs(QUIET, address=f"127.0.0.1:{port}"))
            other_port = looked(Gcs(QUIET, address=f"127.0.0.1:{port % 60000 + 1}"))
            other_host = looked(Gcs(QUIET, address=f"203.0.113.7:{port}"))
        finally:
            process.kill()
    assert (here[0].split()[:2], here[1]) == (["process", str(process.pid)], 0)
    assert (other_port, other_host) == (("", 0), ("", 0))


class Away(GcsClient):
    def connect(self):
        raise EngineUnreachable("no Ray GCS answers")


class Stop:
    def __init__(self, clock):
        self._clock = clock

    def is_set(self):
        return False

    def wait(self, timeout):
        self._clock.sleep(timeout)
        return False


def test_a_head_is_waited_for_as_long_as_was_said_and_no_longer():
    clock = ManualClock()
    began = clock.monotonic()
    with pytest.raises(EngineUnreachable, match="GCS"):
        reach_head(Away("127.0.0.1:1"), Stop(clock), limit_s=15.0, clock=clock)
    assert 7 < clock.monotonic() - began <= 15


def monitor(tmp_path, provider, *words, before="pass"):
    file = tmp_path / "c.yaml"
    file.write_text(CONFIG.format(provider=provider), encoding="utf-8")
    program = f"import muster.cli.monitor as m; {before}; from muster.cli.main import main; main()"
    return subprocess.run(
        [sys.executable, "-c", program, "monitor", str(file), *words],
        env={**os.environ, "MUSTER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize("answers", [False, True], ids=["refused", "accepted and never answered"])
def test_once_against_an_address_without_a_head_ends_with_one_line(tmp_path, answers):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        if answers:
            taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        done = monitor(
            tmp_path, "{type: readonly}", "--once", "--address", address, before="m.ONCE_WAIT_S = 1.0"
        )
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert (done.returncode, len(errors)) == (2, 1)
    assert f" {address}" in errors[0]
    assert errors[0].endswith(" 1 s")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("provider", "text"),
    [
        ("{type: spark}", "provider.type: 'spark' is not built yet"),
        ("{type: external, module: nowhere.Cloud}", "provider.module: 'nowhere.Cloud': there is no module"),
    ],
)
def test_a_provider_that_cannot_be_built_is_refused_at_once_and_nothing_is_written(tmp_path, provider, text):
    done = monitor(tmp_path, provider, "--address", "127.0.0.1:1")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith(f"error: {tmp_path / 'c.yaml'}: {text}")
    assert not (tmp_path / "clusters").exists()
