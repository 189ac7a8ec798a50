"""The supervisor with real processes: it starts a program again, and ends it when told."""

from __future__ import annotations

import itertools
import os
import signal
import socket
import subprocess
import sys
import time

import pytest

from muster.base.clock import ManualClock
from muster.host.processes import is_alive
from muster.host.supervisor import (
    AGAIN_S,
    FIRST_PAUSE_S,
    GONE_S,
    HOLD,
    LONGEST_PAUSE_S,
    ServerWatch,
    is_listening,
    pause_after,
    read_state,
    rotate,
)

PATIENCE_S = 60.0
SLEEPER = (sys.executable, "-c", "import time; print('here', flush=True); time.sleep(600)")


def wait_for(what, patience_s=PATIENCE_S):
    give_up = time.monotonic() + patience_s
    while time.monotonic() < give_up:
        found = what()
        if found:
            return found
        time.sleep(0.02)
    raise AssertionError("it did not happen")


def supervise(folder, *program, before="", server=()):
    options = ["--before", before] if before else []
    options += ["--server", *server] if server else []
    command = [sys.executable, "-m", "muster.host.supervisor", "run", str(folder), *options, "--", *program]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def running(folder, starts=1):
    def look():
        state = read_state(folder)
        return state if state and state.starts >= starts and is_alive(state.program) else None

    return wait_for(look)


def test_the_pause_doubles_while_the_program_ends_at_once_and_starts_over_when_it_ran():
    pauses, pause_s = [], 0.0
    for ran_s in (0, 1, 1, 1, 1, 1, 1, 1, 100):
        pause_s = pause_after(pause_s, ran_s)
        pauses.append(pause_s)
    assert pauses == [FIRST_PAUSE_S, 2, 4, 8, 16, 32, LONGEST_PAUSE_S, LONGEST_PAUSE_S, FIRST_PAUSE_S]


def test_a_large_log_is_cut_and_kept_twice_while_its_writer_appends(tmp_path):
    log = tmp_path / "log"
    with log.open("ab", buffering=0) as writer:
        for text in (b"first", b"second", b"third"):
            writer.write(text)
            rotate(log, most=3)
        writer.write(b"end")
    rotate(log, most=3)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"log": b"end", "log.1": b"third", "log.2": b"second"}


def test_a_server_is_gone_once_it_has_answered_and_then_not_for_a_while():
    clock, answers = ManualClock(), [False]
    watch = ServerWatch(lambda: answers[0], clock)
    gone = []

    def look(seconds):
        for _ in range(seconds):
            clock.advance(1.0)
            if watch.is_gone():
                gone.append(clock.monotonic())

    look(int(AGAIN_S) - 1)
    assert gone == []  # it may still start
    answers[0] = True
    look(10)
    answers[0] = False
    look(int(GONE_S) + int(AGAIN_S) + 5)
    assert [round(b - a) for a, b in itertools.pairwise(gone)] == [AGAIN_S]
    answers[0] = True
    look(10)
    answers[0] = False
    look(int(GONE_S) + 1)
    assert len(gone) == 3


def test_a_server_that_has_never_come_up_is_started_again():
    clock = ManualClock()
    watch = ServerWatch(lambda: False, clock)
    times = [second for second in range(400) if clock.advance(1.0) or watch.is_gone()]
    assert times == [119, 239, 359]


@pytest.mark.slow
def test_a_server_that_crashes_is_started_again_but_not_while_somebody_else_starts_it(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    serve = f"import socket, time; s = socket.create_server(('127.0.0.1', {port})); time.sleep(600)"
    start = tmp_path / "boot.sh"
    start.write_text(f'setsid {sys.executable} -c "{serve}" & echo $! > {tmp_path}/pid\n')
    quick = "import muster.host.supervisor as s; s.GONE_S = 1.0; s.LOOK_S = 0.2; s.sys.exit(s.main())"
    options = ["run", str(tmp_path), "--server", f"127.0.0.1:{port}", str(start), "--before", str(start)]
    supervisor = subprocess.Popen([sys.executable, "-c", quick, *options, "--", *SLEEPER])
    pid = int(wait_for(lambda: is_listening(f"127.0.0.1:{port}") and (tmp_path / "pid").read_text()))
    monitor = running(tmp_path).program
    time.sleep(1.0)  # it is seen
    (tmp_path / HOLD).touch()
    os.kill(pid, signal.SIGKILL)
    time.sleep(3.0)
    assert (tmp_path / "pid").read_text() == f"{pid}\n"
    (tmp_path / HOLD).unlink()
    wait_for(lambda: is_listening(f"127.0.0.1:{port}"))
    assert is_alive(monitor)
    supervisor.terminate()
    supervisor.wait(PATIENCE_S)
    assert is_listening(f"127.0.0.1:{port}")  # it outlives a supervisor
    os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.slow
def test_a_program_that_is_killed_is_back_and_both_end_when_told(tmp_path):
    (tmp_path / "before.sh").write_text(f"echo ready > {tmp_path}/before\n")
    supervisor = supervise(tmp_path, *SLEEPER, before=str(tmp_path / "before.sh"))
    first = running(tmp_path)
    assert (tmp_path / "before").read_text() == "ready\n"
    second_supervisor = supervise(tmp_path, *SLEEPER)
    os.kill(first.program.pid, signal.SIGKILL)
    second = running(tmp_path, starts=2)
    _, said = second_supervisor.communicate(timeout=PATIENCE_S)
    assert (second_supervisor.returncode, "another supervisor runs already" in said) == (0, True)
    assert second.program != first.program
    supervisor.terminate()
    assert (supervisor.wait(PATIENCE_S), is_alive(second.program)) == (0, False)
    assert not (tmp_path / "supervisor.json").exists()
    supervisor.stderr.close()


@pytest.mark.slow
def test_what_a_killed_supervisor_left_running_is_ended_by_the_next(tmp_path):
    supervisor = supervise(tmp_path, *SLEEPER)
    first = running(tmp_path)
    supervisor.kill()
    supervisor.communicate(timeout=PATIENCE_S)
    assert is_alive(first.program)
    following = supervise(tmp_path, *SLEEPER)
    wait_for(lambda: not is_alive(first.program))
    second = running(tmp_path)
    following.terminate()
    following.communicate(timeout=PATIENCE_S)
    assert not is_alive(second.program)
