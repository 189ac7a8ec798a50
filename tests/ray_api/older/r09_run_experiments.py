"""Ray 0.8 and 0.9: run_experiments with a reporter argument, trial_resources, an Experiment, redis_address."""

import os

import ray
import ray.tune as tune
from ray.tune import grid_search, register_trainable, run_experiments
from ray.tune.result import TIMESTEPS_TOTAL


def train_model(config, reporter):
    for step in range(3):
        reporter(timesteps_total=step, mean_accuracy=config["lr"] * step, checkpoint="weights.h5")


def on_train_result(info):
    print(info["result"])


if __name__ == "__main__":
    info = ray.init(num_cpus=2, redirect_output=False, webui_host="127.0.0.1", object_store_memory=10**8)
    host, port = info["redis_address"].split(":")
    assert int(port) >= 0
    register_trainable("train_model", train_model)
    trials = run_experiments(
        {
            "my_experiment": {
                "run": "train_model",
                "stop": {"mean_accuracy": 100, "timesteps_total": 100},
                "num_samples": 1,
                "resources_per_trial": {"cpu": 1, "gpu": 0},
                "config": {
                    "lr": grid_search([0.1, 0.2]),
                    "callbacks": {"on_train_result": tune.function(on_train_result)},
                },
                "local_dir": "results",
                "checkpoint_at_end": False,
                "max_failures": 2,
            }
        },
        verbose=0,
    )
    assert [trial.status for trial in trials] == ["TERMINATED"] * 2
    best = sorted(trials, key=lambda trial: trial.last_result.get("mean_accuracy", 0), reverse=True)[0]
    assert os.path.isdir(best.logdir)
    assert best.last_result["timesteps_total"] == 2
    configuration = tune.Experiment(
        "experiment_name",
        run=train_model,
        resources_per_trial={"cpu": 1},
        stop={"mean_accuracy": 95},
        config={"lr": 0.3},
        local_dir="results",
    )
    trials = tune.run_experiments(configuration, verbose=0, resume=False)
    assert trials[0].last_result["checkpoint"] == "weights.h5"
    ray.shutdown()
