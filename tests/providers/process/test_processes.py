"""Processes are known by id and start time; the rest of the world is left alone."""

from __future__ import annotations

import os
import signal
import subprocess

import pytest
from msgspec.structs import replace
from tests.providers.process.stand_in import until

from muster.host import processes
from muster.host.processes import ProcessInfo, lives, mark_of, parse_ps, send


@pytest.fixture
def sleeper():
    process = subprocess.Popen(["sleep", "600"], start_new_session=True)
    yield process
    process.kill()
    process.wait()


def test_a_process_lives_until_it_is_gone(sleeper) -> None:
    mark = mark_of(sleeper.pid)
    before = lives(mark)
    sleeper.kill()
    os.waitid(os.P_PID, sleeper.pid, os.WEXITED | os.WNOWAIT)  # a zombie now: its parent has not looked
    as_zombie = lives(mark)
    sleeper.wait()
    assert (before, as_zombie, lives(mark), mark_of(sleeper.pid)) == (True, False, False, None)


def test_the_same_number_with_another_start_is_another_process(sleeper) -> None:
    mark = mark_of(sleeper.pid)
    assert not lives(replace(mark, started=mark.started + "0"))
    assert not lives(replace(mark, boot="the boot before"))


def test_a_signal_goes_to_the_process_that_was_seen_and_to_no_later_one(sleeper) -> None:
    seen = processes.find(sleeper.pid)
    send([replace(seen, started="0")], signal.SIGKILL)
    assert sleeper.poll() is None
    send([seen], signal.SIGKILL)
    assert sleeper.wait(10) == -signal.SIGKILL


def test_we_are_in_the_table_and_never_signal_ourselves() -> None:
    (we,) = [one for one in processes.table() if one.pid == os.getpid()]
    assert (we, we.parent, we.session, we.lives) == (
        processes.find(os.getpid()),
        os.getppid(),
        os.getsid(0),
        True,
    )
    send([we], signal.SIGKILL)


def test_the_environment_tells_what_a_process_was_started_with() -> None:
    process = subprocess.Popen(["sleep", "600"], env={"A": "1", "PATH": os.environ["PATH"]})
    try:
        until(lambda: processes.environment_says(process.pid, "A=1"))  # Popen returns in the middle of exec
        said = [processes.environment_says(process.pid, entry) for entry in ("A=1", "A=", "A=10", "B=1")]
        assert said == [True, False, False, False]
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "  501   1   501 Ss   Mon Jul  6 09:08:07 2026     /opt/ray/raylet",
            ProcessInfo(
                pid=501,
                parent=1,
                group=501,
                session=501,
                state="S",
                started="Mon Jul 6 09:08:07 2026",
                name="raylet",
            ),
        ),
        ("PID PPID PGID STAT STARTED COMMAND", None),
        ("", None),
    ],
)
def test_a_line_of_ps_is_understood(line: str, expected: ProcessInfo | None) -> None:
    assert parse_ps(line) == expected


def test_ps_tells_the_same_as_proc(monkeypatch, sleeper) -> None:
    before = processes.find(sleeper.pid)
    monkeypatch.setattr(processes, "_has_proc", lambda: False)
    by_ps = processes.find(sleeper.pid)
    assert (by_ps.pid, by_ps.parent, by_ps.group, by_ps.name) == (
        before.pid,
        before.parent,
        before.group,
        before.name,
    )
    assert lives(mark_of(sleeper.pid))
