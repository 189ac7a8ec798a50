"""`muster sim tune`: answers from traces and problems, and errors that say what to do."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner

from muster.cli.main import cli

SCRIPT = """\
from muster import tune
from muster.tune.schedulers import ASHAScheduler


def train(config):
    raise AssertionError("no trial may run")


def main():
    tuner = tune.Tuner(
        tune.with_resources(train, {"cpu": 2}),
        param_space={"x": tune.uniform(0, 1), "kind": tune.choice(["a", "b"])},
        tune_config=tune.TuneConfig(
            metric="loss", mode="min", num_samples=5, scheduler=ASHAScheduler(max_t=4, reduction_factor=2)
        ),
    )
    tuner.fit()
    raise AssertionError("nothing runs after fit()")


if __name__ == "__main__":
    main()
"""


def rows(number, x, kind, steps, seconds=30.0):
    for step in range(1, steps + 1):
        yield {
            "loss": x / step,
            "training_iteration": step,
            "time_this_iter_s": seconds,
            "time_total_s": seconds * step,
            "trial_id": f"t{number}",
            "config": {"x": x, "kind": kind, "same": 1},
            "done": False,
        }


@pytest.fixture
def trace(tmp_path):
    """Four trials of four iterations; the last but one ended early."""
    folder = tmp_path / "experiment"
    for number, (x, kind, steps) in enumerate([(0.8, "a", 4), (0.4, "a", 4), (0.2, "b", 2), (0.6, "b", 4)]):
        place = folder / f"trial_{number}"
        place.mkdir(parents=True)
        lines = [json.dumps(row) for row in rows(number, x, kind, steps)]
        (place / "result.json").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def script(tmp_path):
    file = tmp_path / "train.py"
    file.write_text(SCRIPT)
    return file


def asked(*arguments):
    return CliRunner().invoke(cli, ["sim", "tune", *map(str, arguments)])


def answer(*arguments):
    result = asked(*arguments, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_recorded_experiment_is_replayed_with_its_own_configs(trace):
    told = answer(
        "--trace", trace, "--workers", 2, "--metric", "loss", "--mode", "min", "--scheduler", "fifo"
    )
    (found,) = told["answers"]
    # Two workers: t0 and t1 end at 120 s; t2 (0.2 / 2) reports its last at 180 s, and is as good as t1 was.
    assert (found["best"]["value"], found["best"]["at_s"], found["best"]["worker_s"]) == (0.1, 120.0, 240.0)
    assert (found["end_s"], found["worker_s"], found["trials"]) == (240.0, 420.0, 4)
    assert [(one["at_s"], one["value"]) for one in found["found"]] == [
        (30.0, 0.8),
        (30.0, 0.4),
        (60.0, 0.2),
        (90.0, pytest.approx(0.4 / 3)),
        (120.0, 0.1),
    ]
    (note,) = told["notes"]
    assert re.findall(r"\d+", note) == ["1", "4", "4"]


def test_a_file_of_rows_is_a_trace_too(trace, tmp_path):
    one = tmp_path / "rows.json"
    one.write_text("".join(file.read_text() for file in sorted(trace.rglob("result.json"))))
    options = ("--metric", "loss", "--mode", "min", "--scheduler", "asha:eta=2,max_t=4")
    assert answer("--trace", one, *options)["answers"] == answer("--trace", trace, *options)["answers"]


def test_the_trials_of_a_script_follow_the_trace_and_none_of_them_runs(script, trace):
    told = answer(script, "--trace", trace, "--workers", 4)
    assert [(one["scheduler"], one["trials"], one["failed"]) for one in told["answers"]] == [
        ("AsyncHyperBandScheduler", 4, 0)
    ]


def test_suggested_configs_follow_the_nearest_recorded_one(script, trace):
    told = answer(script, "--trace", trace, "--searcher", "random", "--samples", 6, "--scheduler", "fifo")
    (found,) = told["answers"]
    assert found["trials"] == 6
    recorded = {x / step for x in (0.8, 0.4, 0.2, 0.6) for step in range(1, 5)}
    assert {one["value"] for one in found["found"]} <= recorded
    assert found["best"]["config"]["x"] not in (0.8, 0.4, 0.2, 0.6)
    assert any(" 4 " in note for note in told["notes"])


@pytest.mark.slow
def test_schedulers_are_compared_on_a_synthetic_problem_in_tables_and_a_plot(tmp_path):
    plot = tmp_path / "plot.png"
    result = asked(
        *("--trace", "branin", "--workers", 64, "--samples", 32, "--output", plot),
        *("--scheduler", "asha:eta=4,max_t=81", "--scheduler", "fifo"),
    )
    assert result.exit_code == 0, result.output
    assert "64 workers, loss (min)" in result.stdout
    assert "best value over time" in result.stdout
    assert "best of fifo: {'x': " in result.stdout.replace("\n", " ")
    assert plot.stat().st_size > 5_000


def test_the_same_question_has_the_same_answer():
    options = ("--trace", "ackley", "--samples", 20, "--seed", 4, "--scheduler", "asha_promotion")
    assert answer(*options) == answer(*options)


BAD = {
    "no trace": (("--trace", "nowhere"), "--trace nowhere: no such file, directory or synthetic problem"),
    "no metric": (("--trace", "TRACE"), "give --metric NAME and --mode min or max"),
    "other metric": (
        ("--trace", "TRACE", "--metric", "acc", "--mode", "max"),
        "no row has the metric 'acc'; recorded were: loss",
    ),
    "scheduler": (
        ("--trace", "branin", "--scheduler", "best"),
        "'best' is unknown; choose one of fifo, asha",
    ),
    "parameter": (("--trace", "branin", "--scheduler", "asha:speed=3"), "--scheduler asha:speed=3: "),
    "no number": (
        ("--trace", "branin", "--scheduler", "asha:eta=!!int ''"),
        "--scheduler asha:eta=!!int '':1: '' is not of type int; ",
    ),
    "no value": (("--trace", "branin", "--scheduler", "asha:eta"), "'eta' is not parameter=value"),
    "bounds": (("--trace", "branin", "--scheduler", "asha:eta=1"), "must be greater than 1"),
    "searcher": (("--trace", "branin", "--searcher", "magic"), "--searcher magic: "),
    "no space": (
        ("--trace", "TRACE", "--metric", "loss", "--mode", "min", "--searcher", "random"),
        "Give a script whose Tuner has a param_space",
    ),
    "no script": (("nothing.py", "--trace", "branin"), "nothing.py: there is no such file"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_refused_with_what_to_do(name, trace):
    arguments, message = BAD[name]
    result = asked(*(trace if one == "TRACE" else one for one in arguments))
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("raise ValueError('no data here')", "failed before it called fit(): ValueError: no data here"),
        ("x = 1", "calls neither Tuner.fit() nor tune.run()"),
        ("import sys\nsys.exit(3)", "exited (3) before it called fit()"),
    ],
)
def test_a_script_that_does_not_come_to_fit_is_told(tmp_path, text, message):
    file = tmp_path / "broken.py"
    file.write_text(text)
    result = asked(file, "--trace", "branin")
    assert (result.exit_code, message in result.output) == (2, True)


def test_a_script_that_only_builds_a_tuner_or_calls_run_will_do(tmp_path, trace):
    builds, calls = tmp_path / "builds.py", tmp_path / "calls.py"
    head = "from muster import tune\n\n\ndef train(config):\n    raise AssertionError\n\n\n"
    config = "tune.TuneConfig(metric='loss', mode='min')"
    builds.write_text(f"{head}tuner = tune.Tuner(train, param_space={{'x': 1}}, tune_config={config})\n")
    calls.write_text(f"{head}tune.run(train, config={{'x': 1}}, metric='loss', mode='min')\n")
    one, two = (answer(file, "--trace", trace) for file in (builds, calls))
    assert one["answers"] == two["answers"]


def test_a_damaged_trace_is_named(tmp_path):
    bad = tmp_path / "rows.json"
    bad.write_text('{"loss": 1}\n')
    result = asked("--trace", bad, "--metric", "loss", "--mode", "min")
    assert (result.exit_code, " 'config'" in result.output) == (2, True)
    bad.write_text("not json\n{}\n")
    damaged = asked("--trace", bad)
    assert (damaged.exit_code, str(bad) in damaged.output, " JSON " in damaged.output) == (2, True, True)
    bad.write_text("")
    empty = asked("--trace", bad)
    assert (empty.exit_code, str(bad) in empty.output, empty.output == damaged.output) == (2, True, False)
