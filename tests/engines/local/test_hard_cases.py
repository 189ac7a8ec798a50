"""Trainables that behave badly, against the real engine: each ends by itself with a clear word about it."""

from __future__ import annotations

import os
import re
import signal
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.contracts.engine_contract.misbehaving import is_gone
from tests.support.trainables import Steps, counts, prints_much, waits

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.fork_server_main import COLD_FORKS
from muster.engines.local.worker_pool import LocalOptions
from muster.session import Checkpoint, get_checkpoint, report
from muster.trials.events import TrialFailureKind, TrialStarted

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_engine(*trainables, quiet=True, **options):
        engine = LocalEngine(
            clock=SystemClock(),
            trainables={t.__name__: cloudpickle.dumps(t) for t in trainables},
            capacity={"CPU": 2},
            options=LocalOptions(quiet=quiet, kill_after_s=0.3, **options),
        )
        made.append(engine)
        return Driver(engine, tmp_path)

    yield open_engine
    for engine in made:
        engine.close()


def interrupts_itself(config):
    raise KeyboardInterrupt


def test_a_keyboard_interrupt_inside_of_a_trial_is_an_error_of_that_trial(opened):
    driver = opened(interrupts_itself, counts)
    driver.start("a", "interrupts_itself")
    driver.start("b", "counts", {"steps": 1})
    failure = driver.to_exit("a").failure
    assert (failure.kind, failure.message.endswith("KeyboardInterrupt")) == (
        TrialFailureKind.USER_ERROR,
        True,
    )
    assert driver.to_exit("b").is_done


def reads_address_zero(config):
    import ctypes

    ctypes.string_at(0)


def test_a_segmentation_fault_is_named(opened):
    driver = opened(reads_address_zero)
    driver.start("a", "reads_address_zero")
    failure = driver.to_exit("a").failure
    assert (failure.kind, failure.message[-12:]) == (TrialFailureKind.KILLED, "11 (SIGSEGV)")


def allocates_against_a_limit(config):
    import resource

    resource.setrlimit(resource.RLIMIT_AS, (2**30, 2**30))
    bytearray(2**33)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS is not enforced elsewhere")
def test_memory_refused_and_a_kill_are_told_apart(opened):
    driver = opened(allocates_against_a_limit, waits)
    driver.start("refused", "allocates_against_a_limit")
    driver.start("killed", "waits")
    os.kill(driver.to_report("killed").result["pid"], signal.SIGKILL)
    refused, killed = driver.to_exit("refused").failure, driver.to_exit("killed").failure
    assert (refused.kind, refused.message.endswith("MemoryError")) == (TrialFailureKind.OUT_OF_MEMORY, True)
    assert (killed.kind, killed.message[-11:]) == (TrialFailureKind.KILLED, "9 (SIGKILL)")


def deletes_its_directory(config):
    import shutil

    shutil.rmtree(os.getcwd())
    report({"step": 1})
    with open_folder() as folder:
        report({"step": 2}, checkpoint=Checkpoint(folder))
    report({"step": 3, "kept": os.path.isdir(get_checkpoint().path)})


def open_folder():
    import tempfile

    return tempfile.TemporaryDirectory()


@pytest.mark.parametrize("reuse", [False, True])
def test_a_trial_may_delete_its_own_directory(opened, tmp_path, reuse):
    driver = opened(deletes_its_directory)
    for name in ("a", "b"):
        driver.start(name, "deletes_its_directory", may_reuse=reuse)
        assert driver.to_exit(name).is_done
        assert driver.results(name, "step") == [1, 2, 3]
        assert driver.results(name, "kept")[-1] is True


def leaves_a_thread(config):
    """Its thread would continue forever, and report into whatever trial runs then."""

    def go_on():
        while True:
            time.sleep(0.01)

    threading.Thread(target=go_on).start()
    report({"pid": os.getpid()})


@pytest.mark.parametrize("reuse", [False, True])
def test_a_thread_left_running_neither_delays_the_end_nor_meets_the_next_trial(opened, reuse):
    driver = opened(leaves_a_thread)
    for name in ("a", "b"):
        driver.start(name, "leaves_a_thread", may_reuse=reuse)
        assert driver.to_exit(name).is_done
    (a,), (b,) = driver.results("a", "pid"), driver.results("b", "pid")
    assert a != b
    driver.poll_until(lambda: is_gone(a) and is_gone(b))


def leaves_a_child(config):
    pid = os.fork()
    if pid == 0:
        time.sleep(600)
        os._exit(0)
    report({"pid": os.getpid(), "child": pid})


def test_a_process_with_children_left_is_not_reused_and_its_children_end(opened):
    driver = opened(leaves_a_child)
    for name in ("a", "b"):
        driver.start(name, "leaves_a_child", may_reuse=True)
        assert driver.to_exit(name).is_done
    pids = [driver.results(name, key)[0] for name in ("a", "b") for key in ("pid", "child")]
    assert len(set(pids)) == 4
    driver.poll_until(lambda: all(map(is_gone, pids)))


def changes_everything(config):
    seen = {
        "cwd": os.path.basename(os.getcwd()),
        "new": os.environ.get("NEW_VARIABLE"),
        "path": os.environ.get("PATH"),
        "home": os.environ.get("HOME"),
        "handlers": [str(signal.getsignal(n)) for n in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM)],
        "timer": signal.getitimer(signal.ITIMER_REAL),
    }
    os.environ["NEW_VARIABLE"] = "of an earlier trial"
    os.environ["PATH"] = "nowhere"
    os.environ.pop("HOME", None)
    for number in (signal.SIGUSR1, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    signal.setitimer(signal.ITIMER_REAL, 600)
    os.chdir("/")
    report({"seen": seen, "pid": os.getpid()})


def test_the_next_trial_in_the_same_process_finds_environment_directory_and_signals_as_new(opened):
    driver = opened(changes_everything)
    for name in ("a", "b"):
        driver.start(name, "changes_everything", may_reuse=True)
        assert driver.to_exit(name).is_done
    assert driver.results("a", "pid") == driver.results("b", "pid")
    (first,), (second,) = driver.results("a", "seen"), driver.results("b", "seen")
    assert (first.pop("cwd"), second.pop("cwd")) == ("a", "b")
    assert second == first


def reports_much(config):
    report({"data": b"x" * config["bytes"], "step": 1})
    report({"step": 2})


def test_a_result_of_fifteen_megabytes_arrives_and_one_of_fifty_is_the_trials_error(opened):
    driver = opened(reports_much)
    driver.start("a", "reports_much", {"bytes": 15_000_000})
    assert driver.to_exit("a").is_done
    assert driver.results("a", "step") == [1, 2]
    assert len(driver.results("a", "data")[0]) == 15_000_000
    driver.start("b", "reports_much", {"bytes": 50 * 2**20})
    failure = driver.to_exit("b").failure
    assert failure is not None
    assert re.findall(r"\d+ MB", failure.message) == ["52 MB", "16 MB"]


def uses_an_array(config):
    report({"bytes": len(config["data"])})


def test_a_config_of_fifty_megabytes_that_is_no_plain_data_arrives(opened):
    driver = opened(uses_an_array, counts)
    driver.start("a", "uses_an_array", {"data": bytearray(50 * 2**20)})
    driver.start("b", "counts", {"steps": 3})
    assert driver.to_exit("b").is_done
    assert driver.to_exit("a").is_done
    assert driver.results("a", "bytes") == [50 * 2**20]


def reports_a_lock(config):
    report({"fine": 1.0, "guard": threading.Lock()})


def reports_a_lambda(config):
    report({"made": lambda x: x + config["y"]})


def test_what_cannot_be_reported_is_named_and_the_others_go_on(opened):
    driver = opened(reports_a_lock, reports_a_lambda)
    driver.start("a", "reports_a_lock")
    driver.start("b", "reports_a_lambda", {"y": 2})
    failure = driver.to_exit("a").failure
    assert failure.kind is TrialFailureKind.UNPICKLABLE
    assert "'guard' (lock)" in failure.message
    assert driver.to_exit("b").is_done
    assert driver.results("b", "made")[0](1) == 3


DRIVER_OF_A_PRINTER = """
import sys
from pathlib import Path
import cloudpickle
from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from tests.contracts.engine_contract.fixture import Driver
from tests.support.trainables import counts, prints_much
blobs = {t.__name__: cloudpickle.dumps(t) for t in (counts, prints_much)}
with LocalEngine(clock=SystemClock(), trainables=blobs, capacity={"CPU": 2}) as engine:
    driver = Driver(engine, Path(sys.argv[1]))
    driver.start("a", "prints_much", {"megabytes": int(sys.argv[2])})
    driver.start("b", "counts", {"steps": 5})
    driver.to_exit("b")  # while the other fills a pipe that nobody empties yet
    sys.stderr.write("b ended\\n")
    driver.to_exit("a")
"""


def test_printing_without_a_file_goes_straight_through_and_holds_up_nobody_else(tmp_path):
    import subprocess

    megabytes = 30
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER_OF_A_PRINTER, str(tmp_path), str(megabytes)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert driver.stderr.readline() == b"b ended\n"
    out, err = driver.communicate(timeout=100)
    # What goes to the descriptor is passed on as it is; what Python prints has the trial's name before it.
    end = b"(prints_much_a) the end\n"
    assert (len(out), out[-len(end) :]) == (megabytes * 2**20 + len(end), end)
    assert (err, driver.returncode) == (b"(prints_much_a) an error line\n", 0)


def test_trials_that_start_quickly_one_after_the_other_are_all_fresh(opened):
    state = []  # travels with the function: a process that was used before would find it changed

    def remembers(config):
        state.append(1)
        report({"length": len(state), "pid": os.getpid()})

    driver = opened(remembers)
    names = [f"t{n}" for n in range(20)]
    for name in names:
        driver.start(name, "remembers")
    driver.to_exit(*names)
    assert [driver.results(name, "length") for name in names] == [[1]] * 20
    assert len({driver.results(name, "pid")[0] for name in names}) == 20
    assert not any(e.reused for e in driver.events if isinstance(e, TrialStarted))


def test_a_directory_that_cannot_be_made_fails_its_trial_with_the_reason(opened, tmp_path):
    (tmp_path / "a").write_text("a file stands in the way")
    driver = opened(counts)
    driver.start("a", "counts")
    driver.start("b", "counts", {"steps": 1})
    failure = driver.to_exit("a").failure
    assert "FileExistsError" in failure.message
    assert str(Path(tmp_path, "a")) in failure.message
    assert driver.to_exit("b").is_done


def test_a_rehearsal_leaves_nothing_behind(opened):
    """What the helper plays through between the first forks and the others must not be seen by trials."""

    def looks(config):
        from muster.session.session import current

        session = current()
        report(
            {
                "mine": session.context.get_trial_id(),
                "iteration": session.progress.iteration,
                "descriptors": len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0,
            }
        )

    driver = opened(looks, prints_much)
    names = [f"t{number}" for number in range(COLD_FORKS + 8)]
    for name in names:
        driver.start(name, "looks")
    driver.to_exit(*names)
    seen = {name: (driver.results(name, "mine"), driver.results(name, "iteration")) for name in names}
    assert seen == {name: ([name], [0]) for name in names}
    # 0, 1, 2, two pipes, and the listing itself
    assert max(driver.results(name, "descriptors")[0] for name in names) <= 6


def test_a_request_to_end_that_comes_during_the_rehearsal_is_not_lost():
    import subprocess

    code = """
import os, signal, socket
from muster.engines.local import fork_server_main as here
from muster.session.session import TrialStopped
ours, theirs = socket.socketpair()
server = here.ForkServer(theirs, os.getppid())
here.stop_on_sigterm()
def interrupted(worker):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
    except TrialStopped:
        pass  # as a trial does, which ends then
here.warm_up = interrupted
try:
    server._warm_up(here.Worker(here.WorkerChannel(beat_s=5.0), here.TrainableCache(), None, ("", "")))
except TrialStopped:
    print("ends")
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (ran.stdout, ran.stderr) == ("ends\n", "")


class Busy(Steps):
    pass


@pytest.mark.parametrize("reuse", [False, True])
def test_a_config_may_ask_how_busy_the_machine_is(opened, reuse):
    driver = opened(counts, Busy)
    config = {"steps": 2, "log_sys_usage": True}
    driver.start("a", "counts", config, may_reuse=reuse)
    driver.to_exit("a")
    driver.start("plain", "counts", {"steps": 1}, may_reuse=reuse)
    driver.to_exit("plain")
    driver.start("class", "Busy", config)
    measured = [*driver.results("a", "perf"), driver.to_report("class").result["perf"]]
    assert len(measured) == 3
    for perf in measured:
        assert {"cpu_util_percent", "ram_util_percent"} <= set(perf)
        assert all(0.0 <= value <= 100.0 for value in perf.values())
    assert driver.results("plain", "perf") == [None]
    started = [event.reused for event in driver.events if isinstance(event, TrialStarted)]
    assert started == [False, reuse, False]  # the monitor's thread does not stand in the way


def test_a_driver_whose_directory_was_deleted_can_run_trials(opened, tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    driver = opened(counts)
    driver.start("a", "counts", {"steps": 1})
    assert driver.to_exit("a").is_done


def test_the_driver_does_not_load_what_only_trials_need():
    import subprocess

    code = "import sys, muster.engines.local.engine; print(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert loaded.isdisjoint(
        {"muster.engines.local.fork_server_main", "muster.engines.worker.main", "cloudpickle", "numpy"}
    )


def test_a_trial_does_not_carry_what_only_the_driver_needs(opened):
    """Every module makes each fork slower."""

    def lists_modules(config):  # inside, hence pickled whole: this file would load much
        import sys

        from muster.session.report import report

        report({"modules": sorted(sys.modules)})

    driver = opened(lists_modules)
    driver.start("a", "lists_modules")
    modules = driver.to_report("a").result["modules"]
    unneeded = {"socket", "subprocess", "selectors", "json", "msgspec", "typing_extensions"}
    assert unneeded.isdisjoint(modules)
