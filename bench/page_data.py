"""Write experiments for `python -m bench page`: through the store, with the files that the loggers write."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.events import TrialAdmitted, TrialCreated, TrialExited, TrialReported, TrialStarted

MACHINES = 16
BEGAN = 1_794_900_000.0
SNAPSHOT_EVERY = 5_000  # trials
_VARIES = frozenset(
    ("loss", "accuracy", "training_iteration", "timestamp", "time_total_s", "time_since_restore")
) | {"iterations_since_restore"}


def write_experiment(place: Path, trials: int, results: int, *, began: float) -> None:
    """Write a finished experiment; a line of its logs has the keys of a real one."""
    os.makedirs(place, exist_ok=True)
    settings = {"metric": "loss", "mode": "min", "num_samples": trials, "scheduler": "FIFOScheduler"}
    with SqliteTrialStore(place) as store:
        store.save_settings(settings)
        for number in range(trials):
            store.append(trial_facts(number, results, began))
            log_results(place, number, results, began)
            if number % SNAPSHOT_EVERY == SNAPSHOT_EVERY - 1:
                store.snapshot(b"\x80", {})
        store.snapshot(b"\x80", {})


def trial_id(number: int) -> str:
    return f"be7c4_{number:06d}"


def config_of(number: int) -> dict[str, object]:
    stream = random.Random(number)
    return {
        "lr": 10 ** stream.uniform(-5, -1),
        "layers": stream.randint(1, 8),
        "activation": stream.choice(["relu", "tanh", "gelu"]),
        "dropout": stream.random() / 2,
        "batch": stream.choice([16, 32, 64]),
        "decay": 10 ** stream.uniform(-6, -2),
    }


def trial_facts(number: int, results: int, began: float) -> list[object]:
    """Return the facts of one trial; of its results the last one, as a snapshot keeps them."""
    name, config, at = trial_id(number), config_of(number), began + number * 0.3
    last = TrialReported(trial_id=name, at=at + results, result=result_of(number, results, config, began))
    return [
        TrialCreated(
            trial_id=name,
            at=at,
            config=config,
            evaluated_params=config,
            experiment_tag=f"{number}_x",
            trial_name=f"train_{name}",
            relative_logdir=f"train_{name}",
        ),
        TrialAdmitted(trial_id=name, at=at),
        TrialStarted(trial_id=name, at=at, location={"pid": 1, "node_ip": f"10.0.0.{number % MACHINES}"}),
        last,
        TrialExited(trial_id=name, at=at + results, is_done=True),
    ]


def _floor(config: dict[str, object]) -> float:
    return abs(math.log10(float(config["lr"])) + 2.5) * 0.2 + float(config["dropout"]) * 0.3


def _metrics(number: int, iteration: int, floor: float) -> tuple[float, float]:
    noise = (number * 7919 + iteration * 104729) % 997 / 20000
    return round(floor + 2 / (iteration + 1) + noise, 6), round(1 - floor / 2 - 0.5 / iteration, 6)


def result_of(number: int, iteration: int, config: dict[str, object], began: float) -> dict[str, object]:
    loss, accuracy = _metrics(number, iteration, _floor(config))
    return {
        "loss": loss,
        "accuracy": accuracy,
        "training_iteration": iteration,
        "timestamp": int(began + iteration),
        "time_total_s": iteration * 1.0,
        "time_this_iter_s": 1.0,
        "done": False,
        "trial_id": trial_id(number),
        "date": "2026-11-17_10-00-00",
        "pid": 1,
        "hostname": "host",
        "node_ip": f"10.0.0.{number % MACHINES}",
        "config": config,
        "time_since_restore": iteration * 1.0,
        "iterations_since_restore": iteration,
        "experiment_tag": f"{number}_x",
    }


def log_results(place: Path, number: int, results: int, began: float) -> None:
    """Write a trial's result.json, a `result_of` per line; what stays the same is encoded once."""
    folder, config = place / f"train_{trial_id(number)}", config_of(number)
    folder.mkdir(exist_ok=True)
    same = {key: value for key, value in result_of(number, 1, config, began).items() if key not in _VARIES}
    tail = json.dumps(same)[1:]
    floor = _floor(config)
    with open(folder / "result.json", "w", encoding="utf-8") as stream:
        for each in range(1, results + 1):
            loss, accuracy = _metrics(number, each, floor)
            stream.write(
                f'{{"loss": {loss}, "accuracy": {accuracy}, "training_iteration": {each}, '
                f'"timestamp": {int(began + each)}, "time_total_s": {each}.0, '
                f'"time_since_restore": {each}.0, "iterations_since_restore": {each}, {tail}\n'
            )
