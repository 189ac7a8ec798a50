"""Measure how many hosts are set up at once: 50 in network namespaces, each with its own sshd, over one.

Every host gets a file and five commands of equal length, all by muster's installer over real SSH; no Ray. The
launcher runs in a separate process, and its CPU time counts that of all its `ssh` and `rsync`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bench import table
from bench.options import Options

MANY, ROUNDS, COMMAND_S = 50, 3, 4.0
QUICK_MANY, QUICK_COMMAND_S = 8, 1.0
LIMIT_S = 600.0


def run(options: Options) -> dict[str, float]:
    """Set up one host and many, in turns; figures are medians."""
    from tests.hosts import Hosts, HostsMissing

    many, command_s = (QUICK_MANY, QUICK_COMMAND_S) if options.quick else (MANY, COMMAND_S)
    sides: dict[str, list[Mapping[str, Any]]] = {"one": [], "many": []}
    try:
        hosts = Hosts(many)
    except HostsMissing as missing:
        table.note(f"not measured: {missing}")
        return {}
    try:
        for number in range(1 if options.quick else ROUNDS):
            table.progress(f"up: round {number + 1}, one host, then {many}")
            sides["one"].append(driven(hosts, hosts[:1], command_s, number))
            sides["many"].append(driven(hosts, hosts[:], command_s, number))
    finally:
        hosts.close()
    figures = compared(sides)
    show(sides, figures, many)
    return figures


def driven(hosts: Any, chosen: Sequence[Any], command_s: float, number: int) -> Mapping[str, Any]:
    """Run the launcher on some hosts; each round is another set-up, so that nothing is skipped."""
    asked = {
        "ips": [host.ip for host in chosen],
        "key": str(hosts.key),
        "command_s": command_s,
        "directory": str(hosts.directory / f"round-{number}-{len(chosen)}"),
    }
    argv = hosts.in_controller([sys.executable, "-m", "bench.up_driver", json.dumps(asked)])
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=LIMIT_S, cwd=root, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the launcher failed: {done.stderr[-2000:]}")
    answer: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if answer["failures"]:
        raise RuntimeError(f"hosts could not be set up: {answer['failures'][:3]}")
    return answer


def compared(sides: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, float]:
    """Return the figures; an overhead is the time that is not the hosts' own commands."""

    def median(side: str, name: str) -> float:
        return statistics.median(one[name] for one in sides[side])

    figures = {
        "wall_over_one": median("many", "wall_s") / median("one", "wall_s"),
        "launcher_cpu_percent": 100 * median("many", "cpu_s") / median("many", "wall_s"),
    }
    for side, taken in sides.items():
        suffix = "" if side == "many" else f".{side}"
        steps = taken[0]["nodes"] * taken[0]["steps"]
        figures[f"wall_s.{side}"] = median(side, "wall_s")
        figures[f"overhead_ms{suffix}"] = statistics.median(
            1000 * (one["mean_node_s"] - one["scripted_s"]) / one["steps"] for one in taken
        )
        figures[f"cpu_ms.{side}"] = 1000 * median(side, "cpu_s") / steps
    return figures


def show(sides: Mapping[str, Sequence[Mapping[str, Any]]], figures: Mapping[str, float], many: int) -> None:
    scripted = sides["one"][0]["scripted_s"]
    table.show(
        f"Setting hosts up: {sides['one'][0]['steps']} steps, {scripted:g} s of commands on each host",
        ["hosts", "wall s", "overhead per node and step, ms", "launcher CPU per node and step, ms"],
        [
            [name, f"{figures[f'wall_s.{side}']:.2f}", f"{figures[overhead]:.0f}",
             f"{figures[f'cpu_ms.{side}']:.1f}"]
            for side, name, overhead in (("one", "1", "overhead_ms.one"), ("many", str(many), "overhead_ms"))
        ],
    )  # fmt: skip
    table.note(
        f"{many} hosts take {figures['wall_over_one']:.2f} times as long as one; the launcher with its ssh "
        f"uses {figures['launcher_cpu_percent']:.0f}% of a core meanwhile"
    )
