"""The complete scripts in docs/tracking.md run as they stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tracking.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
SCRIPTS = {
    package: block
    for block in BLOCKS
    for package in ("mlflow", "wandb")
    if "fit()" in block and package in block
}


@pytest.mark.slow
@pytest.mark.parametrize("package", ["mlflow", "wandb"])
def test_a_script_of_the_page_logs_two_trials(package, tmp_path):
    pytest.importorskip(package, reason=f"pip install {package}")
    if package == "mlflow":
        pytest.importorskip("alembic", reason="a local MLflow database needs sqlalchemy and alembic")
    (tmp_path / "script.py").write_text(SCRIPTS[package], encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "script.py"],
        cwd=tmp_path,
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    if package == "mlflow":
        import sqlite3

        with sqlite3.connect(tmp_path / "mlflow.db") as database:
            ended = database.execute("select status, count(*) from runs group by status").fetchall()
        database.close()
        assert ended == [("FINISHED", 2)], done.stderr
    else:
        assert len(list(tmp_path.rglob("run-*.wandb"))) == 2, done.stderr


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_every_block_of_the_page_is_python(number):
    compile(BLOCKS[number], f"{PAGE.name}, block {number}", "exec")
