"""Runs the same scripts under Ray Tune 2.60 and under muster: results, files and ResultGrid are compared.

Ray's side is recorded, so that the comparison always runs. With MUSTER_RAY_PYTHON=<a Python that has
ray[tune]==2.60.0 and Optuna> the recording itself is checked against a live Ray (several minutes).
"""

from __future__ import annotations

import sys

import pytest
from tests.parity.comparison import DELIBERATE, differences, play, ray_interpreter, reason, recorded

pytestmark = pytest.mark.slow
RAY = recorded()
SCENARIOS = [name for name in RAY if name != "versions"]


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return play("muster", sys.executable, tmp_path_factory.mktemp("parity") / "muster.json")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_script_leaves_the_same_behind_as_under_ray(ours, scenario):
    if scenario == "optuna" and RAY["versions"]["optuna"] != ours["versions"]["optuna"]:
        pytest.skip(
            f"recorded with Optuna {RAY['versions']['optuna']}, whose suggestions may differ from this one"
        )
    found = differences(RAY[scenario], ours[scenario], scenario)
    assert {place: values for place, values in found.items() if reason(place) is None} == {}


@pytest.mark.timeout(600)
def test_every_deliberate_difference_exists(ours):
    used = {reason(place) for name in SCENARIOS for place in differences(RAY[name], ours[name], name)}
    assert sorted(set(DELIBERATE) - used) == []


def test_the_recording_is_of_this_set_of_scenarios(ours):
    assert list(ours) == list(RAY)
    assert [name for name in SCENARIOS if "failed" in RAY[name]] == []


def test_differences_are_found_at_every_depth():
    one = {"a": [1, {"b": 2}], "c": [1], "same": None}
    other = {"a": [1, {"b": 3}], "c": [1, 2], "d": 0, "same": None}
    assert differences(one, other, "x") == {
        "x/a/1/b": (2, 3),
        "x/c": ([1], [1, 2]),
        "x/d": ("(nothing)", 0),
    }


@pytest.mark.parity
@pytest.mark.timeout(3600)
@pytest.mark.skipif(
    ray_interpreter() is None, reason="MUSTER_RAY_PYTHON names no Python with ray[tune]==2.60.0"
)
def test_the_recording_is_what_ray_does(tmp_path):
    live = play("ray", str(ray_interpreter()), tmp_path / "ray.json")
    assert differences(RAY, live) == {}
