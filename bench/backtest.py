"""Record a real cluster of processes with made-up prices, and replays its history against what it cost.

`python -m bench.backtest --minutes 30`. The work only sleeps, so a busy computer does not matter much.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bench import table
from bench.live_cluster import LiveCluster, wait_for
from bench.live_driver import Driver

CONFIG = """
cluster_name: recorded
provider: {type: process}
head_node_type: head
max_workers: 5
idle_timeout_minutes: 0.25
upscaling_speed: 10
available_node_types:
  head: {resources: {CPU: 0}, price_per_hour: 1.0}
  small: {resources: {CPU: 2}, max_workers: 4, price_per_hour: 10.0}
  big: {resources: {CPU: 4}, max_workers: 2, price_per_hour: 18.0}
"""
AT_MOST = 0.05  # by which the replayed cost differs from the real one
FINISH_S = 600.0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; return 1 when the replay is not near enough."""
    given = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-backtest-") as folder:
        cluster = LiveCluster(Path(folder), CONFIG, name="recorded")
        try:
            cluster.up()
            record(cluster, given.seed, 60.0 * given.minutes)
            spent = float(cluster.muster_json("status", cluster.name)["spent"])
        finally:
            cluster.down()
        replayed = cluster.muster("backtest", cluster.name, "--starts", str(given.starts), "--json")
        if replayed.returncode:
            raise RuntimeError(replayed.stderr)
    return 0 if show(json.loads(replayed.stdout), spent, given) else 1


def record(cluster: LiveCluster, seed: int, seconds: float) -> None:
    """Let a driver work for so long, and waits until everything is done."""
    script = Path(__file__).with_name("backtest_work.py")
    driver = Driver(script, cluster.environment(), cluster.folder / "driver.log")
    try:
        driver.ask("start", seed=seed, seconds=seconds)
        wait_for(lambda: driver.ask("is_done"), bool, "the work is done", seconds + FINISH_S)
    finally:
        driver.close()


def show(report: dict, spent: float, given: argparse.Namespace) -> bool:
    """Print the comparison; return whether it is near enough."""
    recorded, (same,) = report["recorded"], report["variants"]
    cost = same["cost"]
    error = cost["median"] / recorded["cost"] - 1.0
    rows = [
        ("status of the cluster, $", f"{spent:.2f}", ""),
        ("history, $", f"{recorded['cost']:.2f}", ""),
        ("replayed, $", f"{cost['median']:.2f}", f"{cost['low']:.2f} to {cost['high']:.2f}"),
        ("node-hours", f"{recorded['node_hours']:.2f}", f"{same['node_hours']['median']:.2f}"),
        ("machines launched", str(recorded["machines"]), f"{same['machines']['median']:.0f}"),
    ]
    table.show(f"{given.minutes:g} minutes, {given.starts} starts", ("", "recorded", "replayed"), rows)
    figures = {"recorded_cost": recorded["cost"], "replayed_cost": cost["median"], "relative_error": error}
    table.note(f"the replay differs by {100 * error:+.1f} %, at most {100 * AT_MOST:.0f} % are allowed")
    table.note(table.last_line("backtest", figures))
    return abs(error) <= AT_MOST


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.backtest", description=__doc__)
    made.add_argument("--minutes", type=float, default=30.0, help="how long work is asked for")
    made.add_argument("--starts", type=int, default=5, help="of the replay")
    made.add_argument("--seed", type=int, default=7, help="of the work")
    return made


if __name__ == "__main__":
    sys.exit(main())
