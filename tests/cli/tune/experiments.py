"""Experiments for tests of `muster tune`: some with known facts, some that real processes run."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.builders import START, created, exited, reported, started

from muster.stores.experiment.reader import open_trials
from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.events import Fact, SearchExhausted, TrialFailure, TrialFailureKind

SETTINGS = {"metric": "loss", "mode": "min", "trainable_name": "train"}
FAILURE = TrialFailure(
    kind=TrialFailureKind.USER_ERROR,
    message="boom",
    traceback='Traceback (most recent call last):\n  File "t.py", line 3, in train\n    go()\n    ^^^^\n'
    "ValueError: no such luck",
)

# Each trial reports once and waits for the file `gate`; then it reports twice more.
SCRIPT = """\
import sys
import tempfile
import time
from pathlib import Path

from muster import tune
from muster.tune.config import RunConfig
from muster.tune.tune_config import TuneConfig
from muster.tune.tuner import Tuner


def train(config):
    first, checkpoint = 1, tune.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as directory:
            first = int(Path(directory, "step").read_text()) + 1
    for step in range(first, 4):
        while step == 2 and not Path(config["gate"]).exists():
            time.sleep(0.02)
        if step == 2 and Path(config["gate"]).read_text() == "fail" and config["x"] == 2:
            raise ValueError("two is bad")
        with tempfile.TemporaryDirectory() as directory:
            Path(directory, "step").write_text(str(step))
            made = tune.Checkpoint.from_directory(directory)
            tune.report({"loss": config["x"] / step, "step": step}, checkpoint=made)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2]), "gate": str(root / "gate")},
        tune_config=TuneConfig(metric="loss", mode="min"),
        run_config=RunConfig(name="live", storage_path=str(root), verbose=0),
    ).fit()
"""


def write(directory: Path, facts: Iterable[Fact], settings: dict | None = None) -> Path:
    """An experiment with these facts, and nothing left to suggest."""
    directory.mkdir(parents=True, exist_ok=True)
    with SqliteTrialStore(directory, trust_pickles=True) as store:
        store.save_settings(SETTINGS if settings is None else settings)
        store.append([*facts, SearchExhausted(at=START)])
    return directory


def four_trials(directory: Path) -> Path:
    """Losses 0.5, 0.25, NaN, and one that failed before it reported."""
    facts: list[Fact] = []
    for number, loss in enumerate((0.5, 0.25, float("nan"), None)):
        trial_id = f"a_0000{number}"
        facts += [created(trial_id, {"lr": 0.1 * number, "net": {"width": 2**number}}), started(trial_id)]
        if loss is not None:
            facts.append(
                reported(trial_id, number + 1, loss=loss, time_total_s=2.0 * number + 1, acc={"top": 1})
            )
        facts.append(exited(trial_id, None if loss is not None else FAILURE))
    return write(directory, facts)


@contextmanager
def running(root: Path) -> Iterator[subprocess.Popen]:
    """The script above, at the moment when each of its two trials has reported once."""
    root.mkdir(parents=True, exist_ok=True)
    script = root / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    process = subprocess.Popen([sys.executable, str(script), str(root)], cwd=root)
    try:
        wait_for_reports(root / "live", process, 2)
        yield process
    finally:
        process.kill()
        process.wait()


def wait_for_reports(directory: Path, process: subprocess.Popen, count: int) -> None:
    for _ in range(3000):
        assert process.poll() is None, "the experiment ended too early"
        if (directory / "experiment.sqlite").exists() and _reports(directory) >= count:
            return
        time.sleep(0.02)
    raise AssertionError("the experiment reports nothing")


def _reports(directory: Path) -> int:
    try:
        with open_trials(directory) as reader:
            return sum(trial.reports for trial in reader.trials())
    except Exception:
        return 0  # the file is being made


def killed(root: Path) -> Path:
    """The same, killed there."""
    with running(root):
        pass
    return root / "live"
