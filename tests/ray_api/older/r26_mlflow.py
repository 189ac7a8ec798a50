"""Ray 2.6: callbacks of trackers by their older path, a string scheduler."""

from ray import air, tune
from ray.tune.integration.mlflow import MLflowLoggerCallback
from ray.tune.logger import LoggerCallback


class Count(LoggerCallback):
    seen = 0

    def log_trial_result(self, iteration, trial, result):
        Count.seen += 1


def train(config):
    for step in range(2):
        air.session.report({"loss": config["x"] + step})


tune.Tuner(
    train,
    param_space={"x": tune.randint(0, 5)},
    tune_config=tune.TuneConfig(num_samples=2, scheduler="asha", metric="loss", mode="min"),
    run_config=air.RunConfig(callbacks=[Count()], verbose=0),
).fit()
assert Count.seen >= 2
