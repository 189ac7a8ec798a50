"""Run population based training without chance: which trial copies which, what is logged, its replay."""

from __future__ import annotations

import json
from pathlib import Path

import seen
from system import ROOT, fit, part, tune


class Climber(tune.Trainable):
    """Each step adds `lr`."""

    def setup(self, config):
        self.x = 0

    def step(self):
        self.x += self.config["lr"]
        return {"score": self.x}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "x.txt").write_text(str(self.x))

    def load_checkpoint(self, checkpoint):
        self.x = int(Path(checkpoint, "x.txt").read_text())


def _population(name, mutations, **more):
    schedulers = part("schedulers")
    asked = {
        "time_attr": "training_iteration",
        "perturbation_interval": 3,
        "hyperparam_mutations": mutations,
        "resample_probability": 0,
        "quantile_fraction": 0.5,
        "synch": True,
        **more,
    }
    return fit(
        name,
        Climber,
        {"lr": tune.grid_search([1, 5])},
        tune_config={
            "metric": "score",
            "mode": "max",
            "scheduler": schedulers.PopulationBasedTraining(**asked),
        },
        stop={"training_iteration": 8},
    )


def _left(grid, name):
    files = sorted(path for path in (ROOT / name).iterdir() if path.name.startswith("pbt_"))
    return {
        "ends": [[result.metrics[key] for key in ("score", "training_iteration")] for result in grid],
        "configs": [result.config for result in grid],
        "tags": [seen.named(result.metrics["experiment_tag"]) for result in grid],
        "policies": {
            seen.named(path.name): [_row(line) for line in path.read_text().splitlines()] for path in files
        },
    }


def _row(line):
    """Without the iterations: Ray's are now and then those of the result before."""
    target, clone, _, _, old, new = json.loads(line)
    return [target, clone, old, new]


def populations():
    """The worse one becomes the better one twice; the list of values has only one, so it cannot move."""
    found = {
        "one value": _left(_population("pbt_one", {"lr": [5]}), "pbt_one"),
        "own function": _left(
            _population("pbt_own", {}, custom_explore_fn=lambda config: {**config, "lr": config["lr"] + 2}),
            "pbt_own",
        ),
        "nobody": _left(_population("pbt_nobody", {"lr": [5]}, quantile_fraction=0), "pbt_nobody"),
    }
    policy = next(iter(sorted((ROOT / "pbt_own").glob("pbt_policy_*"))))
    again = fit(
        "pbt_again",
        Climber,
        {"lr": 1},
        tune_config={"scheduler": part("schedulers").PopulationBasedTrainingReplay(str(policy))},
        stop={"training_iteration": 8},
    )
    left = _left(again, "pbt_again")
    found["replay"] = {"configs": left["configs"], "tags": left["tags"]}
    return found


SCENARIOS = (populations,)
