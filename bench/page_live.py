"""Run as a script: a real experiment that reports at a paced rate, and prints its driver's CPU per result.

Each result says when it was reported, in milliseconds, so that a browser can tell how old it is when shown.
"""

from __future__ import annotations

import json
import resource
import sys
import time

from muster import tune

TRIALS = 8


def paced(config):
    pause, end = TRIALS / config["rate"], time.monotonic() + config["seconds"]
    due = time.monotonic()
    while due < end:
        due += pause
        time.sleep(max(0.0, due - time.monotonic()))
        tune.report({"sent_ms": int(time.time() * 1000) % 1_000_000, "loss": 1.0})


def main(storage: str, rate: float, seconds: float) -> None:
    space = {"rate": rate, "seconds": seconds, "number": tune.grid_search(list(range(TRIALS)))}
    run = tune.RunConfig(name="live", storage_path=storage, verbose=0, engine="local")
    config = tune.TuneConfig(metric="sent_ms", mode="max")
    tuner = tune.Tuner(
        tune.with_resources(paced, {"CPU": 0.1}), param_space=space, tune_config=config, run_config=run
    )
    before = _cpu_s()
    grid = tuner.fit()
    results = sum(int(result.metrics["training_iteration"]) for result in grid)
    print(json.dumps({"cpu_s": _cpu_s() - before, "results": results}), flush=True)


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), float(sys.argv[3]))
