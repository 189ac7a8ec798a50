"""`make demo`: a Ray cluster on this computer that grows for an experiment and shrinks after it; a picture.

python examples/demo/run.py [--out DIRECTORY] [--trials 10] [--deadline 240]

Starts a head and the monitor with nodes that are processes (no cloud, nothing is bought), runs trials that do
not fit on the head, tells what happens, ends everything and draws it. Also on Ctrl-C nothing is left running.
Needs Ray and matplotlib: pip install "muster[ray,plot]".
"""

from __future__ import annotations

import argparse
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
from muster.autoscaler.launcher import LaunchedCluster, Launcher
from muster.autoscaler.status_files import read_status
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.cli.status.command import machines_line
from muster.cli.status.report import build_report
from muster.errors import MusterError
from muster.host.processes import was_started_with, table

HERE = Path(__file__).resolve().parent
OUT = Path(tempfile.gettempdir()) / "muster-demo"
SHRINK_S = 60.0  # after the experiment: nodes idle for 6 s, then leave
GONE_S = 15.0
LINE = "{:>6}  {:>7}  {:<44}  {:<9}  {}"


class DemoFailed(Exception):
    """What did not happen as it should."""


class Demo:
    """One run, in a home of its own."""

    def __init__(self, folder: Path, trials: int) -> None:
        self.folder, self.trials = folder, trials
        self.home = ClusterHome.of("demo", folder / "clusters")
        self.diary = folder / "trials.jsonl"
        self.environment = {**os.environ, "MUSTER_HOME": str(folder)}
        self.launcher = Launcher(
            folder / "clusters",
            self.environment,
            clock=SystemClock(),
            ids=RandomIds(),
            tell=self._step,
        )
        self.began = time.monotonic()
        self.experiment: subprocess.Popen[bytes] | None = None
        self.most_workers = 0
        self.spent = 0.0
        self._shown = self._told = ""

    def run(self) -> dict:
        """Up, tune, shrink; what the experiment said."""
        brought = self.launcher.up(HERE / "cluster.yaml")
        print(f"        the head is at {brought.record.address}\n")
        print(LINE.format("time", "waiting", "machines", "trials", "spend"))
        self._start_experiment(brought)
        while self.experiment.poll() is None:
            self._tell()
            time.sleep(0.5)
        said = self._outcome()
        give_up = time.monotonic() + SHRINK_S
        while self._tell() > 0:
            if time.monotonic() > give_up:
                raise DemoFailed(f"nodes did not go within {SHRINK_S:.0f} s of the end")
            time.sleep(0.5)
        if not self.most_workers:
            raise DemoFailed(
                "no node was added: see `nodes` and `monitor.log` of its home; is the computer busy?"
            )
        return said

    def end(self) -> None:
        """Whatever happened before: the experiment, the monitor and every node are ended."""
        if self.experiment is not None and self.experiment.poll() is None:
            os.killpg(self.experiment.pid, signal.SIGKILL)
            self.experiment.wait()
        ended = self.launcher.down(self.home)
        if ended.spend is not None:
            self.spent = ended.spend.total
        left = self._left()
        if left:
            raise DemoFailed(f"still running: {left}")

    def _step(self, text: str) -> None:
        """One line per step, not per second of waiting."""
        step = text.partition(",")[0]
        if step != self._told:
            self._told = step
            print(f"        {step}", flush=True)

    def _start_experiment(self, brought: LaunchedCluster) -> None:
        command = [sys.executable, str(HERE / "experiment.py"), "--trials", str(self.trials)]
        command += ["--storage", str(self.folder / "results"), "--diary", str(self.diary)]
        cluster = {"RAY_ADDRESS": brought.record.address, **brought.record.auth}
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
        said = (self.folder / "experiment.log").read_text(errors="replace").strip().splitlines()
        if self.experiment.returncode != 0:
            raise DemoFailed("the experiment failed; it said:\n" + "\n".join(said[-25:]))
        outcome = json.loads(said[-1])
        if outcome["errors"]:
            raise DemoFailed(f"{outcome['errors']} of {outcome['trials']} trials failed")
        return outcome

    def _tell(self) -> int:
        """A line when something changed; how many workers there are."""
        status = read_status(self.home)
        if status is None:
            return 0
        report = build_report(status, now=time.time())
        waiting = sum(row.count for row in report.pending)
        done = len(trial_spans(self.diary))
        workers = sum(not row.is_head for row in report.nodes)
        serving = sum(row.instance_state == "RAY_RUNNING" and not row.is_head for row in report.nodes)
        self.most_workers = max(self.most_workers, serving)
        facts = (str(waiting), machines_line(report), f"{done} of {self.trials}")
        if str(facts) != self._shown:
            self._shown = str(facts)
            seconds = f"{time.monotonic() - self.began:.0f} s"
            print(LINE.format(seconds, *facts, f"${report.spent:.4f}"), flush=True)
        return workers

    def _left(self) -> list[str]:
        """Every process of the demo carries its home in its environment; Ray's last ones need a moment."""
        entry, give_up = f"MUSTER_HOME={self.folder}", time.monotonic() + GONE_S
        while True:
            left = [
                f"{one.pid} {one.name}"
                for one in table()
                if one.lives and one.pid != os.getpid() and was_started_with(one.pid, entry)
            ]
            if not left or time.monotonic() > give_up:
                return left
            time.sleep(0.2)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=OUT, help="where the picture goes")
    parser.add_argument("--trials", type=int, default=10)
    parser.add_argument(
        "--deadline", type=int, default=240, metavar="S", help="give up after so many seconds"
    )
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    signal.signal(signal.SIGALRM, _too_late)
    signal.alarm(given.deadline)
    folder = Path(tempfile.mkdtemp(prefix="muster-demo-"))
    demo = Demo(folder, given.trials)
    problem = ""
    try:
        said = demo.run()
    except KeyboardInterrupt:
        problem = "interrupted"
    except (DemoFailed, MusterError, TimeoutError) as error:
        problem = str(error)
    finally:
        signal.alarm(0)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # nothing may keep us from ending what we started
        print("        ending everything")
        try:
            demo.end()
        except DemoFailed as error:
            problem = f"{problem}; {error}".lstrip("; ")
    if problem:
        print(f"demo failed: {problem}\n(logs are in {folder})", file=sys.stderr)
        return 1
    _picture(demo, said, given.out)
    shutil.rmtree(folder, ignore_errors=True)
    return 0


def _picture(demo: Demo, said: dict, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    took_s = time.monotonic() - demo.began
    title = f"{said['trials']} trials on a cluster that grows and shrinks: {took_s:.0f} s, ${demo.spent:.4f}"
    for name in ("timeline.jsonl", "trials.jsonl"):
        source = demo.home.timeline if name == "timeline.jsonl" else demo.diary
        shutil.copy(source, out / name)
    draw(out / "timeline.jsonl", out / "trials.jsonl", out / "timeline.png", title=title)
    print(f"\n{title}\nbest loss {said['best_loss']:.4f}; nothing is left running")
    print(f"picture: {out / 'timeline.png'}")


def _too_late(*_: object) -> None:
    raise TimeoutError("the deadline passed")


if __name__ == "__main__":
    sys.exit(main())
