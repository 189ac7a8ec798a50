"""Processes of trials are made with short hooks; what the long ones are for must hold all the same."""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import sys
import threading
import time

import cloudpickle
import pytest
from tests.series import length

from muster.base.clock import SystemClock
from muster.engines.local import fork_safety
from muster.engines.local.engine import LocalEngine
from muster.session import report
from muster.trials.events import ContinueTrial, StartTrial, TrialExited, TrialReported
from muster.trials.placement_group import PlacementGroupFactory


def result_of(function, folder) -> dict:
    """What a trial of it reports, in a process that a zygote forked."""
    return results_of(function, folder, [{}])[0]


def results_of(function, folder, configs) -> list[dict]:
    """Trials one after the other, without a pause; their only results."""
    trainables = {"it": cloudpickle.dumps(function)}
    with LocalEngine(clock=SystemClock(), trainables=trainables, capacity={"CPU": 1}) as engine:
        return [_result(engine, f"t{k}", config, folder) for k, config in enumerate(configs)]


def _result(engine, trial_id, config, folder) -> dict:
    engine.submit(
        StartTrial(
            trial_id=trial_id,
            trial_name=trial_id,
            trainable_name="it",
            config=config,
            resources=PlacementGroupFactory([{"CPU": 1}]),
            trial_dir=str(folder / trial_id),
            experiment_name="e",
        )
    )
    results = []
    while True:
        for event in engine.poll(10.0):
            if type(event) is TrialReported:
                results.append(event.result)
                engine.submit(ContinueTrial(trial_id=trial_id))
            elif type(event) is TrialExited:
                assert event.failure is None, event
                return results[0]


def threads_and_locks(config):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(threading.active_count()))
    thread.start()
    thread.join()
    found = {
        "main is current": threading.main_thread() is threading.current_thread(),
        "ident": threading.main_thread().ident == threading.get_ident(),
        "alive": [each.name for each in threading.enumerate()],
        "while one more ran": seen,
        "logging can be locked": logging._lock.acquire(blocking=False),
    }
    report({"seen": found})


def test_a_new_process_has_one_thread_and_free_locks(tmp_path):
    assert result_of(threads_and_locks, tmp_path)["seen"] == {
        "main is current": True,
        "ident": True,
        "alive": ["MainThread"],
        "while one more ran": [2],
        "logging can be locked": True,
    }


_served = []


def note_and_report(config):
    _served.append(config["k"])
    report({"served": list(_served), "pid": os.getpid(), "open": len(os.listdir("/proc/self/fd"))})


def test_trials_in_quick_succession_each_have_a_process_of_their_own(tmp_path):
    results = results_of(note_and_report, tmp_path, [{"k": k} for k in range(30)])
    assert [result["served"] for result in results] == [[k] for k in range(30)]
    assert len({result["pid"] for result in results}) == 30
    assert len({result["open"] for result in results}) == 1  # nobody holds pipes of another


