"""Measure what one result costs the driver's control thread, in CPU time: `python -m bench.tune_control`.

Once in a real experiment with processes, and once with an engine that replays the frames of a trial from
memory: the second has no system calls and no other process in it, so that small changes can be compared.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from bench import table, tune_job
from muster import tune
from muster.base.clock import SystemClock
from muster.base.framing import FrameKind, frame, pack
from muster.engines.process_engine import EngineTimeouts, ProcessEngine, ProcessPool
from muster.engines.worker.handle import WorkerHandle
from muster.engines.worker.protocol import ExitReport
from muster.session.progress import Progress
from muster.tune.execution import launch

RESULTS, REPEATS = 16_000, 5
TRIALS = (1, 16)


def main(repeats: int = REPEATS) -> None:
    """Print one row per number of trials at once."""
    rows = []
    for trials in TRIALS:
        real = [cost(trials) for _ in range(repeats)]
        with replayed():
            replay = [cost(trials) for _ in range(repeats)]
        rows.append((str(trials), *_figures(real), *_figures(replay)))
    columns = ("trials at once", "us per result", "least", "replayed: us per result", "least")
    table.show("tune: CPU time of the control thread", columns, rows)


def _figures(costs: list[float]) -> tuple[str, str]:
    return f"{statistics.median(costs):.1f}", f"{min(costs):.1f}"


def cost(trials: int, results: int = RESULTS) -> float:
    """Return microseconds of the control thread per result, between the first fifth and the last tenth."""
    marks: dict[int, float] = {}
    first, last = results // 5, results * 9 // 10
    seen = 0

    class Watcher(tune.Callback):  # type: ignore[misc]
        def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:
            nonlocal seen
            seen += 1
            if seen in (first, last):
                marks[seen] = time.thread_time()

    job = tune_job.Job(trials=trials, reports=results // trials, cpus=1.0 / trials)
    with tempfile.TemporaryDirectory() as storage:
        space = {"x": tune.uniform(0.0, 1.0), "reports": job.reports, "trials": trials, "meeting": ""}
        tune.Tuner(
            tune_job.trainable(tune, job),
            param_space=space,
            tune_config=tune.TuneConfig(metric=tune_job.METRIC, mode="max", num_samples=trials),
            run_config=tune.RunConfig(storage_path=storage, verbose=0, callbacks=[Watcher()]),
        ).fit()
    return 1e6 * (marks[last] - marks[first]) / (last - first)


@contextmanager
def replayed() -> Iterator[None]:
    """Have experiments run on the replaying engine."""
    before = launch._open_engine
    launch._open_engine = lambda spec, *_: ReplayEngine(spec.param_space["reports"])  # type: ignore[assignment]
    try:
        yield
    finally:
        launch._open_engine = before


def recorded(reports: int) -> list[bytes]:
    """Return everything that a trial of `tune_job` sends, frame by frame."""
    began, progress = time.time(), Progress()
    frames = [frame(FrameKind.STARTED, pack((1, "host", "127.0.0.1", True, 0.0)))]
    for step in range(reports):
        metrics, now = {tune_job.METRIC: 0.5 + step}, began + step / 10_000
        stamp = progress.advance(metrics, elapsed_s=1e-4, now=now)
        frames.append(frame(FrameKind.REPORT, pack((metrics, None, now, stamp))))
    return [*frames, frame(FrameKind.EXITED, pack(tuple(ExitReport(is_done=True, stays=True))))]


class ReplayPool(ProcessPool[Any]):
    """Has workers that send the next frame, from memory, once they are answered."""

    def __init__(self, engine: ReplayEngine, frames: list[bytes]) -> None:
        super().__init__(SystemClock(), EngineTimeouts())
        self._engine, self._frames = engine, frames
        self._ready: list[Any] = []

    def send(self, worker: Any, data: bytes) -> None:
        self._ready.append(worker)

    def wait(self, timeout_s: float, now: float) -> None:
        ready, self._ready = self._ready, []
        for worker in ready:
            data = self._frames[worker.pid]
            if worker.pid == 0:
                self._ready.append(worker)  # it reports without having been asked
            worker.pid += 1
            for kind, payload in worker.frames.feed(data):
                self._engine.on_frame(worker, kind, payload)

    def kill(self, worker: Any, number: Any) -> None:
        pass

    def is_of_this_machine(self, worker: Any) -> bool:
        return False

    def is_silent(self, worker: Any, now: float) -> bool:
        return False

    def close(self) -> None:
        self._poller.close()


class ReplayEngine(ProcessEngine):
    """Runs trials that report as those of `tune_job` do, without processes."""

    def __init__(self, reports: int) -> None:
        super().__init__(SystemClock(), EngineTimeouts())
        self._pool = ReplayPool(self, recorded(reports))

    def capacity(self) -> dict[str, float]:
        return {"CPU": 2.0}

    def _begin(self, run: Any) -> None:
        worker = WorkerHandle(0, -1, -1, now=0.0)
        self._pool.bind(run, worker)
        self._pool.send(worker, b"")

    def _release(self, run: Any) -> None:
        pass


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else REPEATS)
