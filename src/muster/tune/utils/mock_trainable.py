"""Define Ray's trainable without a model: its reward rises with each step, along a hyperbolic tangent."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from muster.tune.registry import register_trainable
from muster.tune.trainable.trainable import Trainable

MOCK_TRAINABLE_NAME = "mock_trainable"
MOCK_ERROR_KEY = "mock_error"


class MyTrainableClass(Trainable):
    """Learns nothing; `width` and `height` in its config shape the curve of its reward.

    With MOCK_ERROR_KEY set in the config, every step after the first fails.

    Example:
        >>> MyTrainableClass({"height": 2}).train()["episode_reward_mean"] < 2
        True
    """

    def setup(self, config: dict[str, Any]) -> None:
        self.timestep = 0

    def step(self) -> dict[str, Any]:
        if self.config.get(MOCK_ERROR_KEY) and self.timestep > 0:
            raise RuntimeError(f"Failing on purpose! {self.timestep=}")
        self.timestep += 1
        height = float(self.config.get("height", 1))
        return {"episode_reward_mean": height * math.tanh(self.timestep / float(self.config.get("width", 1)))}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "checkpoint").write_text(json.dumps({"timestep": self.timestep}), "utf-8")

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.timestep = json.loads(Path(checkpoint_dir, "checkpoint").read_text("utf-8"))["timestep"]


def register_mock_trainable() -> None:
    """Register the class under MOCK_TRAINABLE_NAME."""
    register_trainable(MOCK_TRAINABLE_NAME, MyTrainableClass)
