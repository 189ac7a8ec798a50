"""A process that a signal has stopped, of a trial or of the engine, stalls nothing; one in a debugger may."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
import time
from pathlib import Path

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.contracts.engine_contract.misbehaving import is_gone
from tests.support.trainables import counts, waits

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.worker_pool import LocalOptions
from muster.session import report
from muster.trials.events import StopTrial, TrialExited, TrialFailureKind, TrialReported

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_engine(*trainables, beat_s=0.1, silent_after_s=1.5, warn_after_s=0.5, warm=True):
        engine = LocalEngine(
            clock=SystemClock(),
            trainables={t.__name__: cloudpickle.dumps(t) for t in trainables},
            capacity={"CPU": 2},
            warm=warm,
            options=LocalOptions(
                quiet=True,
                kill_after_s=0.3,
                beat_s=beat_s,
                silent_after_s=silent_after_s,
                warn_after_s=warn_after_s,
            ),
        )
        made.append(engine)
        return Driver(engine, tmp_path)

    yield open_engine
    for engine in made:
        engine.close()


def warnings_in(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def state_of(pid):
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.mark.parametrize("warm", [True, False])
def test_a_stopped_trial_is_named_once_and_fails_later(opened, caplog, warm):
    driver = opened(waits, counts, warm=warm)
    driver.start("a", "waits")
    pid = driver.to_report("a").result["pid"]
    os.kill(pid, signal.SIGSTOP)
    driver.start("b", "counts", {"steps": 3})
    failure = driver.to_exit("a", "b", answer=True) and driver.to_exit("a").failure
    assert failure.kind is TrialFailureKind.SILENT
    assert re.search(rf"\(pid {pid}\) .* 1\.5 s$", failure.message)
    (line,) = warnings_in(caplog)
    assert line.startswith("trial a ")
    assert f"(pid {pid}) " in line
    assert line.endswith(f"kill -CONT {pid}")
    assert is_gone(pid)


def test_a_stopped_trial_that_is_continued_in_time_goes_on(opened, caplog):
    driver = opened(counts, silent_after_s=20.0)
    driver.start("a", "counts", {"steps": 3})
    pid = driver.to_report("a").result["pid"]
    os.kill(pid, signal.SIGSTOP)
    while not warnings_in(caplog):
        driver.quiet_for(0.1)
    os.kill(pid, signal.SIGCONT)
    driver.go_on("a")
    assert driver.to_exit("a").is_done
    assert len(warnings_in(caplog)) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="ptrace is called as on Linux")
def test_a_trial_in_a_debugger_is_not_ended(opened, caplog):
    attach, detach = 16, 17
    driver = opened(counts, silent_after_s=0.5, warn_after_s=0.2)
    driver.start("a", "counts", {"steps": 2})
    pid = driver.to_report("a").result["pid"]
    ptrace = ctypes.CDLL(None, use_errno=True).ptrace
    if ptrace(attach, pid, None, None):
        pytest.skip(f"no debugger may attach here: {os.strerror(ctypes.get_errno())}")
    try:
        os.waitpid(pid, 0x40000000)  # __WALL
        assert state_of(pid) == "t"
        assert driver.quiet_for(2.0) == []
    finally:
        ptrace(detach, pid, None, None)
    driver.go_on("a")
    assert driver.to_exit("a").is_done
    assert warnings_in(caplog) == []


def sleeps(config):
    report({"step": 1})
    time.sleep(config["seconds"])


def test_a_driver_that_was_away_blames_no_trial(opened):
    driver = opened(sleeps, silent_after_s=0.5)
    driver.start("a", "sleeps", {"seconds": 60.0})
    driver.to_report("a")
    driver.go_on("a")
    driver.quiet_for(1.0)  # it beats, and its processor time is known
    os.kill(driver.of("a", TrialReported)[0].result["pid"], signal.SIGSTOP)  # as if all were paused at once
    for _ in range(2):
        time.sleep(1.0)  # as in a slow callback, or stopped by Ctrl-Z
        assert driver.quiet_for(0.05) == []


def test_a_driver_that_is_away_often_still_finds_a_stopped_trial(opened):
    driver = opened(sleeps, silent_after_s=0.5)
    driver.start("a", "sleeps", {"seconds": 60.0})
    os.kill(driver.to_report("a").result["pid"], signal.SIGSTOP)
    for _ in range(30):
        time.sleep(0.4)
        driver.quiet_for(0.01)
    (exit_event,) = driver.of("a", TrialExited)
    assert exit_event.failure.kind is TrialFailureKind.SILENT


@pytest.mark.parametrize("which", ["known", "forking", "known, at the start"])
def test_a_stopped_fork_server_is_continued(opened, caplog, which):
    driver = opened(waits, counts)
    pid = driver.engine._pool._fork_server.pid
    if which != "known, at the start":
        driver.start("a", "waits")
        worker = driver.to_report("a").result["pid"]
    if which == "forking":
        pid = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGSTOP)
    for number in range(12):  # more than there are spares
        driver.start(f"b{number}", "counts", {"steps": 1})
        driver.poll_until(lambda name=f"b{number}": bool(driver.of(name, TrialExited)))
    while not warnings_in(caplog):
        driver.quiet_for(0.1)
    (line,) = set(warnings_in(caplog))
    assert re.search(rf"\bfork\b.* \(pid {pid}\) ", line)
    assert len(driver.of("b11", TrialReported)) == 1


def test_close_does_not_wait_for_a_stopped_fork_server(opened):
    driver = opened(waits)
    driver.start("a", "waits")
    worker = driver.to_report("a").result["pid"]
    forking = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    known = driver.engine._pool._fork_server.pid
    for pid in (forking, known, worker):
        os.kill(pid, signal.SIGSTOP)
    began = time.monotonic()
    driver.engine.close()
    assert time.monotonic() - began < 4.0  # it would kill them after five
    assert all(is_gone(pid) for pid in (forking, known, worker))


def ignores_everything(config):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    report({"x": 1})
    time.sleep(600)


def test_a_later_stop_shortens_the_time_that_a_trial_has_and_the_kill_is_logged(opened, caplog):
    driver = opened(ignores_everything)
    driver.start("a", "ignores_everything")
    driver.to_report("a")
    driver.go_on("a")
    driver.engine.submit(StopTrial(trial_id="a", grace_s=600.0))
    driver.quiet_for(0.3)
    for grace_s in (0.2, 600.0):
        driver.engine.submit(StopTrial(trial_id="a", grace_s=grace_s))
    assert driver.engine._trials["a"].grace_s == 0.2  # so long again after SIGTERM
    assert driver.to_exit("a").failure is None
    assert len(caplog.messages) == 1
