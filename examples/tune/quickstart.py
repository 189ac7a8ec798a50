"""Tunes a neural network that reads handwritten digits; ASHA stops the bad trials early.

python examples/tune/quickstart.py [DIRECTORY]

The script needs scikit-learn and matplotlib (pip install "muster-ml[quickstart]") and takes less than a
minute on two cores. Stop it with Ctrl-C and start it again with the same directory: the experiment resumes.
"""

from __future__ import annotations

import os
import pickle
import sys
import tempfile
from pathlib import Path

# Imports at the top run once, before trials are forked; imports in `train` would run in each trial.
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

from muster import tune
from muster.tune.schedulers import ASHAScheduler

EPOCHS = 27


def train(config: dict, data: tuple) -> None:
    """Trains for up to 27 epochs on the digits of scikit-learn, with a checkpoint at every third."""
    x, x_held_out, y, y_held_out = data
    model, epoch = _resumed() or (
        MLPClassifier(
            hidden_layer_sizes=(config["width"],) * config["layers"],
            learning_rate_init=config["learning_rate"],
            batch_size=config["batch_size"],
            alpha=config["alpha"],
            random_state=0,
        ),
        0,
    )
    while epoch < EPOCHS:
        epoch += 1
        model.partial_fit(x, y, classes=range(10))
        metrics = {"accuracy": model.score(x_held_out, y_held_out), "loss": model.loss_}
        if epoch % 3:
            tune.report(metrics)
        else:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "model.pkl").write_bytes(pickle.dumps((model, epoch)))
                tune.report(metrics, checkpoint=tune.Checkpoint.from_directory(folder))


def _resumed() -> tuple | None:
    """Returns the model and the epoch of the checkpoint, or None in a new trial."""
    checkpoint = tune.get_checkpoint()
    if checkpoint is None:
        return None
    with checkpoint.as_directory() as folder:
        return pickle.loads(Path(folder, "model.pkl").read_bytes())


def make_tuner(storage: str) -> tune.Tuner:
    """Returns a new experiment, or the one that was interrupted."""
    images, digits = load_digits(return_X_y=True)
    data = train_test_split(images / 16, digits, test_size=0.3, random_state=0)
    trainable = tune.with_parameters(train, data=data)
    unfinished = Path(storage, "digits")
    if tune.Tuner.can_restore(unfinished):
        return tune.Tuner.restore(unfinished, trainable)
    return tune.Tuner(
        trainable,
        param_space={
            "learning_rate": tune.loguniform(1e-5, 1e-1),
            "alpha": tune.loguniform(1e-6, 1e-1),
            "width": tune.choice([8, 16, 32, 64]),
            "layers": tune.randint(1, 4),
            "batch_size": tune.choice([32, 64, 128]),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=40,
            search_alg="auto",
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=1, reduction_factor=3),
        ),
        run_config=tune.RunConfig(
            name="digits",
            storage_path=storage,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_score_attribute="accuracy"),
        ),
    )


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    grid = make_tuner(storage).fit()
    if grid.num_terminated < len(grid):
        return  # interrupted: `fit` has printed how to resume
    best = grid.get_best_result()
    epochs = sum(result.metrics["training_iteration"] for result in grid)
    print(f"\nBest accuracy on held-out digits: {best.metrics['accuracy']:.3f}")
    for name, value in best.config.items():
        print(f"  {name:14} {value:.3g}" if isinstance(value, float) else f"  {name:14} {value}")
    print(f"Epochs trained: {epochs} of {len(grid) * EPOCHS}; early stopping saved the rest.")
    print(f"Plot:           {grid.plot()}")
    muster = f"{os.path.relpath(sys.executable)} -m muster"  # just `muster` once .venv is activated
    print("\nWhat to try next")
    print(f"  {muster} tune ls {grid.experiment_path}")
    print(f"  {muster} tune best {grid.experiment_path}")
    print("  examples/tune/  contains the class API, Optuna, callbacks, and resuming after a kill")
    print(f"  {muster} sim day  simulates a day of an autoscaled cluster")


if __name__ == "__main__":
    main()
