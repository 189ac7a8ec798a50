from __future__ import annotations

import subprocess
import sys

import pytest

BANNED = {
    "time.time": "import time\ntime.time()\n",
    "time.monotonic": "import time\ntime.monotonic()\n",
    "time.perf_counter": "import time\ntime.perf_counter()\n",
    "time.sleep": "from time import sleep\nsleep(1)\n",
    "datetime.datetime.now": "import datetime\ndatetime.datetime.now()\n",
    "random": "import random\nrandom.random()\n",
    "uuid.uuid4": "import uuid\nuuid.uuid4()\n",
    "os.environ": "import os\nos.environ['X']\n",
    "os.getenv": "import os\nos.getenv('X')\n",
}


def complaints(root, source: str, file: str) -> str:
    run = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "--select=TID251,T201", "--stdin-filename", file, "-"],
        cwd=root,
        input=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.stderr == ""
    return run.stdout


@pytest.mark.slow
@pytest.mark.parametrize("name", BANNED)
@pytest.mark.parametrize("file", ["src/muster/cluster/x.py", "src/muster/stores/x.py", "src/muster/sim/x.py"])
def test_time_chance_and_environment_cannot_be_read_behind_our_back(root, name, file):
    assert f"`{name}` is banned" in complaints(root, BANNED[name], file)


def test_only_the_files_that_own_them_may(root):
    assert "banned" not in complaints(root, BANNED["time.time"], "src/muster/base/clock.py")
    assert "banned" not in complaints(root, BANNED["random"], "src/muster/base/rng.py")
    assert "banned" not in complaints(root, BANNED["os.environ"], "src/muster/cli/cluster.py")


def test_only_the_console_prints(root):
    assert "`print` found" in complaints(root, "print(1)\n", "src/muster/cli/cluster.py")
    assert "`print` found" not in complaints(root, "print(1)\n", "src/muster/cli/console.py")
