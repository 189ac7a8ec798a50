"""Trainables, disks and configurations that misbehave: that trial fails, the experiment continues."""

from __future__ import annotations

import errno
import math
import os
import re
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from muster import tune
from muster.base.clock import ManualClock
from muster.base.untrusted import message_text
from muster.errors import StoreFull, TuneError
from muster.stores.experiment.reader import open_trials
from muster.stores.experiment.store import FullDiskStore
from muster.tune import ExperimentAnalysis, Result, RunConfig, TuneConfig, Tuner

pytestmark = pytest.mark.slow


def never_end():
    import signal

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(1)


def fork():
    if os.fork() == 0:
        time.sleep(0.1)
        os._exit(0)


def contain_itself():
    result = {"score": 2.0}
    result["again"] = result
    tune.report(result)


def run_out_of_memory():
    raise MemoryError


def interrupt_itself():
    raise KeyboardInterrupt


class Mute(Exception):
    def __str__(self):
        raise RuntimeError("no words")


def raise_mute():
    raise Mute


HABITS = {
    "runs out of memory": run_out_of_memory,
    "interrupts itself": interrupt_itself,
    "reports a dict that contains itself": contain_itself,
    "reports 50 MB": lambda: tune.report({"score": 2.0, "large": "x" * 50_000_000}),
    "reports keys that are not text": lambda: tune.report({"score": 2.0, 5: 1, ("a", None): 2}),
    "exits": lambda: os._exit(3),
    "raises SystemExit": lambda: sys.exit(7),
    "raises an error that cannot be shown": raise_mute,
    "segfaults": lambda: __import__("ctypes").string_at(0),
    "reports a lock": lambda: tune.report({"score": 2.0, "lock": threading.Lock()}),
    "ignores SIGTERM and never ends": never_end,
    "well behaved": lambda: None,
    "reports NaN": lambda: tune.report({"score": math.nan}),
    "leaves a child": lambda: subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]),
    "forks": fork,
    "prints a lot": lambda: [sys.stdout.write("x" * 10_000 + "\n") for _ in range(2_000)],
    "prints bytes that are not text": lambda: os.write(1, bytes(range(128, 256)) * 100),
}


def misbehave(config):
    """One bad habit per trial."""
    tune.report({"score": 1.0})
    HABITS[config["habit"]]()
    tune.report({"score": 3.0})


FAILS = {
    "runs out of memory": "MemoryError MemoryError at ",
    "interrupts itself": "KeyboardInterrupt KeyboardInterrupt at ",
    "reports a dict that contains itself": "'again' contains itself",
    "reports 50 MB": "at most 16 MB",
    "exits": "exit",
    "raises SystemExit": "",
    "raises an error that cannot be shown": "Mute",
    "segfaults": "",
    "reports a lock": "lock",
    "ignores SIGTERM and never ends": "ran longer than its limit of 6 s",
}
FINE = [
    "reports keys that are not text",
    "well behaved",
    "reports NaN",
    "leaves a child",
    "forks",
    "prints a lot",
    "prints bytes that are not text",
]


@pytest.fixture(scope="module")
def aftermath(tmp_path_factory):
    """One experiment with every habit, each in a trial of its own, two at a time."""
    tuner = Tuner(
        misbehave,
        param_space={"habit": tune.grid_search(list(HABITS))},
        tune_config=TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(
            name="bad",
            storage_path=str(tmp_path_factory.mktemp("hostile")),
            verbose=0,
            trial_time_limit_s=6,
            log_to_file=True,
        ),
    )
    return {result.config["habit"]: result for result in tuner.fit()}


@pytest.mark.parametrize("habit", FAILS)
def test_a_trial_that_cannot_go_on_is_an_error_that_says_why(aftermath, habit):
    result = aftermath[habit]
    assert FAILS[habit] in f"{type(result.error).__name__} {message_text(result.error)}"
    assert [row["score"] for row in result.metrics_history] == [1.0]


