from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver
from tests.contracts.engine_contract.misbehaving import is_gone
from tests.support.trainables import TRAINABLES, Steps, counts, forks, waits

from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.worker_pool import LocalOptions
from muster.session import get_context, get_preemption_info, report, should_checkpoint
from muster.session.session import PreemptionInfo
from muster.trials.events import (
    StopTrial,
    TrialExited,
    TrialFailureKind,
    TrialNoticed,
    TrialReported,
    TrialStarted,
)
from muster.trials.placement_group import PlacementGroupFactory

pytestmark = pytest.mark.slow


@pytest.fixture
def opened(tmp_path):
    made = []

    def open_engine(*trainables, capacity=None, warm=True, **options):
        blobs = {t.__name__: cloudpickle.dumps(t) for t in trainables or TRAINABLES.values()}
        engine = LocalEngine(
            clock=SystemClock(),
            trainables=blobs,
            capacity={"CPU": 2, **(capacity or {})},
            warm=warm,
            options=LocalOptions(quiet=True, kill_after_s=0.3, **options),
        )
        made.append(engine)
        return Driver(engine, tmp_path)

    yield open_engine
    for engine in made:
        engine.close()


def where_am_i(config):
    names = ("TUNE_ORIG_WORKING_DIR", "CUDA_VISIBLE_DEVICES", "EXTRA")
    report({"cwd": os.getcwd(), **{name: os.environ.get(name) for name in names}})


def waits_for_notice(config):
    for wanted in (True, False):
        while (get_preemption_info() is not None) is not wanted:
            time.sleep(0.01)
        report({"asked": should_checkpoint()})


def test_a_trial_sees_in_the_middle_of_a_step_what_is_announced_about_its_machine(opened):
    driver = opened(waits_for_notice)
    driver.start("a", "waits_for_notice")
    driver.to_start("a")
    run, info = driver.engine._trials["a"], PreemptionInfo(time.time() + 600.0, "interruption")
    driver.engine.notify(run, info)
    driver.engine.notify(run, info)  # repeated
    driver.to_report("a")
    driver.engine.notify(run, None)
    driver.go_on("a")
    assert driver.to_exit("a").is_done
    assert [event.info for event in driver.of("a", TrialNoticed)] == [info, None]
    assert driver.results("a", "asked") == [True, False]


@pytest.mark.conformance("C-103")
def test_a_trial_works_in_its_directory_and_knows_where_we_were(opened, tmp_path):
    driver = opened(where_am_i, env={"EXTRA": "given"})
    driver.start("a", "where_am_i")
    result = driver.to_report("a").result
    found = [result[key] for key in ("cwd", "TUNE_ORIG_WORKING_DIR", "CUDA_VISIBLE_DEVICES", "EXTRA")]
    assert found == [str(tmp_path / "a"), os.getcwd(), None, "given"]


@pytest.mark.conformance("C-103")
def test_the_working_directory_stays_when_the_environment_says_so(opened, monkeypatch):
    monkeypatch.setenv("RAY_CHDIR_TO_TRIAL_DIR", "0")
    driver = opened(where_am_i)
    driver.start("a", "where_am_i")
    assert driver.to_report("a").result["cwd"] == os.getcwd()