def fork_with_a_thread(config):
    """What a fork by user code needs: without the whole hooks it would see a thread that is not there."""
    go_on = threading.Event()
    handler = logging.StreamHandler()
    handler.acquire()
    thread = threading.Thread(target=go_on.wait)
    thread.start()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        names = [each.name for each in threading.enumerate()]
        is_free = []
        asker = threading.Thread(target=lambda: is_free.append(handler.lock.acquire(timeout=5)))
        asker.start()
        asker.join()
        os.write(writing, repr((names, thread.is_alive(), is_free)).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    go_on.set()
    thread.join()
    report({"seen": os.read(reading, 1000).decode()})


def test_a_fork_that_a_trial_makes_goes_the_whole_way(tmp_path):
    assert result_of(fork_with_a_thread, tmp_path)["seen"] == "(['MainThread'], False, [True])"


WITH_A_THREAD = """
import threading
import time
from muster.engines.local.fork_safety import shorten_hooks
hook = threading._after_fork
whole = hook.__code__
shorten_hooks()
shortened = hook.__code__ is not whole
unstarted = threading.Thread()
shorten_hooks()
print(shortened, hook.__code__ is whole, hook.__defaults__)
"""


def test_a_thread_that_appears_while_loading_brings_the_whole_hook_back():
    ran = subprocess.run([sys.executable, "-c", WITH_A_THREAD], capture_output=True, text=True, check=True)
    assert ran.stdout == f"{sys.version_info < (3, 13)} True None\n"


def log_into_memory(config):
    from logging.handlers import MemoryHandler

    target = logging.FileHandler("log.txt")
    logger = logging.getLogger("kept until the end")
    logger.addHandler(MemoryHandler(1000, flushLevel=100, target=target, flushOnClose=True))
    logger.warning("said at the end")
    report({"before": os.path.getsize("log.txt")})


def test_what_log_handlers_hold_back_is_written_when_a_trial_ends(tmp_path):
    assert result_of(log_into_memory, tmp_path)["before"] == 0
    assert (tmp_path / "t0" / "log.txt").read_text() == "said at the end\n"


def leave_a_note_at_exit(config):
    import atexit

    folder = os.getcwd()
    atexit.register(lambda: open(os.path.join(folder, "note"), "w").close())
    report({"x": 1})


def test_exit_functions_of_a_trial_run(tmp_path):
    result_of(leave_a_note_at_exit, tmp_path)
    assert (tmp_path / "t0" / "note").exists()


class Closing(logging.Handler):
    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder

    def close(self) -> None:
        with open(os.path.join(self.folder, f"closed by {os.getpid()}"), "w"):
            super().close()


class MadeWhereLoaded:
    """Becomes a log handler when it is unpickled, that is, in the zygote."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self):
        return Closing, (self.folder,)


def test_log_handlers_that_the_zygote_made_are_closed_by_the_trial(tmp_path):
    def train(config, handler=MadeWhereLoaded(str(tmp_path))):  # noqa: B008 - pickled with the function
        report({"pid": os.getpid()})

    pid = result_of(train, tmp_path)["pid"]
    assert (tmp_path / f"closed by {pid}").exists()


def module_with(source: str, folder, monkeypatch):
    """A module of the user with this source before its trainable, which reports how its process was made."""
    name = f"made_for_{folder.name}".replace("-", "_")
    train = (
        "import sys\n"
        "def train(config):\n"
        "    from muster.session import report\n"
        "    report({'forked': 'fork_server_main' in sys.orig_argv[2]})\n"
    )
    (folder / f"{name}.py").write_text(source + train)
    monkeypatch.syspath_prepend(str(folder))
    return importlib.import_module(name).train


READ_PARQUET = """
import os, tempfile
import pyarrow.parquet
with tempfile.TemporaryDirectory() as folder:
    pyarrow.parquet.write_table(pyarrow.table({"x": list(range(1000))}), os.path.join(folder, "x"))
    pyarrow.parquet.read_table(os.path.join(folder, "x"), use_threads=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("source", ["import pyarrow\n", READ_PARQUET], ids=["jemalloc", "thread pools"])
def test_trials_are_forked_under_the_threads_of_pyarrow(tmp_path, monkeypatch, caplog, source):
    pytest.importorskip("pyarrow")
    assert result_of(module_with(source, tmp_path, monkeypatch), tmp_path)["forked"]
    assert caplog.messages == []


THREAD = (
    "import threading, time\n"
    "threading.Thread(target=time.sleep, args=(60,), name='mine', daemon=True).start()\n"
)
NATIVE = """
import ctypes
libc = ctypes.CDLL(None)
libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.sleep, ctypes.c_void_p(60))
"""

OPENMP = """
import os
os.environ.update(OMP_NUM_THREADS="2", OMP_WAIT_POLICY="PASSIVE")
import numpy, sklearn.ensemble
sklearn.ensemble.HistGradientBoostingRegressor(max_iter=1).fit(numpy.eye(40), numpy.arange(40))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("source", "named"), [(THREAD, "'mine'"), (NATIVE, "(python"), (OPENMP, "libgomp")])
def test_a_thread_that_makes_forks_unsafe_is_named_once(tmp_path, monkeypatch, caplog, source, named):
    if "sklearn" in source:
        pytest.importorskip("sklearn")
    results = results_of(module_with(source, tmp_path, monkeypatch), tmp_path, [{}, {}])
    assert [result["forked"] for result in results] == [False, False]
    (message,) = caplog.messages
    assert named in message


FORKS_UNDER_PYARROW = """
import os, sys
import numpy, pyarrow, pyarrow.compute, pyarrow.parquet
from muster.engines.local.fork_safety import why_not_fork

pool = pyarrow.jemalloc_memory_pool()
pyarrow.set_memory_pool(pool)
pyarrow.jemalloc_set_decay_ms(1)  # the background thread has something to purge at any time
file = sys.argv[2]
pyarrow.parquet.write_table(pyarrow.table({"x": numpy.arange(100_000)}), file)

def churn():
    return [pyarrow.allocate_buffer(1 << size, memory_pool=pool) for size in range(8, 22)] and None

def use():
    churn()
    table = pyarrow.parquet.read_table(file, use_threads=True)
    square = numpy.ones((300, 300))
    return pyarrow.compute.sum(table["x"]).as_py() == 4_999_950_000 and (square @ square).sum() == 27_000_000

assert use()
assert len(os.listdir("/proc/self/task")) > 2
assert why_not_fork() == "", why_not_fork()
for _ in range(int(sys.argv[1])):
    churn()
    pid = os.fork()
    if pid == 0:
        os._exit(0 if use() and why_not_fork() == "" and use() else 1)
    assert os.waitpid(pid, 0)[1] == 0
"""


def test_a_thread_that_runs_is_looked_at_again_until_it_waits(monkeypatch):
    answers = iter(["running\n", "running\n", "202 0x0 0x0 0x0 0x0 0x0 0x0 0x7f10 0x7f20\n"])
    monkeypatch.setattr(fork_safety, "_text", lambda path: next(answers))
    assert fork_safety._stack_of("7") == 0x7F10


def test_a_thread_that_never_waits_stays_unknown(monkeypatch):
    monkeypatch.setattr(fork_safety, "_text", lambda path: "running\n")
    with pytest.raises(LookupError):
        fork_safety._stack_of("7")


FORKS = length(sample=40, whole=4000)


@pytest.mark.slow
@pytest.mark.timeout(120 + FORKS)
def test_forks_under_the_busy_threads_of_pyarrow_allocate_multiply_and_read(tmp_path):
    pytest.importorskip("pyarrow")
    arguments = [sys.executable, "-c", FORKS_UNDER_PYARROW, str(FORKS), str(tmp_path / "x")]
    subprocess.run(arguments, check=True, timeout=60 + FORKS)


IMPORTS = "import asyncio, email.mime.multipart, http.server, unittest.mock, xmlrpc.client\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trains", "imported", "is_preloaded"),
    [
        (IMPORTS, "asyncio.tasks", True),
        (f"import installed\n{IMPORTS}", "installed", True),
        (f"import of_the_user\n{IMPORTS}", "of_the_user", False),
        (f"import with_a_thread\n{IMPORTS}", "asyncio.tasks", False),
        (f"import os\nos.environ['MODE'] = 'fast'\n{IMPORTS}", "asyncio.tasks", False),
    ],
    ids=["stdlib", "sets a variable", "not installed", "a thread", "environment"],
)
def test_later_forks_begin_with_what_trials_imported(tmp_path, monkeypatch, trains, imported, is_preloaded):
    installed = tmp_path / "site-packages"
    installed.mkdir()
    (installed / "installed.py").write_text("import os\nos.environ.setdefault('INSTALLED', '1')\n")
    (installed / "with_a_thread.py").write_text(THREAD)
    (tmp_path / "of_the_user.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(installed))

    def train(config):
        found = {"before": imported in sys.modules, "forked": "fork_server_main" in sys.orig_argv[2]}
        exec(trains)
        time.sleep(0.05)  # for the fork that tries the imports
        report(found)

    results = results_of(train, tmp_path, [{}] * 16)
    assert all(result["forked"] for result in results)
    assert (results[0]["before"], results[-1]["before"]) == (False, is_preloaded)
