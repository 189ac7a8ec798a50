"""Is the script of an experiment that is quoted and then run, as a user would have it; its steps only sleep.

`estimate` reads it, and on a real cluster it is run: see `bench.economy_quote`. The case comes as JSON in
an environment variable, because a quoted script has no arguments.
"""

from __future__ import annotations

import json
import math
import os
import random
import time

from muster import tune

CASE = "MUSTER_BENCH_QUOTE_CASE"
WIDTHS = (16.0, 256.0)
_SPREAD = math.log(WIDTHS[1] / WIDTHS[0]) / math.sqrt(12.0)  # of the logarithm of a width


def step_seconds(config: dict, step: int) -> float:
    """Return how long a step sleeps: by the width of the config, and a little at random."""
    middle = math.sqrt(WIDTHS[0] * WIDTHS[1])
    jitter = random.Random(f"{config['lr']} {step}").uniform(0.9, 1.1)
    return config["step_s"] * (config["width"] / middle) ** (config["sigma"] / _SPREAD) * jitter


def loss(config: dict, step: int) -> float:
    """Return a falling curve that no quote knows: its rate and its noise depend on the config."""
    apart = abs(math.log10(config["lr"]) + 2.5)
    noise = random.Random(f"{config['lr']} {step} loss").gauss(0.0, 0.01)
    return 0.2 + 0.3 * apart / config["width"] ** 0.1 + math.exp(-step / (2.0 + 3.0 * apart)) + noise


def train(config: dict) -> None:
    for step in range(1, config["steps"] + 1):
        time.sleep(step_seconds(config, step))
        tune.report({"loss": loss(config, step)})


def tuner(case: dict) -> tune.Tuner:
    space = {
        "width": tune.loguniform(*WIDTHS),
        "lr": tune.loguniform(1e-4, 1e-1),
        **{name: case[name] for name in ("step_s", "sigma", "steps")},
    }
    scheduler = tune.schedulers.ASHAScheduler(
        max_t=case["steps"], grace_period=case["grace"], reduction_factor=case["eta"]
    )
    return tune.Tuner(
        tune.with_resources(train, {"cpu": 1}),
        param_space=space,
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=case["trials"], scheduler=scheduler
        ),
        run_config=tune.RunConfig(name=case["name"], storage_path=case["storage"], verbose=0),
    )


if __name__ == "__main__":
    began = time.time()
    grid = tuner(json.loads(os.environ[CASE])).fit()
    rows = [(one.metrics["training_iteration"], one.metrics["time_total_s"], one.cost_usd) for one in grid]
    print(json.dumps({"began": began, "ended": time.time(), "rows": rows, "errors": len(grid.errors)}))
