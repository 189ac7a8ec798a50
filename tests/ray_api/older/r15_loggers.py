"""Ray 1.5: arguments that went: loggers, queue_trials, global_checkpoint_period, SyncConfig(upload_dir)."""

import os

from ray import tune
from ray.tune.integration.wandb import WandbLoggerCallback
from ray.tune.logger import DEFAULT_LOGGERS, Logger
from ray.tune.suggest.basic_variant import BasicVariantGenerator


class Lines(Logger):
    def _init(self):
        self.file = open(os.path.join(self.logdir, "lines.txt"), "w")

    def on_result(self, result):
        self.file.write(f"{result['a']} {self.config['b']}\n")

    def close(self):
        self.file.close()


def train(config):
    tune.report(a=1)
    tune.report(a=2)


place = os.path.join(os.getcwd(), "bucket")
analysis = tune.run(
    train,
    search_alg=BasicVariantGenerator(),
    loggers=(*DEFAULT_LOGGERS, Lines),
    config={"b": 3},
    queue_trials=True,
    sync_config=tune.SyncConfig(upload_dir=f"file://{place}", syncer=None),
    verbose=0,
)
assert os.path.isdir(place), place
trial = analysis.trials[0]
assert open(os.path.join(trial.logdir, "lines.txt")).read() == "1 3\n2 3\n"