@pytest.mark.parametrize("habit", ["exits", "segfaults", "ignores SIGTERM and never ends"])
def test_a_trial_that_ended_without_an_exception_has_a_tune_error(aftermath, habit):
    assert type(aftermath[habit].error) is TuneError


def test_errors_read_from_disk_are_those_of_the_run(aftermath):
    failed = [aftermath[habit] for habit in FAILS]
    analysis = ExperimentAnalysis(Path(failed[0].path).parent)
    stored = {trial.path: trial.error for trial in analysis.trials}
    expected = [(type(result.error), message_text(result.error)) for result in failed]
    for errors in (
        [stored[result.path] for result in failed],
        [Result.from_path(result.path).error for result in failed],
    ):
        assert [(type(error), message_text(error)) for error in errors] == expected


@pytest.mark.parametrize("habit", FINE)
def test_a_trial_with_harmless_habits_ends_well(aftermath, habit):
    result = aftermath[habit]
    assert result.error is None
    scores = [row["score"] for row in result.metrics_history]
    between = {"reports NaN": [math.nan], "reports keys that are not text": [2.0]}.get(habit, [])
    expected = [1.0, *between, 3.0]
    assert [repr(score) for score in scores] == [repr(score) for score in expected]


def test_nothing_that_was_printed_is_lost_when_it_goes_to_files(aftermath):
    assert (Path(aftermath["prints a lot"].path) / "stdout").stat().st_size == 2_000 * 10_001
    assert (Path(aftermath["prints bytes that are not text"].path) / "stdout").stat().st_size == 12_800


def test_a_function_that_cannot_be_pickled_is_refused_with_the_name_of_what_it_holds(tmp_path):
    door = threading.Lock()

    def locked(config):
        with door:
            pass

    with pytest.raises(TypeError, match=r"locked > door: a lock"):
        Tuner(locked, run_config=RunConfig(storage_path=str(tmp_path)))


def test_a_config_key_with_a_slash_is_a_key_like_any_other(tmp_path):
    def train(config):
        tune.report({"score": config["a/b"] + config["c"]["d/e"]})

    grid = Tuner(
        train,
        param_space={"a/b": tune.grid_search([1, 2]), "c": {"d/e": tune.choice([10])}},
        tune_config=TuneConfig(metric="score", mode="max"),
        run_config=RunConfig(name="slash", storage_path=str(tmp_path), verbose=0),
    ).fit()
    assert sorted(result.metrics["score"] for result in grid) == [11, 12]
    assert grid.get_best_result().config == {"a/b": 2, "c": {"d/e": 10}}


class Full:
    """A store without room for some appends."""

    def __init__(self, failures):
        self.failures, self.taken = failures, []

    def append(self, facts):
        if self.failures:
            self.failures -= 1
            raise StoreFull("disk: full")
        self.taken.append(facts)

    def load(self):
        return None

    def snapshot(self, *saved):
        pass

    def close(self):
        pass


def test_facts_wait_for_room_on_the_disk(tmp_path):
    store, told = Full(failures=5), []
    patient = FullDiskStore(store, ManualClock(), told.append, lambda: False, tmp_path)
    patient.append(["fact"])
    assert store.taken == [["fact"]]
    full, _ = told
    assert re.search(r"^disk: full\b.*\b60 s\b", full)


def test_room_in_reserve_is_used_first_and_given_back_at_the_end(tmp_path):
    told = []
    patient = FullDiskStore(Full(failures=1), ManualClock(), told.append, lambda: False, tmp_path)
    assert [file.stat().st_size for file in tmp_path.iterdir()] == [1 << 20]
    patient.append(["fact"])
    (line,) = told
    assert str(tmp_path) in line
    assert list(tmp_path.iterdir()) == []
    again = FullDiskStore(Full(failures=0), ManualClock(), told.append, lambda: False, tmp_path)
    again.close()
    assert list(tmp_path.iterdir()) == []


def test_after_a_minute_without_room_it_is_said_how_to_go_on(tmp_path):
    patient = FullDiskStore(Full(failures=10_000), ManualClock(), lambda text: None, lambda: False, tmp_path)
    with pytest.raises(StoreFull, match=r"Tuner\.restore"):
        patient.append(["fact"])


