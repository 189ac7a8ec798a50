"""Ray 2.3: a TorchTrainer as the trainable."""

from ray import tune
from ray.air import session
from ray.air.config import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer


def train_loop_per_worker(config):
    for epoch in range(2):
        session.report({"loss": config["lr"] * epoch})


trainer = TorchTrainer(
    train_loop_per_worker, train_loop_config={"lr": 0.1}, scaling_config=ScalingConfig(num_workers=1)
)
tuner = tune.Tuner(
    trainer,
    param_space={"train_loop_config": {"lr": tune.grid_search([0.1, 0.2])}},
    tune_config=tune.TuneConfig(metric="loss", mode="min"),
    run_config=RunConfig(verbose=0),
)
assert tuner.fit().get_best_result().metrics["loss"] == 0.1
