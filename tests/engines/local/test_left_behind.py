"""Nothing that a trial has started outlives it on Linux, in whatever session, whoever was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.contracts.engine_contract.misbehaving import is_gone
from tests.support.trainables import counts

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.worker_pool import LocalOptions
from muster.session import report
from muster.trials.events import TrialExited, TrialReported

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are adopted on Linux only"),
]


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_engine(*trainables, warm=True, **options):
        engine = LocalEngine(
            clock=SystemClock(),
            trainables={t.__name__: cloudpickle.dumps(t) for t in trainables},
            capacity={"CPU": 2},
            warm=warm,
            options=LocalOptions(quiet=True, kill_after_s=0.3, **options),
        )
        made.append(engine)
        return Driver(engine, tmp_path)

    yield open_engine
    for engine in made:
        engine.close()


def ends_all(pids, within_s=5.0):
    give_up = time.monotonic() + within_s
    while not all(map(is_gone, pids)) and time.monotonic() < give_up:
        time.sleep(0.01)
    return all(map(is_gone, pids))


def daemonizes(config):
    """Start a session leader, a daemon whose parent has ended, and a child of that daemon."""
    import subprocess

    # The daemon is forked twice, has a cleared environment, and starts one more session.
    code = """
import os, subprocess, sys
if os.fork():
    os._exit(0)
os.setsid()
if os.fork():
    os._exit(0)