def test_gpus_are_given_by_environment(opened, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    driver = opened(where_am_i)
    assert driver.engine.capacity()["GPU"] == 2
    driver.start("a", "where_am_i", resources={"GPU": 1})
    driver.start("b", "where_am_i", resources={"GPU": 1})
    driver.start("none", "where_am_i", resources={"CPU": 1})
    driver.to_exit("a", "b", "none")
    given = [driver.results(name, "CUDA_VISIBLE_DEVICES") for name in ("a", "b", "none")]
    assert given == [["3"], ["5"], [""]]


def tells_context(config):
    context = get_context()
    report(
        {
            "names": [context.get_experiment_name(), context.get_trial_name(), context.get_trial_id()],
            "dir": context.get_trial_dir(),
            "resources": context.get_trial_resources(),
        }
    )


@pytest.mark.conformance("C-090")
def test_the_context_of_a_trial(opened, tmp_path):
    driver = opened(tells_context)
    asked = PlacementGroupFactory([{"CPU": 1}, {"CPU": 0.5}], "SPREAD")
    driver.start("a", "tells_context", resources=asked)
    result = driver.to_report("a").result
    assert result["names"] == ["contract", "tells_context_a", "a"]
    assert (result["dir"], result["resources"]) == (str(tmp_path / "a"), asked)


def test_a_stopped_process_is_found_silent(opened):
    driver = opened(waits, beat_s=0.1, silent_after_s=0.5)
    driver.start("a", "waits")
    os.kill(driver.to_report("a").result["pid"], signal.SIGSTOP)
    assert driver.to_exit("a", answer=False).failure.kind is TrialFailureKind.SILENT


def sleeps(config):
    time.sleep(config["seconds"])


@pytest.mark.parametrize("warm", [True, False])
def test_a_sleeping_process_is_not(opened, warm):
    driver = opened(sleeps, beat_s=0.05, silent_after_s=0.3, warm=warm)
    driver.start("a", "sleeps", {"seconds": 1.0})
    assert driver.to_exit("a").is_done


def test_a_killed_helper_fails_its_trials_and_is_replaced(opened):
    driver = opened(waits, counts)
    driver.start("a", "waits")
    pid = driver.to_report("a").result["pid"]
    os.kill(driver.engine._pool._fork_server.pid, signal.SIGKILL)
    failure = driver.to_exit("a", answer=False).failure
    assert (failure.kind, bool(re.search(r"\bfork\b", failure.message))) == (TrialFailureKind.KILLED, True)
    driver.poll_until(lambda: is_gone(pid))
    driver.start("b", "counts")
    assert driver.to_exit("b").is_done


def test_a_helper_told_to_end_takes_everything_along_and_is_replaced(opened):
    driver = opened(forks, counts)
    driver.start("a", "forks")
    result = driver.to_report("a").result
    os.kill(driver.engine._pool._fork_server.pid, signal.SIGTERM)
    assert driver.to_exit("a", answer=False).failure.kind is TrialFailureKind.KILLED
    driver.poll_until(lambda: all(is_gone(result[key]) for key in ("pid", "forked", "started")))
    driver.start("b", "counts")
    assert driver.to_exit("b").is_done


DRIVER = """
import sys, cloudpickle
from muster.base.clock import SystemClock
from muster.engines.local.engine import LocalEngine
from tests.contracts.engine_contract.fixture import Driver
from tests.support.trainables import forks, ignores_sigterm, waits
from pathlib import Path
blobs = {t.__name__: cloudpickle.dumps(t) for t in (forks, ignores_sigterm, waits)}
engine = LocalEngine(clock=SystemClock(), trainables=blobs, capacity={"CPU": 3}, warm=sys.argv[2] == "warm")
driver = Driver(engine, Path(sys.argv[1]))
pids = [engine._pool._fork_server.pid]
for name in ("ignores_sigterm", "waits", "forks"):
    driver.start(name, name)
    result = driver.to_report(name).result
    pids += [result[key] for key in ("pid", "forked", "started") if key in result]
driver.go_on("ignores_sigterm")
print(*pids, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["warm", "fresh"])
def test_no_process_outlives_a_driver_killed_with_9(tmp_path, how):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    pids = [int(text) for text in driver.stdout.readline().split()]
    assert len(pids) == 6
    assert not any(map(is_gone, pids))
    driver.kill()
    killed_at = time.monotonic()
    while not all(map(is_gone, pids)) and time.monotonic() < killed_at + 20:
        time.sleep(0.01)
    took = time.monotonic() - killed_at
    driver.communicate()
    assert [pid for pid in pids if not is_gone(pid)] == []
    assert took < 10.0  # tens of milliseconds on a quiet machine


def draws(config):
    import random

    import numpy as np

    report({"numpy": np.random.random(), "python": random.random()})


def test_fresh_processes_draw_different_random_numbers(opened):
    import numpy as np

    def draws_warm(config):
        report(
            {"drawn": np.random.random()}
        )  # a module travels by name: the helper imports it before it forks

    driver = opened(draws, draws_warm)
    for name in ("a", "b", "c"):
        driver.start(name, "draws")
        driver.start(name + "w", "draws_warm")
    driver.to_exit("a", "b", "c", "aw", "bw", "cw")
    for names, key in (
        (("a", "b", "c"), "numpy"),
        (("a", "b", "c"), "python"),
        (("aw", "bw", "cw"), "drawn"),
    ):
        assert len({driver.results(name, key)[0] for name in names}) == 3


def parent_of_me(config):
    report({"parent": os.getppid(), "argv": sys.argv[:1], "pid": os.getpid()})


def test_a_helper_with_threads_does_not_fork(opened, tmp_path, monkeypatch):
    module = tmp_path / "starts_a_thread.py"
    module.write_text(
        "import threading, time\n"
        "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()\n"
        "import sys\n"
        "def train(config):\n"
        "    from muster.session import report\n"
        "    report({'warm': config['main'] in sys.orig_argv[2], 'threads': threading.active_count()})\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import starts_a_thread

    driver = opened(starts_a_thread.train)
    driver.start("a", "train", {"main": "engines.worker.main import main"})
    result = driver.to_report("a").result
    assert (result["warm"], result["threads"]) == (True, 3)  # main, the module's, the heartbeat


def test_trainables_may_come_later_and_be_replaced(opened):
    driver = opened(counts)
    driver.start("a", "counts", {"steps": 1}, may_reuse=True)
    driver.to_exit("a")

    def other(config):
        report({"other": True})

    driver.engine.register("counts", cloudpickle.dumps(other))
    driver.start("b", "counts", may_reuse=True)
    driver.to_exit("b")
    assert driver.results("b", "other") == [True]


def test_code_that_cannot_be_read_fails_its_trial_with_the_reason(opened):
    driver = opened(counts)
    driver.engine.register("broken", b"cno_such_module\nname\n.")
    driver.start("a", "broken")
    driver.start("b", "counts", {"steps": 1})
    assert driver.to_exit("b").is_done
    failure = driver.to_exit("a").failure
    assert (failure.kind, "no_such_module" in failure.message) == (TrialFailureKind.UNPICKLABLE, True)


def exits(config):
    sys.exit(config["code"])


@pytest.mark.parametrize(("code", "kind"), [(0, None), (None, None), (4, TrialFailureKind.USER_ERROR)])
def test_sys_exit_with_zero_is_an_end_and_with_another_code_an_error(opened, code, kind):
    driver = opened(exits)
    driver.start("a", "exits", {"code": code})
    gone = driver.to_exit("a")
    assert (gone.failure and gone.failure.kind, gone.is_done) == (kind, kind is None)


class CannotSave(Steps):
    def save_checkpoint(self, checkpoint_dir):
        raise NotImplementedError


@pytest.mark.parametrize("is_optional", [True, False])
def test_a_class_that_cannot_save_fails_unless_the_save_is_optional(opened, is_optional):
    from muster.trials.events import CheckpointSaved, SaveTrial

    driver = opened(CannotSave)
    driver.start("a", "CannotSave")
    driver.to_report("a")
    driver.engine.submit(SaveTrial(trial_id="a", is_optional=is_optional))
    if is_optional:
        driver.poll_until(lambda: bool(driver.of("a", CheckpointSaved)), answer=False)
        (saved,) = driver.of("a", CheckpointSaved)
        assert (saved.checkpoint, bool(saved.message)) == (None, True)
        driver.go_on("a")
        assert driver.to_report("a", count=2).result["steps"] == 2
    else:
        failure = driver.to_exit("a", answer=False).failure
        assert type(cloudpickle.loads(failure.exception)) is NotImplementedError


def big(config):
    report({"size": len(config["data"]), "data": config["data"]})


def test_a_config_and_a_result_larger_than_any_pipe(opened):
    driver = opened(big)
    data = "x" * 3_000_000
    driver.start("a", "big", {"data": data})
    driver.start("b", "big", {"data": data})
    driver.to_exit("a", "b")
    assert [driver.results(name, "size") for name in "ab"] == [[3_000_000]] * 2
    assert driver.results("a", "data") == [data]


def test_a_stop_tells_nothing_more_than_the_exit(opened):
    driver = opened(counts)
    driver.start("a", "counts", {"steps": 1000})
    driver.to_start("a")
    driver.engine.submit(StopTrial(trial_id="a"))
    seen = len(driver.events)
    driver.to_exit("a", answer=False)
    assert [type(event) for event in driver.events[seen:]] == [TrialExited]


def fails_when_stopped(config):
    try:
        while True:
            report({"step": 0})
    except SystemExit:
        raise ValueError("what used the trial's session could not continue") from None


def test_an_error_that_follows_a_stop_is_no_failure(opened):
    driver = opened(fails_when_stopped)
    driver.start("a", "fails_when_stopped")
    driver.to_report("a")
    driver.engine.submit(StopTrial(trial_id="a"))
    gone = driver.to_exit("a", answer=False)
    assert (gone.failure, gone.is_done) == (None, False)


@pytest.mark.conformance("C-270")
def test_idle_processes_of_other_trainables_are_not_mistaken(opened):
    driver = opened(counts, parent_of_me)
    driver.start("a", "counts", {"steps": 1}, may_reuse=True)
    driver.to_exit("a")
    driver.start("b", "parent_of_me", may_reuse=True)
    driver.start("c", "counts", {"steps": 1}, may_reuse=True, resources={"CPU": 2})
    driver.to_exit("b", "c")
    assert [event.reused for event in driver.events if isinstance(event, TrialStarted)] == [False] * 3
    assert len(driver.of("b", TrialReported)) == 1


class Logs(Steps):
    def log_result(self, result):
        with open("logged", "a") as stream:
            stream.write(f"{result['steps']} {result['training_iteration']} {result['trial_id']}\n")


def test_a_class_may_log_its_filled_results(opened, tmp_path):
    driver = opened(Logs)
    driver.start("a", "Logs")
    driver.to_report("a")
    driver.go_on("a")
    driver.to_report("a", count=2)
    assert (tmp_path / "a" / "logged").read_text() == "1 1 a\n2 2 a\n"


def reports_tensor(config):
    from types import ModuleType

    torch = ModuleType("torch")
    torch.Tensor = type("Tensor", (), {})
    sys.modules["torch"] = torch
    report({"fine": 1, "nested": {"deep": [torch.Tensor()]}})


def test_a_tensor_is_refused_wherever_it_hides(opened):
    driver = opened(reports_tensor)
    driver.start("a", "reports_tensor")
    failure = driver.to_exit("a").failure
    assert failure.kind is TrialFailureKind.USER_ERROR
    assert re.search(r"ValueError: .*\btorch\b", failure.message)


def test_a_helper_stuck_in_an_import_does_not_hold_up_close(opened, tmp_path, monkeypatch):
    module = tmp_path / "imports_for_ever.py"
    module.write_text(
        "import os, time\nif os.environ.get('STUCK'):\n    time.sleep(600)\ndef train(config):\n    pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    import imports_for_ever

    driver = opened(imports_for_ever.train, env={"STUCK": "1"})
    driver.start("a", "train")
    assert driver.quiet_for(0.3) == []
    helper = driver.engine._pool._fork_server.pid
    driver.engine._pool._fork_server.close(timeout_s=0.2)
    assert is_gone(helper)


def counts_threads(config):
    report({"threads": os.environ["OMP_NUM_THREADS"]})


def test_a_limit_on_threads_follows_the_cpus_of_each_trial(opened, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "7")  # of the driver: what trials get is the engine's
    driver = opened(counts_threads, env={"OMP_NUM_THREADS": "1"})
    for name, cpus in (("a", 1), ("b", 2), ("c", 1), ("d", 2)):
        driver.start(name, "counts_threads", resources={"CPU": cpus}, may_reuse=True)
        driver.to_exit(name)
    assert [driver.results(name, "threads") for name in "abcd"] == [["1"], ["2"], ["1"], ["2"]]
