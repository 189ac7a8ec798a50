from __future__ import annotations

import json
import re
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


TUNE_EXAMPLES = {
    "budget.py": r"^ended by its budget: \d of \d trials, \$0\.\d{3}, 0 errors\n"
    r"finished: 8 of 8 trials, \$0\.\d{3}, 0 errors\n$",
    "class_api.py": r"best loss .* with \{'rate': 0\.4\}\n"
    r"newest checkpoint of the best trial: .*checkpoint_00000\d\n"
    r"trials that ended with an error: 0\n$",
    "custom_callback.py": r"(?s)train_\w+_00000: loss 2\.5000 at step 1\n.*: loss 0\.1000 at step 5\n"
    r"train_\w+_00004: failed\nfinished after 5 trials\n$",
    "early_stopping.py": r"every epoch +best loss 0\.115 after 1080 epochs\n"
    r"ASHA +best loss 0\.1\d\d after \d{3} epochs\n$",
    "first.py": r"(?s)best loss \d\.\d+ with .*files of the best trial: .*\n$",
    "on_ray.py": r"^best loss 0\.\d+ at x = \S+ on \S+\n$",  # on a cluster: tests/tune/test_on_ray_example.py
    "optuna_multi_objective.py": r"^\d+ of 60 configurations are Pareto-optimal:\n"
    r"(  accuracy 0\.\d+ .*\n)+$",
    "quickstart.py": r"(?s)Best accuracy on held-out digits: 0\.9\d\d\n.*Plot: .*results\.png\n",
    "resume_after_kill.py": r"8 trials, each of the 20 results recorded once: yes\n$",
}


def test_every_tuning_example_is_run_here(root):
    assert {path.name for path in (root / "examples" / "tune").iterdir() if path.suffix == ".py"} == set(
        TUNE_EXAMPLES
    )


@pytest.mark.slow
@pytest.mark.timeout(300)  # scikit-learn on a busy machine
@pytest.mark.parametrize("name", TUNE_EXAMPLES)
def test_the_tuning_example_prints_what_it_promises(root, tmp_path, name):
    done = subprocess.run(
        [sys.executable, str(root / "examples" / "tune" / name), str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert re.search(TUNE_EXAMPLES[name], done.stdout), done.stdout


@pytest.mark.slow
def test_the_first_tuning_example_keeps_one_checkpoint_of_each_trial(root, tmp_path):
    script = root / "examples" / "tune" / "first.py"
    subprocess.run([sys.executable, str(script), str(tmp_path)], capture_output=True, timeout=60, check=True)
    kept = [
        len(list(trial.glob("checkpoint_*"))) for trial in (tmp_path / "first").iterdir() if trial.is_dir()
    ]
    assert kept == [1] * 12


def test_the_example_for_aws_is_planned_without_an_account_and_without_boto3(root):
    code = (
        "import sys; sys.modules['boto3'] = sys.modules['botocore'] = None\n"
        "from muster.cli.main import main; sys.exit(main())"
    )
    words = [
        "plan",
        str(root / "examples" / "aws.yaml"),
        "--demand",
        str(root / "examples" / "aws_demand.yaml"),
    ]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--json"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": ""},
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["satisfied"] is True
