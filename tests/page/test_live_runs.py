"""Runs of real drivers, killed and resumed, and what a page that is open meanwhile holds at their ends."""

from __future__ import annotations

import json
import random
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from tests.series import SEED, length
from tests.tune.crash.lives import Cell, Experiment, Span

from muster import tune
from muster.base.clock import SystemClock
from muster.cli.tune.experiment import read_experiment
from muster.errors import MusterError
from muster.page.experiment_session import ExperimentSession, open_session
from muster.page.fact_loader import is_early
from muster.page.trial_arrays import OVER
from muster.stores.experiment.reader import is_experiment, open_trials

pytestmark = pytest.mark.slow

KINDS = ("fifo", "stopping", "promotion", "median", "pbt")
KEPT_S = 2.0  # after the end of a driver, the page is complete


class OpenPage(threading.Thread):
    """Looks at an experiment as the page's server does, from before it exists."""

    def __init__(self, place: Path) -> None:
        super().__init__(daemon=True)
        self._place = place
        self._is_over = threading.Event()
        self.session: ExperimentSession | None = None

    def run(self) -> None:
        while not self._is_over.wait(0.1):
            if self.session is None and is_experiment(str(self._place)):
                with suppress(MusterError):  # it is being made: a page asks again
                    self.session = open_session(str(self._place), clock=SystemClock())
            elif self.session is not None:
                self.session.refresh()

    def __enter__(self) -> OpenPage:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self.join()

    def trials(self) -> dict[str, tuple[object, ...]]:
        """What it holds of each trial: status, whether it ended, counts, last iteration and value, curve."""
        session = self.session
        words = list(session.table.columns["trial/status"].words)
        held = {}
        for trial_id, row in list(session.table.rows.items()):
            curve = session.curves.rows.of(row, "loss")  # `curves_of` would read again
            numbers = (session.table.get(row, name) for name in ("starts", "reports", "training_iteration"))
            known = session.table.columns.get("metric/loss")  # None: no trial has reported
            last = float("nan") if known is None else float(known.values[row])
            has_ended = not np.isnan(session.table.get(row, "ended"))
            status = words[int(session.table.get(row, "status"))]
            held[trial_id] = (status, has_ended, *numbers, rounded(last), curve)
        return held


def rounded(value: float) -> float:
    """In the digits that a page has."""
    return float(f"{np.float32(value):.6g}")


def ledger(place: Path, *, is_over: bool) -> dict[str, tuple[object, ...]]:
    """The same by the ledger and result.json."""
    found = {}
    with open_trials(place) as reader:
        for trial in reader.trials():
            file, rows = place / trial.relative_logdir / "result.json", []
            if file.exists():
                rows = [json.loads(line) for line in file.read_text().splitlines(True) if line.endswith("\n")]
            curve = [[row["training_iteration"] for row in rows], [rounded(row["loss"]) for row in rows]]
            status = "INTERRUPTED" if trial.status == "RUNNING" and not is_over else trial.status
            if is_early(status, "" if trial.returned else trial.decision, trial.reason):
                status = "STOPPED"
            numbers = trial.starts, trial.reports, trial.result.get("training_iteration")
            last = rounded(trial.result.get("loss", float("nan")))
            found[trial.trial_id] = (status, trial.ended_at is not None, *numbers, last, curve)
    return found


def compared(trials: dict[str, tuple[object, ...]]) -> dict[str, str]:
    """With no difference between nothing and NaN, and between 1 and 1.0."""

    def plain(value: object) -> object:
        if isinstance(value, list):
            return [plain(each) for each in value]
        if value is None or value != value:
            return None
        return float(value) if isinstance(value, int | float) else value

    return {trial_id: repr([plain(each) for each in held]) for trial_id, held in sorted(trials.items())}


@pytest.mark.parametrize("seed", range(length(2, 50)))
def test_an_open_page_ends_with_what_the_ledger_and_the_files_hold(
    tmp_path: Path, seed: int, kills: list[str]
):
    chance = random.Random(f"page {SEED} {seed}")
    experiment = Experiment(Cell(KINDS[seed % len(KINDS)]), tmp_path / "v")
    place = tmp_path / "v" / "exp"
    with OpenPage(place) as page:
        for _ in range((1, 0, 2)[seed % 3]):
            if noted := experiment.kill(0.3 + 0.7 * chance.random(), chance, Span(1.0, 30)):
                kills.append(noted)
                time.sleep(KEPT_S)
                assert page.session.summary()["state"] == read_experiment(str(place)).state
                assert compared(page.trials()) == compared(ledger(place, is_over=False))
        experiment.live()
        time.sleep(KEPT_S)
        summary = page.session.summary()
        over = sum(summary["counts"].get(state, 0) for state in OVER)
        assert (summary["state"], over, summary["of"], summary["behind"]) == ("finished", 8, 8, 0)
        assert compared(page.trials()) == compared(ledger(place, is_over=True))


class Raises(tune.Callback):
    def on_trial_result(self, **_: object) -> None:
        raise ValueError("the callback is odd")


@pytest.mark.parametrize("how", ["callback", "fail_fast"])
def test_an_experiment_whose_fit_raised_says_why(tmp_path: Path, how: str):
    def train(config: dict[str, float]) -> None:
        tune.report({"loss": 1.0})
        raise RuntimeError("the trial is odd")

    failure = tune.FailureConfig(fail_fast="raise" if how == "fail_fast" else False)
    callbacks = [Raises()] if how == "callback" else []
    run = tune.RunConfig(
        storage_path=str(tmp_path), name="e", verbose=0, callbacks=callbacks, failure_config=failure
    )
    with pytest.raises(Exception, match="odd"):
        tune.Tuner(train, run_config=run).fit()
    summary = open_session(str(tmp_path / "e"), clock=SystemClock()).summary()
    assert (summary["state"], "odd" in summary["raised"] or "fail_fast" in summary["raised"]) == (
        "failed",
        True,
    )
