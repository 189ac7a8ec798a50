"""Run every scenario with one of the two systems and writes the outcome as JSON.

PARITY_SYSTEM=ray python play.py OUT.json [scenario or module ...]

Only `system.py` knows which package is used. With PARITY_ENGINE=ray, muster's
trials run on a Ray of this process.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import tempfile
import time
import traceback


def main(out, wanted):
    with tempfile.TemporaryDirectory() as root:
        os.environ["PARITY_ROOT"] = root
        os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = "4"
        if "ray" in (os.environ["PARITY_SYSTEM"], os.environ.get("PARITY_ENGINE")):
            _start_ray()
        play(wanted, out)


def _start_ray():
    os.environ["RAY_AUTH_MODE"] = "disabled"
    os.environ["RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS"] = "0"
    scripts = os.path.join(os.environ["PARITY_ROOT"], "scripts")  # trials import the scripts by name
    os.mkdir(scripts)  # before Ray starts workers: Python does not look again for a folder that was not there
    os.environ["PYTHONPATH"] = os.pathsep.join([scripts, os.environ.get("PYTHONPATH", "")])
    import ray

    ray.init(
        address="local",  # never a cluster that happens to run here
        num_cpus=2,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )


def play(wanted, out):
    import checkpoints
    import populations
    import reporting
    import scripts
    import searchers
    import spaces
    import stopping
    import values

    modules = (values, spaces, reporting, stopping, searchers, checkpoints, populations, scripts)
    found = {"versions": versions()}
    for module, scenario in ((one.__name__, each) for one in modules for each in one.SCENARIOS):
        if wanted and not wanted & {module, scenario.__name__}:
            continue
        began, cpu_began = time.perf_counter(), sum(os.times()[:4])
        try:
            found[scenario.__name__] = scenario()
        except Exception as error:
            traceback.print_exc()
            found[scenario.__name__] = {"failed": f"{type(error).__name__}: {error}"}
        write(found, out)
        cpu_s = sum(os.times()[:4]) - cpu_began  # of this process and of those that have ended
        sys.stderr.write(f"{scenario.__name__}: {time.perf_counter() - began:.1f} s, CPU {cpu_s:.1f} s\n")


def versions():
    """Of what the outcome may depend on besides the system."""
    import numpy
    import optuna
    import pandas

    return {each.__name__: each.__version__ for each in (numpy, optuna, pandas)}


def write(found, out):
    """One line per part of a scenario: short, and a difference shows as a line."""
    lines = []
    for name, outcome in found.items():
        parts = outcome.items() if isinstance(outcome, dict) else [("", outcome)]
        inner = ",\n".join(f"  {json.dumps(str(key))}: {json.dumps(part)}" for key, part in parts)
        lines.append(f" {json.dumps(name)}: {{\n{inner}\n }}")
    with open(out, "w", encoding="utf-8") as stream:
        stream.write("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], set(sys.argv[2:]))
