"""Arrays in configurations: what a resumed trial gets, and what they cost the driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from muster import tune
from muster.stores.experiment import values

SCRIPT = """
import json, resource, sys
import numpy as np
from muster import tune

SIZE, TRIALS = 8_000_000, 8
array = np.random.default_rng(1).random(SIZE // 8)

def train(config):
    for _ in range(3):
        tune.report({"y": float(config["array"].sum())})

def peak():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

before = peak()
grid = tune.Tuner(
    train,
    param_space={"array": tune.choice([array]), "x": tune.uniform(0, 1)},
    tune_config=tune.TuneConfig(num_samples=TRIALS),
    run_config=tune.RunConfig(name="exp", storage_path=sys.argv[1], verbose=0),
).fit()
assert {result.metrics["y"] for result in grid} == {array.sum()}
assert all(result.config["array"] is array for result in grid)
print(json.dumps((peak() - before) / SIZE / TRIALS))
"""


@pytest.mark.slow
def test_the_driver_needs_at_most_twice_their_size_per_trial(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, tmp_path], capture_output=True, text=True, timeout=100, check=True
    )
    assert json.loads(done.stdout) < 2.0
    (params,) = {file.read_text().split('"x"')[0] for file in tmp_path.glob("exp/*/params.json")}
    assert params.startswith('{\n  "array": "[0.511') and len(params) < 200  # params.pkl has all of it
    assert sum(file.stat().st_size for file in tmp_path.glob("exp/*/result.json")) < 100_000


@pytest.mark.slow
def test_a_resumed_trial_gets_arrays_as_arrays(tmp_path):
    broken = tmp_path / "broken"
    broken.touch()

    def train(config):
        if Path(config["broken"]).exists():
            raise RuntimeError("broken")
        return {"total": float(config["small"].sum() + config["large"].sum())}

    space = {"small": np.ones(3), "large": tune.choice([np.ones(20_000)]), "broken": str(broken)}
    run = tune.RunConfig(name="exp", storage_path=str(tmp_path), verbose=0)
    assert tune.Tuner(train, param_space=space, run_config=run).fit().num_errors == 1
    broken.unlink()
    values.large_arrays.clear()  # another process
    (result,) = tune.Tuner.restore(tmp_path / "exp", train, resume_errored=True).fit()
    assert (result.error, result.metrics["total"]) == (None, 20_003.0)
