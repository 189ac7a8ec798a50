"""The process that starts nodes: nothing begins before its id is written down, and nothing ends with it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.providers.process.stand_in import until

from muster.host.processes import find, identify, is_alive
from muster.providers.process.node_fork_server import ForkOrder, NodeForkServer

WARM = """
import os, sys
print("imported once, by", os.getpid())
def main():
    print("ran", sys.argv[1:], os.environ["WHO"], "TMPDIR" in os.environ, os.getcwd())
    sys.exit(3)
"""
OWNER = """
import sys
from pathlib import Path
from muster.providers.process.node_fork_server import ForkOrder, NodeForkServer
home, begin = Path(sys.argv[1]), sys.argv[2]
link = NodeForkServer("", {}, home / "fork_server.log")
order = ForkOrder(argv=["sleep", "600"], env={"PATH": "/usr/bin:/bin"}, log=str(home / "log"), cwd=str(home))
def admit(pid):
    print(pid, flush=True)
    if begin == "never":
        sys.stdin.readline()
    return True
link.start(order, admit)
print("began", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def link(tmp_path):
    made = NodeForkServer(
        "warm_stand_in", {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}, tmp_path / "s.log"
    )
    yield made
    made.close()


def order(home: Path, *argv: str) -> ForkOrder:
    env = {"PATH": os.environ["PATH"], "WHO": "node"}
    return ForkOrder(argv=argv, env=env, log=str(home / "log"), cwd=str(home))


def ended(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_command_runs_in_a_session_of_its_own(link, tmp_path) -> None:
    pids: list[int] = []
    assert link.start(order(tmp_path, "sleep", "600"), lambda pid: not pids.append(pid))
    try:
        assert until(lambda: find(pids[0]).name == "sleep")
        assert find(pids[0]).session == pids[0]
    finally:
        ended(pids[0])
    assert until(lambda: find(pids[0]) is None)  # no zombie either


def test_a_command_that_is_not_admitted_does_nothing(link, tmp_path) -> None:
    pids: list[int] = []
    began = link.start(order(tmp_path, "touch", "ran"), lambda pid: bool(pids.append(pid)))
    assert until(lambda: find(pids[0]) is None)
    assert (began, (tmp_path / "ran").exists()) == (False, False)


def test_the_module_of_a_python_command_is_imported_once_and_forked(link, tmp_path) -> None:
    (tmp_path / "warm_stand_in.py").write_text(WARM)
    pids: list[int] = []
    for word in ("first", "second"):
        run = order(tmp_path, sys.executable, "-m", "warm_stand_in", word)
        assert link.start(run, lambda pid: not pids.append(pid))
        assert until(lambda: find(pids[-1]) is None)
    where = tmp_path.resolve()
    assert (tmp_path / "log").read_text().splitlines() == [
        f"ran ['first'] node False {where}",
        f"ran ['second'] node False {where}",
    ]
    assert (tmp_path / "s.log").read_text().count("imported once") == 1


def test_without_the_module_the_command_runs_and_says_what_is_missing(link, tmp_path) -> None:
    pids: list[int] = []
    link.start(order(tmp_path, sys.executable, "-m", "warm_stand_in"), lambda pid: not pids.append(pid))
    assert until(lambda: find(pids[0]) is None)
    assert "warm_stand_in" in (tmp_path / "log").read_text()
    assert "warm_stand_in" in (tmp_path / "s.log").read_text()


def test_a_command_that_does_not_exist_says_so(link, tmp_path) -> None:
    pids: list[int] = []
    link.start(order(tmp_path, "no-such-command"), lambda pid: not pids.append(pid))
    assert until(lambda: find(pids[0]) is None)
    assert "no-such-command" in (tmp_path / "log").read_text()


def test_a_starter_that_was_killed_is_made_again_and_its_nodes_live_on(link, tmp_path) -> None:
    pids: list[int] = []
    try:
        link.start(order(tmp_path, "sleep", "600"), lambda pid: not pids.append(pid))
        mark = identify(pids[0])
        os.kill(link._child.pid, signal.SIGKILL)
        assert link.start(order(tmp_path, "sleep", "600"), lambda pid: not pids.append(pid))
        assert (len(pids), is_alive(mark), is_alive(identify(pids[1]))) == (2, True, True)
    finally:
        for pid in pids:
            ended(pid)


@pytest.mark.slow
@pytest.mark.parametrize("begin", ["once", "never"])
def test_when_its_owner_is_killed_what_began_goes_on_and_what_did_not_never_does(
    tmp_path, begin: str
) -> None:
    command = [sys.executable, "-c", OWNER, str(tmp_path), begin]
    owner = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with owner:
        pid = int(owner.stdout.readline())
        mark = identify(pid)
        parent = find(pid).parent  # the starter
        try:
            if begin == "once":
                owner.stdout.readline()
            owner.kill()
            owner.wait()
            assert until(lambda: find(parent) is None)
            assert until(lambda: is_alive(mark) is (begin == "once"))
            assert begin == "never" or until(lambda: find(pid).name == "sleep")
        finally:
            ended(pid)
