"""Run what ends trials: criteria, functions, stoppers, schedulers; and the order of the hooks."""

from __future__ import annotations

import seen
from system import fit, part, tune


def endless(config):
    step = 0
    while True:
        step += 1
        tune.report({"score": config["x"] * step, "deep": {"steps": step}})


def criteria():
    return {
        name: seen.grid(fit(f"criteria_{name}", endless, {"x": 1.5}, stop=stop))
        for name, stop in {
            "iterations": {"training_iteration": 2},
            "nested": {"deep/steps": 3},
            "function": lambda trial_id, result: result["score"] > 4,
            "stopper": part("stopper").MaximumIterationStopper(2),
        }.items()
    }


def learner(config):
    for step in range(8):
        tune.report({"score": config["x"] * (step + 1)})


def asha():
    scheduler = part("schedulers").ASHAScheduler(max_t=8, grace_period=1, reduction_factor=2)
    found = fit(
        "asha",
        learner,
        {"x": tune.grid_search([5, 9, 1, 7, 10, 3, 8])},
        tune_config={
            "scheduler": scheduler,
            "metric": "score",
            "mode": "max",
            "max_concurrent_trials": 1,
            "reuse_actors": True,
        },
    )
    return {
        "steps": [[each.config["x"], each.metrics["training_iteration"]] for each in found],
        **seen.grid(found),
        "debug": scheduler.debug_string(),
    }


class Diary(tune.Callback):
    """Records which hook was called for which trial."""

    def __init__(self):
        self.lines = []

    def _note(self, hook, trial=None, *more):
        number = [] if trial is None else [seen.named(trial.trial_id), trial.status]
        self.lines.append([hook, *number, *more])

    def setup(self, stop=None, num_samples=None, total_num_samples=None, **info):
        self._note("setup", None, stop, num_samples, total_num_samples)

    def on_trial_start(self, iteration, trials, trial, **info):
        self._note("start", trial)

    def on_trial_result(self, iteration, trials, trial, result, **info):
        self._note("result", trial, result["training_iteration"], result["done"])

    def on_trial_complete(self, iteration, trials, trial, **info):
        self._note("complete", trial, trial.last_result.get("done"))

    def on_trial_error(self, iteration, trials, trial, **info):
        self._note("error", trial, trial.num_failures)

    def on_trial_recover(self, iteration, trials, trial, **info):
        self._note("recover", trial)

    def on_trial_save(self, iteration, trials, trial, **info):
        self._note("save", trial)

    def on_checkpoint(self, iteration, trials, trial, checkpoint, **info):
        self._note("checkpoint", trial)

    def on_experiment_end(self, trials, **info):
        self._note("end", None, len(trials))


class Steps(tune.Trainable):
    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        if self.config["x"] == 2 and self.at == 2:
            raise ValueError("two is bad")
        return {"at": self.at, "done": self.at == 3}

    def save_checkpoint(self, checkpoint_dir):
        return {"at": self.at}

    def load_checkpoint(self, checkpoint):
        self.at = checkpoint["at"]


def hooks():
    diary = Diary()
    fit(
        "hooks",
        Steps,
        {"x": tune.grid_search([1, 2])},
        tune_config={"max_concurrent_trials": 1},
        callbacks=[diary],
        checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=2),
        stop={"at": 5},
    )
    return diary.lines


class Witness(part("schedulers").FIFOScheduler):
    """Records which hooks were called."""

    def __init__(self):
        super().__init__()
        self.lines = []

    def on_trial_add(self, controller, trial):
        self.lines.append(["add", seen.named(trial.trial_id), trial.status])

    def on_trial_result(self, controller, trial, result):
        self.lines.append(["result", seen.named(trial.trial_id), result["training_iteration"]])
        if trial.config["x"] == 3 and result["training_iteration"] == 2:
            return self.STOP
        return self.CONTINUE

    def on_trial_complete(self, controller, trial, result):
        self.lines.append(["complete", seen.named(trial.trial_id), result["training_iteration"]])

    def on_trial_error(self, controller, trial):
        self.lines.append(["error", seen.named(trial.trial_id), trial.status])

    def on_trial_remove(self, controller, trial):
        self.lines.append(["remove", seen.named(trial.trial_id)])


def scheduler_hooks():
    witness = Witness()
    found = fit(
        "scheduler_hooks",
        Steps,
        {"x": tune.grid_search([1, 2, 3])},
        tune_config={"scheduler": witness, "max_concurrent_trials": 1},
    )
    return {"lines": witness.lines, "steps": [each.metrics.get("at") for each in found]}


def fails_first(config):
    if config["x"] == 1:
        raise ValueError("first")
    tune.report({"loss": 1})


def fail_fast():
    outcome = {}
    for how in (True, "raise"):
        outcome[str(how)] = seen.raised(
            lambda how=how: [
                each.error is None
                for each in fit(
                    f"fail_fast_{how}",
                    fails_first,
                    {"x": tune.grid_search([1, 2])},
                    tune_config={"max_concurrent_trials": 1},
                    failure_config=tune.FailureConfig(fail_fast=how),
                )
            ]
        )
    return outcome


class Resettable(tune.Trainable):
    """Does not say how often it was reset: that depends on which process is free first."""

    def setup(self, config):
        self.at = 0

    def step(self):
        self.at += 1
        return {"at": self.at, "x": self.config["x"]}

    def reset_config(self, new_config):
        self.at = 0
        return True


def reuse():
    found = fit(
        "reuse",
        Resettable,
        {"x": tune.grid_search([1, 2, 3])},
        tune_config={"max_concurrent_trials": 1, "reuse_actors": True},
        stop={"at": 2},
        checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
    )
    return seen.grid(found)


def metric_that_is_missing():
    return {
        "raised": seen.raised(
            fit, "missing", learner, {"x": 1}, tune_config={"metric": "other", "mode": "max"}
        )
    }


SCENARIOS = (
    criteria,
    asha,
    hooks,
    scheduler_hooks,
    fail_fast,
    reuse,
    metric_that_is_missing,
)
