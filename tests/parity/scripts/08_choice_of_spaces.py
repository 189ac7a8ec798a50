"""A choice between dictionaries that hold domains of their own (docs: nested and conditional spaces)."""

from ray import tune
from ray.tune.search import BasicVariantGenerator


def train(config):
    model = config["model"]
    tune.report({"score": model.get("depth", 0) + model.get("width", 0)})


def main(storage):
    space = {
        "model": tune.choice(
            [
                {"kind": "tree", "depth": tune.randint(1, 8)},
                {"kind": "net", "width": tune.qrandint(32, 128, 32)},
            ]
        )
    }
    results = tune.Tuner(
        train,
        param_space=space,
        tune_config=tune.TuneConfig(
            num_samples=4,
            search_alg=BasicVariantGenerator(random_state=11, max_concurrent=1),
            reuse_actors=True,
            trial_dirname_creator=lambda trial: f"choice_{trial.trial_id}",  # the usual one holds an address
        ),
        run_config=tune.RunConfig(name="choices", storage_path=storage, verbose=0),
    ).fit()
    return [[result.config, result.metrics["score"]] for result in results]
