"""A driver killed with -9 at random moments and resumed each time: nothing lost or doubled, no orphan."""

from __future__ import annotations

import csv
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest
from tests.series import length

from muster.stores.experiment.reader import open_trials

VICTIM = Path(__file__).with_name("victim.py")
TRIALS = 16
KILLS = length(3, 10)  # for each of five kinds


def spawn(storage: Path, kind: str, searcher: str, token: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "MUSTER_VICTIM": token}
    return subprocess.Popen(
        [sys.executable, str(VICTIM), str(storage), kind, searcher],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def relatives(token: str) -> list[int]:
    """Processes that were started by a victim with this token."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                content = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"MUSTER_VICTIM={token}".encode() in content:
                found.append(int(entry.name))
    return found


def wait_for_nobody(token: str) -> None:
    deadline = time.monotonic() + 30
    while (left := relatives(token)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert left == [], f"processes that outlived their driver: {left}"


def killed_after(victim: subprocess.Popen[str], delay_s: float) -> bool:
    """Whether it was still there to be killed."""
    try:
        victim.wait(delay_s)
    except subprocess.TimeoutExpired:
        victim.send_signal(signal.SIGKILL)
        victim.communicate()
        return True
    return False


def iterations_of(trial_dir: Path) -> tuple[list[int], list[int]]:
    lines = [json.loads(line) for line in (trial_dir / "result.json").read_text().splitlines()]
    with open(trial_dir / "progress.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return [line["training_iteration"] for line in lines], [int(row["training_iteration"]) for row in rows]


def verify(storage: Path) -> None:
    """Everything that a trial had reported is there once, in the order of its iterations."""
    with open_trials(storage / "exp") as reader:
        trials = reader.trials()
        assert reader.integrity() == "ok"
    assert len({trial.trial_id for trial in trials}) == len(trials) == TRIALS
    assert Counter(trial.status for trial in trials) == {"TERMINATED": TRIALS}
    directories = {trial.relative_logdir for trial in trials}
    assert len(directories) == TRIALS
    for trial in trials:
        in_json, in_csv = iterations_of(storage / "exp" / trial.relative_logdir)
        assert in_json == in_csv == list(range(1, len(in_json) + 1)), trial.trial_id
        assert trial.result["training_iteration"] == in_json[-1]
        noted = (storage / "notes" / trial.trial_id).read_text().split()
        assert {int(step) for step in noted} <= set(in_json), f"{trial.trial_id}: a reported result is lost"


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="finds orphans through /proc")
@pytest.mark.parametrize(
    ("kind", "searcher"),
    [
        ("fifo", "random"),
        ("stopping", "random"),
        ("promotion", "random"),
        ("stopping", "optuna"),
        ("promotion", "optuna"),
    ],
)
def test_a_driver_killed_at_random_moments_ends_as_if_nothing_had_happened(tmp_path, kind, searcher):
    chance, kills, experiments = random.Random(f"{kind} {searcher}"), 0, 0
    while kills < KILLS:
        storage = tmp_path / str(experiments)
        storage.mkdir()
        experiments += 1
        token = f"{os.getpid()}-{kind}-{searcher}-{experiments}"
        while True:
            victim = spawn(storage, kind, searcher, token)
            if kills >= KILLS or not killed_after(victim, chance.uniform(0.05, 1.6)):
                break
            kills += 1
            wait_for_nobody(token)
        output, errors = victim.communicate(timeout=120)
        assert victim.returncode == 0, errors
        assert json.loads(output.splitlines()[-1]) == {"trials": TRIALS, "errors": []}
        wait_for_nobody(token)
        verify(storage)
