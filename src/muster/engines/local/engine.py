"""LocalEngine: trials as processes on this machine. One thread, one poller, no call that waits but `poll`.

Built by a composition root; driven by the trial controller through `trials.ports.Engine`.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from muster.base.clock import Clock
from muster.engines.local import failures, surroundings
from muster.engines.local.budget import Budget, Grant
from muster.engines.local.desk import Desk, Run
from muster.engines.local.orders import Order, write_order
from muster.engines.local.pipe import Kind, frame, opened, pack, unpack
from muster.engines.local.staff import Staff
from muster.engines.local.waiting import WaitingLine
from muster.session.progress import fill_result
from muster.session.publish import checkpoint_name
from muster.trials.commands import ContinueTrial, EngineCommand, SaveTrial, StartTrial, StopTrial
from muster.trials.events import (
    CheckpointSaved,
    EngineEvent,
    TrialExited,
    TrialFailure,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef

_CONTINUE = frame(Kind.CONTINUE)
_SAVE = frame(Kind.SAVE)
_STOP = {keep: frame(Kind.STOP, pack(keep)) for keep in (False, True)}
_FAR = float("inf")


class LocalOptions(Struct, frozen=True, kw_only=True):
    """What few people need to change."""

    beat_s: float = 5.0  # how often a trial's process says that it lives
    silent_after_s: float = 60.0  # neither heartbeat nor processor time for so long: it is lost
    kill_after_s: float = 2.0  # between SIGTERM and SIGKILL
    leave_within_s: float = 10.0  # a process that said good-bye is gone by then, or killed
    max_idle: int = 64  # processes kept for reuse
    spares: int = 2  # processes made ahead of need
    quiet: bool = False  # output of trials without log_to_file: dropped, else it goes where the driver's goes
    env: Mapping[str, str] = {}  # added to the environment of trials


_DEFAULTS = LocalOptions()


class LocalEngine:
    """Runs trials in processes of this machine.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        trainables: Mapping[str, bytes] | None = None,
        capacity: Mapping[str, float] | None = None,
        warm: bool = True,
        options: LocalOptions = _DEFAULTS,
    ) -> None:
        """`trainables`: cloudpickled functions or classes by name; `capacity` overrides what is found."""
        self._clock = clock
        self._options = options
        found = {**surroundings.detected_capacity(), **(capacity or {})}
        self._budget = Budget(found, surroundings.gpu_ids())
        self._has_gpus = found.get("GPU", 0) > 0
        self._trials: dict[str, Run] = {}
        self._waiting = WaitingLine()
        self._events: list[EngineEvent] = []
        self._exits = failures.ExitReader(surroundings.oom_kills)
        self._next_look = 0.0
        self._is_starting = False
        self._staff = Staff(
            clock=clock, options=options, warm=warm, trainables=dict(trainables or {}), owner=self
        )

    # The port

    def capacity(self) -> Mapping[str, float]:
        return self._budget.capacity.to_floats()

    def register(self, name: str, trainable: bytes) -> None:
        """Make a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._staff.register(name, trainable)

    def submit(self, command: EngineCommand) -> None:
        if type(command) is ContinueTrial:
            run = self._trials.get(command.trial_id)
            if run is not None and run.desk is not None and not run.stopping:
                if run.unanswered > 1:
                    run.unanswered -= 1  # several came together: the trial waits for the answer to the last
                else:
                    run.unanswered = 0
                    self._staff.send(run.desk, _CONTINUE)
        elif isinstance(command, StartTrial):
            self._submit_start(command)
        elif isinstance(command, StopTrial):
            self._submit_stop(command)
        elif isinstance(command, SaveTrial):
            run = self._trials.get(command.trial_id)
            if run is not None and run.desk is not None and not run.stopping:
                self._staff.send(run.desk, _SAVE)

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        now = self._clock.monotonic()
        until = now + timeout_s
        while True:
            if now >= self._next_look:
                self._look_after(now)
            if self._events:
                wait_s = 0.0
            else:
                wait_s = (until if until < self._next_look else self._next_look) - now
            self._staff.wait(wait_s, now)
            if self._events:
                events, self._events = self._events, []
                return events
            now = self._clock.monotonic()
            if now >= until:
                return ()

    def close(self) -> None:
        self._trials.clear()
        self._events.clear()
        self._waiting = WaitingLine()
        self._staff.close()

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Starting

    def _submit_start(self, command: StartTrial) -> None:
        if command.trial_id in self._trials:
            raise ValueError(f"trial {command.trial_id} is running already")
        run = self._trials[command.trial_id] = Run(command)
        why_not = self._budget.why_never(command.resources)
        if why_not is not None:
            self._finish(run, failure=failures.impossible(why_not))
            return
        if len(self._waiting) or not self._try_start(run):
            self._waiting.add(run)
            self._start_waiting()

    def _start_waiting(self) -> None:
        if self._is_starting:
            return  # a start that failed at once gives back what it took: the loop below goes on with that
        self._is_starting = True
        for run in self._waiting.may_start():
            if self._try_start(run):
                self._waiting.remove(run)
        self._is_starting = False

    def _try_start(self, run: Run) -> bool:
        """Give it resources and a process; False when it must wait."""
        command = run.command
        idle = self._staff.find_idle(command) if command.may_reuse else None
        prefer = idle.key[2] if idle is not None and idle.key is not None else ()
        grant = self._budget.take(command.resources, prefer)
        if grant is None:
            return False
        run.grant = grant
        try:
            order = write_order(self._order(command, grant))
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unsendable("the config cannot be pickled", error))
            return True
        desk = self._staff.seat(run, idle if set(prefer) == set(grant.gpu_ids) else None)
        if command.time_limit_s is not None:
            run.limit_at = self._clock.monotonic() + command.time_limit_s
            self._look_at(run.limit_at)
        self._staff.send(desk, order)
        return True

    def _order(self, command: StartTrial, grant: Grant) -> Order:
        resources, checkpoint = command.resources, command.checkpoint
        head: list[dict[str, float]] = [{}] if resources.head_bundle_is_empty else []
        return Order(
            trial_id=command.trial_id,
            trial_name=command.trial_name,
            trainable_name=command.trainable_name,
            config=dict(command.config),
            bundles=(head + resources.bundles, resources.strategy),
            trial_dir=os.path.abspath(command.trial_dir),
            experiment_name=command.experiment_name,
            checkpoint_path=None if checkpoint is None else checkpoint.path,
            checkpoint_metrics=None if checkpoint is None else dict(checkpoint.metrics),
            checkpoint_index=command.checkpoint_index,
            log_to_file=command.log_to_file,
            stays_when_done=command.may_reuse,
            buffering=command.buffering,
            env={"CUDA_VISIBLE_DEVICES": ",".join(grant.gpu_ids)} if self._has_gpus else {},
        )

    # Stopping

    def _submit_stop(self, command: StopTrial) -> None:
        run = self._trials.get(command.trial_id)
        if run is None or run.stopping:
            return
        if run.desk is None:
            self._waiting.remove(run)
            self._finish(run)
            self._start_waiting()
            return
        run.stopping = True
        run.due_at = self._clock.monotonic() + command.grace_s
        self._look_at(run.due_at)
        self._staff.send(run.desk, _STOP[command.keep_process])

    def _kill(self, run: Run, failure: TrialFailure | None) -> None:
        """End it by force; its TrialExited follows when the process is gone."""
        if run.desk is not None and run.kill_at is None:
            run.failure = failure
            run.kill_at = _FAR
            self._staff.kill(run.desk, signal.SIGKILL)

    def _finish(
        self, run: Run, *, failure: TrialFailure | None = None, is_done: bool = False, reusable: bool = False
    ) -> None:
        """The one place where TrialExited is made."""
        del self._trials[run.command.trial_id]
        if run.grant is not None:
            self._budget.free(run.grant)
        self._events.append(
            TrialExited(
                trial_id=run.command.trial_id,
                at=self._clock.now(),
                failure=failure,
                is_done=is_done,
                reusable=reusable,
            )
        )
        if len(self._waiting):
            self._start_waiting()

    # What processes say (called by Staff)

    def heard(self, desk: Desk, kind: int, payload: bytes) -> None:
        """One frame of a worker."""
        run = desk.run
        if run is None:
            return
        if kind == Kind.REPORT:
            self._heard_report(run, payload)
        elif kind == Kind.STARTED:
            self._heard_started(run, unpack(payload))
        elif kind == Kind.SAVED:
            self._heard_saved(run, *unpack(payload))
        elif kind == Kind.EXITED:
            self._heard_exited(desk, run, unpack(payload))

    def _heard_report(self, run: Run, payload: bytes) -> None:
        if run.stopping:
            return  # it had not heard yet; after a stop only the exit is told
        metrics, index, now, stamp = unpack(payload)
        if type(metrics) is bytes:
            try:
                metrics = opened(metrics)
            except Exception as error:  # noqa: BLE001 - unpickling user objects runs user code
                self._kill(run, failures.unsendable("a result cannot be unpickled in the driver", error))
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
                checkpoint=None if index is None else self._checkpoint(run, index),
            )
        )

    def _checkpoint(self, run: Run, index: int) -> CheckpointRef:
        path = os.path.join(os.path.abspath(run.command.trial_dir), checkpoint_name(index))
        return CheckpointRef(path=path, index=index, metrics=run.last_result)

    def _heard_started(self, run: Run, location: tuple[int, str, str, bool]) -> None:
        who = run.who
        who.pid, who.hostname, who.node_ip, who.from_function = location
        if not run.stopping:
            place: dict[str, Any] = {"pid": who.pid, "hostname": who.hostname, "node_ip": who.node_ip}
            self._events.append(
                TrialStarted(trial_id=who.trial_id, at=self._clock.now(), location=place, reused=run.reused)
            )

    def _heard_saved(self, run: Run, index: int | None, message: str) -> None:
        run.unanswered = 0  # one answer follows, however many reports came before
        if not run.stopping:
            made = None if index is None else self._checkpoint(run, index)
            self._events.append(
                CheckpointSaved(
                    trial_id=run.command.trial_id, at=self._clock.now(), checkpoint=made, message=message
                )
            )

    def _heard_exited(self, desk: Desk, run: Run, verdict: Any) -> None:  # noqa: ANN401 - unpacked Verdict
        is_done, stays = verdict[0], verdict[1]
        run.verdict = verdict
        if stays and run.kill_at is None:
            self._staff.unseat(desk, keep=True)
            self._finish(run, is_done=is_done, reusable=True)
        else:
            self._staff.unseat(desk, keep=False)
            run.due_at = None
            run.kill_at = self._clock.monotonic() + self._options.leave_within_s
            self._look_at(run.kill_at)

    def gone(self, desk: Desk, status: int | None, note: str) -> None:
        """A worker process has ended; `status` is None when nobody saw how."""
        run = desk.run
        if run is None:
            return
        desk.run = None
        if run.failure is not None:
            self._finish(run, failure=run.failure)
        elif run.verdict is not None:
            failure = failures.of_verdict(run.verdict)
            if failure is None and not run.verdict[0] and not run.stopping:
                failure = failures.told_to_end()
            self._finish(run, failure=failure, is_done=run.verdict[0])
        elif run.stopping:
            self._finish(run)
        else:
            self._finish(run, failure=self._exits.of_status(status, note))

    # Time

    def _look_at(self, when: float) -> None:
        self._next_look = min(self._next_look, when)

    def _look_after(self, now: float) -> None:
        """Deadlines and heartbeats; cheap, as it happens a few times per second at most."""
        self._next_look = now + self._options.beat_s
        for run in list(self._trials.values()):
            desk = run.desk
            if desk is not None:
                self._look_after_run(run, desk, now)

    def _look_after_run(self, run: Run, desk: Desk, now: float) -> None:
        if run.kill_at is not None and now >= run.kill_at:
            run.kill_at = _FAR
            self._staff.kill(desk, signal.SIGKILL)
        elif run.due_at is not None and now >= run.due_at:
            run.due_at, run.kill_at = None, now + self._options.kill_after_s
            self._staff.kill(desk, signal.SIGTERM)
        elif run.limit_at is not None and now >= run.limit_at and run.verdict is None:
            run.limit_at = None
            self._kill(run, failures.over_time(run.command.time_limit_s or 0.0))
        elif self._staff.is_silent(desk, now):
            self._kill(run, failures.silent(self._options.silent_after_s))
        for when in (run.kill_at, run.due_at, run.limit_at):
            if when is not None:
                self._look_at(max(when, now + 0.001))
