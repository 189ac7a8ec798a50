"""Processes of the local engine at the limits of the system: open files, descriptors, interpreters."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
import sys

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver

from muster.base.clock import SystemClock
from muster.engines.local import worker_pool
from muster.engines.local.engine import LocalEngine
from muster.engines.local.worker_pool import LocalOptions
from muster.host import machine
from muster.session import report
from muster.trials.events import TrialExited, TrialReported

pytestmark = pytest.mark.slow


def one_report(config):
    report({"pid": os.getpid()})


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_engine(trainable=one_report, cpus=2, warm=True):
        blobs = {"it": cloudpickle.dumps(trainable)}
        options = LocalOptions(quiet=True)
        engine = LocalEngine(
            clock=SystemClock(), trainables=blobs, capacity={"CPU": cpus}, warm=warm, options=options
        )
        made.append(engine)
        return Driver(engine, tmp_path)

    yield open_engine
    for engine in made:
        engine.close()


@pytest.fixture
def limit_open_files(monkeypatch):
    """Set the soft limit so many files above those that are open; the pool knows of fewer others."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)

    def limit(more):
        used = len(os.listdir("/dev/fd"))
        monkeypatch.setattr(worker_pool, "_OTHER_FILES", used + 20)
        resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, before[1]))

    yield limit
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def run_at_once(driver, count, expected):
    """Start so many trials, each of which waits after its report; returns how many did so at once."""
    names = [f"t{k}" for k in range(count)]
    for name in names:
        driver.start(name, "it")
    driver.poll_until(lambda: len(waiting(driver)) >= expected, answer=False)
    driver.quiet_for(0.2)  # for more than there may be
    at_once = waiting(driver)
    for name in at_once:
        driver.go_on(name)
    driver.to_exit(*names)
    assert all(event.failure is None for event in driver.events if isinstance(event, TrialExited))
    return len(at_once)


def waiting(driver):
    return [event.trial_id for event in driver.events if isinstance(event, TrialReported)]


def test_more_trials_run_at_once_than_the_soft_limit_on_open_files_allows(opened, limit_open_files):
    limit_open_files(60)
    assert run_at_once(opened(cpus=80), 80, 80) == 80


def test_trials_wait_where_the_limit_on_open_files_cannot_be_raised(opened, monkeypatch, caplog):
    driver = opened(cpus=80)
    limit = worker_pool._OTHER_FILES + worker_pool._FILES_EACH * 10
    monkeypatch.setattr(machine, "allow_open_files", lambda count: limit)
    assert run_at_once(driver, 40, 10) == 10
    assert len(caplog.messages) == 1


class RefusingSocket:
    """The socket of a fork server, to which the kernel at first passes no descriptors."""

    def __init__(self, real, error, times):
        self._real, self._error, self.times = real, error, times

    def sendmsg(self, *arguments):
        self.times -= 1
        if self.times >= 0:
            raise OSError(self._error, os.strerror(self._error))
        return self._real.sendmsg(*arguments)

    def __getattr__(self, name):
        return getattr(self._real, name)


@pytest.mark.parametrize("error", [errno.ETOOMANYREFS, errno.ENOBUFS])
def test_a_request_for_a_process_that_the_kernel_refuses_is_repeated(opened, caplog, error):
    driver = opened()
    fork_server = driver.engine._pool._fork_server
    fork_server.socket = RefusingSocket(fork_server.socket, error, 3)
    driver.start("a", "it")
    driver.start("b", "it")
    assert driver.to_exit("a", "b").failure is None
    assert fork_server.socket.times < 0
    assert len(caplog.messages) == 1


def what_a_program_inherits(config):
    listing = "import os; print(len(os.listdir('/proc/self/fd')) - 1)"
    ran = subprocess.run([sys.executable, "-c", listing], close_fds=False, capture_output=True, check=True)
    report({"files": int(ran.stdout)})


@pytest.mark.parametrize("warm", [True, False])
def test_programs_that_a_trial_starts_do_not_inherit_its_pipes(opened, warm):
    driver = opened(what_a_program_inherits, warm=warm)
    driver.start("a", "it")
    driver.to_exit("a")
    assert driver.results("a", "files") == [3]  # the standard streams


STARTS_A_THREAD = """
import os, threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
with open({file!r}, "a") as stream:
    stream.write(f"{{os.getpid()}}\\n")
def train(config):
    from muster.session import report
    report({{"pid": os.getpid()}})
"""


def test_where_forks_are_unsafe_one_interpreter_more_than_trials_is_started(opened, tmp_path, monkeypatch):
    file = tmp_path / "pids"
    (tmp_path / "starts_one_thread.py").write_text(STARTS_A_THREAD.format(file=str(file)))
    monkeypatch.syspath_prepend(str(tmp_path))
    import starts_one_thread

    file.unlink()
    driver = opened(starts_one_thread.train)
    for trial_id in "ab":
        driver.start(trial_id, "it")
    driver.to_exit("a", "b")
    driver.quiet_for(1.0)  # for interpreters that nobody needs
    pids = {int(line) for line in file.read_text().split()} - {driver.engine._pool._fork_server.pid}
    assert len(pids) <= 3
