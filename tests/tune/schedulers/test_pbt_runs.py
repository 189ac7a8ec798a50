"""PBT with real processes: classes and functions, with and without synch, killed and restored."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.tune.schedulers.pbt_victim import END, LRS, TRAINABLES, climb, tuner

from muster import tune
from muster.cli.tune.experiment import read_experiment
from muster.tune.schedulers import PopulationBasedTrainingReplay

pytestmark = pytest.mark.slow

VICTIM = Path(__file__).with_name("pbt_victim.py")


def rows_of(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def check_rows(result):
    """Every step began where the one before had ended, or at a checkpoint that somebody had made."""
    rows = rows_of(Path(result.path) / "result.json")
    assert rows[-1]["training_iteration"] == END
    assert all(math.isclose(row["before"] + row["lr"], row["score"]) for row in rows)
    assert all(row["lr"] == row["config"]["lr"] for row in rows)
    return rows


def check_population(grid, experiment, how):
    assert [result.error for result in grid] == [None] * len(LRS)
    scores = {}
    for result in grid:
        for row in check_rows(result):
            scores.setdefault(row["training_iteration"], set()).add(row["score"])
    for result in grid:  # nobody began from a value that nobody had
        for row in rows_of(Path(result.path) / "result.json"):
            if row["training_iteration"] > 1:
                assert any(
                    math.isclose(row["before"], seen) for seen in scores[row["training_iteration"] - 1]
                )
    policy = rows_of(experiment / "pbt_global.txt")
    assert [len(row) for row in policy] == [6] * len(policy)
    assert len(policy) >= 1
    if how == "synch":  # the same whoever is faster
        assert len(policy) == 5
        assert min(result.metrics["score"] for result in grid) > 0.9 * END
    for result in grid:
        assert Path(result.checkpoint.path).is_dir()
    return policy


@pytest.mark.parametrize("how", ["synch", "async"])
@pytest.mark.parametrize("kind", ["class", "function"])
def test_a_population_of_processes(tmp_path, kind, how):
    grid = tuner(tmp_path, kind, how).fit()
    check_population(grid, tmp_path / "pbt", how)
    saved = tune.ExperimentAnalysis(str(tmp_path / "pbt"), default_metric="score", default_mode="max")
    assert [trial.config["lr"] for trial in saved.trials] == [result.config["lr"] for result in grid]
    shown = [trial.config for trial in read_experiment(str(tmp_path / "pbt")).trials]
    assert shown == [json.loads(Path(result.path, "params.json").read_text()) for result in grid]
    assert list((tmp_path / "pbt").glob("*.partial")) == []


def test_a_process_that_is_used_again_begins_from_the_others_checkpoint(tmp_path):
    grid = tuner(tmp_path, "function", "synch", reuse_actors=True).fit()
    check_population(grid, tmp_path / "pbt", "synch")


@pytest.mark.parametrize("how", ["synch", "async"])
def test_trials_that_fail_say_nothing_or_no_number_do_not_hold_up_the_others(tmp_path, how):
    grid = tuner(tmp_path, "silent", how).fit()
    assert [type(result.error).__name__ for result in grid] == ["RuntimeError", *["NoneType"] * 3]
    ends = [(result.metrics or {}).get("training_iteration") for result in grid]
    assert ends == [4, END, END, None]


@pytest.mark.parametrize(("kind", "how"), [("class", "async"), ("function", "synch")])
def test_a_killed_population_goes_on(tmp_path, kind, how):
    """Killed when the first changes are on disk; then again; then it may end."""
    policy = tmp_path / "pbt" / "pbt_global.txt"
    before = []
    for wanted in (1, 2):
        driver = subprocess.Popen([sys.executable, str(VICTIM), str(tmp_path), kind, how])
        try:
            _wait(driver, lambda enough=wanted: policy.exists() and len(rows_of(policy)) >= enough)
        finally:
            if driver.poll() is None:
                os.kill(driver.pid, signal.SIGKILL)
            driver.wait(30)
        now = policy.read_text().splitlines()
        assert now[: len(before)] == before
        before = now
    subprocess.run([sys.executable, str(VICTIM), str(tmp_path), kind, how], check=True, timeout=100)
    after = policy.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(set(after)) == len(after)
    grid = tune.Tuner.restore(str(tmp_path / "pbt"), trainable=TRAINABLES[kind]).get_results()
    assert len(check_population(grid, tmp_path / "pbt", how)) == len(after)


def _wait(driver, is_there):
    for _ in range(3000):
        if driver.poll() is not None or is_there():
            return
        try:
            driver.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
    raise AssertionError("the driver did nothing")


def test_what_a_population_found_can_be_trained_again_by_one_trial(tmp_path):
    grid = tuner(tmp_path, "function", "synch").fit()
    files = sorted((tmp_path / "pbt").glob("pbt_policy_*.txt"))
    trial_id = files[-1].stem.removeprefix("pbt_policy_")
    (wanted,) = [result for result in grid if result.metrics["trial_id"] == trial_id]
    again = tune.Tuner(
        climb,
        tune_config=tune.TuneConfig(scheduler=PopulationBasedTrainingReplay(str(files[-1]))),
        run_config=tune.RunConfig(
            name="replay", storage_path=str(tmp_path), stop={"training_iteration": END}, verbose=0
        ),
    ).fit()
    assert again[0].metrics["score"] == pytest.approx(wanted.metrics["score"])
    assert again[0].config == wanted.config
