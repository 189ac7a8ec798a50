"""What a trial knows of itself (docs: TuneContext)."""

import os

from ray import tune


def train(config):
    context = tune.get_context()
    tune.report(
        {
            "experiment": context.get_experiment_name(),
            "name": context.get_trial_name() == f"train_{context.get_trial_id()}",
            "folder": os.path.basename(context.get_trial_dir()).startswith(context.get_trial_name()),
            "bundles": context.get_trial_resources().bundles,
            "checkpoint": tune.get_checkpoint(),
        }
    )


def main(storage):
    results = tune.Tuner(
        train, run_config=tune.RunConfig(name="context", storage_path=storage, verbose=0)
    ).fit()
    keys = ("experiment", "name", "folder", "bundles", "checkpoint")
    return {key: results[0].metrics[key] for key in keys}
