from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# A wrong import into a module, and how import-linter names the contract it breaks.
WRONG = {
    "cluster/model.py": (
        "import muster.stores",
        "Entry points > simulator > facades > adapters > domains > base",
    ),
    "cluster/plan.py": ("import muster.cluster.reconcile", "Inside cluster, planning knows nothing of doing"),
    "trials/lifecycle.py": (
        "import muster.trials.experiment",
        "Inside trials, deciding knows nothing of doing",
    ),
    "tune/schedulers/trial_scheduler.py": (
        "import muster.tune.reporting",
        "Inside tune, execution uses plug-ins and reporting, never the reverse",
    ),
    "cluster/rules/timeouts.py": ("import muster.cluster.rules.launch", "Rules do not know each other"),
    "cluster/planner/cost/tail.py": (
        "import muster.cluster.planner.utilization",
        "The two objectives do not know each other",
    ),
    "engines/ray/failures.py": (
        "import muster.engines.local.engine",
        "The local engine and the Ray engine do not know each other",
    ),
    "cluster/states.py": ("import subprocess", "Domains and vocabulary do no I/O"),
    "providers/rack/host_list.py": ("import boto3", "Only providers.aws knows boto3"),
    "config/load.py": ("import ray", "Only engines.ray and runtimes.ray know Ray"),
}


def lint(config: Path, source: Path) -> str:
    run = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache", "--config", config],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(source), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout + run.stderr


@pytest.fixture(scope="module")
def told(root, tmp_path_factory) -> str:
    """Return what import-linter reports about a copy of the source with all the wrong imports in it."""
    source = tmp_path_factory.mktemp("wrong")
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "src" / "muster", source / "muster", ignore=ignore)
    for name, (statement, _) in WRONG.items():
        with (source / "muster" / name).open("a", encoding="utf-8") as file:
            file.write(f"\n{statement}\n")
    return lint(root / ".importlinter", source)


def test_the_source_keeps_every_contract(root):
    said = lint(root / ".importlinter", root / "src")
    assert " kept, 0 broken." in said
    assert [name for _, name in WRONG.values() if f"{name} KEPT" not in said] == []


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_import_is_refused(told, name):
    assert f"{WRONG[name][1]} BROKEN" in told


def test_a_package_without_a_layer_is_refused(root, tmp_path):
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(root / "src" / "muster", tmp_path / "muster", ignore=ignore)
    (tmp_path / "muster" / "helpers").mkdir()
    (tmp_path / "muster" / "helpers" / "__init__.py").write_text("", encoding="utf-8")
    said = lint(root / ".importlinter", tmp_path)
    assert "Entry points > simulator > facades > adapters > domains > base BROKEN" in said
    assert "muster.helpers" in said
