"""Experiments to draw, as the loggers write them."""

from __future__ import annotations

import math
import random
from pathlib import Path

from tests.tune.experiments import logged_row, write_json

from muster.tune.analysis.trial_record import TrialRecord


def experiment(root: Path, count: int, steps: int, *, names: int = 0) -> list[TrialRecord]:
    """Trials with numbers, categories, nested, conditional and constant parameters; some end badly."""
    stream = random.Random(5)
    return [_trial(root, f"t{n:04d}", n, steps, names, stream) for n in range(count)]


def _trial(root: Path, trial_id: str, n: int, steps: int, names: int, stream: random.Random) -> TrialRecord:
    rate = 10 ** stream.uniform(-5, -1)
    config = {
        "lr": rate,
        "net": {"width": stream.choice([16, 32, 64])},
        "bn": stream.random() < 0.5,
        "seed": 1,
    }
    config["opt"] = stream.choice(["adam", "sgd"])
    if config["opt"] == "sgd":
        config["momentum"] = stream.uniform(0.5, 0.99)
    config["very"] = {f"long_section/{'parameter_' * 6}{k}": stream.random() for k in range(names)}
    bad = abs(math.log10(rate) + 3)
    last = steps if bad < 1 else max(1, steps // 3)
    rows = [
        logged_row(trial_id, step, config, loss=bad + 1 / step, val={"acc": 1 / (1 + bad)})
        for step in range(1, last + 1)
    ]
    if n % 23 == 7:
        rows[-1]["loss"] = math.nan
    if n % 29 == 3:
        rows[-1]["loss"] = math.inf
    write_json(root / trial_id, rows)
    status = "ERROR" if n % 17 == 5 else "TERMINATED"
    return TrialRecord(
        trial_id=trial_id, status=status, path=str(root / trial_id), config=config, last_result=rows[-1]
    )


def silent(trial_id: str, root: Path, **more) -> TrialRecord:
    """A trial that has not reported."""
    return TrialRecord(
        trial_id=trial_id,
        status="PENDING",
        path=str(root / trial_id),
        last_result={"trial_id": trial_id},
        **more,
    )
