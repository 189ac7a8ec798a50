"""Processes are known by id and start time; the rest of the world is left alone."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from msgspec.structs import replace
from tests.providers.process.stand_in import until

from muster.host import processes
from muster.host.machine import process_activity
from muster.host.processes import identify, is_alive, send


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_lives_until_it_is_gone(sleeper) -> None:
    mark = identify(sleeper.pid)
    before = is_alive(mark)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie now: its parent has not looked
    as_zombie = is_alive(mark)
    sleeper.wait()
    assert (before, as_zombie, is_alive(mark), identify(sleeper.pid)) == (True, False, False, None)


def test_the_same_number_with_another_start_is_another_process(sleeper) -> None:
    mark = identify(sleeper.pid)
    assert not is_alive(replace(mark, started=mark.started + "0"))
    assert not is_alive(replace(mark, boot="the boot before"))


def test_a_signal_goes_to_the_process_that_was_seen_and_to_no_later_one(sleeper) -> None:
    seen = processes.find(sleeper.pid)
    send([replace(seen, started="0")], signal.SIGKILL)
    assert sleeper.poll() is None
    send([seen], signal.SIGKILL)
    assert sleeper.wait(10) == -signal.SIGKILL


def test_we_are_in_the_table_and_never_signal_ourselves() -> None:
    (we,) = [one for one in processes.table() if one.pid == os.getpid()]
    assert (we, we.parent, we.session, we.is_alive) == (
        processes.find(os.getpid()),
        os.getppid(),
        os.getsid(0),
        True,
    )
    send([we], signal.SIGKILL)


def test_the_environment_tells_what_a_process_was_started_with() -> None:
    process = subprocess.Popen(["sleep", "600"], env={"A": "1", "PATH": os.environ["PATH"]})
    try:
        until(lambda: processes.was_started_with(process.pid, "A=1"))  # Popen returns in the middle of exec
        said = [processes.was_started_with(process.pid, entry) for entry in ("A=1", "A=", "A=10", "B=1")]
        assert said == [True, False, False, False]
    finally:
        process.kill()
        process.wait()


def test_psutil_tells_the_same_as_proc(monkeypatch, sleeper) -> None:
    before = processes.find(sleeper.pid)
    monkeypatch.setattr(processes, "_has_proc", lambda: False)
    other = processes.find(sleeper.pid)
    same = ("pid", "parent", "session", "name", "is_alive")
    assert [getattr(other, name) for name in same] == [getattr(before, name) for name in same]
    assert is_alive(identify(sleeper.pid))
    assert (other.pid, other.started) in [(one.pid, one.started) for one in processes.table()]
    with subprocess.Popen(["sleep", "600"], env={"MUSTER_MARK": "1"}) as marked:
        try:
            until(lambda: processes.was_started_with(marked.pid, "MUSTER_MARK=1"))
        finally:
            marked.kill()
    os.kill(sleeper.pid, signal.SIGKILL)
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert not processes.find(sleeper.pid).is_alive


def test_a_stopped_process_cannot_run_and_an_ended_one_does_nothing(sleeper) -> None:
    until(lambda: process_activity(sleeper.pid) is not None and process_activity(sleeper.pid).can_run)
    os.kill(sleeper.pid, signal.SIGSTOP)
    until(lambda: not process_activity(sleeper.pid).can_run)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)
    assert process_activity(sleeper.pid) is None