def test_somebody_who_wants_to_stop_does_not_wait_for_room(tmp_path):
    patient = FullDiskStore(Full(failures=3), ManualClock(), lambda text: None, lambda: True, tmp_path)
    with pytest.raises(StoreFull, match=r"^disk: full"):
        patient.append(["fact"])


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if sys.platform != "linux" or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small disk can be mounted only by root on Linux")
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_a_checkpoint_waits_until_a_full_disk_has_room_again(small_disk):
    def train(config):
        import tempfile

        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "model").write_bytes(b"x" * 800_000)
            tune.report({"step": 0}, checkpoint=tune.Checkpoint.from_directory(folder))

    filler = small_disk / "filler"
    filler.write_bytes(b"y" * 1_500_000)
    timer = threading.Timer(2, filler.unlink)
    timer.start()
    grid = Tuner(train, run_config=RunConfig(name="waits", storage_path=str(small_disk), verbose=0)).fit()
    timer.join()
    assert grid.errors == []
    assert grid[0].checkpoint is not None


def test_a_failed_trial_has_its_error_even_without_its_files(tmp_path):
    def train(config):
        raise ValueError(f"no luck with {config['x']}")

    grid = Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        run_config=RunConfig(name="lost", storage_path=str(tmp_path), verbose=0),
    ).fit()
    for file in tmp_path.glob("lost/*/error.*"):
        file.unlink()
    trials = grid._experiment_analysis.trials
    assert (repr(trials[0].error), grid.num_errors) == ("ValueError('no luck with 1')", 2)
    for file in tmp_path.glob("lost/experiment.sqlite*"):
        file.unlink()
    assert type(trials[1].error) is TuneError


def test_a_full_disk_fails_the_trial_that_needs_room_and_no_other(small_disk):
    def train(config):
        import tempfile

        from muster.session import publish

        publish.FULL_DISK_S = 1.0
        for step in range(12):
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model").write_bytes(b"x" * 400_000)
                checkpoint = tune.Checkpoint.from_directory(folder) if config["keeps"] else None
                tune.report({"step": step}, checkpoint=checkpoint)

    grid = Tuner(
        train,
        param_space={"keeps": tune.grid_search([True, False, False])},
        run_config=RunConfig(name="full", storage_path=str(small_disk), verbose=0),
    ).fit()
    assert [result.error is None for result in grid] == [False, True, True]
    assert os.strerror(errno.ENOSPC) in str(grid[0].error)
    assert [result.metrics["training_iteration"] for result in grid][1:] == [12, 12]
    with open_trials(small_disk / "full") as reader:
        assert [trial.status for trial in reader.trials()] == ["ERROR", "TERMINATED", "TERMINATED"]


class Unbuildable(Exception):
    def __init__(self, first, second):
        super().__init__("only one")


def raise_unbuildable(config):
    raise Unbuildable(1, 2)


def test_trials_that_cannot_start_and_errors_that_cannot_be_sent_are_tune_errors(tmp_path):
    kinds = ["too large", "not picklable", "raises what cannot be built again"]
    space = {
        "kind": tune.grid_search(kinds),
        "lock": tune.sample_from(lambda spec: threading.Lock() if spec.config.kind == kinds[1] else None),
    }
    sized = tune.with_resources(
        raise_unbuildable, lambda config: {"cpu": 999 if config["kind"] == kinds[0] else 1}
    )
    run = RunConfig(name="never", storage_path=str(tmp_path), verbose=0)
    grid = Tuner(sized, param_space=space, run_config=run).fit()
    again = ExperimentAnalysis(tmp_path / "never")
    for errors in (grid.errors, [trial.error for trial in again.trials]):
        assert [type(error) for error in errors] == [TuneError] * 3
        words = [("999" in text, "lock" in text, "only one" in text) for text in map(str, errors)]
        assert words == [(True, False, False), (False, True, False), (False, False, True)]
