"""For all tests: numerical libraries use one thread, as in trials; more would only fight for two cores.

Whoever runs the tests in the background of a shell has Ctrl-C switched off, and children inherit that: it is
switched on again, because some tests press it.

`make test` runs three processes, because many tests wait. Files that start a real Ray come first and stay in
one of them, in the order of tests/ray_clusters.py; every other file goes to whichever is free.
"""

from __future__ import annotations

import atexit
import gc
import os
import shutil
import signal
import sysconfig
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

pytest_plugins = (
    "tests.hosts",
    "tests.kube.summary",
    "tests.ray_clusters",
    "tests.s3_server",
    "tests.series",
    "tests.slurm_site",
)
pytest.register_assert_rewrite("tests.tune.crash.lives")  # its assertions say what differs
ROOT = Path(__file__).parents[1]
RAY_S = 480.0  # Ray or a host may take a minute to start on a busy computer, and a test may need several

os.environ.setdefault("OMP_NUM_THREADS", "1")
# Experiments of one machine notice each other; those of the processes of `make test` must not.
_home = os.environ["MUSTER_HOME"] = tempfile.mkdtemp(prefix="muster-tests-")
atexit.register(shutil.rmtree, _home, ignore_errors=True)
# As in an activated environment: commands that are suggested start with `muster`.
os.environ["PATH"] = os.pathsep.join((sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)))
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A busy machine makes examples slow; that says nothing about the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        is_long = item.get_closest_marker("ray") is not None or "hosts" in getattr(item, "fixturenames", ())
        if is_long and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(RAY_S))
    items.sort(key=turn)


def turn(item: pytest.Item) -> tuple[bool, int]:
    """First what needs Ray, in its order, because that takes longest; the rest as it was collected."""
    from tests.ray_clusters import place

    needs_ray = starts_ray(item.path)
    return not needs_ray, place(item.path, ROOT) if needs_ray else 0


def pytest_collection_finish() -> None:
    """What was collected stays forever: the garbage collector need not look through thousands of tests."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    from xdist.scheduler import LoadScopeScheduling

    class FileScheduling(LoadScopeScheduling):
        """Whole files, and all that start Ray, or a Slurm, as if they were one."""

        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.partition("::")[0]
            return "ray" if starts_ray(ROOT / file) else "slurm" if starts_slurm(ROOT / file) else file

    return FileScheduling(config, log)


@cache
def starts_slurm(file: Path) -> bool:
    text = file.read_text(encoding="utf-8")
    return "slurm_site" in text or "slurm_daemons" in text


@cache
def starts_ray(file: Path) -> bool:
    return "pytest.mark.ray" in file.read_text(encoding="utf-8")
