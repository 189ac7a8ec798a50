"""Libraries in the manner of lenskit, transformers, AutoGluon and chemprop, where Ray is not installed."""

from __future__ import annotations

import os
import signal
import subprocess
import time

import pytest
from tests.ray_api.conftest import standin

pytestmark = pytest.mark.slow


def test_tasks(rayless):
    assert rayless.json("-m", "muster.as_ray", standin("tasks")) == {
        "initialized": True,
        "cpus": 2.0,
        "folds": [99990000 + number for number in range(4)],
        "env": True,
        "processes": True,
        "chained": 3,
        "nested": [6, True],
        "error": [True, "KeyError(3)"],
        "crash": True,
        "timeout": True,
        "cancelled": 4,
        "too_large": True,
        "actor": "TuneError",
        "at_once": 2,
        "shut_down": False,
    }


def test_lenskit_with_a_callable_object_and_refs_inside_of_refs(rayless, tmp_path):
    found = rayless.json("-m", "muster.as_ray", standin("lenskit_like"), "random", str(tmp_path))
    assert found == {"errors": 0, "rows": [3, 3, 3, 3], "seen": "1"}


def test_lenskit_with_classes_and_optuna(rayless, tmp_path):
    found = rayless.json("-m", "muster.as_ray", standin("lenskit_like"), "iterative", str(tmp_path))
    assert found["errors"] == 0
    assert len(found["rows"]) == 3


def test_transformers(rayless):
    found = rayless.json("-m", "muster.as_ray", standin("transformers_like"))
    assert 1e-4 <= found["lr"] <= 1e-1
    assert found["best"] < 1


def test_autogluon(rayless):
    found = rayless.json("-m", "muster.as_ray", standin("autogluon_like"))
    assert found == {"names": ["T0", "T1", "T2"], "results": 3, "folds": [0, 1, 2]}


def test_chemprop(rayless):
    assert rayless.json("-m", "muster.as_ray", standin("chemprop_like")) == {
        "rows": [1, 1],
        "weights": ["1", "1"],
        "seen": [2, 2],
        "refused": "TuneError",
        "whole": [0.5, 1.0],
        "errors": [],
    }


def test_a_killed_search_resumes_after_another_experiment_has_run(rayless, tmp_path):
    words = rayless.command("-m", "muster.as_ray", standin("lenskit_like"), "random", str(tmp_path))
    driver = subprocess.Popen(words, env={**rayless.env, "SLOW": "30"}, cwd=tmp_path, start_new_session=True)
    folder = tmp_path / "results" / "exp"
    deadline = time.monotonic() + 30
    while not list(folder.glob("*/result.json")) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    other = tmp_path / "other"
    other.mkdir()
    rayless.run("-m", "muster.as_ray", standin("lenskit_like"), "random", str(other))
    done = rayless.run("-m", "muster", "tune", "resume", str(folder), PYTHONPATH=rayless.env["PYTHONPATH"])
    listed = rayless.run("-m", "muster", "tune", "show", str(folder))
    assert "4 TERMINATED" in listed.stdout, listed.stdout + done.stdout
