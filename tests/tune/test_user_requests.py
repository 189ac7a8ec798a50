"""`muster tune stop` and `set` against real drivers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster import tune
from muster.base.clock import ManualClock
from muster.cli.main import cli
from muster.errors import StoreError
from muster.stores.experiment.reader import open_trials
from muster.stores.experiment.requests import FOLDER, ExperimentRequest, RequestReader, send_request

pytestmark = pytest.mark.slow


def train(config: dict[str, float]) -> None:
    for _ in range(int(config["steps"])):
        time.sleep(0.05)
        tune.report({"loss": config["x"]})


class Driver(threading.Thread):
    """An experiment in a thread; `wait_for` waits until so many trials have reported."""

    def __init__(self, root: Path, steps: int = 400, **limits: object) -> None:
        super().__init__(daemon=True)
        self.place = root / "e"
        space = {"x": tune.grid_search([0.1, 0.2]), "steps": steps}
        run = tune.RunConfig(storage_path=str(root), name="e", verbose=0, price_per_hour=3.6)
        config = tune.TuneConfig(max_concurrent_trials=2, **limits)
        self._tuner = tune.Tuner(train, param_space=space, tune_config=config, run_config=run)
        self.grid = None

    def run(self) -> None:
        self.grid = self._tuner.fit()

    def ids(self) -> list[str]:
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            try:
                with open_trials(self.place) as reader:
                    found = [trial.trial_id for trial in reader.trials() if trial.reports]
            except StoreError:
                found = []
            if len(found) == 2:
                return found
            time.sleep(0.05)
        raise AssertionError("no trial has reported")

    def trials(self) -> dict[str, tuple[str, str]]:
        with open_trials(self.place) as reader:
            return {trial.trial_id: (trial.status, trial.reason) for trial in reader.trials()}


def ran(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(cli, ["tune", *words])
    return done.exit_code, done.output


def test_a_trial_is_stopped_on_request_and_then_the_experiment(tmp_path: Path):
    driver = Driver(tmp_path)
    driver.start()
    first, second = driver.ids()
    assert ran("stop", str(driver.place), first)[0] == 0
    deadline = time.monotonic() + 20
    while driver.trials()[first][0] != "TERMINATED" and time.monotonic() < deadline:
        time.sleep(0.05)
    assert (driver.trials()[first], driver.trials()[second][0]) == (
        ("TERMINATED", "the user asked for it"),
        "RUNNING",
    )
    assert ran("stop", str(driver.place), first)[0] == 2  # it has ended
    assert ran("stop", str(driver.place))[0] == 0
    driver.join(30)
    assert (driver.is_alive(), os.listdir(driver.place / FOLDER)) == (False, [])
    assert ran("stop", str(driver.place))[0] == 2  # nobody runs it


def test_a_budget_is_raised_on_request_and_a_resume_keeps_it(tmp_path: Path):
    driver = Driver(tmp_path, cost_budget=5.0)
    driver.start()
    driver.ids()
    assert ran("set", str(driver.place), "--deadline", "100")[0] == 2  # it has none
    assert ran("set", str(driver.place), "--cost-budget", "7.5")[0] == 0

    def settings() -> object:
        with open_trials(driver.place) as reader:
            return reader.settings()["cost_budget"]

    deadline = time.monotonic() + 20
    while settings() != 7.5 and time.monotonic() < deadline:
        time.sleep(0.05)
    send_request(driver.place, ExperimentRequest(stop=True))
    driver.join(30)
    restored = tune.Tuner.restore(str(driver.place), train)
    assert (settings(), restored._spec.tune.cost_budget) == (7.5, 7.5)


@pytest.mark.parametrize("what", ["mode", "link", "fields", "right"])
def test_a_request_that_others_could_have_written_is_ignored(tmp_path: Path, what: str):
    clock, warnings = ManualClock(0.0), []
    reader = RequestReader(tmp_path, clock, warnings.append)
    (tmp_path / FOLDER).mkdir(mode=0o700)
    file, aside = tmp_path / FOLDER / "0.json", tmp_path / "aside.json"
    aside.write_text('{"stop":true}' if what != "fields" else '{"stop":true,"more":1}')
    aside.chmod(0o644 if what == "mode" else 0o600)
    if what == "link":
        file.symlink_to(aside)
    else:
        aside.rename(file)
    found = list(reader.poll())
    assert (found, len(warnings)) == (([ExperimentRequest(stop=True)], 0) if what == "right" else ([], 1))
    clock.advance(1.0)
    assert (list(reader.poll()), file.exists()) == ([], False)
