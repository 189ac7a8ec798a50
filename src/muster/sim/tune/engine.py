"""Implements the Engine port in virtual time: no process, no thread, no sleep; same seed, same run.

Called by TrialController like any engine. Moves the given clock and decides nothing about trials.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from typing_extensions import assert_never

from muster.base.clock import SteadyClock
from muster.session.progress import Progress, Signature, fill_result
from muster.session.session import PreemptionInfo
from muster.sim.event_queue import GONE, EventQueue, HasTurns, MovableClock
from muster.sim.tune.costs import Costs, WorkerCapacity
from muster.sim.tune.curve import Curve, Report, as_curve
from muster.sim.tune.faults import FaultPlan, FaultRates, ProcessFaults, happens
from muster.trials.events import (
    CheckpointSaved,
    ContinueTrial,
    EngineCommand,
    EngineEvent,
    SaveTrial,
    StartTrial,
    StopTrial,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialNoticed,
    TrialPriced,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import Engine
from muster.trials.preemption import AFTER_S

MEMORY_KEY = "sim_memory"  # in a checkpoint's metrics: what a curve with a past resumes from
HOSTNAME, ADDRESS = "simulated", "127.0.0.1"


class CheckpointUnknown(Exception):
    """CheckpointUnknown means a start from a checkpoint that no simulated trial made."""


class SimulatedProcess(HasTurns):
    """A SimulatedProcess holds how far a trial is, between two events of the engine."""

    __slots__ = (
        "_progress",
        "_who",
        "checkpoint_index",
        "command",
        "curve",
        "faults",
        "has_answered",
        "info",
        "is_lost",
        "is_waiting",
        "last",
        "memory",
        "pid",
        "saves",
    )

    def __init__(self, command: StartTrial, curve: Curve, faults: ProcessFaults, pid: int) -> None:
        self.command = command
        self.curve = curve
        self.faults = faults
        self.pid = pid
        self.turn = 0
        self.is_waiting = False  # for the answer to a report
        self.is_lost = False
        self.info: PreemptionInfo | None = None  # what is announced about its machine
        self.has_answered = False  # it has reported a checkpoint since
        self.saves = 0
        self.checkpoint_index = command.checkpoint_index
        self.memory: Any = None
        self.last: dict[str, Any] = {}
        self._progress = Progress()
        self._who: Signature | None = None

    @property
    def trial_id(self) -> str:
        return self.command.trial_id

    @property
    def iteration(self) -> int:
        return self._progress.iteration

    def set_up(self) -> None:
        """Loads the checkpoint, or begins; raises CheckpointUnknown, or whatever the curve raises."""
        given, config = self.command.checkpoint, self.command.config
        self._who = Signature(trial_id=self.trial_id, config=config)
        self._who.pid, self._who.hostname, self._who.node_ip = self.pid, HOSTNAME, ADDRESS
        if given is None:
            self.memory = self.curve.begin(config)
            return
        if "training_iteration" not in given.metrics:
            raise CheckpointUnknown(
                f"{given.path}: no simulated trial made this checkpoint, so no trial can resume from it"
            )
        self._progress.resume(given.metrics)
        self.memory = given.metrics.get(MEMORY_KEY)
        self.last = dict(given.metrics)

    @property
    def location(self) -> dict[str, Any]:
        return {"pid": self.pid, "hostname": HOSTNAME, "node_ip": ADDRESS}

    def is_done(self) -> bool:
        most = self.curve.iterations(self.command.config)
        return most is not None and self.iteration >= most

    def seconds(self) -> float:
        """Returns the duration of the next iteration; an invalid one is the trial's error."""
        seconds = self.curve.seconds(self.command.config, self.iteration + 1)
        if not (0.0 <= seconds < math.inf):
            raise ValueError(
                f"iteration {self.iteration + 1} takes {seconds!r} s; Curve.seconds must return 0 or more"
            )
        return seconds * self.faults.pace

    def report(self, elapsed_s: float, now: float) -> dict[str, Any]:
        """Returns one more result, with the keys that every engine adds."""
        reported, self.memory = self.curve.advance(self.command.config, self.iteration + 1, self.memory)
        metrics = dict(reported)
        if happens(self.faults, "report", self.iteration + 1, self.faults.odd_reports):
            odd = math.nan if self.iteration % 3 else math.inf
            metrics = {key: odd if isinstance(value, float) else value for key, value in metrics.items()}
        stamp = self._progress.advance(metrics, elapsed_s=elapsed_s, now=now)
        assert self._who is not None
        self.last = fill_result(metrics, stamp, self._who, now=now)
        return self.last

    def checkpoint(self) -> CheckpointRef | None:
        """Returns a virtual checkpoint: the iteration and the curve's memory. None when the save is lost."""
        self.saves += 1
        if happens(self.faults, "save", self.saves, self.faults.lost_saves):
            return None
        self.checkpoint_index += 1
        metrics = dict(self.last) if self.memory is None else {**self.last, MEMORY_KEY: self.memory}
        metrics.setdefault("training_iteration", self.iteration)
        path = f"{self.command.trial_dir}/checkpoint_{self.checkpoint_index:06d}"
        return CheckpointRef(path=path, index=self.checkpoint_index, metrics=metrics)


