"""examples/tune/on_ray.py, unchanged, on a small Ray cluster; on this machine it is run in tests/repo."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


def worker_logs(cluster) -> set[Path]:
    return set((cluster.temp_dir / "session_latest" / "logs").glob("worker-*.out"))


@pytest.mark.ray
def test_it_runs_on_a_cluster_that_the_environment_names(plain_head, tmp_path):
    before = worker_logs(plain_head)
    said = run(tmp_path, plain_head.environment()).splitlines()
    assert any(line.startswith("best loss 0.") for line in said), said  # Ray tells of lost nodes, too
    assert last_checkpoints(tmp_path) == 4
    assert worker_logs(plain_head) - before  # its trials ran there
