"""Name and directories of trials by functions of the trial (docs: custom trial names)."""

import os

from ray import tune


def train(config):
    context = tune.get_context()
    tune.report({"name": context.get_trial_name(), "folder": os.path.basename(context.get_trial_dir())})


def main(storage):
    results = tune.Tuner(
        train,
        param_space={"lr": tune.grid_search([0.1, 0.5])},
        tune_config=tune.TuneConfig(
            trial_name_creator=lambda trial: f"{trial.trainable_name}_lr_{trial.config['lr']}",
            trial_dirname_creator=lambda trial: f"run-{trial.config['lr']}",
            max_concurrent_trials=1,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="names", storage_path=storage, verbose=0),
    ).fit()
    return [[r.metrics["name"], r.metrics["folder"], os.path.basename(r.path)] for r in results]
