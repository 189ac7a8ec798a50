"""Provide trainables that behave, and some that do not, for tests of engines."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

from muster.base.clock import SystemClock
from muster.session import Checkpoint, get_checkpoint, report

Config = dict[str, Any]


def counts(config: Config) -> None:
    """Report `steps` times."""
    for step in range(config.get("steps", 3)):
        report({"step": step})


def returns(config: Config) -> Any:
    return config["value"]


def yields(config: Config) -> Any:
    yield from config["values"]


def fails(config: Config) -> None:
    report({"step": 0})
    raise ValueError("this is what the user did wrong")


def fails_deep(config: Config) -> None:
    def deeper(level: int, odd: bool) -> None:
        if level == 0:
            raise RuntimeError("deep down")
        if odd:
            deeper(level - 1, not odd)
        else:
            deeper(level - 1, not odd)

    deeper(40, True)


def waits(config: Config) -> None:
    """Report once, then works without end; `flag` appears when it has begun to."""
    report({"pid": os.getpid()})
    if "flag" in config:
        Path(config["flag"]).touch()
    while True:
        SystemClock().sleep(0.02)


def ignores_sigterm(config: Config) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    waits(config)


def leaves(config: Config) -> None:
    """Call os._exit without a report."""
    report({"step": 0})
    os._exit(3)


def kills_itself(config: Config) -> None:
    report({"step": 0})
    os.kill(os.getpid(), config["signal"])


def needs_memory(config: Config) -> None:
    raise MemoryError("cannot have that much")


def prints_much(config: Config) -> None:
    line = b"x" * 1023 + b"\n"
    for _ in range(config["megabytes"]):
        os.write(1, line * 1024)
    sys.stdout.write("the end\n")
    sys.stderr.write("an error line\n")
    report({"step": 0})


def forks(config: Config) -> None:
    """Leave two children behind: one forked, one started."""
    pid = os.fork()
    if pid == 0:
        while True:
            SystemClock().sleep(1)
    started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    report({"forked": pid, "started": started.pid})


def leaves_its_session(config: Config) -> None:
    """Leave a child in a separate session, and one whose parent has ended."""
    code = (
        "import subprocess; print(subprocess.Popen(['sleep', '600'], start_new_session=True, stdout=2).pid)"
    )
    started = subprocess.Popen(["sleep", "600"], start_new_session=True)
    orphan = subprocess.run([sys.executable, "-c", code], stdout=subprocess.PIPE, check=True).stdout
    report({"left": [started.pid, int(orphan)]})
    report({"left": []})


def reports_in_a_fork(config: Config) -> None:
    """Report in a fork, then the exit code of the fork."""
    pid = os.fork()
    if pid == 0:
        try:
            report({"step": 99})
        except RuntimeError:
            os._exit(7)
        os._exit(0)
    report({"step": os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])})


def reports_odd_numbers(config: Config) -> None:
    report({"nan": float("nan"), "inf": float("inf"), "big": 2**80, "pair": (1, 2), "nested": {"a": [1.5]}})


class Point:
    """An object that only pickle can send."""

    def __init__(self, x: float) -> None:
        self.x = x

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and self.x == other.x

    __hash__ = None  # type: ignore[assignment]


def reports_object(config: Config) -> None:
    report({"point": Point(2.0)})


def reports_unserialisable(config: Config) -> None:
    report({"fine": 1, "lock": threading.Lock()})


def reports_from_thread(config: Config) -> None:
    worker = threading.Thread(target=report, args=({"step": 0},))
    worker.start()
    worker.join()


def saves(config: Config) -> None:
    """Resume from its checkpoint, and save one at every report."""
    start = 0
    if (checkpoint := get_checkpoint()) is not None:
        with checkpoint.as_directory() as path:
            start = int(Path(path, "step").read_text(encoding="utf-8")) + 1
    for step in range(start, config["steps"]):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "step").write_text(str(step), encoding="utf-8")
            report({"step": step}, checkpoint=Checkpoint.from_directory(folder))


def counts_calls(config: Config) -> None:
    """Report how many trials this process has served: module state shows whether it is fresh."""
    calls = globals().setdefault("_calls", [0])
    calls[0] += 1
    report({"calls": calls[0], "pid": os.getpid()})


class Steps:
    """A class trainable, written against Ray's methods alone."""

    def __init__(self, config: Config | None = None, storage: Any = None) -> None:
        self.config: Config = config or {}
        self.resets = 0
        self.setup(self.config)

    def setup(self, config: Config) -> None:
        self.steps = 0

    def step(self) -> Config:
        self.steps += 1
        return {"steps": self.steps, "x": self.config.get("x"), "resets": self.resets}

    def save_checkpoint(self, checkpoint_dir: str) -> Config | str | None:
        if self.config.get("as_files"):
            Path(checkpoint_dir, "steps").write_text(str(self.steps), encoding="utf-8")
            return checkpoint_dir
        if self.config.get("loses_files"):
            os.rmdir(checkpoint_dir)
            return checkpoint_dir
        return {"steps": self.steps}

    def load_checkpoint(self, checkpoint: Config | str) -> None:
        if isinstance(checkpoint, str):
            self.steps = int(Path(checkpoint, "steps").read_text(encoding="utf-8"))
        else:
            self.steps = checkpoint["steps"]

    def reset_config(self, new_config: Config) -> bool:
        self.resets += 1
        self.steps = 0
        return bool(new_config.get("may_reset", True))

    def cleanup(self) -> None:
        if "cleaned" in self.config:
            Path(self.config["cleaned"]).touch()


TRAINABLES: dict[str, Any] = {
    made.__name__: made
    for made in (
        counts,
        returns,
        yields,
        fails,
        fails_deep,
        waits,
        ignores_sigterm,
        leaves,
        kills_itself,
        needs_memory,
        prints_much,
        forks,
        leaves_its_session,
        reports_in_a_fork,
        reports_odd_numbers,
        reports_object,
        reports_unserialisable,
        reports_from_thread,
        saves,
        counts_calls,
        Steps,
    )
}
