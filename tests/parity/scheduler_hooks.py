"""Make the same calls of scheduler hooks under Ray Tune and muster: decisions, choices, debug strings.

PARITY_SYSTEM=ray python tests/parity/scheduler_hooks.py tests/parity/recorded/ray_hooks.json

Nothing fails and every milestone is met exactly: where it is not so, Ray's HyperBand leaves trials paused
forever, and ours does not follow it.
"""

from __future__ import annotations

import importlib
import json
import os
import random
import sys
from pathlib import Path

SEEDS = range(12)


class FakeTrial:
    """Has what a scheduler reads."""

    def __init__(self, trial_id):
        self.trial_id, self.status, self.is_saving = trial_id, "PENDING", False

    def is_finished(self):
        return self.status == "TERMINATED"


class FakeSearcher:
    def __init__(self):
        self.heard = []

    def on_pause(self, trial_id):
        self.heard.append(f"pause {trial_id}")

    def on_unpause(self, trial_id):
        self.heard.append(f"unpause {trial_id}")


class FakeSearch:
    def __init__(self):
        self.searcher = FakeSearcher()

    def is_finished(self):
        return True


class FakeController:
    """Carries everything out at once."""

    def __init__(self, scheduler, count):
        self.scheduler, self.search_alg, self.trials = scheduler, FakeSearch(), []
        for index in range(count):
            self.trials.append(FakeTrial(f"t{index}"))
            scheduler.on_trial_add(self, self.trials[-1])

    def get_trials(self):
        return list(self.trials)

    def get_live_trials(self):
        return {trial for trial in self.trials if not trial.is_finished()}

    def has_resources_for_trial(self, trial):
        return True

    def stop_trial(self, trial):
        if not trial.is_finished():
            self.scheduler.on_trial_remove(self, trial)
            trial.status = "TERMINATED"

    def report(self, trial, time, score):
        trial.status = "RUNNING"
        result = {"training_iteration": time, "score": score, "trial_id": trial.trial_id}
        decision = self.scheduler.on_trial_result(self, trial, result)
        if decision == "STOP":
            self.complete(trial, result)
        trial.status = {"STOP": "TERMINATED", "PAUSE": "PAUSED"}.get(decision, "RUNNING")
        budget = result.get("hyperband_info", {}).get("budget", "")
        return f"{trial.trial_id} {time} {decision} {budget}".strip()

    def complete(self, trial, result):
        self.scheduler.on_trial_complete(self, trial, result)
        trial.status = "TERMINATED"


def halvings(kind, seed):
    """Run some workers, one report at a time, until nothing can be chosen."""
    draw = random.Random(seed)
    max_t, eta = draw.choice([(9, 3), (8, 2), (27, 3), (10, 4)])
    mode, stop_last = draw.choice(["min", "max"]), draw.random() < 0.7
    scheduler = kind(metric="score", mode=mode, max_t=max_t, reduction_factor=eta, stop_last_trials=stop_last)
    controller = FakeController(scheduler, draw.randint(1, 40))
    workers, running, times, seen = draw.randint(1, 6), [], {}, []
    while True:
        while len(running) < workers and (trial := scheduler.choose_trial_to_run(controller)) is not None:
            seen.append(f"choose {trial.trial_id}")
            trial.status = "RUNNING"
            running.append(trial)
        if not running:
            break
        trial = running[draw.randrange(len(running))]
        times[trial] = times.get(trial, 0) + 1
        if times[trial] > 30:
            controller.complete(trial, {"training_iteration": 30, "score": 0})
        else:
            seen.append(controller.report(trial, times[trial], draw.randint(0, 1000)))
        running = [one for one in running if one.status == "RUNNING"]
    heard = controller.search_alg.searcher.heard
    return [*seen, *heard, *_sorted_statuses(scheduler.debug_string())]


def _sorted_statuses(debug_string):
    for line in debug_string.splitlines():
        before, brace, statuses = line.partition("{")
        yield before + brace + ", ".join(sorted(statuses.rstrip("} ").split(", ")))


def medians(kind, seed):
    """Run trials at different times, some of which end by themselves."""
    draw = random.Random(seed)
    scheduler = kind(
        time_attr="training_iteration",
        metric="score",
        mode=draw.choice(["min", "max"]),
        grace_period=draw.choice([0, 2, 3.5]),
        min_samples_required=draw.choice([1, 2, 3]),
        min_time_slice=draw.choice([0, 0, 3]),
        hard_stop=draw.random() < 0.6,
    )
    controller = FakeController(scheduler, draw.randint(2, 8))
    live, times, seen = list(controller.trials), {}, []
    for trial in live:
        trial.status = "RUNNING"
    while live:
        trial = draw.choice(live)
        times[trial] = times.get(trial, 0) + draw.choice([1, 1, 2, 0.5])
        if times[trial] > 12:
            controller.complete(trial, {"training_iteration": times[trial], "score": 25.0})
        else:
            seen.append(controller.report(trial, times[trial], round(draw.uniform(0, 50), 2)))
        live = [one for one in live if not one.is_finished()]
    return [*seen, scheduler.debug_string()]


def play(system):
    schedulers = importlib.import_module(f"{system}.tune.schedulers")
    scenes = (
        ("hyperband", halvings, schedulers.HyperBandScheduler),
        ("bohb", halvings, schedulers.HyperBandForBOHB),
        ("median", medians, schedulers.MedianStoppingRule),
    )
    return {f"{name}/{seed}": scene(kind, seed) for name, scene, kind in scenes for seed in SEEDS}


if __name__ == "__main__":
    played = play(os.environ["PARITY_SYSTEM"])
    Path(sys.argv[1]).write_text(json.dumps(played, indent=0) + "\n")
