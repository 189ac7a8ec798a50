"""Measure eight short trials of scikit-learn, LightGBM, XGBoost and torch: CPU and wall seconds."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench import table
from bench.peer.tune import ENVIRONMENT
from bench.tune_processes import BenchProcesses, Side, in_turns

SCRIPT = Path(__file__).with_name("tune_library_script.py")
LIBRARIES = ("sklearn", "lightgbm", "xgboost", "torch")
SHOWN = (
    "library_cpu_s",
    "library_wall_s",
    "library_cpu_s_allowed",
    "library_cpu_s_new",
    "peer_library_wall_s",
)
COLUMNS = (
    "8 trials",
    "ours CPU s",
    "wall s",
    "forks forced, CPU s",
    "new interpreters, CPU s",
    "Ray Tune wall s",
)


def libraries(processes: BenchProcesses) -> dict[str, float]:
    """Compare trials with trials that are forked in any case, with new interpreters, and with Ray Tune."""
    figures: dict[str, float] = {}
    rows = []
    for library in LIBRARIES:
        if importlib.util.find_spec(library) is None:
            table.note(f"{library} is not installed, so its figures are absent")
            continue
        measured = measure(processes, library)
        figures |= measured
        values = [measured.get(f"{name}.{library}") for name in SHOWN]
        rows.append((library, *("-" if value is None else f"{value:.2f}" for value in values)))
    table.show("tune: real libraries", COLUMNS, rows)
    return figures


def measure(processes: BenchProcesses, library: str) -> dict[str, float]:
    repeats = processes.size(5, 1)
    forced = {"PYTHONPATH": forced_forks(processes.storage())}
    ours = Side("ours", lambda: run("muster", library, processes), repeats)
    allowed = Side("forks forced", lambda: run("muster", library, processes, forced), repeats)
    new = Side("new interpreters", lambda: run("interpreters", library, processes), processes.size(3, 1))
    peer = Side("Ray Tune", lambda: run("ray", library, processes), 1)
    ours.once()
    in_turns(library, ours, allowed, new, *([peer] if processes.with_ray else []))
    cpu_s = ours.median(lambda figures: figures["cpu_s"])
    figures = {
        f"library_cpu_s.{library}": cpu_s,
        f"library_wall_s.{library}": ours.median(lambda figures: figures["wall_s"]),
        f"library_cpu_s_allowed.{library}": allowed.median(lambda figures: figures["cpu_s"]),
        f"library_cpu_s_new.{library}": new.median(lambda figures: figures["cpu_s"]),
    }
    figures[f"library_cpu_over_allowed.{library}"] = cpu_s / figures[f"library_cpu_s_allowed.{library}"]
    figures[f"library_cpu_saved.{library}"] = figures[f"library_cpu_s_new.{library}"] / cpu_s
    if peer.runs:
        figures[f"peer_library_wall_s.{library}"] = peer.median(lambda figures: figures["wall_s"])
    return figures


def forced_forks(folder: str) -> str:
    """Return a directory for PYTHONPATH with which trials are always forked, whether that is safe or not."""
    patch = "from muster.engines.local import fork_safety\nfork_safety.why_not_fork = lambda: ''\n"
    Path(folder, "sitecustomize.py").write_text(patch, encoding="utf-8")
    return folder


def run(
    system: str, library: str, processes: BenchProcesses, more: dict[str, str] | None = None
) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="muster-ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        command = [sys.executable, str(SCRIPT), system, library, processes.storage(), place]
        environment = {**os.environ, **ENVIRONMENT, **(more or {})}
        done = subprocess.run(command, check=False, capture_output=True, text=True, env=environment)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures
