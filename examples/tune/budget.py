"""Ends an experiment by its budget of a few cents, then continues it with more.

python examples/tune/budget.py [DIRECTORY]
"""

from __future__ import annotations

import os
import sys
import tempfile
import time

from muster import tune

PRICE_PER_HOUR = 18.0  # of this machine, made up: half a cent for each second


class Model(tune.Trainable):
    """Trains in steps of a twentieth of a second."""

    def setup(self, config: dict) -> None:
        self.lr, self.steps = config["lr"], 0

    def step(self) -> dict:
        time.sleep(0.05)
        self.steps += 1
        return {"loss": abs(self.lr - 0.1) + 1 / self.steps}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        with open(os.path.join(checkpoint_dir, "steps"), "w") as file:
            file.write(str(self.steps))

    def load_checkpoint(self, checkpoint: str) -> None:
        with open(os.path.join(checkpoint, "steps")) as file:
            self.steps = int(file.read())


def show(grid: tune.ResultGrid) -> None:
    done = sum(result.metrics.get("training_iteration") == 10 for result in grid)
    end = f"ended by its {grid.ended_by}" if grid.ended_by else "finished"
    print(f"{end}: {done} of {len(grid)} trials, ${grid.cost_usd:.3f}, {grid.num_errors} errors")


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    tuner = tune.Tuner(
        Model,
        param_space={"lr": tune.loguniform(1e-3, 1.0)},
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=8, cost_budget=0.006),
        run_config=tune.RunConfig(
            name="budget",
            storage_path=storage,
            verbose=0,
            stop={"training_iteration": 10},
            price_per_hour=PRICE_PER_HOUR,
        ),
    )
    show(tuner.fit())
    show(tune.Tuner.restore(os.path.join(storage, "budget"), Model, cost_budget=1.0).fit())


if __name__ == "__main__":
    main()
