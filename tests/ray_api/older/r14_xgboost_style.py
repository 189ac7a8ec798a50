"""Ray 1.4: the best checkpoint as a path."""

import os

from ray import tune


def train(config):
    for step in range(2):
        with tune.checkpoint_dir(step=step) as folder:
            with open(os.path.join(folder, "model.xgb"), "w") as f:
                f.write(str(step))
        tune.report(**{"eval-error": config["eta"] / (step + 1), "time": step})


analysis = tune.run(
    train, metric="eval-error", mode="min", num_samples=2, config={"eta": tune.uniform(0, 1)}, verbose=0
)
path = analysis.best_checkpoint
assert open(os.path.join(path, "model.xgb")).read() == "1"
assert open(
    os.path.join(analysis.get_best_checkpoint(analysis.best_trial, "eval-error", "min"), "model.xgb")
).read()