inner = subprocess.Popen(["sleep", "600"], start_new_session=True, env={})
print(os.getpid(), inner.pid, flush=True)
sys.stdout.close()
import time
time.sleep(600)
"""
    leader = subprocess.Popen(["sleep", "600"], start_new_session=True)
    starter = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env={})
    daemon, inner = map(int, starter.stdout.readline().split())
    starter.wait()
    report({"left": [leader.pid, daemon, inner]})
    if config.get("how") == "raises":
        raise ValueError("an error of the trial")
    if config.get("how") == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    report({"left": []})


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("how", ["returns", "raises", "killed", "reused"])
def test_what_left_the_group_of_its_trial_ends_with_it(opened, how, warm):
    driver = opened(daemonizes, warm=warm)
    driver.start("a", "daemonizes", {"how": how}, may_reuse=how == "reused")
    left = driver.to_report("a").result["left"]
    assert not any(map(is_gone, left))
    driver.go_on("a")
    driver.to_exit("a")
    assert ends_all(left)


def test_what_a_running_trial_has_started_is_left_alone_when_another_ends(opened):
    driver = opened(daemonizes, counts)
    driver.start("a", "daemonizes")
    left = driver.to_report("a").result["left"]
    for number in range(4):
        driver.start(f"b{number}", "counts", {"steps": 1})
    while len(ended := {e.trial_id for e in driver.events if isinstance(e, TrialExited)}) < 4:
        for event in driver.quiet_for(0.05):
            if isinstance(event, TrialReported) and event.trial_id != "a":
                driver.go_on(event.trial_id)
    assert "a" not in ended
    driver.quiet_for(0.3)
    assert not any(map(is_gone, left))


def forks(config):
    """Leave a child behind when told; the fork server is stopped then, so that it cannot reap anything."""
    left = os.fork() if config["leaves"] else 0
    if config["leaves"] and left == 0:
        time.sleep(600)
    report({"left": left, "parent": os.getppid()})


def is_zombie(pid):
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"


def test_a_trial_is_over_when_its_process_has_ended_though_nobody_has_reaped_it(opened):
    driver = opened(forks, beat_s=60.0)
    driver.start("a", "forks", {"leaves": False})
    result = driver.to_report("a").result
    os.kill(result["parent"], signal.SIGSTOP)
    driver.go_on("a")
    assert driver.to_exit("a").is_done
    assert is_zombie(result["pid"])
    driver.start("b", "forks", {"leaves": False})  # on a spare
    os.kill(result["parent"], signal.SIGCONT)
    assert driver.to_exit("b").is_done
    driver.poll_until(lambda: result["pid"] not in {w.pid for w in driver.engine._pool._workers.values()})
    assert driver.engine._pool._by_end_fd == {}


def test_a_trial_that_left_a_process_is_over_when_that_was_killed(opened):
    driver = opened(forks, beat_s=60.0)
    driver.start("a", "forks", {"leaves": True})
    result = driver.to_report("a").result
    os.kill(result["parent"], signal.SIGSTOP)
    driver.go_on("a")
    while not is_zombie(result["pid"]):
        driver.quiet_for(0.05)
    assert driver.quiet_for(0.2) == []
    assert not is_gone(result["left"])
    os.kill(result["parent"], signal.SIGCONT)
    assert driver.to_exit("a").is_done
    assert ends_all([result["left"]])


def test_an_event_of_a_number_that_another_process_has_now_ends_nothing(opened):
    driver = opened(forks, beat_s=60.0)
    driver.start("a", "forks", {"leaves": False})
    driver.to_report("a")
    pool = driver.engine._pool
    (worker,) = [each for each in pool._workers.values() if each.run is not None]
    pool.watch_end(worker)
    pool._on_ended(worker)  # as if the poll had returned the number for the process that had it before
    assert driver.quiet_for(0.05) == []
    driver.go_on("a")
    assert driver.to_exit("a").is_done


STARTS_AT_IMPORT = """
import os, subprocess
server = subprocess.Popen(["sleep", "600"], start_new_session=True)
"""


@pytest.mark.parametrize("is_first", [True, False])
def test_what_a_module_starts_when_it_is_imported_lives_as_long_as_the_fork_server(
    opened, tmp_path, monkeypatch, is_first
):
    (tmp_path / "starts_at_import.py").write_text(STARTS_AT_IMPORT)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "starts_at_import", raising=False)
    module = __import__("starts_at_import")
    module.server.kill()
    module.server.wait()

    def uses_server(config):
        report({"server": module.server.pid, "is_gone": is_gone(module.server.pid)})

    driver = opened(uses_server) if is_first else opened(counts)
    if not is_first:
        driver.start("first", "counts")
        driver.to_exit("first")
        driver.engine.register("uses_server", cloudpickle.dumps(uses_server))
    for name in ("a", "b", "c"):
        driver.start(name, "uses_server")
        driver.to_exit(name)
    assert [driver.results(name, "is_gone") for name in ("a", "b", "c")] == [[False]] * 3
    servers = {driver.results(name, "server")[0] for name in ("a", "b", "c")}
    assert (len(servers), module.server.pid in servers) == (1, False)
    driver.engine.close()
    assert ends_all(servers)


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("which", ["known", "forking"])
def test_a_killed_fork_server_leaves_nothing(opened, warm, which):
    driver = opened(daemonizes, counts, warm=warm)
    driver.start("a", "daemonizes")
    event = driver.to_report("a")
    left = event.result["left"]
    pid = driver.engine._pool._fork_server.pid
    if which == "forking":
        pid = int(Path(f"/proc/{event.result['pid']}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    driver.to_exit("a", answer=False)
    # The daemon and what it started have cleared their environment: only its parent can find them.
    found = left if which == "forking" and warm else left[:1]
    assert ends_all(found)
    for pid in left:
        if not is_gone(pid):
            os.kill(pid, signal.SIGKILL)
    driver.start("b", "counts")
    assert driver.to_exit("b").is_done


DRIVER = """
import sys, cloudpickle
from pathlib import Path
from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from tests.contracts.engine_contract.fixture import Driver
from tests.engines.local.test_left_behind import daemonizes
import os, signal
engine = LocalEngine(clock=SystemClock(), capacity={"CPU": 1}, warm=sys.argv[2] == "warm",
    trainables={"daemonizes": cloudpickle.dumps(daemonizes)})
driver = Driver(engine, Path(sys.argv[1]))
driver.start("a", "daemonizes")
result = driver.to_report("a").result
print(engine._pool._fork_server.pid, result["pid"], *result["left"], flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["warm", "fresh", "warm and stopped"])
def test_a_driver_killed_with_9_leaves_nothing(tmp_path, how):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), how.split()[0]],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    pids = [int(text) for text in driver.stdout.readline().split()]
    assert len(pids) == 5
    assert not any(map(is_gone, pids))
    if how.endswith("stopped"):
        forking = int(Path(f"/proc/{pids[1]}/stat").read_text().rpartition(")")[2].split()[1])
        os.kill(forking, signal.SIGSTOP)
        pids.append(forking)
    driver.kill()
    killed_at = time.monotonic()
    driver.communicate()
    while not all(map(is_gone, pids)) and time.monotonic() < killed_at + 30:
        time.sleep(0.01)
    assert [pid for pid in pids if not is_gone(pid)] == []
