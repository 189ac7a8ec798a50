"""A population on real processes, for test_pbt_runs; a driver that can be killed and started again.

Usage: python pbt_victim.py STORAGE class|function|silent synch|async
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from muster import tune
from muster.tune.schedulers import PopulationBasedTraining

LRS = [0.1, 0.2, 0.5, 0.9]
END = 18
INTERVAL = 3


class Climber(tune.Trainable):
    """Adds `lr` to `x` at each step; notes every step as x before, lr."""

    def setup(self, config):
        self.x = 0.0

    def step(self):
        time.sleep(self.config.get("pause_s", 0))
        before, self.x = self.x, self.x + self.config["lr"]
        return {"score": self.x, "before": before, "lr": self.config["lr"]}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "x.json").write_text(json.dumps(self.x))

    def load_checkpoint(self, checkpoint):
        self.x = json.loads(Path(checkpoint, "x.json").read_text())


def climb(config):
    """The same as a function."""
    x, checkpoint = 0.0, tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as directory:
            x = json.loads(Path(directory, "x.json").read_text())
    while True:
        time.sleep(config.get("pause_s", 0))
        before, x = x, x + config["lr"]
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "x.json").write_text(json.dumps(x))
            tune.report(
                {"score": x, "before": before, "lr": config["lr"]},
                checkpoint=tune.Checkpoint.from_directory(directory),
            )


def silent(config):
    """Never reports when its lr is large, fails when it is small."""
    if config["lr"] > 0.8:
        return
    for step in range(END):
        if config["lr"] < 0.15 and step == 4:
            raise RuntimeError("the smallest fails")
        tune.report({"score": float("nan") if config["lr"] > 0.4 else config["lr"] * step})


TRAINABLES = {"class": Climber, "function": climb, "silent": silent}


def tuner(storage, kind, how, pause_s=0.0, **more):
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration",
        perturbation_interval=INTERVAL,
        hyperparam_mutations={"lr": tune.uniform(0.1, 1.0)},
        synch=how == "synch",
        seed=3,
    )
    return tune.Tuner(
        TRAINABLES[kind],
        param_space={"lr": tune.grid_search(LRS), "pause_s": pause_s},
        tune_config=tune.TuneConfig(metric="score", mode="max", scheduler=scheduler, **more),
        run_config=tune.RunConfig(
            name="pbt",
            storage_path=str(storage),
            stop={"training_iteration": END},
            checkpoint_config=tune.CheckpointConfig(num_to_keep=2),
            verbose=0,
        ),
    )


def main() -> None:
    storage, kind, how = sys.argv[1:4]
    path = Path(storage) / "pbt"
    if tune.Tuner.can_restore(str(path)):
        tune.Tuner.restore(str(path), trainable=TRAINABLES[kind]).fit()
    else:
        tuner(storage, kind, how, pause_s=0.02).fit()


if __name__ == "__main__":
    main()
