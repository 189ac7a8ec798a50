"""Two experiments with one call (docs: run_experiments, Experiment)."""

from ray import tune
from ray.tune import Experiment, run_experiments


def squares(config):
    tune.report({"value": config["x"] ** 2})


def main(storage):
    tune.register_trainable("squares_by_name", squares)
    trials = run_experiments(
        [
            Experiment("one", squares, config={"x": tune.grid_search([2, 3])}, storage_path=storage),
            Experiment("two", "squares_by_name", config={"x": 5}, num_samples=2, storage_path=storage),
        ],
        verbose=0,
        concurrent=False,
    )
    return sorted([trial.trainable_name, trial.last_result["value"], trial.status] for trial in trials)
