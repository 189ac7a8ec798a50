"""Run a grid, one with points, or two grids in a row; test_restore_storage.py kills this program.

Usage: python grid_program.py STORAGE KIND    (KIND: plain, points, two)
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from muster import tune
from muster.tune.search import BasicVariantGenerator

SPACE = {"a": tune.grid_search([1, 2, 3]), "b": tune.grid_search([1, 2, 3]), "x": tune.uniform(0, 1)}
POINTS = [{"a": -1, "b": -1}, {"a": -1}, {"b": -1}]


def train(config):
    """While a file `hold` is above the directory, trials after the number in the file wait to be killed."""
    hold = Path.cwd().parents[1] / "hold"
    while hold.exists() and len(list(hold.parent.glob("*/*/done"))) >= int(hold.read_text()):
        time.sleep(0.05)
    Path("done").touch()
    tune.report({"score": config["a"] * config["b"]})


def one(storage, samples, points):
    path = Path(storage, "exp")
    if tune.Tuner.can_restore(path):
        return tune.Tuner.restore(path, train)
    search = BasicVariantGenerator(points_to_evaluate=points, random_state=1)
    return tune.Tuner(
        train,
        param_space=SPACE,
        tune_config=tune.TuneConfig(metric="score", mode="max", num_samples=samples, search_alg=search),
        run_config=tune.RunConfig(name="exp", storage_path=storage, verbose=0),
    )


def two(storage):
    given = {"run": train, "config": SPACE, "storage_path": storage}
    return tune.run_experiments({"first": given, "second": given}, verbose=0, resume=True)


if __name__ == "__main__":
    where, kind = sys.argv[1:]
    if kind == "two":
        found = [(trial.trial_id, trial.config, trial.last_result["score"]) for trial in two(where)]
    else:
        grid = one(where, *{"plain": (3, None), "points": (6, POINTS)}[kind]).fit()
        found = [(each.metrics["trial_id"], each.config, each.metrics["score"]) for each in grid]
    sys.stdout.write(json.dumps(found) + "\n")
