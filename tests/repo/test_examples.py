from __future__ import annotations

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner

from muster.cli.main import cli

EXIT_CODES = {"demand.yaml": 0, "blocked.yaml": 3, "quiet.yaml": 0}


def test_every_example_is_run_here(root):
    found = {path.name for path in (root / "examples" / "plan").iterdir()}
    assert found == {"cluster.yaml", *EXIT_CODES}


@pytest.mark.parametrize("objective", ["auto", "cost", "utilization"])
@pytest.mark.parametrize("demand", EXIT_CODES)
def test_the_example_plans_with_every_objective(root, demand, objective):
    folder = root / "examples" / "plan"
    words = ["plan", str(folder / "cluster.yaml"), "--demand", str(folder / demand)]
    result = CliRunner().invoke(cli, [*words, "--objective", objective, "--json"])
    assert result.exit_code == EXIT_CODES[demand]
    assert json.loads(result.stdout)["satisfied"] is (EXIT_CODES[demand] == 0)


def test_the_first_tuning_example_finds_a_good_configuration(root, tmp_path):
    script = root / "examples" / "tune" / "first.py"
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("best loss ")
    kept = [
        len(list(trial.glob("checkpoint_*"))) for trial in (tmp_path / "first").iterdir() if trial.is_dir()
    ]
    assert kept == [1] * 12
