"""Measure how long users wait: `import muster.tune`, and a script from its start to its first result."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import table
from bench.peer.tune import ENVIRONMENT
from bench.tune_processes import BenchProcesses, Side, in_turns

SCRIPT = Path(__file__).with_name("tune_first_result.py")
PREFIX = "first result at "
ROOT = Path(__file__).parents[1]


def imports(processes: BenchProcesses) -> dict[str, float]:
    """Measure fresh interpreters; the time of an empty one is subtracted."""
    repeats = processes.size(21, 7)
    bare = Side("an empty interpreter", lambda: seconds_of("pass"), repeats)
    plain = Side("import muster.tune", lambda: seconds_of("import muster.tune"), repeats)
    whole = Side("every name of it", lambda: seconds_of("from muster.tune import *"), repeats)
    whole.once()
    in_turns("import", bare, plain, whole)
    figures = {
        "import_ms": 1000 * (plain.median() - bare.median()),
        "import_ms.every_name": 1000 * (whole.median() - bare.median()),
    }
    rows = [
        ("import muster.tune", f"{figures['import_ms']:.1f}"),
        ("from muster.tune import *", f"{figures['import_ms.every_name']:.1f}"),
    ]
    table.show(
        f"tune: importing (an empty interpreter, {1000 * bare.median():.1f} ms, is subtracted)",
        ("statement", "ms"),
        rows,
    )
    return figures


def first_result(processes: BenchProcesses) -> dict[str, float]:
    """Measure from the start of the process to the first call of on_trial_result."""
    mine = Side("ours", lambda: first_result_s("muster", processes.storage()), processes.size(9, 3))
    theirs = Side("Ray Tune", lambda: first_result_s("ray", processes.storage()), processes.size(3, 1))
    sides = [mine, theirs] if processes.with_ray else [mine]
    for side in [mine] if processes.options.quick else sides:
        table.progress(f"tune: first result: {side.name}, once before it counts")
        side.once()
    in_turns("first result", *sides)
    figures = {"seconds.first_result": mine.median()}
    rows = [("ours", table.seconds(mine.median()))]
    if processes.with_ray:
        figures["peer_seconds.first_result"] = theirs.median()
        figures["first_result_speedup"] = theirs.median() / mine.median()
        rows.append(("Ray Tune 2.60, ray.init in the script", table.seconds(theirs.median())))
    table.show("tune: from the start of a script to its first result", ("system", "s"), rows)
    return figures


def seconds_of(statement: str) -> float:
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", statement], check=True, cwd=ROOT)
    return time.perf_counter() - started


def first_result_s(system: str, storage: str) -> float:
    with tempfile.TemporaryDirectory(prefix="muster-ray-", dir="/tmp", ignore_cleanup_errors=True) as place:
        command = [sys.executable, str(SCRIPT), system, storage, place]
        started = time.time()
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, env={**os.environ, **ENVIRONMENT}, cwd=ROOT
        )
    found = [line for line in done.stderr.splitlines() if line.startswith(PREFIX)]
    if done.returncode or not found:
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return float(found[0].removeprefix(PREFIX)) - started
