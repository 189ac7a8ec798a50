from __future__ import annotations

import pickle
import subprocess
import sys
import threading
import warnings

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from muster.session import get_checkpoint, get_context, report
from muster.session import report as report_module_name
from muster.session.checkpoint import as_fsspec
from muster.session.session import TrialStopped, TuneContext, current, install, uninstall

assert callable(report_module_name)


class Recorder:
    """A session that writes down what it is told."""

    def __init__(self):
        self.told = []
        self.context = TuneContext(
            experiment_name="e", trial_name="n", trial_id="i", trial_dir="/d", resources="pgf"
        )

    def report(self, metrics, checkpoint=None):
        self.told.append((metrics, checkpoint))

    def get_checkpoint(self):
        return "checkpoint"


@pytest.fixture
def session():
    made = Recorder()
    token = install(made, whole_process=True)
    yield made
    uninstall(token)


def test_outside_a_trial_both_do_nothing_and_warn_once(monkeypatch):
    monkeypatch.setattr(sys.modules["muster.session.report"], "_warned", set())
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert [report({"a": 1}), report({"a": 1}), get_checkpoint(), get_checkpoint()] == [None] * 4
    assert [str(warning.message).split("()")[0] for warning in seen] == ["report", "get_checkpoint"]


def test_inside_a_trial_the_session_is_asked(session):
    report({"a": 1}, checkpoint="c")
    assert (session.told, get_checkpoint()) == ([({"a": 1}, "c")], "checkpoint")


def test_threads_of_the_trial_find_the_session(session):
    worker = threading.Thread(target=report, args=({"a": 2},))
    worker.start()
    worker.join()
    assert session.told == [({"a": 2}, None)]


def test_a_session_is_gone_after_its_trial():
    uninstall(install(Recorder(), whole_process=True))
    assert current() is None


def test_the_context_answers_rays_getters(session):
    context = get_context()
    assert [
        context.get_experiment_name(),
        context.get_trial_name(),
        context.get_trial_id(),
        context.get_trial_dir(),
        context.get_trial_resources(),
    ] == ["e", "n", "i", "/d", "pgf"]
    with pytest.raises(DeprecationWarning):
        context.get_metadata()
    with pytest.warns(DeprecationWarning, match="one process"):
        assert (context.get_world_size(), context.get_world_rank()) == (1, 0)


def test_the_storage_names_the_places_of_a_trial():
    storage = TuneContext(trial_dir="/results/mine/trial_1").get_storage()
    assert (storage.storage_fs_path, storage.experiment_dir_name) == ("/results", "mine")
    assert (storage.experiment_fs_path, storage.trial_dir_name) == ("/results/mine", "trial_1")
    assert storage.trial_fs_path == storage.trial_working_directory == "/results/mine/trial_1"
    assert isinstance(as_fsspec(storage.storage_filesystem), LocalFileSystem)
    assert TuneContext().get_storage() is None


def test_the_storage_of_remote_results_names_the_places_there():
    remote = pickle.dumps(("bucket/results/mine", MemoryFileSystem()))
    storage = TuneContext(trial_dir="/cache/1f/trial_1", storage=remote).get_storage()
    assert (storage.storage_fs_path, storage.experiment_dir_name) == ("bucket/results", "mine")
    assert storage.experiment_fs_path == "bucket/results/mine"
    assert storage.trial_fs_path == "bucket/results/mine/trial_1"
    assert storage.trial_working_directory == "/cache/1f/trial_1"
    assert isinstance(as_fsspec(storage.storage_filesystem), MemoryFileSystem)


def test_a_file_system_that_trials_do_not_have_is_not_replaced_by_another():
    storage = TuneContext(trial_dir="/c/t", storage=pickle.dumps(("bucket/mine", None))).get_storage()
    assert storage.trial_fs_path == "bucket/mine/t"
    with pytest.raises(RuntimeError, match="storage_filesystem"):
        _ = storage.storage_filesystem


def test_outside_a_trial_the_context_is_empty():
    assert get_context().get_trial_id() is None


def test_a_stop_passes_except_exception():
    assert issubclass(TrialStopped, SystemExit)


def test_importing_the_session_is_cheap_and_pulls_in_nothing_heavy():
    script = (
        "import sys, time; bare = set(sys.modules); began = time.process_time(); import muster.session; "
        "took = time.process_time() - began; "
        "heavy = {'numpy', 'rich', 'msgspec', 'fsspec', 'cloudpickle', 'asyncio'} & set(sys.modules); "
        "print(took, len(set(sys.modules) - bare), sorted(heavy))"
    )
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    took, count, heavy = ran.stdout.split(maxsplit=2)
    assert heavy.strip() == "[]"
    assert int(count) < 60
    assert float(took) < 0.2  # processor time, 15 ms on a quiet machine; a busy one slows that too
