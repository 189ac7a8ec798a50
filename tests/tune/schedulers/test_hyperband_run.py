"""HyperBand and median stopping in whole runs: trials pause, continue from their checkpoints, and end."""

import json
import tempfile
from collections import Counter
from pathlib import Path

import pytest

from muster import tune
from muster.tune.schedulers import HyperBandForBOHB, HyperBandScheduler, MedianStoppingRule


def train(config):
    """Count to nine; say where it went on."""
    first, checkpoint = 1, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            first = json.loads(Path(directory, "step").read_text()) + 1
    for step in range(first, 10):
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(json.dumps(step))
            here = tune.Checkpoint.from_directory(directory)
            tune.report({"score": config["i"] + step, "first": first}, checkpoint=here)


def run(scheduler, path):
    return tune.Tuner(
        train,
        param_space={"i": tune.grid_search(list(range(17)))},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler),
        run_config=tune.RunConfig(storage_path=str(path), verbose=0),
    ).fit()


@pytest.mark.slow
@pytest.mark.parametrize("kind", [HyperBandScheduler, HyperBandForBOHB])
def test_one_band_is_halved_and_survivors_go_on_from_their_checkpoints(kind, tmp_path):
    grid = run(kind(max_t=9), tmp_path)
    assert grid.num_errors == 0
    # Brackets of 3, 5 and 9 trials: (9), (3, 9), (1, 3, 9).
    reached = Counter(result.metrics["training_iteration"] for result in grid)
    assert reached == {1: 6, 3: 3 + 2, 9: 3 + 2 + 1}
    assert grid.get_best_result().config == {"i": 16}
    # Who was paused at 1 or 3 went on right after it.
    assert {result.metrics["first"] for result in grid} <= {1, 2, 4}
    assert max(result.metrics["first"] for result in grid) == 4


@pytest.mark.slow
def test_median_stopping_ends_the_worst_and_keeps_the_best(tmp_path):
    grid = run(MedianStoppingRule(time_attr="training_iteration", grace_period=2), tmp_path)
    reached = {result.config["i"]: result.metrics["training_iteration"] for result in grid}
    assert grid.num_errors == 0
    assert len(reached) == 17
    assert reached[16] == 9
    assert min(reached.values()) < 9
