"""A quote: real trials for a moment, then the whole system in virtual time, with a line for each change."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.mistakes.views import assert_line

from muster import tune
from muster.base.rng import Seed
from muster.cli.estimate import estimate
from muster.errors import ConfigError
from muster.sim.backtest.recording import read_recording
from muster.sim.quote.learned import (
    LearnedCurve,
    StepPace,
    TrialStarts,
    extrapolation,
    fitted,
    pace_of,
    starts_of,
)
from muster.sim.quote.quote import assumptions_of
from muster.sim.quote.world import interval_of
from muster.sim.tune.trace import RecordedCurve, RecordedTrial

CLUSTER = """
cluster_name: quoted
provider: {type: process}
max_workers: 8
head_node_type: head
available_node_types:
  head: {resources: {CPU: 0}, price_per_hour: 0.2}
  cpu:
    resources: {CPU: 2}
    max_workers: 8
    offers:
      - {zone: a, market: spot, price_per_hour: 0.1}
      - {zone: a, market: on-demand, price_per_hour: 0.4}
"""


def trains(config):
    for step in range(9):
        tune.report({"loss": config["x"] + 1.0 / (step + 1)})


def tuner(tmp_path, trainable=trains, space=None, **changes):
    given = {"metric": "loss", "mode": "min", "num_samples": 12}
    scheduler = tune.schedulers.ASHAScheduler(max_t=9, reduction_factor=3)
    return tune.Tuner(
        trainable,
        param_space=space or {"x": tune.uniform(0, 1)},
        tune_config=tune.TuneConfig(**{**given, "scheduler": scheduler, **changes}),
        run_config=tune.RunConfig(storage_path=str(tmp_path), verbose=0),
    )


@pytest.fixture
def cluster(tmp_path):
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER, encoding="utf-8")
    return path


@pytest.mark.slow
def test_every_variant_has_a_line_with_its_cost_its_time_and_the_change_that_gives_it(tmp_path, cluster):
    found = tuner(tmp_path).quote(cluster, step_s=60.0, starts=2)
    lines = {line.name: line for line in found.lines}
    assert list(lines) == ["as it is", "all on-demand", "all spot", "eta=4", "half the machines"]
    assert all(line.cost_low <= line.cost <= line.cost_high for line in found.lines)
    assert lines["all on-demand"].cost > 1.5 * lines["all spot"].cost
    assert lines["half the machines"].change == "max_workers: 4"
    assert str(found).startswith(f"${lines['as it is'].cost:.2f} ± ")


@pytest.mark.slow
def test_the_same_question_has_the_same_answer(tmp_path, cluster):
    first = tuner(tmp_path, num_samples=3).quote(cluster, step_s=60.0, starts=1)
    assert tuner(tmp_path, num_samples=3).quote(cluster, step_s=60.0, starts=1) == first


@pytest.mark.slow
def test_longer_steps_cost_more(tmp_path, cluster):
    few = {"num_samples": 2, "scheduler": None}
    run = tune.RunConfig(stop={"training_iteration": 5})
    costs = []
    for step_s in (60.0, 240.0):
        asked = tuner(tmp_path, **few)
        asked._spec.run.stop = run.stop
        costs.append(asked.quote(cluster, step_s=step_s, starts=1).lines[0].cost)
    assert costs[1] > 2 * costs[0]


def fails_above(config):
    tune.report({"loss": config["x"]})
    if config["x"] > 0.5:
        raise ValueError("too large")
    tune.report({"loss": config["x"]})


@pytest.mark.slow
def test_all_points_of_a_grid_are_quoted_and_failures_of_the_profile_too(tmp_path, cluster):
    grid = {"x": tune.grid_search([0.1, 0.2, 0.6, 0.7])}
    asked = tuner(tmp_path, fails_above, grid, num_samples=2, scheduler=None)
    found = asked.quote(cluster, minutes=0.2, starts=1)
    assert (found.trials, found.measured_on, found.failed) == (8, 8, 4)


@pytest.mark.slow
def test_without_a_step_time_trials_are_run_and_nothing_of_them_is_kept(tmp_path, cluster):
    found = tuner(tmp_path).quote(cluster, minutes=0.1, starts=1)
    assert found.measured_on >= 1
    assert 0.0 < found.step_s < 1.0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster.yaml"]


@pytest.mark.slow
def test_the_command_prints_a_table_or_a_document_and_draws_a_picture(tmp_path, cluster):
    script = tmp_path / "train.py"
    script.write_text(
        "from muster import tune\n"
        "def trains(config):\n"
        "    tune.report({'loss': config['x']})\n"
        "tune.Tuner(trains, param_space={'x': tune.uniform(0, 1)}, tune_config=tune.TuneConfig(\n"
        "    metric='loss', mode='min', num_samples=4),\n"
        "    run_config=tune.RunConfig(stop={'training_iteration': 3})).fit()\n",
        encoding="utf-8",
    )
    args = [str(script), "--cluster-file", str(cluster), "--step-s", "30", "--starts", "1"]
    picture = tmp_path / "quote.png"
    shown = CliRunner().invoke(estimate, [*args, "-o", str(picture)])
    assert shown.exit_code == 0, shown.output
    assert "all spot" in shown.output
    assert picture.read_bytes().startswith(b"\x89PNG")
    document = CliRunner().invoke(estimate, [*args, "--json"])
    assert json.loads(document.stdout)["lines"][0]["name"] == "as it is"


@pytest.mark.parametrize(
    ("edit", "changes", "text"),
    [
        (("price_per_hour: 0.4", "max_workers: 3"), {}, "needs the price of every node type"),
        (("resources: {CPU: 2}", "resources: {GPU: 2}"), {}, "no node type holds a trial"),
        (("", ""), {"num_samples": -1}, "an experiment without an end has no price"),
        (("", ""), {"scheduler": None}, "it is not known how many steps a trial runs"),
    ],
)
def test_what_cannot_be_quoted_is_said_in_one_sentence(tmp_path, cluster, edit, changes, text):
    cluster.write_text(CLUSTER.replace(*edit) if edit[0] else CLUSTER, encoding="utf-8")
    with pytest.raises(ConfigError, match=text):
        tuner(tmp_path, **changes).quote(cluster, step_s=60.0, starts=1)


@pytest.mark.slow
def test_a_head_of_any_name_has_its_price(tmp_path, cluster):
    few = {"num_samples": 2}
    costs = []
    for price in ("0.2", "40.0"):
        text = CLUSTER.replace("head_node_type: head", "head_node_type: first").replace(
            "  head: {resources: {CPU: 0}, price_per_hour: 0.2}",
            f"  first: {{resources: {{CPU: 0}}, price_per_hour: {price}}}",
        )
        cluster.write_text(text, encoding="utf-8")
        costs.append(tuner(tmp_path, **few).quote(cluster, step_s=60.0, starts=1).lines[0].cost)
    assert costs[1] > 10 * costs[0]


@pytest.mark.slow
def test_shorter_boots_and_starts_cost_less(tmp_path, cluster):
    few = {"num_samples": 2}
    usual = tuner(tmp_path, **few).quote(cluster, step_s=20.0, starts=1).lines[0]
    given = tuner(tmp_path, **few).quote(cluster, step_s=20.0, starts=1, boot_s=4.0, start_s=0.0).lines[0]
    assert given.cost < 0.8 * usual.cost
    assert given.hours < 0.8 * usual.hours


def test_a_history_tells_how_long_machines_take():
    history = Path(__file__).parents[3] / "examples" / "backtest" / "team.history"
    timings = read_recording(history).timings
    boots = [each for seen in timings.boot_s.values() for each in seen]
    assumed = assumptions_of(history=history)
    assert min(boots) <= assumed.boot.median_s <= max(boots)
    assert assumed.boot.setup_s == 0.0
    assert assumptions_of(history=history, boot_s=7.0).boot.median_s == 7.0


def finished(place, *spans):
    """Write the results of trials that ran from and to these moments."""
    for number, (begin, end) in enumerate(spans):
        file = place / f"trial_{number}" / "result.json"
        file.parent.mkdir(parents=True)
        file.write_text(json.dumps({"timestamp": end, "time_total_s": end - begin}) + "\n", encoding="utf-8")
    return place


def test_an_experiment_tells_how_long_its_trials_took_to_start_and_the_first_on_new_nodes_apart(tmp_path):
    spans = [(100.0, 110.0), (101.0, 120.0), (113.0, 130.0), (122.0, 125.0), (128.0, 140.0)]
    finished(tmp_path, *spans)
    assert starts_of(tmp_path) == TrialStarts(start_s=pytest.approx(8 / 3))
    earlier, new = (10.0, 60.0), [(90.0, 200.0), (94.0, math.inf)]
    seen = starts_of(tmp_path, [earlier, *new])
    assert seen.first_s == pytest.approx(100.5 - 92.0 - 8 / 3)
    assumed = assumptions_of(like=tmp_path)
    assert (assumed.costs.start_s, assumed.start_sigma) == (pytest.approx(8 / 3), 0.2)
    assert assumptions_of(like=tmp_path, start_s=1.0).costs.start_s == 1.0


def test_an_experiment_whose_trials_never_waited_says_nothing_about_starts(tmp_path):
    with pytest.raises(ConfigError, match="start_s"):
        starts_of(finished(tmp_path, (0.0, 5.0), (1.0, 6.0)))


def test_results_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(ConfigError) as missing:
        starts_of(tmp_path / "nowhere")
    assert_line("sim", "results missing", str(missing.value).replace(str(tmp_path), "TMP"))
    file = finished(tmp_path, (0.0, 1.0)) / "trial_0" / "result.json"
    file.write_text('{"loss": 1}\n', encoding="utf-8")
    with pytest.raises(ConfigError) as unreadable:
        starts_of(tmp_path)
    assert_line("sim", "results unreadable", str(unreadable.value).replace(str(tmp_path), "TMP"))


@pytest.mark.parametrize("name", ["boot_s", "start_s"])
@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_seconds_that_make_no_sense_are_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name}"):
        assumptions_of(**{name: value})


def test_nine_of_ten_further_values_lie_in_the_interval_of_a_few():
    draw, inside = Seed(3).derive("test"), 0
    for _ in range(400):
        values = [math.exp(draw.gauss(1.0, 0.2)) for _ in range(11)]
        low, high = interval_of(values[:10])
        inside += low <= values[10] <= high
    assert 0.86 < inside / 400 < 0.94
    assert interval_of([2.0]) == (2.0, 2.0)


def test_what_the_config_explains_of_the_pace_is_not_uncertain():
    explained = [RecordedTrial(str(x), {"x": x}, ({},), (math.exp(0.1 * x),)) for x in range(10)]
    shuffled = [RecordedTrial(str(x), {"x": (7 * x) % 10}, ({},), (math.exp(0.1 * x),)) for x in range(10)]
    assert pace_of(explained).uncertainty < 0.3 * pace_of(shuffled).uncertainty
    assert pace_of(shuffled).uncertainty <= pace_of(shuffled).sigma / math.sqrt(10)


def recorded(*seconds, values=None):
    rows = tuple({"loss": value} for value in values or [1.0] * len(seconds))
    return RecordedTrial("t", {"x": 1}, rows, tuple(seconds))


def test_the_first_step_of_a_trial_does_not_count_where_there_are_others():
    assert pace_of([recorded(9.0, 2.0, 2.0)]) == StepPace(step_s=pytest.approx(2.0), sigma=0.0, trials=1)
    assert pace_of([recorded(9.0)]).step_s == pytest.approx(9.0)


def test_a_curve_goes_on_as_it_was_fitted_no_further_than_it_slows_down():
    values = [2.0 + 3.0 / math.sqrt(t) for t in range(1, 6)]
    assert fitted(values) == (pytest.approx(2.0), pytest.approx(3.0))
    curve = LearnedCurve(RecordedCurve([recorded(*[1.0] * 5, values=values)]), "loss", 99, Seed(1))
    assert curve.metrics({"x": 1}, 3) == {"loss": values[2]}
    assert curve.metrics({"x": 1}, 6)["loss"] == pytest.approx(2.0 + 3.0 / math.sqrt(6))
    assert 2.0 < curve.metrics({"x": 1}, 99)["loss"] < curve.metrics({"x": 1}, 6)["loss"]


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 9, 20])
@pytest.mark.parametrize("decay", [lambda t: 1 / t, lambda t: t**-2.0, lambda t: 0.5**t, lambda t: 0.0])
def test_no_curve_goes_below_its_floor(rows, decay):
    value = extrapolation([0.25 + decay(t) for t in range(1, rows + 1)])
    assert value(rows + 1) <= 0.25 + decay(rows)
    assert value(10_000) >= 0.25


def test_a_simulated_trial_ends_where_the_nearest_recorded_one_failed():
    trials = [
        RecordedTrial(name, {"x": x}, ({"loss": 1.0},) * count, (2.0,) * count, name != "a")
        for name, x, count in (("a", 0.0, 3), ("b", 0.5, 2), ("c", 1.0, 0))
    ]
    curve = LearnedCurve(RecordedCurve(trials), "loss", 9, Seed(1))
    assert [curve.iterations({"x": x}) for x in (0.1, 0.55, 0.9)] == [9, 2, 0]


def test_few_values_or_none_are_not_extrapolated():
    assert fitted([4.0, 3.0]) == (3.0, 0.0)
    assert math.isnan(fitted([None, float("nan")])[0])
