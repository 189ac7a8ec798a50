"""A script whose configs and results hold objects of classes that it defines; tests run it as `__main__`.

Usage: python main_classes.py FOLDER: begins or resumes. Trials wait at step 2 while FOLDER/wait exists.
"""

from __future__ import annotations

import enum
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from muster import tune


class Mode(enum.Enum):
    SLOW = "slow"
    FAST = "fast"


class Layer:
    """Refers to Model, which refers to it."""

    def __init__(self, width: int) -> None:
        self.width = width

    def model(self) -> Model:
        return Model((self,))


@dataclass(frozen=True)
class Model:
    layers: tuple[Layer, ...]

    def deeper(self) -> Model:
        return Model((*self.layers, Layer(1)))


@dataclass(frozen=True)
class Outcome:
    mode: Mode
    width: int


def half(width):
    return width / 2


def train(config):
    mode, model = config["mode"], config["model"]
    assert mode in (Mode.SLOW, Mode.FAST)
    assert isinstance(model, Model)
    assert model == Layer.model(model.layers[0])
    for step in (1, 2):
        while step == 2 and Path(config["folder"], "wait").exists():
            time.sleep(0.01)
        width = sum(layer.width for layer in model.deeper().layers)
        speed = 2.0 if mode is Mode.FAST else 1.0
        tune.report({"score": speed * config["scale"](width), "outcome": Outcome(mode, width), "step": step})


def main(folder: Path) -> None:
    if tune.Tuner.can_restore(folder / "exp"):
        tuner = tune.Tuner.restore(folder / "exp", train)
    else:
        space = {
            "mode": tune.grid_search(list(Mode)),
            "model": tune.choice([Model((Layer(3),))]),
            "scale": half,
            "folder": str(folder),
        }
        run = tune.RunConfig(name="exp", storage_path=str(folder), verbose=0)
        tuner = tune.Tuner(train, param_space=space, run_config=run)
    grid = tuner.fit()
    sys.stdout.write(f"scores {[result.metrics['score'] for result in grid]}\n")
    for result, mode in zip(grid, Mode, strict=True):
        assert result.error is None
        assert result.config["mode"] is mode
        assert isinstance(result.config["model"], Model)
        assert result.metrics["outcome"] == Outcome(mode, 4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
