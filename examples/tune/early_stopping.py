"""Compares forty configurations trained for all epochs with the same forty under ASHA.

python examples/tune/early_stopping.py [DIRECTORY]
"""

from __future__ import annotations

import math
import sys
import tempfile

from muster import tune
from muster.tune.schedulers import ASHAScheduler, FIFOScheduler
from muster.tune.search import BasicVariantGenerator

EPOCHS = 27


def train(config: dict) -> None:
    """Reports a learning curve that falls towards a floor, which depends on the configuration."""
    floor = (math.log10(config["lr"]) + 2) ** 2
    for epoch in range(1, EPOCHS + 1):
        tune.report({"loss": floor + 3 / epoch})


def run(storage: str, name: str, scheduler: object) -> tuple[float, int]:
    """Returns the best loss and the number of epochs that were trained."""
    tuner = tune.Tuner(
        train,
        param_space={"lr": tune.loguniform(1e-5, 1.0)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=40,
            search_alg=BasicVariantGenerator(random_state=1),  # the same configurations in both runs
            scheduler=scheduler,
        ),
        run_config=tune.RunConfig(name=name, storage_path=storage, verbose=0),
    )
    grid = tuner.fit()
    epochs = sum(result.metrics["training_iteration"] for result in grid)
    return grid.get_best_result().metrics["loss"], epochs


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    schedulers = {
        "every epoch": FIFOScheduler(),
        "ASHA": ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
    }
    for name, scheduler in schedulers.items():
        loss, epochs = run(storage, name.replace(" ", "_"), scheduler)
        print(f"{name:12} best loss {loss:.3f} after {epochs} epochs")


if __name__ == "__main__":
    main()
