"""Uses Ray Tune as lenskit does: refs, a callable object, subclasses of Ray's classes, file:// storage."""

import json
import logging
import os
import sys

import ray
import ray.tune
import ray.tune.utils.log
from ray.runtime_env import RuntimeEnv
from ray.tune import Callback, Stopper, Trainable
from ray.tune.search.optuna import OptunaSearch

ROWS = list(range(5000)) * 4


class Harness:
    """Function trainable with refs inside; one of them names another."""

    def __init__(self, data):
        self.data = data

    def __call__(self, config):
        rows = ray.get(ray.get(self.data)["rows"])
        assert ray.is_initialized()
        assert ray.get_runtime_context().worker.mode == ray.WORKER_MODE
        for step in range(config["steps"]):
            if os.path.exists("/proc") and step == 1 and os.environ.get("SLOW"):
                import time

                time.sleep(float(os.environ["SLOW"]))
            ray.tune.report({"score": len(rows) * config["x"] + step, "seen": os.environ.get("THREADS", "")})


class Iterative(Trainable):
    def setup(self, config, ref=None):
        super().setup(config)
        self.rows, self.n = ray.get(ref), 0

    def step(self):
        self.n += 1
        return {"score": self.config["x"] * self.n}

    def save_checkpoint(self, checkpoint_dir):
        return {"n": self.n}

    def load_checkpoint(self, checkpoint):
        self.n = checkpoint["n"]


class Log(Callback):
    def on_trial_result(self, iteration, trials, trial, result, **info):
        logging.info("%s", trial)


class Plateau(Stopper):
    def __call__(self, trial_id, result):
        return result["training_iteration"] >= 3

    def stop_all(self):
        return False


def main(kind, folder):
    ray.tune.utils.log.set_verbosity(0)
    ray.init(num_cpus=2, runtime_env=RuntimeEnv(env_vars={"THREADS": "1"}), _temp_dir=folder)
    storage = f"file://{folder}/results"
    if kind == "iterative":
        trainable = ray.tune.with_parameters(Iterative, ref=ray.put(ROWS))
        config = ray.tune.TuneConfig(
            metric="score",
            mode="max",
            num_samples=3,
            search_alg=OptunaSearch(seed=3),
            scheduler=ray.tune.schedulers.MedianStoppingRule(time_attr="training_iteration"),
        )
        stop = Plateau()
    else:
        trainable = Harness(ray.put({"rows": ray.put(ROWS)}))
        config = ray.tune.TuneConfig(metric="score", mode="max", num_samples=4, max_concurrent_trials=2)
        stop = None
    tuner = ray.tune.Tuner(
        trainable,
        param_space={"x": ray.tune.uniform(0, 1), "steps": 3},
        tune_config=config,
        run_config=ray.tune.RunConfig(
            name="exp", storage_path=storage, stop=stop, callbacks=[Log()], verbose=0
        ),
    )
    grid = tuner.fit()
    best = grid.get_best_result()
    rows = [len(each.metrics_history) for each in grid]
    print(json.dumps({"errors": grid.num_errors, "rows": rows, "seen": best.metrics.get("seen")}))


if __name__ == "__main__":
    main(*sys.argv[1:])
