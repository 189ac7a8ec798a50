"""Shows the class API: setup, step, save, load. Each trial fails once and resumes from its checkpoint.

python examples/tune/class_api.py [DIRECTORY]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from muster import tune


class Descent(tune.Trainable):
    """A Descent runs gradient descent on a parabola and fails once after its fifth iteration."""

    def setup(self, config: dict) -> None:
        self.x, self.rate = 10.0, config["rate"]
        self.is_first_attempt = True

    def step(self) -> dict:
        if self.iteration == 5 and self.is_first_attempt:
            raise RuntimeError("a simulated failure")
        self.x -= self.rate * 2 * self.x
        return {"loss": self.x**2}

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        Path(checkpoint_dir, "state.json").write_text(json.dumps({"x": self.x}))

    def load_checkpoint(self, checkpoint_dir: str) -> None:
        self.x = json.loads(Path(checkpoint_dir, "state.json").read_text())["x"]
        self.is_first_attempt = False


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    tuner = tune.Tuner(
        Descent,
        param_space={"rate": tune.grid_search([0.01, 0.1, 0.4, 1.1])},
        tune_config=tune.TuneConfig(metric="loss", mode="min"),
        run_config=tune.RunConfig(
            name="descent",
            storage_path=storage,
            stop={"training_iteration": 12},
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2, num_to_keep=2),
            failure_config=tune.FailureConfig(max_failures=1),
        ),
    )
    grid = tuner.fit()
    best = grid.get_best_result()
    print(f"best loss {best.metrics['loss']:.2g} with {best.config}")
    print(f"newest checkpoint of the best trial: {best.checkpoint.path}")
    print(f"trials that ended with an error: {grid.num_errors}")


if __name__ == "__main__":
    main()
