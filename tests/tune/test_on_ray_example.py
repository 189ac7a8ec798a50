"""Scripts on a small Ray cluster: an example, costs when a clock is set, and classes of a script."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.series import IS_WHOLE
from tests.tune.test_clock import COMPILER, HOUR_S, SETTINGS, Run, compile_shim

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune" / "on_ray.py"


def run(storage: Path, environment: dict[str, str], script: Path = EXAMPLE) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, str(script), str(storage)],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def last_checkpoints(storage: Path) -> int:
    return len(list((storage / "on_ray").rglob("checkpoint_000004")))


def worker_logs(cluster) -> set[Path]:
    return set((cluster.temp_dir / "session_latest" / "logs").glob("worker-*.out"))


@pytest.mark.ray
def test_it_runs_on_a_cluster_that_the_environment_names(plain_head, tmp_path):
    before = worker_logs(plain_head)
    said = run(tmp_path, plain_head.environment()).splitlines()
    assert any(line.split()[:2] == ["best", "loss"] for line in said), said  # Ray tells of lost nodes, too
    assert last_checkpoints(tmp_path) == 4
    assert worker_logs(plain_head) - before  # its trials ran there


@pytest.mark.ray
@pytest.mark.skipif(COMPILER is None, reason="needs a C compiler")
@pytest.mark.parametrize("ahead_s", SETTINGS if IS_WHOLE else [HOUR_S])
def test_costs_count_the_start_of_an_actor_and_do_not_follow_a_clock_that_is_set(
    plain_head, tmp_path, ahead_s
):
    driver = Run(tmp_path / "run", compile_shim(tmp_path), plain_head.environment())
    driver.start(engine="ray", trials=1, steps=15)
    try:
        driver.wait_for_steps(4)
        driver.set_clock(ahead_s)
        told = driver.result()
    finally:
        driver.kill()
    assert (told["counts"], abs(told["ahead_s"] - ahead_s) < 120) == ([15], True)
    assert told["cost"] == pytest.approx(told["real"], rel=0.01)


@pytest.mark.ray
def test_objects_of_a_scripts_own_classes_reach_trials_and_come_back(plain_head, tmp_path):
    before = worker_logs(plain_head)
    said = run(tmp_path, plain_head.environment(), Path(__file__).with_name("main_classes.py"))
    assert "scores [2.0, 4.0]" in said
    assert worker_logs(plain_head) - before
