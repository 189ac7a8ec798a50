"""ProcessEngine is what all engines with trials in processes share: answers, stops, deadlines, events.

LocalEngine and RayEngine define how a trial gets its process (`_begin`) and gives up its resources; their
pool carries bytes to and from processes. One thread, one poller, and no call that waits except `poll`.
"""

from __future__ import annotations

import logging
import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Generic, TypeVar

from msgspec import Struct
from typing_extensions import Self

from muster.base.clock import Clock, ahead_s
from muster.base.framing import FrameKind, frame, pack, unpack, unpickle
from muster.base.resources import to_units
from muster.engines.worker import failures
from muster.engines.worker.handle import STOPPED_S, Poller, SpinThenWait, TrialRun, WorkerHandle
from muster.engines.worker.protocol import ExitReport, StartOrder
from muster.session.progress import fill_result
from muster.session.publish import checkpoint_name
from muster.session.session import PreemptionInfo
from muster.trials.events import (
    CheckpointSaved,
    EngineCommand,
    EngineEvent,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialExited,
    TrialFailure,
    TrialNoticed,
    TrialPriced,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import Engine


class StartQueue:
    """Keeps trials in order; a waiting one blocks later ones that share a resource with it."""

    def __init__(self) -> None:
        self._runs: dict[str, TrialRun] = {}

    def __len__(self) -> int:
        return len(self._runs)

    def add(self, run: TrialRun) -> None:
        self._runs[run.command.trial_id] = run

    def remove(self, run: TrialRun) -> None:
        self._runs.pop(run.command.trial_id, None)

    def may_start(self) -> Iterator[TrialRun]:
        """Yield trials that may be tried now; one that is still queued afterwards counts as blocked."""
        wanted_by_blocked: set[str] = set()
        for run in list(self._runs.values()):
            names = run.command.resources.required_resources
            if wanted_by_blocked.isdisjoint(names):
                yield run
                if run.command.trial_id not in self._runs:
                    continue
            wanted_by_blocked.update(names)
            if "CPU" in wanted_by_blocked:
                return  # nearly every trial wants some: do not go through thousands


_log = logging.getLogger(__name__)
_SAVE = {optional: frame(FrameKind.SAVE, pack(optional)) for optional in (False, True)}
_STOP = {keep: frame(FrameKind.STOP, pack(keep)) for keep in (False, True)}
_FAR = float("inf")


class EngineTimeouts(Struct, frozen=True, kw_only=True):
    """Holds how long an engine waits for processes."""

    beat_s: float = 5.0  # how often a trial's process sends a heartbeat
    silent_after_s: float = 60.0  # without heartbeat and processor time for so long, a trial is lost
    warn_after_s: float = 10.0  # stopped by a signal for so long, a process is worth a warning
    kill_after_s: float = 2.0  # between SIGTERM and SIGKILL
    leave_within_s: float = 10.0  # a process that reported its exit is gone by then, or killed


W = TypeVar("W", bound=WorkerHandle)


class ProcessPool(ABC, Generic[W]):
    """Holds the processes of an engine, and the channels to them."""

    def __init__(self, clock: Clock, timeouts: EngineTimeouts) -> None:
        self._clock, self._timeouts = clock, timeouts
        self._poller, self._spinner = Poller(), SpinThenWait()
        self._is_closed = False
        self.idle: list[W] = []

    @abstractmethod
    def send(self, worker: W, data: bytes) -> None: ...

    @abstractmethod
    def wait(self, timeout_s: float, now: float) -> None:
        """Handle everything that is ready, waiting up to `timeout_s` for the first."""

    @abstractmethod
    def kill(self, worker: W, number: signal.Signals) -> None: ...

    @abstractmethod
    def is_of_this_machine(self, worker: W) -> bool:
        """Return whether the process can be looked at from here."""

    @abstractmethod
    def close(self) -> None:
        """End every process, and waits for that."""

    def watch_end(self, worker: W) -> None:
        """May look out for the end of a process by a faster way than the usual one."""

    def is_silent(self, worker: W, now: float) -> bool:
        """Return whether a process has been inactive for too long; notes whether a signal has stopped it."""
        worker.is_stopped = False
        if now - worker.last_seen_at < self._timeouts.beat_s or not self.is_of_this_machine(worker):
            return False
        worker.look(now)
        return now - worker.last_seen_at >= self._timeouts.silent_after_s

    def find_idle(self, command: StartTrial, among: Sequence[W] | None = None) -> W | None:
        """Return an idle process that served the same trainable with the same resources."""
        idle, wanted = self.idle if among is None else among, (command.trainable_name, command.resources)
        return next((each for each in idle if each.key is not None and each.key[:2] == wanted), None)

    def bind(self, run: TrialRun, worker: W, gpu_ids: tuple[str, ...] = ()) -> None:
        """Give a trial its process."""
        if worker in self.idle:
            self.idle.remove(worker)
            run.reused = True
        worker.run, run.worker = run, worker
        worker.key = (run.command.trainable_name, run.command.resources, gpu_ids)
        worker.last_seen_at, worker.cpu_s = self._clock.monotonic(), None

    def release(self, worker: W, *, keep: bool) -> None:
        """Keep the process of an ended trial for another one, or lets it end by itself."""
        worker.is_leaving = not keep
        if keep:
            worker.run = None
            self.idle.append(worker)


class ProcessEngine(Engine):
    """Implements what does not depend on where processes are.

    Not thread-safe: one thread submits and polls.
    """

    _pool: ProcessPool[Any]

    def __init__(self, clock: Clock, timeouts: EngineTimeouts) -> None:
        self._clock, self._timeouts = clock, timeouts
        self._trials: dict[str, TrialRun] = {}
        self._events: list[EngineEvent] = []
        self._next_check = 0.0
        self._polled_at = clock.now()
        self._left_s: Callable[[], float] = lambda: _FAR
        self._waiting = StartQueue()
        self._is_starting = False

    # What each engine defines itself

    def _begin(self, run: TrialRun) -> None:
        """Give a trial its process, now or later."""
        raise NotImplementedError

    def _withdraw(self, run: TrialRun) -> None:
        """Take back the request for a process that the trial has not got yet."""
        raise NotImplementedError

    def _release(self, run: TrialRun) -> None:
        """Free what an ended trial held."""
        raise NotImplementedError

    def _try_start(self, run: TrialRun) -> bool:
        """Give a trial what it needs; returns False when it must wait."""
        raise NotImplementedError

    def _node_of(self, run: TrialRun) -> Mapping[str, str]:
        """Return how the cluster calls the node of a trial, where there is one."""
        return {}

    def _check_more(self, now: float) -> None:
        """Do what else is due, a few times per second at most."""

    def _start_waiting(self) -> None:
        """Begin the trials that wait for something that is free now."""
        if self._is_starting or not len(self._waiting):
            return  # a start that failed at once returns what it took: the loop below continues with that
        self._is_starting = True
        for run in self._waiting.may_start():
            if self._try_start(run):
                self._waiting.remove(run)
        self._is_starting = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ends_in(self, left_s: Callable[[], float]) -> None:
        self._left_s = left_s

    # The port

    def submit(self, command: EngineCommand) -> None:
        run = self._trials.get(command.trial_id)
        if isinstance(command, StartTrial):
            if run is not None:
                raise ValueError(f"trial {command.trial_id} is running already")
            run = self._trials[command.trial_id] = TrialRun(command)
            self._begin(run)
        elif run is not None and isinstance(command, StopTrial):
            self._stop(run, command)
        elif run is None or run.stopping or run.worker is None:
            return
        elif isinstance(command, SaveTrial):
            self._pool.send(run.worker, _SAVE[command.is_optional])
        elif run.unanswered > 1:
            run.unanswered -= 1  # several came together: the trial waits for the answer to the last
        else:
            run.unanswered = 0
            self._pool.send(run.worker, run.usual_answer or run.answer(len(self._trials)))

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        now, self._polled_at = self._clock.monotonic(), self._clock.now()
        until = now + timeout_s
        while True:
            if now >= self._next_check:
                self._check_deadlines(now)
            if self._events:
                wait_s = 0.0
            else:
                wait_s = (until if until < self._next_check else self._next_check) - now
            self._pool.wait(wait_s, now)
            if self._events:
                events, self._events = self._events, []
                return events
            now = self._clock.monotonic()
            if now > until + STOPPED_S:
                until = now + 0.1  # what came while this process was stopped has not been seen yet
            elif now >= until:
                return ()

    def close(self) -> None:
        self._waiting = StartQueue()
        self._trials.clear()
        self._events.clear()
        self._pool.close()

    def _send_order(self, run: TrialRun, worker: WorkerHandle, order: bytes) -> None:
        """Start a trial in its process, and its time limit."""
        run.received_at = self._clock.now()
        if run.command.time_limit_s is not None:
            run.limit_at = self._clock.monotonic() + run.command.time_limit_s
            self.wake_at(run.limit_at)
        self._pool.send(worker, order)

    def notify(self, run: TrialRun, info: PreemptionInfo | None) -> None:
        """Tell a trial, and the core, what is announced about its machine; nothing twice."""
        if run.worker is None or run.stopping or run.info == info:
            return
        run.info = info
        self._pool.send(run.worker, frame(FrameKind.NOTICE, pack(None if info is None else tuple(info))))
        info = None if info is None else info.shifted(ahead_s(self._clock))
        self._events.append(TrialNoticed(trial_id=run.command.trial_id, at=self._clock.now(), info=info))

    # Stopping

    def _stop(self, run: TrialRun, command: StopTrial) -> None:
        if run.worker is None:
            self._withdraw(run)
            self._finish(run)
            self._start_waiting()
            return
        if not run.stopping:
            self._pool.send(run.worker, _STOP[command.keep_process])
        elif run.due_at is None:
            return
        run.grace_s = min(run.grace_s, command.grace_s)
        run.stopping, run.due_at = True, min(self._clock.monotonic() + run.grace_s, run.due_at or _FAR)
        self.wake_at(run.due_at)

    def _kill(self, run: TrialRun, failure: TrialFailure | None) -> None:
        """End a trial by force; its TrialExited follows when the process is gone."""
        if run.worker is not None and run.kill_at is None:
            run.failure, run.kill_at = failure, _FAR
            self._pool.kill(run.worker, signal.SIGKILL)

    def _finish(
        self,
        run: TrialRun,
        *,
        failure: TrialFailure | None = None,
        is_done: bool = False,
        reusable: bool = False,
    ) -> None:
        """Make the trial's TrialExited; nothing else does."""
        del self._trials[run.command.trial_id]
        self._release(run)
        self._events.append(
            TrialExited(
                trial_id=run.command.trial_id,
                at=self._clock.now() if run.ended_at is None else run.ended_at,
                failure=failure,
                is_done=is_done,
                reusable=reusable,
            )
        )
        self._start_waiting()

    def _priced(self, run: TrialRun, at: float, usd_per_hour: float) -> None:
        """Report what the place of a trial costs from a time on."""
        trial_id = run.command.trial_id
        self._events.append(TrialPriced(trial_id=trial_id, at=at, usd_per_hour=usd_per_hour))

    # Frames and ends of processes (called by the pool)

    def on_frame(self, worker: WorkerHandle, kind: int, payload: bytes) -> None:
        """Handle one frame of a worker."""
        run = worker.run
        if run is None:
            return
        if kind == FrameKind.REPORT:
            self._on_report(run, payload)
        elif kind == FrameKind.STARTED:
            self._on_started(run, unpack(payload))
        elif kind == FrameKind.SAVED:
            self._on_saved(run, *unpack(payload))
        elif kind == FrameKind.EXITED:
            self._on_exited(worker, run, ExitReport(*unpack(payload)))

    def _on_report(self, run: TrialRun, payload: bytes) -> None:
        if run.stopping:
            return  # sent before the stop arrived; after a stop only the exit counts
        metrics, index, now, stamp = unpack(payload)
        if type(metrics) is bytes:
            try:
                metrics = unpickle(metrics)
            except Exception as error:  # noqa: BLE001 - unpickling user objects runs user code
                self._kill(run, failures.unpicklable_failure("the driver cannot unpickle a result", error))
                return
        name = None if index is None else checkpoint_name(index)
        result = fill_result(metrics, stamp, run.who, now=now, checkpoint_name=name)
        run.last_result = result
        run.unanswered += 1
        self._events.append(
            TrialReported(
                trial_id=run.command.trial_id,
                at=self._clock.now(),
                result=result,
                checkpoint=self._checkpoint(run, index),
            )
        )

    def _checkpoint(self, run: TrialRun, index: int | None) -> CheckpointRef | None:
        if index is None:
            return None
        path = os.path.join(os.path.abspath(run.command.trial_dir), checkpoint_name(index))
        return CheckpointRef(path=path, index=index, metrics=run.last_result)

    def _on_started(self, run: TrialRun, began: tuple[int, str, str, bool, float]) -> None:
        who, now = run.who, self._clock.now()
        who.pid, who.hostname, who.node_ip, who.from_function, took_s = began
        if now - self._polled_at <= STOPPED_S:  # a slow process gets its order later than it was sent
            run.received_at = max(run.received_at, now - took_s)
        if not run.stopping:
            place = {"pid": who.pid, "hostname": who.hostname, "node_ip": who.node_ip, **self._node_of(run)}
            started = TrialStarted(trial_id=who.trial_id, at=now, location=place, reused=run.reused)
            self._events.append(started)

    def _on_saved(self, run: TrialRun, index: int | None, message: str) -> None:
        run.unanswered = 0  # one answer follows, however many reports came before
        if not run.stopping:
            made, at = self._checkpoint(run, index), self._clock.now()
            self._events.append(
                CheckpointSaved(trial_id=run.command.trial_id, at=at, checkpoint=made, message=message)
            )

    def _on_exited(self, worker: WorkerHandle, run: TrialRun, report: ExitReport) -> None:
        run.exit_report = report
        if self._clock.now() - self._polled_at > STOPPED_S:
            run.ended_at = max(self._polled_at, run.received_at + report.took_s)
        if report.stays and run.kill_at is None:
            self._pool.release(worker, keep=True)
            self._finish(run, is_done=report.is_done, reusable=True)
        else:
            self._pool.release(worker, keep=False)
            if report.leaves_none:
                self._pool.watch_end(worker)
            run.due_at = None
            run.kill_at = self._clock.monotonic() + self._timeouts.leave_within_s
            self.wake_at(run.kill_at)

    def _ended(self, worker: WorkerHandle, unexplained: Callable[[], TrialFailure]) -> None:
        """Handle the end of a worker process; `unexplained` gives the reason when none has been recorded."""
        run = worker.run
        if run is None:
            return
        worker.run = None
        if run.failure is not None:
            self._finish(run, failure=run.failure)
        elif run.exit_report is not None:
            failure = failures.reported_failure(run.exit_report)
            if failure is None and not run.exit_report.is_done and not run.stopping:
                failure = failures.signal_failure(signal.SIGTERM)  # of another program
            self._finish(run, failure=failure, is_done=run.exit_report.is_done)
        elif run.stopping:
            self._finish(run)
        else:
            self._finish(run, failure=unexplained())

    # Time

    def wake_at(self, when: float) -> None:
        """Have deadlines checked at this time, if not earlier."""
        self._next_check = min(self._next_check, when)

    def _check_deadlines(self, now: float) -> None:
        """Check deadlines and heartbeats, a few times per second at most."""
        missed_s = now - self._next_check - self._timeouts.beat_s
        for run in self._trials.values() if missed_s > 0 else ():
            if run.worker is not None:  # the time in which this process was stopped, or busy, is left out
                run.worker.last_seen_at = min(now, run.worker.last_seen_at + missed_s)
        self._next_check = now + self._timeouts.beat_s
        for run in list(self._trials.values()):
            if run.worker is not None:
                self._check_run(run, run.worker, now)
        self._check_more(now)

    def _check_run(self, run: TrialRun, worker: WorkerHandle, now: float) -> None:
        if run.kill_at is not None and now >= run.kill_at:
            run.kill_at = _FAR
            self._pool.kill(worker, signal.SIGKILL)
        elif run.due_at is not None and now >= run.due_at:
            run.due_at, run.kill_at = None, now + min(self._timeouts.kill_after_s, run.grace_s)
            _log.warning(failures.OVERDUE, run.command.trial_id, worker.pid)
            self._pool.kill(worker, signal.SIGTERM)
        elif run.limit_at is not None and now >= run.limit_at and run.exit_report is None:
            run.limit_at = None
            self._kill(run, failures.time_limit_failure(run.command.time_limit_s or 0.0))
        elif self._pool.is_silent(worker, now):
            limit_s = self._timeouts.silent_after_s
            self._kill(run, failures.silence_failure(limit_s, worker.pid, is_stopped=worker.is_stopped))
        elif worker.is_stopped and not run.has_warned:
            warn_at = worker.last_seen_at + self._timeouts.warn_after_s
            self.wake_at(max(warn_at, now + 0.001))
            if now >= warn_at:
                run.has_warned = True
                left_s = worker.last_seen_at + self._timeouts.silent_after_s - now
                _log.warning(failures.STOPPED, run.command.trial_id, worker.pid, left_s, worker.pid)
        for when in (run.kill_at, run.due_at, run.limit_at):
            if when is not None:
                self.wake_at(max(when, now + 0.001))


@lru_cache(maxsize=4096)
def units_of(request: PlacementGroupFactory) -> Mapping[str, int]:
    """Return what the request takes in all, exactly; cached, as most trials ask for the same."""
    units: dict[str, int] = {}
    for bundle in request.bundles:
        for name, amount in bundle.items():
            units[name] = units.get(name, 0) + to_units(name, amount)
    return units


def order_of(command: StartTrial, env: Mapping[str, str], storage: bytes | None) -> StartOrder:
    """Return the order for the process of a trial."""
    checkpoint = command.checkpoint
    return StartOrder(
        trial_id=command.trial_id,
        trial_name=command.trial_name,
        trainable_name=command.trainable_name,
        config=dict(command.config),
        bundles=command.resources.described(),
        trial_dir=os.path.abspath(command.trial_dir),
        experiment_name=command.experiment_name,
        checkpoint_path=None if checkpoint is None else checkpoint.path,
        checkpoint_metrics=None if checkpoint is None else dict(checkpoint.metrics),
        checkpoint_index=command.checkpoint_index,
        log_to_file=command.log_to_file,
        stays_when_done=command.may_reuse,
        buffering=command.buffering,
        env=env,
        storage=storage,
    )
