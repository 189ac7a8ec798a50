"""Directories that somebody else has written: nothing in them blocks a reader or leads it elsewhere."""

from __future__ import annotations

import os
import shutil
import signal

import pytest
from click.testing import CliRunner
from tests.cli.tune.experiments import write
from tests.support.builders import created, exited, reported, started
from tests.tune.experiments import logged_row, write_json

from muster.cli.main import cli
from muster.errors import MusterError
from muster.tune.analysis import ExperimentAnalysis

SECRET = "root:x:0:0"


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Two trials with their logs."""
    place, facts = tmp_path_factory.mktemp("foreign") / "e", []
    for name in ("a", "b"):
        facts += [created(name), started(name), reported(name, 1, loss=1.0), exited(name)]
    write(place, facts)
    for name in ("a", "b"):
        write_json(place / f"train_{name}_dir", [logged_row(name, 1, {"lr": 1}, loss=1.0)])
    return place


@pytest.fixture(params=["fifo", "link", "device"])
def kind(request):
    return request.param


@pytest.fixture
def swap(sound, tmp_path, kind):
    """Return a copy of the experiment with something else in place of one of its files."""
    (tmp_path / "secret").write_text(f"{SECRET}\n")

    def swapped(name):
        place = shutil.copytree(sound, tmp_path / "e")
        (place / name).unlink(missing_ok=True)
        if kind == "fifo":
            os.mkfifo(place / name)
        else:
            (place / name).symlink_to("/dev/zero" if kind == "device" else tmp_path / "secret")
        return place

    return swapped


@pytest.fixture(autouse=True)
def impatient():
    """Fail a test that waits for a FIFO, or reads a device without end."""

    def give_up(*_):
        raise AssertionError("a reader is stuck")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, 5.0)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, before)


def muster(*words):
    result = CliRunner().invoke(cli, [*map(str, words)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert SECRET not in result.output
    return result


def test_a_note_that_is_no_file_is_left_out(swap):
    result = muster("tune", "show", swap("note.txt"))
    assert (result.exit_code, "Note" in result.output) == (0, False)


@pytest.mark.parametrize("name", ["experiment.sqlite", "experiment.sqlite-journal", "experiment.sqlite-wal"])
def test_a_store_that_is_no_file_is_refused(swap, name, tmp_path):
    place = swap(name)
    for words in (
        ("tune", "show", place),
        ("tune", "ls", place),
        ("page", "export", place, "-o", tmp_path / "x.html"),
    ):
        refused = muster(*words)
        assert (refused.exit_code, str(place) in refused.output) == (2, True)
    with pytest.raises((MusterError, ValueError), match=str(place)):
        ExperimentAnalysis(place)


def test_a_lock_that_is_no_file_is_nobodys(swap):
    assert "e: finished" in muster("tune", "show", swap("experiment.sqlite.lock")).output


def test_results_that_are_no_file_are_named_and_the_others_are_read(swap, tmp_path, caplog):
    place = swap("train_a_dir/result.json")
    refused = muster("tune", "best", place, "--scope", "all")
    assert (refused.exit_code, "result.json" in refused.output) == (2, True)
    assert muster("tune", "show", place, "a").exit_code in (0, 2)
    assert muster("tune", "plot", place, "-o", tmp_path / "p.html").exit_code == 0
    exported = muster("page", "export", place, "-o", tmp_path / "x.html")
    assert exported.exit_code == 0, exported.output
    assert SECRET not in (tmp_path / "x.html").read_text()
    assert [len(table) for table in ExperimentAnalysis(place).trial_dataframes.values()] == [0, 1]
    assert "result.json" in caplog.text


@pytest.mark.parametrize("name", ["pbt_global.txt", "train_a_dir/stdout", "train_a_dir/error.txt"])
def test_other_files_of_a_trial_are_left_out(swap, name, tmp_path):
    place = swap(name)
    assert muster("page", "export", place, "-o", tmp_path / "x.html").exit_code == 0
    assert SECRET not in (tmp_path / "x.html").read_text()


@pytest.mark.parametrize("name", ["tuner.pkl", "trainable.pkl"])
def test_a_resume_does_not_wait_for_a_fifo(swap, name):
    muster("tune", "resume", swap(name), "--errored", "restart")
