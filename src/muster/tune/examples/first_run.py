"""The first run after the install: tunes a small neural network in numpy and draws what was found.

`muster tune demo [DIRECTORY]` runs it. It needs nothing beyond the base install, and takes a few seconds.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np

from muster import tune
from muster.tune.schedulers import ASHAScheduler

if TYPE_CHECKING:
    from muster.tune.result_grid import ResultGrid

EPOCHS = 27
TRIALS = 24
NAME = "demo"


def two_spirals(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return points on two spirals around each other, and on which one each of them is."""
    rng = np.random.default_rng(seed)
    turn = np.sqrt(rng.uniform(0.05, 1, count)) * 3.2 * np.pi
    which = rng.integers(0, 2, count)
    angle = turn + which * np.pi
    points = np.stack([np.cos(angle), np.sin(angle)], axis=1) * turn[:, None] / 10
    return points + rng.normal(0, 0.05, points.shape), which.astype(float)


def train(config: dict[str, Any]) -> None:
    """Train a network with one hidden layer, and reports its accuracy on other points after each epoch."""
    x, y = two_spirals(1200, seed=1)
    held_out, answers = two_spirals(600, seed=2)
    rng = np.random.default_rng(0)
    width = config["width"]
    weights = [rng.normal(0, 2.0, (3, width)), rng.normal(0, 1.0, (width + 1, 1)) / np.sqrt(width)]
    speed = [np.zeros_like(each) for each in weights]
    for _ in range(EPOCHS):
        for batch in np.array_split(rng.permutation(len(x)), len(x) // config["batch"]):
            for layer, slope in enumerate(_slopes(weights, x[batch], y[batch])):
                speed[layer] = config["momentum"] * speed[layer] - config["learning_rate"] * slope
                weights[layer] = weights[layer] + speed[layer]
        guess = _outputs(weights, held_out)[1]
        tune.report({"accuracy": float(np.mean((guess > 0.5) == (answers > 0.5)))})


def _outputs(weights: list[np.ndarray], x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    inner = np.concatenate([x * 4, np.ones((len(x), 1))], axis=1)
    hidden = np.concatenate([np.tanh(inner @ weights[0]), np.ones((len(x), 1))], axis=1)
    return hidden, 1 / (1 + np.exp(-np.clip(hidden @ weights[1], -30, 30)))[:, 0]


def _slopes(weights: list[np.ndarray], x: np.ndarray, y: np.ndarray) -> list[np.ndarray]:
    hidden, guess = _outputs(weights, x)
    error = (guess - y)[:, None] / len(x)
    inner = np.concatenate([x * 4, np.ones((len(x), 1))], axis=1)
    back = (error @ weights[1][:-1].T) * (1 - hidden[:, :-1] ** 2)
    return [inner.T @ back, hidden.T @ error]


def main(directory: str) -> ResultGrid:
    """Run the experiment in `directory`, print the best settings and draws the plot."""
    tuner = tune.Tuner(
        train,
        param_space={
            "learning_rate": tune.loguniform(1e-3, 3),
            "momentum": tune.uniform(0, 0.95),
            "width": tune.choice([8, 32, 128]),
            "batch": tune.choice([16, 64]),
        },
        tune_config=tune.TuneConfig(
            metric="accuracy",
            mode="max",
            num_samples=TRIALS,
            search_alg="auto",
            scheduler=ASHAScheduler(max_t=EPOCHS, grace_period=3),
        ),
        run_config=tune.RunConfig(name=NAME, storage_path=os.path.abspath(directory)),
    )
    return tuner.fit()
