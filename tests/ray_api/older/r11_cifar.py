"""Ray 1.x: the PyTorch tutorial: checkpoint_dir, partial, local_dir, the best trial's checkpoint.value."""

import os
from functools import partial

from ray import tune
from ray.tune import CLIReporter
from ray.tune.schedulers import ASHAScheduler


def train_cifar(config, checkpoint_dir=None, data_dir=None):
    start = 0
    if checkpoint_dir:
        with open(os.path.join(checkpoint_dir, "checkpoint")) as f:
            start = int(f.read())
    for epoch in range(start, 3):
        with tune.checkpoint_dir(epoch) as checkpoint_dir:
            path = os.path.join(checkpoint_dir, "checkpoint")
            with open(path, "w") as f:
                f.write(str(epoch))
        tune.report(loss=config["lr"] / (epoch + 1), accuracy=epoch)


def main(num_samples=3, max_num_epochs=3):
    config = {"l1": tune.sample_from(lambda _: 2**4), "lr": tune.loguniform(1e-4, 1e-1)}
    scheduler = ASHAScheduler(metric="loss", mode="min", max_t=max_num_epochs, grace_period=1)
    reporter = CLIReporter(metric_columns=["loss", "accuracy", "training_iteration"])
    result = tune.run(
        partial(train_cifar, data_dir="."),
        resources_per_trial={"cpu": 1},
        config=config,
        num_samples=num_samples,
        scheduler=scheduler,
        progress_reporter=reporter,
        local_dir=os.path.join(os.getcwd(), "cifar"),
        verbose=0,
    )
    best_trial = result.get_best_trial("loss", "min", "last")
    best_checkpoint_dir = best_trial.checkpoint.value
    assert os.path.exists(os.path.join(best_checkpoint_dir, "checkpoint"))


if __name__ == "__main__":
    main()
