"""Run the same scripts under Ray Tune 2.60 and under muster: results, files and ResultGrid are compared.

Ray's side is recorded, so that the comparison always runs. With MUSTER_RAY_PYTHON=<a Python that has
ray[tune]==2.60.0 and Optuna> (`make parity`) the recording itself is checked against a live Ray, and the
scripts run on our Ray engine too (each takes several minutes).
"""

from __future__ import annotations

import sys

import pytest
from tests.parity.comparison import (
    DELIBERATE,
    HERE,
    differences,
    play,
    ray_interpreter,
    reason,
    recorded,
    unexpected,
)

pytestmark = pytest.mark.slow
RAY = recorded()
SCENARIOS = [name for name in RAY if name != "versions"]
COSTLY = [each.stem for each in sorted((HERE / "scripts").glob("*.py")) if "\nIS_COSTLY" in each.read_text()]


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    return play("muster", sys.executable, tmp_path_factory.mktemp("parity") / "muster.json")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_a_script_leaves_the_same_behind_as_under_ray(ours, scenario):
    if "optuna" in scenario and RAY["versions"]["optuna"] != ours["versions"]["optuna"]:
        pytest.skip(
            f"recorded with Optuna {RAY['versions']['optuna']}, whose suggestions may differ from this one"
        )
    if "left out" in ours[scenario]:
        pytest.skip(ours[scenario]["left out"])
    assert unexpected({scenario: ours[scenario]}) == {}


@pytest.mark.timeout(600)
def test_every_deliberate_difference_exists(ours):
    ran = [name for name in SCENARIOS if "left out" not in ours[name]]
    used = {reason(place) for name in ran for place in differences(RAY[name], ours[name], name)}
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


def test_there_are_scripts_for_forty_features():
    assert len([name for name in SCENARIOS if name[:2].isdecimal()]) >= 40


needs_ray = pytest.mark.skipif(
    ray_interpreter() is None, reason="MUSTER_RAY_PYTHON names no Python with ray[tune]==2.60.0"
)


@pytest.mark.parity
@pytest.mark.timeout(3600)
@needs_ray
def test_scripts_leave_the_same_behind_on_the_ray_engine(tmp_path):
    found = play(
        "muster", sys.executable, tmp_path / "on_ray.json", "scripts", engine="ray", with_costly=True
    )
    assert len(found) > 80
    assert unexpected(found) == {}


@pytest.mark.parity
@pytest.mark.timeout(600)
@needs_ray
def test_costly_scripts_leave_the_same_behind(tmp_path):
    found = play("muster", sys.executable, tmp_path / "costly.json", *COSTLY, with_costly=True)
    assert list(found) == ["versions", *COSTLY]
    assert unexpected(found) == {}


@pytest.mark.parity
@pytest.mark.timeout(3600)
@needs_ray
def test_the_recording_is_what_ray_does(tmp_path):
    live = play("ray", str(ray_interpreter()), tmp_path / "ray.json", with_costly=True)
    played = [name for name in live if "left out" not in live[name]]
    assert list(live) == list(RAY)
    assert differences({name: RAY[name] for name in played}, {name: live[name] for name in played}) == {}
