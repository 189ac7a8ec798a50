"""examples/tune/on_ray.py, unchanged, on a small Ray cluster; on this machine it is run in tests/repo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from muster.testing.ray_cluster import RayCluster

EXAMPLE = Path(__file__).parents[2] / "examples" / "tune" / "on_ray.py"


def run(storage: Path, environment: dict[str, str]) -> str:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(storage)],
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


@pytest.mark.ray
def test_it_runs_on_a_cluster_that_the_environment_names(tmp_path):
    with RayCluster() as cluster:
        assert run(tmp_path, cluster.environment()).startswith("best loss 0.")
        used = list((cluster.temp_dir / "session_latest" / "logs").glob("worker-*.out"))
    assert last_checkpoints(tmp_path) == 4
    assert used
