"""Ray 1.3: PBT with a function that saves by checkpoint_dir."""

import json
import os

from ray import tune
from ray.tune.schedulers import PopulationBasedTraining


def pbt_function(config, checkpoint_dir=None):
    lr, accuracy, start = config["lr"], 0.0, 0
    if checkpoint_dir:
        with open(os.path.join(checkpoint_dir, "checkpoint")) as f:
            state = json.loads(f.read())
            accuracy, start = state["acc"], state["step"]
    for step in range(start, 8):
        accuracy += lr
        if step % 2 == 0:
            with tune.checkpoint_dir(step=step) as checkpoint_dir:
                with open(os.path.join(checkpoint_dir, "checkpoint"), "w") as f:
                    f.write(json.dumps({"acc": accuracy, "step": step + 1}))
        tune.report(mean_accuracy=accuracy, cur_lr=lr, done=step == 7)


pbt = PopulationBasedTraining(
    time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"lr": [0.1, 0.2, 0.5]}
)
analysis = tune.run(
    pbt_function,
    name="pbt_test",
    scheduler=pbt,
    metric="mean_accuracy",
    mode="max",
    num_samples=2,
    config={"lr": tune.choice([0.1, 0.5])},
    verbose=0,
)
print(analysis.best_config)
