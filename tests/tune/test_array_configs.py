"""What an array in every configuration costs the driver."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

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
