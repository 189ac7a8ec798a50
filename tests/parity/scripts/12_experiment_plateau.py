"""ExperimentPlateauStopper ends the experiment when the best values do not move (docs: built-in stoppers)."""

from ray import tune
from ray.tune.stopper import ExperimentPlateauStopper


def train(config):
    for _ in range(2):
        tune.report({"loss": config["x"]})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"x": tune.grid_search([3, 2, 1, 1, 1, 1, 1, 1])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1, reuse_actors=True),
        run_config=tune.RunConfig(
            name="plateau",
            storage_path=storage,
            verbose=0,
            stop=ExperimentPlateauStopper("loss", std=0.001, top=4, mode="min", patience=1),
        ),
    ).fit()
    return [result.metrics.get("training_iteration") for result in results]
