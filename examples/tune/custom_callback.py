"""A callback of one's own: writes a line to a diary when the best result changes; survives a restart.

python examples/tune/custom_callback.py [DIRECTORY]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from muster import tune


class Diary(tune.Callback):
    """Hooks are called by keyword on the control thread: keep them short."""

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
        self._write(f"the end, after {len(trials)} trials")

    def get_state(self) -> dict:
        """Saved with the experiment, so that a restored one does not praise old results anew."""
        return {"best": self.best}

    def set_state(self, state: dict) -> None:
        self.best = state["best"]

    def _write(self, line: str) -> None:
        with open(self.file, "a", encoding="utf-8") as diary:
            diary.write(f"{line}\n")


def train(config: dict) -> None:
    if config["x"] == 4:
        raise ValueError("four is not allowed")
    for step in range(1, 6):
        tune.report({"loss": abs(config["x"] - 2.5) / step})


def main() -> None:
    storage = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="muster-")
    diary = str(Path(storage, "diary.txt"))
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([0, 1, 2, 3, 4])},
        tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=1),
        run_config=tune.RunConfig(name="diary", storage_path=storage, verbose=0, callbacks=[Diary(diary)]),
    ).fit()
    print(Path(diary).read_text(), end="")


if __name__ == "__main__":
    main()
