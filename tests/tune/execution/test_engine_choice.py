from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from muster import tune
from muster.engines.local.engine import LocalEngine
from muster.tune.execution.launch import _runs_on_ray


@pytest.fixture(autouse=True)
def no_ray(monkeypatch):
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.delitem(sys.modules, "ray", raising=False)


@pytest.mark.parametrize(("engine", "on_ray"), [("local", False), ("ray", True), ("auto", True)])
def test_a_named_cluster_is_used_unless_this_machine_is_asked_for(engine, on_ray, monkeypatch):
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    assert _runs_on_ray(engine) is on_ray


@pytest.mark.parametrize("is_connected", [True, False])
def test_auto_follows_a_ray_that_is_initialised(is_connected, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(is_initialized=lambda: is_connected))
    assert _runs_on_ray("auto") is is_connected


def test_auto_is_this_machine_and_does_not_import_ray():
    assert _runs_on_ray("auto") is False
    assert "ray" not in sys.modules


def test_somebodys_own_module_named_ray_is_not_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace())
    assert _runs_on_ray("auto") is False


def test_the_engine_is_told_how_much_of_the_time_budget_is_left(tmp_path, monkeypatch):
    heard = []
    monkeypatch.setattr(LocalEngine, "ends_in", lambda engine, left_s: heard.append(left_s))
    run = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, engine="local")
    for budget_s in (3600.0, None):
        config = tune.TuneConfig(time_budget_s=budget_s)
        tune.Tuner(lambda config: {"score": 1}, tune_config=config, run_config=run).fit()
    (left_s,) = heard
    assert 0 < left_s() <= 3600
