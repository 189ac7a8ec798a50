"""Run checkpoints, failures and resuming: which directories stay, what a trial finds, what is counted."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import seen
from system import ROOT, fit, part, tune


class Counter(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"at": self.at, "score": -self.at}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "at.txt").write_text(str(self.at))

    def load_checkpoint(self, checkpoint):
        self.at = int(Path(checkpoint, "at.txt").read_text())


def class_checkpoints():
    config = tune.CheckpointConfig
    return {
        name: seen.grid(
            fit(f"class_{number}", Counter, stop={"training_iteration": 5}, checkpoint_config=options)
        )
        for number, (name, options) in enumerate(
            {
                "nothing said": None,
                "every second": config(checkpoint_frequency=2),
                "every second, not at the end": config(checkpoint_frequency=2, checkpoint_at_end=False),
                "best two": config(checkpoint_frequency=1, num_to_keep=2, checkpoint_score_attribute="score"),
            }.items()
        )
    }


def scored(config):
    for score in (0, 2, 4, 1, 3, 0):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "score").write_text(str(score))
            tune.report({"score": score}, checkpoint=tune.Checkpoint.from_directory(folder))
    tune.report({"score": -1})


def retention():
    found = {}
    for order in ("max", "min"):
        options = tune.CheckpointConfig(
            num_to_keep=2, checkpoint_score_attribute="score", checkpoint_score_order=order
        )
        result = fit(f"retention_{order}", scored, checkpoint_config=options)
        best = result[0].get_best_checkpoint("score", "max")
        found[order] = {**seen.grid(result), "best": Path(best.path).name}
    newest = fit("retention_newest", scored, checkpoint_config=tune.CheckpointConfig(num_to_keep=2))
    found["newest"] = seen.grid(newest)
    return found


def fragile(config):
    start = 0
    checkpoint = tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "step").read_text()) + 1
    for step in range(start, 6):
        if step in config["fails_at"]:
            marker = Path(config["markers"], str(step))
            if not marker.exists():
                marker.touch()
                raise RuntimeError(f"no luck at {step}")
        if step % 2 == 0:
            with tempfile.TemporaryDirectory() as folder:
                Path(folder, "step").write_text(str(step))
                tune.report({"step": step, "from": start}, checkpoint=tune.Checkpoint(folder))
        else:
            tune.report({"step": step, "from": start})


def _markers(name):
    folder = ROOT / f"markers_{name}"
    folder.mkdir()
    return str(folder)


def retries():
    space = {"markers": _markers("retries"), "fails_at": [2, 5]}
    found = fit("retries", fragile, space, failure_config=tune.FailureConfig(max_failures=2))
    return seen.grid(found)


def too_many_failures():
    space = {"markers": _markers("too_many"), "fails_at": [2, 5]}
    found = fit("too_many", fragile, space, failure_config=tune.FailureConfig(max_failures=1))
    return seen.grid(found)


def bad(config):
    if config["x"] == "at once":
        raise ValueError("at once")
    tune.report({"loss": 1})
    if config["x"] == "later":
        raise KeyError("later")
    if config["x"] == "dies":
        os._exit(3)


def failures():
    found = fit("failures", bad, {"x": tune.grid_search(["at once", "later", "never"])})
    return {**seen.grid(found), "types": sorted(seen.failure(error) for error in found.errors)}


def restored():
    """An errored trial resumed from its checkpoint, and another one restarted."""
    outcomes = {}
    for how in ("resume_errored", "restart_errored", "neither"):
        space = {"markers": _markers(how), "fails_at": tune.grid_search([[3], [9]])}
        first = fit(f"restored_{how}", fragile, space, tune_config={"max_concurrent_trials": 1})
        flags = {} if how == "neither" else {how: True}
        path = str(ROOT / f"restored_{how}")
        again = tune.Tuner.restore(path, fragile, **flags).fit()
        outcomes[how] = {
            "first": first.num_errors,
            # Ray moves a retried trial to the end.
            **seen.grid(again, order=lambda result: result.config["fails_at"]),
        }
    outcomes["other trainable"] = seen.raised(tune.Tuner.restore, path, bad)
    outcomes["no such place"] = seen.raised(tune.Tuner.restore, str(ROOT / "nowhere"), fragile)
    outcomes["can"] = [tune.Tuner.can_restore(path), tune.Tuner.can_restore(str(ROOT / "nowhere"))]
    return outcomes


def runs():
    """tune.run: class with deprecated options, an analysis, a failing trial, a checkpoint to begin with."""
    import warnings

    warnings.simplefilter("ignore")
    common = {"storage_path": str(ROOT), "verbose": 0}
    found = tune.run(
        Counter,
        name="runs",
        metric="at",
        mode="max",
        stop={"training_iteration": 3},
        config={"x": tune.grid_search([1, 2])},
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        max_concurrent_trials=1,
        **common,
    )
    last = found.get_last_checkpoint(found.trials[0])
    more = tune.run(Counter, name="more", stop={"training_iteration": 5}, restore=last.path, **common)
    bad_one = seen.raised(tune.run, bad, name="bad", config={"x": "at once"}, **common)
    quiet = tune.run(bad, name="quiet", config={"x": "at once"}, raise_on_failed_trial=False, **common)
    read = part("analysis").ExperimentAnalysis(str(ROOT / "runs"), default_metric="at", default_mode="max")
    return {
        "best": [
            seen.plain(found.best_config),
            seen.row(found.best_result),
            Path(found.best_checkpoint.path).name,
        ],
        "configs": sorted(config["x"] for config in found.get_all_configs().values()),
        "columns": seen.columns(found.dataframe().columns),
        "results": [row["at"] for row in found.results.values()],
        "statuses": [trial.status for trial in found.trials],
        "last": Path(last.path).name,
        "restored": [seen.row(trial.last_result) for trial in more.trials],
        "bad": bad_one,
        "quiet": [trial.status for trial in quiet.trials],
        "read": [seen.plain(read.best_config), len(read.trials), read.best_trial.status],
        "files": seen.files(
            ROOT / "runs" / next(p.name for p in sorted((ROOT / "runs").iterdir()) if p.is_dir())
        ),
    }


SCENARIOS = (class_checkpoints, retention, retries, too_many_failures, failures, restored, runs)
