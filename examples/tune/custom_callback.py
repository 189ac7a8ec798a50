"""Shows how to write a callback: it logs each new best result to a file, and its state survives a restart.

python examples/tune/custom_callback.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from muster import tune


class BestResultLog(tune.Callback):
    """A callback's methods are called by keyword on the control thread: keep them short."""

    def __init__(self, file: str) -> None:
        self.file, self.best = file, float("inf")

    def on_trial_result(
        self, iteration: int, trials: list, trial: object, result: dict, **info: object
    ) -> None:
        if result["loss"] < self.best:
            self.best = result["loss"]
            self._write(f"{trial}: loss {self.best:.4f} at step {result['training_iteration']}")

    def on_trial_error(self, iteration: int, trials: list, trial: object, **info: object) -> None:
        self._write(f"{trial}: failed")

    def on_experiment_end(self, trials: list, **info: object) -> None:
        self._write(f"finished after {len(trials)} trials")

    def get_state(self) -> dict:
        """Returns the state that is saved with the experiment, so that old results are not logged again."""
        return {"best": self.best}

    def set_state(self, state: dict) -> None:
        self.best = state["best"]

    def _write(self, line: str) -> None:
        with open(self.file, "a", encoding="utf-8") as file:
            file.write(f"{line}\n")


def train(config: dict) -> None:
    if config["x"] == 4:
        raise ValueError("four is not allowed")
    for step in range(1, 6):
        tune.report({"loss": abs(config["x"] - 2.5) / step})


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    log = str(Path(storage, "best_results.txt"))
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([0, 1, 2, 3, 4])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(
            name="callback", storage_path=storage, verbose=0, callbacks=[BestResultLog(log)]
        ),
    ).fit()
    print(Path(log).read_text(), end="")


if __name__ == "__main__":
    main()
