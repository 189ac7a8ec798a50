"""Measure trials that are commands: how many per second, results of a child, much output, and stops."""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import table
from bench.options import Options

CHILD = "from muster import tune; import sys; [tune.report({'loss': n}) for n in range(int(sys.argv[1]))]"
LINES = "import sys; [print('{\"loss\": %d}' % n) for n in range(int(sys.argv[1]))]"
ENDLESS = """
import os, sys, time
def peak():
    return int(open(f"/proc/{os.getppid()}/status").read().split("VmHWM:")[1].split()[0])
before, began, part = peak(), time.monotonic(), b"x" * 1_000_000
for _ in range(int(sys.argv[1])):
    sys.stdout.buffer.write(part)
sys.stdout.buffer.flush()
print('\\n{"loss": 1, "mb_per_s": %f, "grown_mb": %f}' % (
    int(sys.argv[1]) / (time.monotonic() - began), (peak() - before) / 1000))
"""
STOPPED = """
import os, signal, sys, time
def leave(*_):
    open(sys.argv[1] + "/" + str(os.getpid()), "w").write(repr(time.time() - began))
    os._exit(0)
signal.signal(signal.SIGTERM, leave)
began = time.time()
print('{"loss": 1}', flush=True)
time.sleep(60)
"""


def run(options: Options) -> dict[str, float]:
    """Run all cases, and return the figures."""
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as place:
        for case in (many, results, output, stops):
            figures.update(case(Path(place), options.quick))
    rows = [(name, f"{value:.1f}") for name, value in figures.items()]
    table.show("command: trials that are commands", ("figure", "value"), rows)
    return figures


def fit(place: Path, trainable: Any, space: Mapping[str, Any], samples: int, **run_config: Any) -> Any:
    from muster import tune

    return tune.Tuner(
        trainable,
        param_space=dict(space),
        tune_config=tune.TuneConfig(metric="loss", mode="min", num_samples=samples),
        run_config=tune.RunConfig(storage_path=str(place), verbose=0, **run_config),
    ).fit()


def measured(action: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return seconds, processor seconds including those of ended children, and what the action returned."""
    before, began = sum(os.times()[:4]), time.monotonic()
    made = action()
    return time.monotonic() - began, sum(os.times()[:4]) - before, made


def many(place: Path, quick: bool) -> dict[str, float]:
    """Run `/bin/echo` and an empty function, the second to compare."""
    from muster import tune

    count = 100 if quick else 1000
    echo = tune.command(["/bin/echo", '{"loss": {x}}'])
    space = {"x": tune.uniform(0, 1)}
    fit(place, echo, space, 5)
    echo_s, echo_cpu_s, done = measured(lambda: fit(place, echo, space, count))
    function_s, _, _ = measured(lambda: fit(place, lambda config: {"loss": config["x"]}, space, count))
    assert done.num_errors == 0, done.errors[0]
    return {
        "echo.trials_per_s": count / echo_s,
        "echo.cpu_ms": 1000 * echo_cpu_s / count,
        "echo.speed_of_functions": function_s / echo_s,
    }


def results(place: Path, quick: bool) -> dict[str, float]:
    """Report many results from a child, from a function and as lines of JSON."""
    from muster import tune

    count = 2000 if quick else 20_000

    def train(config: Mapping[str, Any]) -> None:
        for number in range(config["count"]):
            tune.report({"loss": number})

    def seconds(trainable: Any, results: int) -> float:
        took_s, _, done = measured(lambda: fit(place, trainable, {"count": results}, 1))
        assert list(done[0].metrics_dataframe["loss"]) == list(range(results)), "a result was lost"
        return took_s

    def rate(trainable: Any) -> float:
        return count / (seconds(trainable, count) - min(seconds(trainable, 1) for _ in range(3)))

    child = rate(tune.command([sys.executable, "-c", CHILD, "{count}"]))
    lines = rate(tune.command([sys.executable, "-c", LINES, "{count}"]))
    return {"child.results_ratio": child / rate(train), "lines.results_per_s": lines}


def output(place: Path, quick: bool) -> dict[str, float]:
    """Write a gigabyte without a newline, then a result."""
    from muster import tune

    result = fit(place, tune.command([sys.executable, "-c", ENDLESS, "100" if quick else "1000"]), {}, 1)[0]
    size = os.path.getsize(os.path.join(result.path, "output.log"))
    return {
        "output.mb_per_s": result.metrics["mb_per_s"],
        "output.worker_grows_mb": result.metrics["grown_mb"],
        "output.file_mb": size / 1e6,
    }


def stops(place: Path, quick: bool) -> dict[str, float]:
    """Stop commands at their first result; the time from the result to SIGTERM includes the decision."""
    from muster import tune

    folder = place / "stops"
    folder.mkdir()
    command = tune.command([sys.executable, "-S", "-c", STOPPED, str(folder)])
    fit(place, command, {}, 30 if quick else 200, stop={"training_iteration": 1})
    taken = [1000 * float(file.read_text()) for file in folder.iterdir()]
    return {"stop.ms_p99": statistics.quantiles(taken, n=100)[98], "stop.ms_median": statistics.median(taken)}
