"""Trial directories with known results, as the loggers write them, for tests of Result and its readers."""

from __future__ import annotations

import csv
import json
import pickle
from pathlib import Path

from muster.trials.metrics import flatten
from muster.trials.model import CheckpointRef
from muster.tune.analysis.trial_record import TrialRecord


def logged_row(trial_id: str, iteration: int, config: dict, **metrics) -> dict:
    """A result as it stands in result.json."""
    return {
        **metrics,
        "timestamp": 1_700_000_000 + iteration,
        "checkpoint_dir_name": None,
        "done": False,
        "training_iteration": iteration,
        "trial_id": trial_id,
        "date": "2026-01-02_03-04-05",
        "time_this_iter_s": 0.5,
        "time_total_s": 0.5 * iteration,
        "pid": 7,
        "hostname": "here",
        "node_ip": "127.0.0.1",
        "config": config,
        "time_since_restore": 0.5 * iteration,
        "iterations_since_restore": iteration,
    }


def write_json(folder: Path, rows: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "result.json").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def write_csv(folder: Path, rows: list[dict], config: dict) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "params.json").write_text(json.dumps(config), encoding="utf-8")
    flat = [flatten({key: value for key, value in row.items() if key != "config"}) for row in rows]
    with (folder / "progress.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(flat[0]))
        writer.writeheader()
        writer.writerows(flat)


def write_error(folder: Path, error: Exception | None, text: str = "") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if error is not None:
        (folder / "error.pkl").write_bytes(pickle.dumps(error))
    if text:
        (folder / "error.txt").write_text(text, encoding="utf-8")


def add_checkpoint(folder: Path, index: int, **metrics) -> CheckpointRef:
    place = folder / f"checkpoint_{index:06d}"
    place.mkdir(parents=True)
    (place / "state").write_text(str(index), encoding="utf-8")
    return CheckpointRef(path=str(place), index=index, metrics=metrics)


def trial(
    root: Path, trial_id: str, losses: list[float], *, status: str = "TERMINATED", **more
) -> TrialRecord:
    """A finished trial that logged these losses, with config {"lr": <its number>}."""
    config = {"lr": int(trial_id.strip("t")) / 10, "net": {"width": 4}}
    rows = [logged_row(trial_id, step, config, loss=loss) for step, loss in enumerate(losses, start=1)]
    write_json(root / trial_id, rows)
    last = {**rows[-1], "done": True, "experiment_tag": "0"} if rows else {"trial_id": trial_id, "done": True}
    return TrialRecord(
        trial_id=trial_id,
        status=status,
        path=str(root / trial_id),
        name=f"train_{trial_id}",
        config=config,
        last_result=last,
        **more,
    )
