"""Provide a child process for each side of the tune benchmark, fresh directories, turn and medians."""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, TypeVar

import psutil

from bench import table
from bench.options import Options
from bench.ours import tune as ours
from bench.peer import tune as peer
from bench.peer.process import PeerError, PeerProcess

CPU_LIMIT_S = 900.0  # of one call

Answer = TypeVar("Answer")


@dataclass
class Side(Generic[Answer]):
    """One side of a comparison: what to do, how often, and the results."""

    name: str
    once: Callable[[], Answer]
    repeats: int
    runs: list[Answer] = field(default_factory=list)

    def median(self, value: Callable[[Answer], float] = lambda answer: answer) -> float:
        return statistics.median(value(run) for run in self.runs)


def in_turns(case: str, *sides: Side[Any]) -> None:
    """Run one after the other until each has had its runs, so that a busy minute falls on all of them.

    Neither is measured while the other still works: Ray replaces its ended workers for seconds after a fit.
    """
    for turn in range(max(side.repeats for side in sides)):
        for side in sides:
            if turn < side.repeats:
                table.progress(f"tune: {case}: {side.name}, {turn + 1} of {side.repeats}")
                wait_until_quiet()
                side.runs.append(side.once())


QUIET_PERCENT = 8.0  # of all processors; a Ray at rest takes some
LONGEST_WAIT_S = 10.0  # on a machine that others use, it will not become quiet


_busy_waits = 0  # in a row


def wait_until_quiet() -> None:
    """Wait until this machine has little to do, for a few seconds at most.

    A machine that stayed busy three times in a row is one that others use: then nobody waits any more.
    """
    global _busy_waits  # noqa: PLW0603 - of this process
    until = time.monotonic() + (LONGEST_WAIT_S if _busy_waits < 3 else 0.0)
    is_busy = True
    while is_busy and time.monotonic() < until:
        is_busy = psutil.cpu_percent(interval=0.5) > QUIET_PERCENT
    _busy_waits = _busy_waits + 1 if is_busy else 0


class BenchProcesses:
    """A BenchProcesses context has the processes and directories of one run of the benchmark."""

    _start_ours: tuple[Any, ...] = (ours.start,)  # what is called in a new child, with its arguments
    _start_ray: tuple[Any, ...] = (peer.start,)
    _stop_ray: Callable[[], None] = staticmethod(peer.stop)

    def __init__(self, options: Options) -> None:
        self.options = options
        self._root = Path(tempfile.mkdtemp(prefix="muster-bench-"))
        self._environment_before = dict(os.environ)
        os.environ.update(bytecode_cache(self._root))
        self._numbers = count()
        self._ours: PeerProcess | None = None
        self._ray: PeerProcess | None = None

    def __enter__(self) -> BenchProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.renew_ours()
        if self._ray is not None:
            try:
                self._ray.call(self._stop_ray)
            finally:
                self._ray.close()
        for name in set(os.environ) - set(self._environment_before):
            del os.environ[name]
        os.environ.update(self._environment_before)
        table.progress("tune: removing what was written")
        shutil.rmtree(self._root, ignore_errors=True)

    @property
    def with_ray(self) -> bool:
        return self.options.with_peer

    def size(self, full: int, quick: int) -> int:
        """Return how many, in a full run and in a quick one."""
        return quick if self.options.quick else full

    def storage(self) -> str:
        """Return a new directory. Nothing is removed before the end: mass deletion slows file systems."""
        made = self._root / str(next(self._numbers))
        made.mkdir()
        return str(made)

    def ours(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a function in our child process."""
        if self._ours is None:
            self._ours = PeerProcess(CPU_LIMIT_S)
            self._ours.call(*self._start_ours)
        return answered(self._ours, function, *arguments)

    def renew_ours(self) -> None:
        """End the process: the next call gets a new one, without the memory of earlier ones."""
        if self._ours is not None:
            self._ours.close()
            self._ours = None

    def ray(self, function: Callable[..., Answer], *arguments: Any) -> Answer:
        """Call a function in the child process that has a Ray."""
        if self._ray is None:
            if lacking := peer.missing():
                raise PeerError(f"Ray Tune needs {', '.join(lacking)}: pip install 'muster-ml[bench]'")
            table.progress("tune: starting Ray")
            self._ray = PeerProcess(CPU_LIMIT_S)
            self._ray.call(*self._start_ray)
        return answered(self._ray, function, *arguments)


def bytecode_cache(root: Path) -> dict[str, str]:
    """Return the environment of all children. Where Python may not keep bytecode, they keep it here.

    Otherwise every process of either side would compile its imports again, which is not what is measured.
    """
    if not sys.dont_write_bytecode:
        return {}
    return {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(root / "bytecode")}


def answered(process: PeerProcess, function: Callable[..., Answer], *arguments: Any) -> Answer:
    answer: Any = process.call(function, *arguments)
    if answer is None:
        raise PeerError(f"{function.__module__}.{function.__name__}{arguments}: no answer within the limit")
    return answer
