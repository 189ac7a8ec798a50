"""Nine ways to report, each with success, a stop by ASHA, exit code 1, and a retry from a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from muster import tune
from muster.errors import CommandError
from muster.tune.schedulers import ASHAScheduler

TRAINER = str(Path(__file__).with_name("trainer.py"))
HELD = ("python", "shell", "socket")
FOLLOWED = ("lines", "regex", "jsonl", "csv", "tensorboard")
WAYS = (*HELD, *FOLLOWED, "json")
REPORT = (
    "auto",
    r"regex:validation loss is (?P<loss>\S+)",
    "jsonl:{trial_dir}/m.jsonl",
    "csv:{trial_dir}/m.csv",
    "tensorboard:{trial_dir}/tb",
    "json:{trial_dir}/final.json",
)


def losses_by_way(folder, more, *, scheduler=None, max_failures=0):
    """The losses and the error of each way, from one experiment with a trial per way."""
    line = (
        f"{sys.executable} {TRAINER} --way {{way}} --x {{x}} --out {{trial_dir}} --checkpoint {{checkpoint}}"
    )
    results = tune.Tuner(
        tune.command(f"{line} {{resume:--resume}} {more}", report=REPORT, grace_s=5),
        param_space={"way": tune.grid_search(list(WAYS)), "x": 8.0},
        tune_config=tune.TuneConfig(metric="loss", mode="min", scheduler=scheduler),
        run_config=tune.RunConfig(
            storage_path=str(folder),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=max_failures),
        ),
    ).fit()
    return {
        result.config["way"]: (list(result.metrics_dataframe["loss"]), result.error)
        if result.metrics
        else ([], result.error)
        for result in results
    }


@pytest.mark.slow
def test_success_is_the_same_for_all_ways(tmp_path):
    found = losses_by_way(tmp_path, "--steps 3")
    assert found == {way: ([2.0] if way == "json" else [8.0, 4.0, 2.0], None) for way in WAYS}


@pytest.mark.slow
def test_asha_stops_all_ways_at_the_same_result(tmp_path):
    asha = ASHAScheduler(max_t=2, grace_period=1)
    found = losses_by_way(tmp_path, "--steps 400 --pause 0.4", scheduler=asha)
    assert found == {way: ([1.0] if way == "json" else [8.0, 4.0], None) for way in WAYS}


@pytest.mark.slow
def test_a_command_that_fails_keeps_its_results(tmp_path):
    found = losses_by_way(tmp_path, "--steps 3 --fail-at 2")
    losses = {way: losses for way, (losses, _) in found.items()}
    assert losses == {way: [4.0] if way == "json" else [8.0, 4.0] for way in WAYS}
    errors = [error for _, error in found.values()]
    assert all(isinstance(error, CommandError) and error.exit_code == 1 for error in errors)
    assert all("out of luck" in str(error) for error in errors)


@pytest.mark.slow
def test_a_retry_continues_from_the_last_checkpoint(tmp_path):
    found = losses_by_way(tmp_path, "--steps 4 --fail-at 2 --pause 0.3", max_failures=1)
    assert found == {way: ([4.0, 1.0] if way == "json" else [8.0, 4.0, 2.0, 1.0], None) for way in WAYS}
