"""Budgets and deadlines of users: what is refused, what ends a run on this machine, how it is resumed."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import datetime, timedelta, timezone

import pytest

from muster import tune
from muster.cli.tune.experiment import read_experiment
from muster.cli.tune.ls import heading
from muster.errors import TuneError

UTC = timezone.utc
LATER = datetime(2999, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize("given", [-1, 0, float("nan"), float("inf"), True, "25"])
def test_a_budget_that_is_no_amount_of_money_is_refused(given):
    with pytest.raises(ValueError, match=r"^TuneConfig\(cost_budget=.*\): "):
        tune.TuneConfig(cost_budget=given)


@pytest.mark.parametrize("given", [-1, float("nan"), float("inf"), True, "1"])
def test_a_price_that_is_no_amount_of_money_is_refused(given):
    with pytest.raises(ValueError, match=r"^RunConfig\(price_per_hour=.*\): "):
        tune.RunConfig(price_per_hour=given)


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (datetime(2999, 1, 1), "has no zone"),
        (datetime(2001, 1, 1, tzinfo=UTC), "is in the past"),
        (0, "is in the past"),
        (-5.0, "is in the past"),
        (timedelta(seconds=-1), "is in the past"),
        (float("nan"), "must be a number of seconds"),
        (float("inf"), "is inf years from now: seconds count from now"),
        (1e300, "is .* years from now"),
        (1_794_954_722.9, "is 56.9 years from now: seconds count from now; for a moment, give a datetime"),
        (timedelta.max, "is 2.74e.06 years from now"),
        (True, "must be a datetime with its zone, a timedelta, or seconds from now"),
        ("tomorrow", "must be a datetime with its zone, a timedelta, or seconds from now"),
    ],
)
def test_a_deadline_that_is_no_moment_to_come_is_refused(given, why):
    with pytest.raises(ValueError, match=rf"TuneConfig\(deadline=.*\): {why}"):
        tune.TuneConfig(deadline=given)


def test_seconds_from_now_become_a_moment_that_a_restore_does_not_move():
    made = tune.TuneConfig(deadline=60).deadline
    assert abs(made.timestamp() - time.time() - 60) < 30
    assert tune.TuneConfig(deadline=LATER).deadline == LATER


def test_a_budget_for_a_machine_without_a_price_is_refused_before_anything_starts(tmp_path):
    tuner = tune.Tuner(
        lambda config: {"y": 1},
        tune_config=tune.TuneConfig(cost_budget=1.0),
        run_config=tune.RunConfig(storage_path=str(tmp_path), name="e", verbose=0),
    )
    with pytest.raises(TuneError, match="cost_budget=1"):
        tuner.fit()
    assert [path.suffix for path in (tmp_path / "e").iterdir()] == [".pkl"] * 2  # of the Tuner


def test_ask_and_tell_refuses_limits_that_it_cannot_hold():
    with pytest.raises(ValueError, match=r"^TuneConfig\(cost_budget=.*deadline=.*Tuner\.fit"):
        tune.Tuner(tune_config=tune.TuneConfig(cost_budget=1.0)).ask()


class Counts(tune.Trainable):
    """Counts steps of a tenth of a second."""

    def setup(self, config):
        self.count = 0

    def step(self):
        time.sleep(0.1)
        self.count += 1
        return {"count": self.count}

    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "count"), "w") as file:
            file.write(str(self.count))

    def load_checkpoint(self, checkpoint):
        with open(os.path.join(checkpoint, "count")) as file:
            self.count = int(file.read())


def sleeps(config):
    time.sleep(0.05)
    tune.report({"y": config["x"]})


def fitted(tmp_path, trainable, stop=None, **tuned):
    return tune.Tuner(
        tune.with_resources(trainable, {"cpu": 1}),
        param_space={"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(**tuned),
        run_config=tune.RunConfig(
            storage_path=str(tmp_path), name="e", verbose=1, price_per_hour=36.0, stop=stop
        ),
    ).fit()


@pytest.mark.slow
def test_costs_are_in_the_rows_the_results_and_their_sum(tmp_path):
    grid = fitted(tmp_path, sleeps, num_samples=2)
    costs = [result.cost_usd for result in grid]
    assert all(cost > 0.0 for cost in costs)
    assert (grid.cost_usd, grid.ended_by) == (pytest.approx(sum(costs)), "")
    with open(f"{grid[0].path}/result.json") as file:
        (row,) = [json.loads(line) for line in file]
    assert 0.0 < row["cost_usd"] <= costs[0]
    again = tune.Tuner.restore(str(tmp_path / "e"), sleeps).get_results()
    assert ([result.cost_usd for result in again], again.cost_usd) == (costs, grid.cost_usd)


@pytest.mark.slow
def test_a_budget_of_cents_ends_a_class_with_its_steps_saved_and_more_money_resumes_it(tmp_path, capsys):
    share = 1 / tune_capacity()
    grid = fitted(tmp_path, Counts, {"count": 30}, num_samples=1, cost_budget=1.5 * 0.01 * share)
    told = capsys.readouterr().out
    assert (grid.ended_by, grid.num_errors, grid.num_terminated) == ("budget", 0, 0)
    assert re.search(r"\bbudget\b.* \$\d", told)
    shown = read_experiment(str(tmp_path / "e"))
    assert (shown.state, shown.ended_by) == ("interrupted", "budget")
    assert re.fullmatch(r"e: interrupted, .*\bbudget", next(heading(shown, colour=False)))
    assert shown.resume_command.endswith(f" resume {tmp_path / 'e'} --cost-budget ...")
    assert "cost_budget=...).fit()" in told
    (before,) = grid
    assert before.metrics.get("count", 0) < 30
    more = tune.Tuner.restore(str(tmp_path / "e"), Counts, cost_budget=1.0).fit()
    (after,) = more
    assert (more.ended_by, after.metrics["count"], after.error) == ("", 30, None)
    history = [row["count"] for row in after.metrics_history]
    assert history == list(range(1, 31))  # no step was lost, none was repeated
    assert more.cost_usd > grid.cost_usd
    assert after.metrics["cost_usd"] > grid.cost_usd


@pytest.mark.slow
def test_a_deadline_ends_a_run_in_time(tmp_path):
    began = time.time()
    grid = fitted(tmp_path, Counts, {"count": 600}, num_samples=1, deadline=4)
    assert (grid.ended_by, grid.num_errors) == ("deadline", 0)
    assert (grid[0].checkpoint is not None) == ("count" in grid[0].metrics)
    assert time.time() - began < 45


def tune_capacity():
    from muster.host.machine import detected_capacity

    return detected_capacity()["CPU"]
