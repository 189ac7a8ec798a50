from __future__ import annotations

import numpy as np
import pytest

from muster.session.progress import Progress, Signature, fill_result

NOW = 1_700_000_000.5


def signature(**changes):
    made = Signature(trial_id="t1", config={"lr": 0.1}, **changes)
    made.pid, made.hostname, made.node_ip = 7, "host", "10.0.0.1"
    return made


def one_result(metrics, progress=None, **changes):
    stamp = (progress or Progress()).advance(metrics, elapsed_s=2.0, now=NOW)
    return fill_result(dict(metrics), stamp, signature(**changes), now=NOW)


def test_a_function_result_has_everything_in_rays_order():
    who = signature()
    assert list(one_result({"loss": 1.0}).items()) == [
        ("loss", 1.0),
        ("timestamp", 1_700_000_000),
        ("checkpoint_dir_name", None),
        ("done", False),
        ("training_iteration", 1),
        ("trial_id", "t1"),
        ("date", who.date(NOW)),
        ("time_this_iter_s", 2.0),
        ("time_total_s", 2.0),
        ("pid", 7),
        ("hostname", "host"),
        ("node_ip", "10.0.0.1"),
        ("config", {"lr": 0.1}),
        ("time_since_restore", 2.0),
        ("iterations_since_restore", 1),
    ]


def test_a_class_result_has_no_checkpoint_name_and_its_timestamp_after_the_date():
    keys = list(one_result({"loss": 1.0}, from_function=False))
    assert keys[:6] == ["loss", "done", "training_iteration", "trial_id", "date", "timestamp"]
    assert "checkpoint_dir_name" not in keys


def test_what_was_reported_wins_where_ray_lets_it():
    reported = {"timestamp": 5, "done": True, "training_iteration": 9, "time_this_iter_s": 0.5, "pid": 1}
    result = one_result(reported)
    assert {key: result[key] for key in reported} == {**reported, "pid": 7}
    assert result["time_total_s"] == 0.5


@pytest.mark.conformance("C-079")
def test_steps_are_counted_once_somebody_reports_them():
    progress = Progress()
    assert "timesteps_total" not in one_result({"a": 1}, progress)
    first = one_result({"timesteps_this_iter": 5, "episodes_this_iter": 2}, progress)
    second = one_result({"timesteps_this_iter": 5}, progress)
    assert (first["timesteps_total"], first["episodes_total"]) == (5, 2)
    assert (second["timesteps_total"], second["timesteps_since_restore"]) == (10, 10)
    zero = one_result({"timesteps_this_iter": 0})
    assert zero["timesteps_total"] == 0
    assert "timesteps_since_restore" not in zero


def test_a_reported_total_is_kept():
    assert one_result({"timesteps_this_iter": 5, "timesteps_total": 77})["timesteps_total"] == 77


@pytest.mark.parametrize(
    "name", ["training_iteration", "time_this_iter_s", "timesteps_this_iter", "episodes_this_iter"]
)
def test_a_reported_counter_must_be_a_number(name):
    with pytest.raises(TypeError, match=name):
        one_result({name: "x"})
    assert one_result({name: np.int64(3)})[name] == 3


def test_resuming_goes_on_with_totals_and_forgets_the_rest():
    progress = Progress()
    progress.resume({"training_iteration": 4, "time_total_s": 10.0, "timesteps_total": 8})
    result = one_result({"timesteps_this_iter": 1}, progress)
    keys = ("training_iteration", "time_total_s", "timesteps_total", "iterations_since_restore")
    assert [result[key] for key in keys] == [5, 12.0, 9, 1]
    assert result["time_since_restore"] == 2.0
