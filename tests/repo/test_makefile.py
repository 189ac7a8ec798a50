from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

TARGETS = (
    *("quickstart", "demo", "setup", "fmt", "lint", "types", "imports"),
    *("test", "test-fast", "sim", "sim-tune", "series", "bench", "check", "docs"),
    *("docs-check", "pictures", "changelog"),
)


def test_every_promised_target_exists_and_is_described(root):
    run = subprocess.run(["make", "help"], cwd=root, capture_output=True, text=True, check=True)
    told = dict(re.findall(r"^  make (\S+) +(\S.*)$", run.stdout, re.MULTILINE))
    assert [target for target in TARGETS if target not in told] == []


def test_the_readme_starts_with_the_two_commands_of_a_clone_and_their_times(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    install = text.partition("\n## Install\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `make ([a-z-]+)` \| .+ \| (\d+) minutes? \|$", install, re.MULTILINE)
    assert [target for target, _ in rows] == ["quickstart", "test"]


def test_ci_runs_the_tests_and_nothing_hides_their_exit_code(root):
    script = root / ".ci" / "run"
    text = script.read_text(encoding="utf-8")
    assert os.access(script, os.X_OK)
    assert text.startswith("#!/usr/bin/env bash\n")
    assert "set -euo pipefail\n" in text
    assert "\nmake test\n" in text


def test_ci_fails_when_the_tests_fail(root, tmp_path):
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "run").write_bytes((root / ".ci" / "run").read_bytes())
    (tmp_path / "Makefile").write_text("test:\n\t@exit 7\n", encoding="utf-8")
    failed = subprocess.run(["bash", tmp_path / ".ci" / "run"], capture_output=True, check=False)
    (tmp_path / "Makefile").write_text("test:\n\t@true\n", encoding="utf-8")
    passed = subprocess.run(["bash", tmp_path / ".ci" / "run"], capture_output=True, check=False)
    assert (failed.returncode != 0, passed.returncode) == (True, 0)


def fake_python(folder: Path, *, version: str, is_new: bool, has_venv: bool) -> Path:
    """An interpreter that answers the three questions `setup.sh` asks."""
    path = folder / "fake-python"
    path.write_text(
        "#!/bin/sh\n"
        'case "$2" in\n'
        f"  *ensurepip*) exit {0 if has_venv else 1} ;;\n"
        f"  *print*) echo {version} ;;\n"
        f"  *) exit {0 if is_new else 1} ;;\n"
        "esac\n",
        encoding="utf-8",
    )
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        ({"version": "3.9", "is_new": False, "has_venv": True}, "muster needs Python 3.10 or newer, but"),
        (
            {"version": "3.11", "is_new": True, "has_venv": False},
            "Python 3.11 has no venv module. On Debian or Ubuntu: sudo apt install python3.11-venv",
        ),
    ],
)
def test_setup_reports_what_to_install_when_python_is_unsuitable(root, tmp_path, answers, message):
    python = fake_python(tmp_path, **answers)
    run = subprocess.run(
        ["sh", root / "tools" / "setup.sh", tmp_path / "venv", "core"],
        env={**os.environ, "PYTHON": str(python)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 1
    assert run.stderr.startswith(f"setup: {message}")
    assert run.stderr.count("\n") == 1


def test_setup_without_any_python_reports_it(root, tmp_path):
    run = subprocess.run(
        ["sh", root / "tools" / "setup.sh", tmp_path / "venv", "core"],
        env={**os.environ, "PYTHON": str(tmp_path / "none")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (run.returncode, run.stderr.split(".")[0]) == (1, "setup: no Python found")