def failure_of(error: Exception) -> TrialFailure:
    """Returns an exception of a curve as an engine with processes would report it."""
    if isinstance(error, CheckpointUnknown):
        return TrialFailure(kind=TrialFailureKind.START, message=str(error))
    from muster.engines.worker.exit_report import failed_exit

    report = failed_exit(error)
    return TrialFailure(
        kind=TrialFailureKind(report.kind),
        message=report.message,
        traceback=report.traceback,
        exception=report.exception,
    )


class SimulatedEngine(Engine):
    """A SimulatedEngine runs trials as `(config, iteration) -> metrics` functions that take virtual time.

    Args:
        clock: Moved by `poll`.
        capacity: What all trials together may use.
        curve: What trials do: a Curve, a function, or one Curve per trainable name.
        costs: What starting, saving and stopping take.
        price_per_hour: What the whole capacity costs; None: nobody knows.
        faults: What goes wrong; None: nothing does.

    `poll` goes to the next event however far away that is, because waiting costs nothing here; it returns
    earlier, with nothing, at `timeline.wake_at`.
    """

    def __init__(
        self,
        clock: MovableClock,
        capacity: Mapping[str, float],
        curve: Curve | Report | Mapping[str, Curve],
        *,
        costs: Costs | None = None,
        faults: FaultPlan | None = None,
        price_per_hour: float | None = None,
    ) -> None:
        self.world, self._clock = clock, SteadyClock(clock)
        self._price_per_hour = price_per_hour
        self._capacity = dict(capacity)
        self._curves = curve if isinstance(curve, Mapping) else None
        self._curve = None if isinstance(curve, Mapping) else as_curve(curve)
        self._costs = costs or Costs()
        self._faults = faults or FaultPlan(FaultRates(), 0)
        self.worker_capacity = WorkerCapacity(capacity, clock.monotonic)
        self.timeline = EventQueue(clock)
        self._processes: dict[str, SimulatedProcess] = {}
        self._queue: deque[StartTrial] = deque()  # no room yet; first come, first served
        self._starts: dict[str, int] = {}
        self._idle: dict[PlacementGroupFactory, list[int]] = {}  # processes that may be used again
        self._pids = 0
        self._ready: list[EngineEvent] = []

    def capacity(self) -> Mapping[str, float]:
        return self._capacity

    @property
    def clock(self) -> SteadyClock:
        return self._clock

    def worker_s(self, workers: int) -> float:
        """Returns the seconds that trials have held one of so many equal workers, summed up."""
        return self.worker_capacity.busy_s * workers

    @property
    def is_idle(self) -> bool:
        """Returns whether `poll` can return nothing more unless something is submitted."""
        return not self._ready and self.timeline.is_empty

    def submit(self, command: EngineCommand) -> None:
        match command:
            case ContinueTrial():
                if (process := self._waiting(command.trial_id)) is not None:
                    self._continue(process)
            case StartTrial():
                self._queue.append(command)
                self._start_those_that_fit()
            case SaveTrial():
                if (process := self._waiting(command.trial_id)) is not None:
                    self.timeline.plan(self._costs.save_s, process, lambda: self._saved(process))
            case StopTrial():
                self._stop(command)
            case _:
                assert_never(command)

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        if not self._ready:
            self.timeline.advance(timeout_s)
        events, self._ready = self._ready, []
        return events

    def close(self) -> None:
        for process in self._processes.values():
            self._give_room_back(process.command)
        self._processes.clear()
        self._queue.clear()
        self.timeline.clear()
        self._ready.clear()

    # Starting.

    def _start_those_that_fit(self) -> None:
        while self._queue:
            command = self._queue[0]
            curve = self._curve_of(command)
            if not self.worker_capacity.can_ever_fit(command.resources):
                needs = self.worker_capacity.needs(command.resources)
                self._refuse(f"needs ({needs}), but there is only ({self.worker_capacity.whole}) in all")
            elif curve is None:
                self._refuse(f"has the trainable {command.trainable_name!r}, for which there is no curve")
            elif self.worker_capacity.fits(command.resources):
                self._queue.popleft()
                self._start(command, curve)
            else:
                return

    def _take_room(self, command: StartTrial) -> None:
        self.worker_capacity.take(command.resources)

    def _give_room_back(self, command: StartTrial) -> None:
        self.worker_capacity.give_back(command.resources)

    def _curve_of(self, command: StartTrial) -> Curve | None:
        return self._curve if self._curves is None else self._curves.get(command.trainable_name)

    def _refuse(self, why: str) -> None:
        trial_id = self._queue.popleft().trial_id
        failure = TrialFailure(kind=TrialFailureKind.START, message=f"trial {trial_id} {why}")
        self._ready.append(TrialExited(trial_id=trial_id, at=self._clock.now(), failure=failure))

    def _start(self, command: StartTrial, curve: Curve) -> None:
        attempt = self._starts[command.trial_id] = self._starts.get(command.trial_id, 0) + 1
        faults = self._faults.faults_of(command.trial_id, attempt)
        free = self._idle.get(command.resources) if command.may_reuse else None
        delay = self._costs.reuse_s if free else self._start_s(command)
        if command.checkpoint is not None:
            delay += self._costs.restore_s
        if faults.start_factor != 1.0:
            delay = delay * faults.start_factor + 60.0
        process = SimulatedProcess(command, curve, faults, free[-1] if free else self._pids + 1)
        self._processes[command.trial_id] = process
        self._take_room(command)
        if self._price_per_hour is not None:
            rate = self._price_per_hour * self.worker_capacity.share(command.resources)
            at = self._clock.now()
            self._ready.append(TrialPriced(trial_id=command.trial_id, at=at, usd_per_hour=rate))
        is_reused = bool(free)
        if free:
            free.pop()
        else:
            self._pids += 1
        self.timeline.plan(delay, process, lambda: self._started(process, is_reused))

    def _start_s(self, command: StartTrial) -> float:
        """Returns how long a new process takes to start."""
        return self._costs.start_s

    def _started(self, process: SimulatedProcess, is_reused: bool) -> None:
        try:
            process.set_up()
        except Exception as error:  # noqa: BLE001 - the user's curve
            self._exit(process, failure=failure_of(error))
            return
        self._ready.append(
            TrialStarted(
                trial_id=process.trial_id,
                at=self._clock.now(),
                location=process.location,
                reused=is_reused,
            )
        )
        self._plan_the_end(process)
        self._continue(process)

    def _plan_the_end(self, process: SimulatedProcess) -> None:
        """Faults and a time limit happen whatever the trial is doing."""
        faults, limit_s = process.faults, process.command.time_limit_s
        self.timeline.plan_anyway(faults.crash_after_s, process, lambda: self._crash(process))
        self.timeline.plan_anyway(faults.loss_after_s, process, lambda: self._lose(process))
        self.timeline.plan_anyway(faults.machine.notice_after_s, process, lambda: self._announce(process))
        if limit_s is not None:
            message = f"ran longer than its limit of {limit_s:g} s"
            failure = TrialFailure(kind=TrialFailureKind.TIME_LIMIT, message=message)
            self.timeline.plan_anyway(limit_s, process, lambda: self._exit(process, failure=failure))

    # Running.

    def _continue(self, process: SimulatedProcess) -> None:
        process.is_waiting = False
        try:
            if process.is_done():
                reusable = process.command.may_reuse
                self.timeline.plan(0.0, process, lambda: self._exit(process, is_done=True, reusable=reusable))
                return
            seconds = self._seconds(process)
        except Exception as error:  # noqa: BLE001 - the user's curve
            self._exit(process, failure=failure_of(error))
            return
        self.timeline.plan(seconds, process, lambda: self._reported(process, seconds))

    def _seconds(self, process: SimulatedProcess) -> float:
        """Returns how long the next iteration takes where the process runs."""
        return process.seconds()

    def _reported(self, process: SimulatedProcess, seconds: float) -> None:
        now, info, save_s = self._clock.now(), process.info, self._costs.save_s
        saves = info is not None and not process.has_answered and self._costs.is_function
        if saves and info is not None and save_s <= info.left_s(now):
            process.has_answered = True
            self.timeline.plan(save_s, process, lambda: self._report(process, seconds, saves=True))
        else:
            self._report(process, seconds)

    def _report(self, process: SimulatedProcess, seconds: float, *, saves: bool = False) -> None:
        now = self._clock.now()
        try:
            result = process.report(seconds, now)
        except Exception as error:  # noqa: BLE001 - the user's curve
            self._exit(process, failure=failure_of(error))
            return
        process.is_waiting = True
        every = self._costs.checkpoint_every
        saves |= every > 0 and process.iteration % every == 0
        ref = process.checkpoint() if saves else None
        if ref is not None:
            result["checkpoint_dir_name"] = ref.path.rpartition("/")[2]
        self._ready.append(TrialReported(trial_id=process.trial_id, at=now, result=result, checkpoint=ref))

    def _saved(self, process: SimulatedProcess) -> None:
        ref = None if self._costs.is_function else process.checkpoint()
        message = "" if ref is not None or self._costs.is_function else "the save was lost, simulated"
        at = self._clock.now()
        self._ready.append(CheckpointSaved(trial_id=process.trial_id, at=at, checkpoint=ref, message=message))

    def _waiting(self, trial_id: str) -> SimulatedProcess | None:
        process = self._processes.get(trial_id)
        return process if process is not None and process.is_waiting and not process.is_lost else None

    # Machines that will be taken.

    def notice(self, trial_id: str, info: PreemptionInfo | None) -> None:
        """Announces that the machine of a trial will be taken, or, without `info`, that it stays."""
        process = self._processes.get(trial_id)
        if process is None or process.info == info:
            return
        process.info, process.has_answered = info, False
        self._ready.append(TrialNoticed(trial_id=trial_id, at=self._clock.now(), info=info))
        if info is not None:  # the controller looks at the clock then, whatever else happens
            left_s = info.left_s(self._clock.now())
            self.timeline.plan_anyway(left_s + AFTER_S, process, lambda: None)

    def take(self, trial_id: str) -> None:
        """Takes the machine of a trial away."""
        process = self._processes.get(trial_id)
        if process is not None:
            message = "its machine was taken, simulated"
            failure = TrialFailure(kind=TrialFailureKind.PREEMPTED, message=message)
            self._exit(process, failure=failure)

    def _announce(self, process: SimulatedProcess) -> None:
        machine, trial_id = process.faults.machine, process.trial_id
        self.notice(trial_id, machine.announced(self._clock.now(), process.pid))
        if machine.is_cancelled:
            self.timeline.plan_anyway(machine.lead_s / 2, process, lambda: self.notice(trial_id, None))
        else:
            end_s = machine.lead_s + machine.late_s
            self.timeline.plan_anyway(end_s, process, lambda: self.take(trial_id))

    # Ending.

    def _stop(self, command: StopTrial) -> None:
        process = self._processes.get(command.trial_id)
        if process is None:
            self._withdraw(command.trial_id)
            return
        reusable = process.command.may_reuse and command.keep_process and process.is_waiting
        # A process that no longer answers is ended by force.
        delay = self._costs.stop_s * (not reusable) + (command.grace_s if process.is_lost else 0.0)
        process.is_waiting = False
        self.timeline.plan(delay, process, lambda: self._exit(process, reusable=reusable))

    def _withdraw(self, trial_id: str) -> None:
        """Handles a trial that is stopped before there was room for it."""
        found = next((waiting for waiting in self._queue if waiting.trial_id == trial_id), None)
        if found is not None:
            self._queue.remove(found)
            self._ready.append(TrialExited(trial_id=trial_id, at=self._clock.now()))
            self._start_those_that_fit()

    def _crash(self, process: SimulatedProcess) -> None:
        if process.is_lost:
            return
        kind, message = TrialFailureKind.USER_ERROR, "RuntimeError: a simulated crash"
        if process.faults.is_killed:
            kind, message = TrialFailureKind.KILLED, "killed by signal 9 (SIGKILL), simulated"
        self._exit(process, failure=TrialFailure(kind=kind, message=message))

    def _lose(self, process: SimulatedProcess) -> None:
        """The process does nothing more; after a while that is noticed."""
        process.is_lost = True
        failure = TrialFailure(kind=TrialFailureKind.NODE_LOST, message="its machine went away, simulated")
        delay = self._faults.rates.loss_noticed_after_s
        self.timeline.plan(delay, process, lambda: self._exit(process, failure=failure))

    def _exit(
        self,
        process: SimulatedProcess,
        *,
        failure: TrialFailure | None = None,
        is_done: bool = False,
        reusable: bool = False,
    ) -> None:
        process.turn = GONE
        command = self._processes.pop(process.trial_id).command
        self._give_room_back(command)
        if reusable:
            self._idle.setdefault(command.resources, []).append(process.pid)
        self._ready.append(
            TrialExited(
                trial_id=process.trial_id,
                at=self._clock.now(),
                failure=failure,
                is_done=is_done,
                reusable=reusable,
            )
        )
        self._start_those_that_fit()
