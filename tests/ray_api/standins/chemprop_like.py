"""Uses Ray as chemprop does: a TorchTrainer with one worker inside a function trainable."""

import json
import os
import tempfile

import ray
from ray import tune
from ray.train import (
    Checkpoint,
    CheckpointConfig,
    RunConfig,
    ScalingConfig,
    UserCallback,
    get_context,
    report,
)
from ray.train.torch import TorchTrainer


class Seen(UserCallback):
    count = 0

    def after_report(self, run_context, metrics, checkpoint):
        Seen.count += 1


def loop(config):
    assert get_context().get_world_size() == 1
    for epoch in range(2):
        with tempfile.TemporaryDirectory() as folder:
            with open(os.path.join(folder, "weights"), "w") as stream:
                stream.write(str(epoch))
            report({"loss": config["depth"] / (epoch + 1)}, checkpoint=Checkpoint.from_directory(folder))


def driver(config):
    trainer = TorchTrainer(
        lambda: loop(config),
        scaling_config=ScalingConfig(num_workers=1, use_gpu=False),
        run_config=RunConfig(
            name="inner", checkpoint_config=CheckpointConfig(num_to_keep=1), callbacks=[Seen()]
        ),
    )
    result = trainer.fit()
    with result.checkpoint.as_directory() as folder:
        weights = open(os.path.join(folder, "weights")).read()
    tune.report({"val_loss": result.metrics["loss"], "weights": weights, "seen": Seen.count})


if __name__ == "__main__":
    ray.init(_temp_dir=os.getcwd(), num_cpus=2, num_gpus=0)
    try:
        TorchTrainer(loop, scaling_config=ScalingConfig(num_workers=2))
        refused = ""
    except Exception as error:
        refused = type(error).__name__
    grid = tune.Tuner(
        driver,
        param_space={"depth": tune.randint(2, 6)},
        tune_config=tune.TuneConfig(num_samples=2, metric="val_loss", mode="min"),
        run_config=tune.RunConfig(storage_path=os.path.join(os.getcwd(), "cp"), verbose=0),
    ).fit()
    whole = tune.Tuner(
        TorchTrainer(loop, train_loop_config={"depth": 4}),
        param_space={"train_loop_config": {"depth": tune.grid_search([1, 2])}},
        run_config=tune.RunConfig(storage_path=os.path.join(os.getcwd(), "cp"), verbose=0),
    ).fit()
    print(
        json.dumps(
            {
                "rows": [len(each.metrics_history) for each in grid],
                "weights": [each.metrics["weights"] for each in grid],
                "seen": [each.metrics["seen"] for each in grid],
                "refused": refused,
                "whole": [each.metrics["loss"] for each in whole],
                "errors": [str(each) for each in (*grid.errors, *whole.errors)],
            }
        )
    )
    ray.shutdown()
