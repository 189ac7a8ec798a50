"""Run a cluster on this computer under random demand, with a node and the monitor killed regularly.

In the end all work is done, nothing is left, and no limit was ever passed. `make soak` (SOAK_MINUTES=20
SOAK_SEED=0), `python -m bench.soak`; docs/soak.md has the rules.
"""

from __future__ import annotations

import argparse
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench import table
from bench.live_cluster import LiveCluster, wait_for
from bench.live_driver import Driver
from bench.live_watch import ClusterWatch
from bench.soak_checks import MARGIN_S, LimitChecker, Limits
from muster.stores.ledger.history import open_history

NODE_EVERY_S, MONITOR_EVERY_S = 60.0, 120.0
SUPERVISOR_S = 1.0  # what a supervisor waits before it starts a monitor again
WATCH_S = 0.5
FINISH_S = 300.0  # for what is still open when no more is asked for
LIMITS = Limits(workers=5, by_type={"small": 4, "big": 2}, idle_s=6.0)
CONFIG = """
cluster_name: soak
provider: {type: process}
head_node_type: head
max_workers: 5
idle_timeout_minutes: 0.1
upscaling_speed: 10
available_node_types:
  head: {resources: {CPU: 0}}
  small: {resources: {CPU: 1}, max_workers: 4}
  big: {resources: {CPU: 2}, max_workers: 2}
"""
AT_MOST = {
    "unfinished": 0.0,
    "errors": 0.0,
    "leaked_processes": 0.0,
    "broken_rules": 0.0,
    "most_workers": float(LIMITS.workers),
    "longest_idle_s": LIMITS.idle_s + MARGIN_S,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; return 1 when a rule was broken."""
    given = parser().parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="muster-soak-") as folder:
        cluster = LiveCluster(Path(folder), CONFIG, name="soak")
        soak = Soak(cluster, LimitChecker(cluster, LIMITS), random.Random(given.seed))
        soak.log(f"{given.minutes:g} minutes, seed {given.seed}: starting the cluster")
        try:
            cluster.up()
            soak.run(given.seed, 60 * given.minutes)
        finally:
            soak.end()
        figures = soak.figures()
        missed = [name for name, most in AT_MOST.items() if not figures[name] <= most]
        if missed:
            kept = tempfile.mkdtemp(prefix="muster-soak-broken-")
            shutil.copytree(cluster.home.path, kept, dirs_exist_ok=True)
            table.note(f"ledger and logs are kept in {kept}")
    show(soak, figures)
    table.note(f"MISSED: {', '.join(missed)}" if missed else "every rule was kept")
    table.note(table.last_line("soak", {"minutes": given.minutes, "seed": given.seed, **figures}))
    return 1 if missed else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench.soak", description=__doc__)
    made.add_argument("--minutes", type=float, default=20.0, help="how long work is asked for")
    made.add_argument("--seed", type=int, default=0, help="of the work and of who is killed")
    return made


@dataclass
class Soak:
    """One run."""

    cluster: LiveCluster
    checker: LimitChecker
    rng: random.Random
    began: float = field(default_factory=time.monotonic)
    events: dict[str, int] = field(default_factory=dict)
    work: dict[str, Any] = field(default_factory=dict)
    empty_s: float = float("nan")
    left: dict[int, str] = field(default_factory=dict)

    def log(self, text: str) -> None:
        table.note(f"{time.monotonic() - self.began:7.1f} s  {text}")

    def count(self, name: str) -> None:
        self.events[name] = self.events.get(name, 0) + 1

    def run(self, seed: int, seconds: float) -> None:
        environment = self.cluster.environment()
        driver = Driver(
            Path(__file__).with_name("soak_work.py"), environment, self.cluster.folder / "driver.log"
        )
        watch = ClusterWatch(
            self.cluster.address,
            environment,
            every_s=WATCH_S,
            processes=self.cluster.processes,
            on_snapshot=self.checker.on_snapshot,
        )
        try:
            driver.ask("me")  # connected while there is only the head, so it is attached to that
            watch.start()
            driver.ask("start", seed=seed, seconds=seconds)
            self._disturb(watch, driver, seconds)
            self._finish(watch, driver)
        finally:
            driver.close()
            watch.close()

    def _disturb(self, watch: ClusterWatch, driver: Driver, seconds: float) -> None:
        start = time.monotonic()
        node_at, monitor_at, told_at = start + NODE_EVERY_S, start + MONITOR_EVERY_S * 0.75, start
        while (now := time.monotonic()) < start + seconds:
            if now >= node_at and self._kill_node(watch):
                node_at += NODE_EVERY_S
            if now >= monitor_at:
                self._kill_monitor()
                monitor_at += MONITOR_EVERY_S
            if now >= told_at:
                told_at += 15.0
                self._report(watch, driver)
            time.sleep(0.2)

    def _kill_node(self, watch: ClusterWatch) -> bool:
        """Kill one that has joined; when there is none, the next that does."""
        workers = sorted(watch.now().workers, key=lambda node: node.node_id)
        known = [node for node in workers if str(node.cloud_id) not in self.checker.killed]
        if not known:
            return False
        victim = self.rng.choice(known)
        self.checker.note_killed(str(victim.cloud_id), time.monotonic())
        count = self.cluster.kill_node(str(victim.cloud_id))
        self.count("nodes_killed")
        self.log(f"killed node {victim.cloud_id} ({victim.node_type}): {count} processes")
        return True

    def _kill_monitor(self) -> None:
        self.checker.note_monitor_gone(time.monotonic())
        pid = self.cluster.kill_monitor()
        self.log(f"killed the monitor, process {pid}")
        time.sleep(SUPERVISOR_S)
        self.cluster.up()
        self.checker.note_monitor_back(time.monotonic())
        self.count("monitors_killed")
        self.log(f"a new monitor, process {self.cluster.monitor_pid()}")

    def _report(self, watch: ClusterWatch, driver: Driver) -> None:
        self.work = driver.ask("state")
        work = self.work
        done = f"{work['tasks_done']}/{work['tasks']} tasks, {work['gangs_done']}/{work['gangs']} gangs"
        self.log(f"{done} ({work['gangs_again']} made again); workers {watch.now().counts()}")

    def _finish(self, watch: ClusterWatch, driver: Driver) -> None:
        """Wait until everything requested is done, and everything launched is released."""
        self.log("no more demand; waiting for what is open")
        give_up = time.monotonic() + FINISH_S
        while not driver.ask("state")["is_done"] and time.monotonic() < give_up:
            time.sleep(0.5)
        self._report(watch, driver)
        done_at = time.monotonic()
        try:
            wait_for(watch.now, lambda snapshot: not snapshot.workers, "all workers gone", 120.0)
            self.empty_s = time.monotonic() - done_at
            self.log(f"no worker is left, {self.empty_s:.1f} s after the last work")
        except AssertionError as error:
            self.checker.broken["workers do not go"] = str(error)[:500]

    def end(self) -> None:
        self.cluster.processes.update()
        done = self.cluster.down()
        self.log(done.stdout.splitlines()[0] if done.stdout else done.stderr.strip())
        give_up = time.monotonic() + 30.0
        while (left := self.cluster.processes.living()) and time.monotonic() < give_up:
            time.sleep(0.2)
        self.left = left

    def figures(self) -> dict[str, float]:
        work, broken = self.work, self.checker.broken
        return {
            "unfinished": float(work.get("open", 1)),
            "errors": float(len(work.get("errors", []))),
            "leaked_processes": float(len(self.left)),
            "broken_rules": float(len(broken)),
            "tasks": float(work.get("tasks_done", 0)),
            "gangs": float(work.get("gangs_done", 0)),
            "gangs_made_anew": float(work.get("gangs_again", 0)),
            "nodes_killed": float(self.events.get("nodes_killed", 0)),
            "monitors_killed": float(self.events.get("monitors_killed", 0)),
            "snapshots": float(self.checker.snapshots),
            "most_workers": float(self.checker.most_workers),
            "longest_idle_s": self.checker.longest_idle_s,
            "empty_after_s": self.empty_s,
            "processes_seen": float(len(self.cluster.processes)),
            "machines_launched": float(launched(self.cluster)),
        }


def launched(cluster: LiveCluster) -> int:
    with open_history(cluster.home.ledger) as history:
        return sum(record.node_type != "head" for record in history.find())


def show(soak: Soak, figures: Mapping[str, float]) -> None:
    rows = [
        (name, f"{value:g}", f"{AT_MOST[name]:g}" if name in AT_MOST else "")
        for name, value in figures.items()
    ]
    table.show("Soak", ("figure", "value", "at most"), rows)
    for what, how in soak.checker.broken.items():
        table.note(f"BROKEN: {what}: {how}")
    for pid, name in soak.left.items():
        table.note(f"LEAKED: process {pid} ({name})")
    for error in soak.work.get("errors", []):
        table.note(f"FAILED: {error}")


if __name__ == "__main__":
    sys.exit(main())
