"""Runs `make demo`: a Ray cluster on this computer grows for an experiment, shrinks after it, and is plotted.

python examples/demo/run.py [--out DIRECTORY] [--trials 10] [--deadline 240]

The script starts a head and the monitor with nodes that are processes (no cloud, no costs), runs
trials that do not fit on the head, prints what happens, ends everything and plots it. Nothing is left
running, also after Ctrl-C. The demo needs Ray and matplotlib: pip install "muster-ml[ray,plot]".
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from picture import draw, trial_spans

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lifecycle.down import ClusterDown
from muster.autoscaler.lifecycle.here import HeadHere
from muster.autoscaler.lifecycle.open import LaunchContext, OpenCluster, RunningCluster
from muster.autoscaler.status_files import read_status
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.base.text import shortened
from muster.cli.status.report import build_report
from muster.cli.status.view import machines_line
from muster.errors import MusterError
from muster.host.processes import table, was_started_with

HERE = Path(__file__).resolve().parent
SHRINK_S = 60.0  # after the experiment, nodes are idle for 6 s before they are removed
GONE_S = 15.0
LINE = "{:>5}  {:>7}  {:<44}  {:<8}  {}"


class DemoFailed(Exception):
    """A DemoFailed says which step of the demo failed."""


class Demo:
    """A Demo is one run of the demo, in its own home directory."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.folder, self.trials = folder, trials
        self.home = ClusterHome.of("demo", folder / "clusters")
        self.events = folder / "trials.jsonl"
        self.environment = {**os.environ, "MUSTER_HOME": str(folder)}
        self.context = LaunchContext(
            root=folder / "clusters",
            environment=self.environment,
            clock=SystemClock(),
            ids=RandomIds(),
            report=lambda node, text: self._step(text),
        )
        self.began = time.monotonic()
        self.experiment: subprocess.Popen[bytes] | None = None
        self.most_workers = 0
        self.spent = 0.0
        self._shown = self._last_step = ""

    def run(self) -> dict:
        """Starts the cluster, tunes, waits until it has shrunk, and returns the outcome of the experiment."""
        with OpenCluster(self.context, HERE / "cluster.yaml") as cluster:
            launched = HeadHere(cluster).up()
        print(f"        the head is at {launched.record.address}\n")
        print(LINE.format("time", "waiting", "machines", "trials", "spend"))
        self._start_experiment(launched)
        while self.experiment.poll() is None:
            self._print_status()
            time.sleep(0.5)
        outcome = self._outcome()
        give_up = time.monotonic() + SHRINK_S
        while self._print_status() > 0:
            if time.monotonic() > give_up:
                raise DemoFailed(f"nodes were not removed within {SHRINK_S:.0f} s after the experiment")
            time.sleep(0.5)
        if not self.most_workers:
            raise DemoFailed(
                "no node was added: see `nodes` and `monitor.log` in clusters/demo; is the computer busy?"
            )
        return outcome

    def end(self) -> None:
        """Ends the experiment, the monitor and every node, whatever happened before."""
        if self.experiment is not None and self.experiment.poll() is None:
            os.killpg(self.experiment.pid, signal.SIGKILL)
            self.experiment.wait()
        if self.home.path.exists():
            with OpenCluster(self.context, HERE / "cluster.yaml") as cluster:
                stopped = asyncio.run(ClusterDown(cluster).run())
            self.spent = self.spent if stopped.spend is None else stopped.spend.total
        left = self._remaining()
        if left:
            raise DemoFailed(f"still running: {left}")

    def _step(self, text: str) -> None:
        """Prints one line per step, not per second of waiting."""
        step = text.partition(",")[0]
        if step != self._last_step:
            self._last_step = step
            print(f"        {step}", flush=True)

    def _start_experiment(self, launched: RunningCluster) -> None:
        command = [sys.executable, str(HERE / "experiment.py"), "--trials", str(self.trials)]
        command += ["--storage", str(self.folder / "results"), "--events", str(self.events)]
        cluster = {"RAY_ADDRESS": launched.record.address, **launched.record.auth}
        with open(self.folder / "experiment.log", "wb") as log:
            self.experiment = subprocess.Popen(
                command,
                env={**self.environment, **cluster},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _outcome(self) -> dict:
        lines = (self.folder / "experiment.log").read_text(errors="replace").strip().splitlines()
        if self.experiment.returncode != 0:
            raise DemoFailed("the experiment failed; its last output was:\n" + "\n".join(lines[-25:]))
        outcome = json.loads(lines[-1])
        if outcome["errors"]:
            raise DemoFailed(f"{outcome['errors']} of {outcome['trials']} trials failed")
        return outcome

    def _print_status(self) -> int:
        """Prints a line when something changed, and returns the number of workers."""
        status = read_status(self.home)
        if status is None:
            return 0
        report = build_report(status, now=time.time())
        waiting = sum(row.count for row in report.pending)
        done = len(trial_spans(self.events))
        workers = sum(not row.is_head for row in report.nodes)
        serving = sum(row.instance_state == "RAY_RUNNING" and not row.is_head for row in report.nodes)
        self.most_workers = max(self.most_workers, serving)
        facts = (str(waiting), shortened(machines_line(report), 44), f"{done} of {self.trials}")
        if str(facts) != self._shown:
            self._shown = str(facts)
            seconds = f"{time.monotonic() - self.began:.0f} s"
            print(LINE.format(seconds, *facts, f"${report.spent:.4f}"), flush=True)
        return workers

    def _remaining(self) -> list[str]:
        """Returns the processes with the demo's home in their environment; Ray's last ones end late."""
        entry, give_up = f"MUSTER_HOME={self.folder}", time.monotonic() + GONE_S
        while True:
            left = [
                f"{one.pid} {one.name}"
                for one in table()
                if one.is_alive and one.pid != os.getpid() and was_started_with(one.pid, entry)
            ]
            if not left or time.monotonic() > give_up:
                return left
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="directory for the plot; default: a new one")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument("--deadline", type=int, default=240, metavar="S", help="fail after S seconds")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(given.deadline)
    folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
    demo = Demo(folder, given.trials)
    problem = ""
    try:
        outcome = demo.run()
    except KeyboardInterrupt:
        problem = "interrupted"
    except (DemoFailed, MusterError, TimeoutError) as error:
        problem = str(error)
    finally:
        signal.alarm(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up
        print("        ending everything")
        try:
            demo.end()
        except DemoFailed as error:
            problem = f"{problem}; {error}".lstrip("; ")
    if problem:
        print(f"demo failed: {problem}\n(logs are in {folder})", file=sys.stderr)
        return 1
    _plot(demo, outcome, given.out or Path(tempfile.mkdtemp(prefix="muster-demo-")))
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _plot(demo: Demo, outcome: dict, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    took_s = time.monotonic() - demo.began
    title = (
        f"{outcome['trials']} trials on a cluster that grows and shrinks: {took_s:.0f} s, ${demo.spent:.4f}"
    )
    shutil.copytree(demo.home.history, out / "history", dirs_exist_ok=True)
    shutil.copy(demo.events, out / "trials.jsonl")
    draw(out / "history", out / "trials.jsonl", out / "timeline.png", title=title)
    print(f"\n{title}\nbest loss {outcome['best_loss']:.4f}; nothing is left running")
    print(f"plot: {out / 'timeline.png'}")


def _too_late(*_: object) -> None:
    raise TimeoutError("the deadline passed")


if __name__ == "__main__":
    sys.exit(main())
