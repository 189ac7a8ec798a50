"""An environment in which Ray is not installed: every package of this one, without `ray`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

HERE = Path(__file__).parent
SRC = HERE.parent.parent / "src"


class Python:
    """Runs Python with given paths; `json` returns what the last line of the output holds."""

    def __init__(self, home: Path, paths: list[Path], options: list[str]) -> None:
        self._home, self._options = home, options
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("MUSTER_", "RAY_"))},
            "PYTHONPATH": os.pathsep.join(map(str, paths)),
            "HOME": str(home),
        }

    def command(self, *words: str) -> list[str]:
        return [sys.executable, *self._options, *words]

    def run(self, *words: str, code: int | None = 0, **env: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.command(*words),
            env={**self.env, **env},
            cwd=self._home,
            capture_output=True,
            text=True,
            timeout=100,
            check=False,
        )
        assert code is None or done.returncode == code, done.stdout + done.stderr
        return done

    def json(self, *words: str, **env: str) -> dict:
        return json.loads(self.run(*words, **env).stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def packages(tmp_path_factory) -> Path:
    """A folder with a link to each installed package, except Ray."""
    folder = tmp_path_factory.mktemp("packages")
    for entry in Path(numpy.__file__).parent.parent.iterdir():
        if entry.name.partition("-")[0] not in ("ray", "muster_ml") and entry.suffix != ".pth":
            (folder / entry.name).symlink_to(entry)
    return folder


@pytest.fixture
def rayless(packages, tmp_path) -> Python:
    """Python without Ray; muster is installed."""
    return Python(tmp_path, [SRC, packages], ["-S"])


@pytest.fixture
def with_ray(tmp_path) -> Python:
    """Python of the test environment, where Ray is installed."""
    return Python(tmp_path, [SRC], [])


def standin(name: str) -> str:
    return str(HERE / "standins" / f"{name}.py")
