"""`muster tune` beside real processes: one that runs an experiment, one that was killed, one that resumes."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time

import pytest
from tests.cli.tune.experiments import four_trials, killed, running
from tests.mistakes.views import assert_view

from muster.tune import RunConfig, grid_search
from muster.tune.ask_tell import AskTell

NOTE = "try Adam"

pytestmark = pytest.mark.slow

MUSTER = [sys.executable, "-m", "muster.cli.main", "tune"]


@pytest.fixture(scope="module")
def dead(tmp_path_factory):
    """An experiment whose process was killed when its two trials had reported once."""
    root = tmp_path_factory.mktemp("dead")
    killed(root)
    return root


@pytest.fixture
def copy(dead, tmp_path):
    """A copy that a test may continue with; its trials wait for `gate` in the original place."""
    shutil.copytree(dead / "live", tmp_path / "live")
    shutil.copy(dead / "script.py", tmp_path / "script.py")
    return tmp_path / "live"


@pytest.fixture
def gate(dead):
    file = dead / "gate"
    yield file
    file.unlink(missing_ok=True)


def muster(*words, cwd) -> subprocess.CompletedProcess:
    return subprocess.run(
        [*MUSTER, *map(str, words)], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )


def trials(tune, path) -> list[tuple]:
    rows = json.loads(tune("ls", path, "--json").stdout)["trials"]
    return [(row["config/x"], row["status"], row["training_iteration"], row["loss"]) for row in rows]


def test_a_running_experiment_is_shown_as_such_and_not_resumed(tune, tmp_path):
    with running(tmp_path) as process:
        listed, told = tune("ls", tmp_path / "live"), tune("show", tmp_path / "live")
        for text in (listed.stdout, told.stdout):
            assert text.startswith(f"live: running (process {process.pid} ")
            assert "2 trials: 2 RUNNING\n" in text
        found = json.loads(tune("ls", tmp_path, "--json").stdout)["experiments"][0]
        assert (found["state"], found["pid"], found["best"]) == ("running", process.pid, 1.0)
        assert abs(found["since"] - time.time()) < 100
        refused = tune("resume", tmp_path / "live")
        assert refused.exit_code == 2
        assert refused.output.startswith(f"error: {tmp_path}/live: ")
        assert f"(process {process.pid} " in refused.output


def test_watching_ends_with_the_experiment(tmp_path):
    with running(tmp_path) as process:
        watch = subprocess.Popen(
            [*MUSTER, "ls", str(tmp_path / "live"), "--watch"], stdout=subprocess.PIPE, text=True
        )
        assert watch.stdout is not None
        assert watch.stdout.readline().split()[:2] == ["live:", "running"]
        (tmp_path / "gate").write_text("go")
        assert process.wait(timeout=60) == 0
        rest, _ = watch.communicate(timeout=60)
        assert ": finished\n2 trials: 2 TERMINATED\n" in rest
        assert watch.returncode == 0


def test_ctrl_c_ends_watching_without_a_word(tmp_path):
    with running(tmp_path):
        watch = subprocess.Popen(
            [*MUSTER, "show", str(tmp_path / "live"), "--watch"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert watch.stdout is not None
        assert watch.stdout.readline().split()[:2] == ["live:", "running"]
        watch.send_signal(signal.SIGINT)
        _, complaint = watch.communicate(timeout=60)
        assert (watch.returncode, complaint) == (0, "")


def test_a_killed_experiment_is_interrupted_and_says_how_to_go_on(tune, copy):
    assert trials(tune, copy) == [(1, "INTERRUPTED", 1, 1.0), (2, "INTERRUPTED", 1, 2.0)]
    assert ": interrupted\n2 trials: 2 INTERRUPTED\n" in tune("ls", copy).stdout
    assert f" resume {copy}\n" in tune("show", copy).stdout


def test_resume_goes_on_from_the_checkpoints_with_the_saved_trainable(tune, copy, gate):
    gate.write_text("go")
    done = muster("resume", "live", cwd=copy.parent)
    assert done.returncode == 0, done.stderr
    said = done.stderr + "live:" + done.stdout.rpartition("live:")[2]
    for text, name in ((str(copy), "PATH"), (_first_id(tune, copy), "TRIAL"), (str(gate), "GATE")):
        said = said.replace(text, name)
    assert_view("cli/resume", said)
    assert trials(tune, copy) == [(1, "TERMINATED", 3, 1 / 3), (2, "TERMINATED", 3, 2 / 3)]
    again = muster("resume", "live", cwd=copy.parent)
    assert (again.returncode, again.stdout.split()[:2]) == (0, ["live:", "finished"])


def test_failed_trials_are_an_exit_code_and_run_again_when_asked(tune, copy, gate):
    gate.write_text("fail")
    first = muster("resume", copy, cwd=copy.parent)
    assert (first.returncode, trials(tune, copy)[1]) == (1, (2, "ERROR", 1, 2.0)), first.stderr
    finished = tune("resume", copy)
    assert (finished.exit_code, "--errored" in finished.output) == (1, True)
    gate.write_text("go")
    again = muster("resume", copy, "--errored", "restart", "--script", "script.py", cwd=copy.parent)
    assert (again.returncode, trials(tune, copy)[1]) == (0, (2, "TERMINATED", 3, 2 / 3)), again.stderr


def test_a_trainable_by_name_is_found_in_the_current_directory(tune, copy, gate):
    gate.write_text("go")
    (copy / "trainable.pkl").unlink()
    missing = muster("resume", copy, cwd=copy.parent)
    assert (missing.returncode, missing.stdout) == (2, "")
    assert missing.stderr.startswith(f"error: {copy}: ")
    for word in (" trainable.pkl", "--trainable module:name", "--script FILE\n"):
        assert word in missing.stderr
    done = muster("resume", copy, "--trainable", "script:train", cwd=copy.parent)
    assert (done.returncode, trials(tune, copy)[0]) == (0, (1, "TERMINATED", 3, 1 / 3)), done.stderr


def test_an_experiment_of_ask_and_tell_is_refused_before_a_trial_is_touched(tune, tmp_path):
    run = RunConfig(name="ask", storage_path=str(tmp_path))
    with AskTell({"x": grid_search([1, 2])}, run_config=run) as search:
        search.tell(search.ask(), {"loss": 1.0})
    before = trials(tune, tmp_path / "ask")
    refused = muster("resume", tmp_path / "ask", cwd=tmp_path)
    assert (refused.returncode, trials(tune, tmp_path / "ask")) == (2, before)
    assert "AskTell.restore(" in refused.stderr


def test_ctrl_c_stops_gently_and_says_how_to_go_on(tune, copy):
    process = subprocess.Popen(
        [*MUSTER, "resume", str(copy)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    _wait_until_running(copy, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=100)
    assert (process.returncode, f" resume {copy}" in out) == (130, True), err
    assert {status for _, status, _, _ in trials(tune, copy)} <= {"INTERRUPTED", "PENDING"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--trainable", "script"], "--trainable script: must be module:name"),
        (["--trainable", "nowhere:train"], "--trainable nowhere:train: No module named 'nowhere'"),
        (["--trainable", "json:train"], "--trainable json:train: no 'train' there; it has JSONDecodeError"),
        (["--script", "nowhere.py"], "--script nowhere.py: there is no such file"),
        (
            ["--script", "broken.py"],
            "--script broken.py: cannot be loaded: ZeroDivisionError: division by zero",
        ),
        (["--script", "a.py", "--trainable", "a:b"], "--trainable and --script: give one of them"),
        (["--trainable", "json:dumps"], "'train', not 'dumps'"),
    ],
)
def test_a_trainable_that_is_not_found_is_told(tune, copy, monkeypatch, words, message):
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.chdir(copy.parent)
    (copy.parent / "broken.py").write_text("1 / 0")
    result = tune("resume", copy, *words)
    assert (result.exit_code, message in result.output) == (2, True), result.output


def test_help_says_that_resume_runs_code(tune):
    assert_view("cli/help_resume", tune("resume", "--help").output)


def test_a_note_is_written_with_the_editor_and_shown(tune, tmp_path, monkeypatch):
    place = four_trials(tmp_path / "four")
    monkeypatch.setenv(
        "EDITOR", f"{sys.executable} -c \"import sys; open(sys.argv[1], 'a').write('{NOTE}')\""
    )
    monkeypatch.delenv("VISUAL", raising=False)
    result = tune("add-note", place)
    assert (result.exit_code, result.stderr) == (0, f"note: {place}/note.txt\n")
    assert tune("show", place).stdout.endswith(f"\nNote\n  {NOTE}\n")
    assert tune("add-note", place, "--filename", "../x").exit_code == 2


def _first_id(tune, path) -> str:
    return json.loads(tune("ls", path, "--json").stdout)["trials"][0]["trial_id"]


def _wait_until_running(path, process) -> None:
    """Until the resumed process holds the store; its trials wait for the gate."""
    lock = path / "experiment.sqlite.lock"
    for _ in range(3000):
        assert process.poll() is None, process.communicate()
        if lock.read_text() == str(process.pid):
            return
        time.sleep(0.02)
    raise AssertionError("it does not start")
