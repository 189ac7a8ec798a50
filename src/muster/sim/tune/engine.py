"""Implement the Engine port in virtual time: no process, no thread, no sleep; same seed, same run.

Called by TrialController like any engine. Moves the given clock and decides nothing about trials.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence

from typing_extensions import assert_never

from muster.base.clock import SteadyClock
from muster.base.resources import Resources
from muster.sim.cluster.world import GONE, EventQueue, MovableClock
from muster.sim.tune.trial import (
    ADDRESS,
    HOSTNAME,
    Costs,
    Curve,
    Report,
    SimulatedProcess,
    as_curve,
    failure_of,
)
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
    TrialPriced,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import Engine
from muster.trials.spend import share_of


class WorkerCapacity:
    """Counts resources exactly; `busy_s` is the integral of the share in use."""

    def __init__(self, capacity: Mapping[str, float], monotonic: Callable[[], float]) -> None:
        self.whole = Resources.of(capacity)
        self._free = self.whole
        self._monotonic = monotonic
        self._sizes: dict[PlacementGroupFactory, tuple[Resources, float]] = {}
        self._share = 0.0
        self._counted_s = 0.0
        self._counted_at = monotonic()

    @property
    def busy_s(self) -> float:
        """Return the seconds of the whole capacity that trials have held so far."""
        return self._counted_s + self._share * (self._monotonic() - self._counted_at)

    def needs(self, resources: PlacementGroupFactory) -> Resources:
        return self._size(resources)[0]

    def fits(self, resources: PlacementGroupFactory) -> bool:
        return self._free.holds(self.needs(resources))

    def can_ever_fit(self, resources: PlacementGroupFactory) -> bool:
        return self.whole.holds(self.needs(resources))

    def share(self, resources: PlacementGroupFactory) -> float:
        return self._size(resources)[1]

    def take(self, resources: PlacementGroupFactory) -> None:
        needs, share = self._size(resources)
        self._free = self._free.minus(needs)
        self._use(share)

    def release(self, resources: PlacementGroupFactory) -> None:
        needs, share = self._size(resources)
        self._free = self._free.plus(needs)
        self._use(-share)

    def _use(self, share: float) -> None:
        self._counted_s, self._counted_at = self.busy_s, self._monotonic()
        self._share += share

    def _size(self, resources: PlacementGroupFactory) -> tuple[Resources, float]:
        """Return the needed resources, and their largest share of the capacity."""
        if resources not in self._sizes:
            needs = Resources.of(resources.required_resources)
            self._sizes[resources] = (needs, share_of(needs, self.whole))
        return self._sizes[resources]


class SimulatedEngine(Engine):
    """Runs trials as `(config, iteration) -> metrics` functions that take virtual time.

    Args:
        clock: Moved by `poll`.
        capacity: What all trials together may use.
        curve: What trials do: a Curve, a function, or one Curve per trainable name.
        costs: What starting, saving and stopping take.
        price_per_hour: What the whole capacity costs; None: nobody knows.

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
        price_per_hour: float | None = None,
    ) -> None:
        self.world, self._clock = clock, SteadyClock(clock)
        self._price_per_hour = price_per_hour
        self._capacity = dict(capacity)
        self._curves = curve if isinstance(curve, Mapping) else None
        self._curve = None if isinstance(curve, Mapping) else as_curve(curve)
        self._costs = costs or Costs()
        self.worker_capacity = WorkerCapacity(capacity, clock.monotonic)
        self.timeline = EventQueue(clock)
        self._processes: dict[str, SimulatedProcess] = {}
        self._queue: deque[StartTrial] = deque()  # no room yet; first come, first served
        self._idle: dict[PlacementGroupFactory, list[int]] = {}  # processes that may be used again
        self._pids = 0
        self._ready: list[EngineEvent] = []

    def capacity(self) -> Mapping[str, float]:
        return self._capacity

    @property
    def clock(self) -> SteadyClock:
        return self._clock

    def worker_s(self, workers: int) -> float:
        """Return the seconds that trials have held one of so many equal workers, summed up."""
        return self.worker_capacity.busy_s * workers

    @property
    def is_idle(self) -> bool:
        """Return whether `poll` can return nothing more unless something is submitted."""
        return not self._ready and self.timeline.is_empty

    def submit(self, command: EngineCommand) -> None:
        process = self._processes.get(command.trial_id)
        is_ready = process is not None and process.is_waiting and not process.is_lost
        match command:
            case ContinueTrial():
                if process is not None and is_ready:
                    self._continue(process)
            case StartTrial():
                self._queue.append(command)
                self._start_those_that_fit()
            case SaveTrial():
                if process is not None and is_ready:
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
        self.worker_capacity.release(command.resources)

    def _curve_of(self, command: StartTrial) -> Curve | None:
        return self._curve if self._curves is None else self._curves.get(command.trainable_name)

    def _refuse(self, why: str) -> None:
        trial_id = self._queue.popleft().trial_id
        failure = TrialFailure(kind=TrialFailureKind.START, message=f"trial {trial_id} {why}")
        self._ready.append(TrialExited(trial_id=trial_id, at=self._clock.now(), failure=failure))

    def _start(self, command: StartTrial, curve: Curve) -> None:
        free = self._idle.get(command.resources) if command.may_reuse else None
        is_reused = bool(free)
        if not free:
            self._pids += 1
        process = self._make_process(command, curve, free.pop() if free else self._pids)
        self._processes[command.trial_id] = process
        self._take_room(command)
        if self._price_per_hour is not None:
            rate = self._price_per_hour * self.worker_capacity.share(command.resources)
            at = self._clock.now()
            self._ready.append(TrialPriced(trial_id=command.trial_id, at=at, usd_per_hour=rate))
        delay_s = self._start_s(process, is_reused)
        self.timeline.plan(delay_s, process, lambda: self._started(process, is_reused))

    def _make_process(self, command: StartTrial, curve: Curve, pid: int) -> SimulatedProcess:
        return SimulatedProcess(command, curve, pid)

    def _start_s(self, process: SimulatedProcess, is_reused: bool) -> float:
        """Return how long a process takes until it iterates."""
        start_s = self._costs.reuse_s if is_reused else self._costs.start_s
        return start_s + (self._costs.restore_s if process.command.checkpoint is not None else 0.0)

    def _started(self, process: SimulatedProcess, is_reused: bool) -> None:
        try:
            process.set_up()
        except Exception as error:  # noqa: BLE001 - the user's curve
            self._exit(process, failure=failure_of(error))
            return
        location = {"pid": process.pid, "hostname": HOSTNAME, "node_ip": ADDRESS}
        at, trial_id = self._clock.now(), process.trial_id
        self._ready.append(TrialStarted(trial_id=trial_id, at=at, location=location, reused=is_reused))
        self._plan_the_end(process)
        self._continue(process)

    def _plan_the_end(self, process: SimulatedProcess) -> None:
        """Plan what happens whatever the trial is doing: its time limit."""
        limit_s = process.command.time_limit_s
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
        """Return how long the next iteration takes where the process runs."""
        return process.seconds()

    def _reported(self, process: SimulatedProcess, seconds: float, *, saves: bool = False) -> None:
        now = self._clock.now()
        try:
            result = process.report(seconds, now)
        except Exception as error:  # noqa: BLE001 - the user's curve
            self._exit(process, failure=failure_of(error))
            return
        process.is_waiting = True
        every = self._costs.checkpoint_every
        saves |= every > 0 and process.iteration % every == 0
        ref = self._checkpoint(process) if saves else None
        if ref is not None:
            result["checkpoint_dir_name"] = ref.path.rpartition("/")[2]
        self._ready.append(TrialReported(trial_id=process.trial_id, at=now, result=result, checkpoint=ref))

    def _checkpoint(self, process: SimulatedProcess) -> CheckpointRef | None:
        """Make a checkpoint; None when that fails."""
        return process.checkpoint()

    def _saved(self, process: SimulatedProcess) -> None:
        at, ref = self._clock.now(), self._checkpoint(process)
        self._ready.append(CheckpointSaved(trial_id=process.trial_id, at=at, checkpoint=ref))

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
        """Handle a trial that is stopped before there was room for it."""
        found = next((waiting for waiting in self._queue if waiting.trial_id == trial_id), None)
        if found is not None:
            self._queue.remove(found)
            self._ready.append(TrialExited(trial_id=trial_id, at=self._clock.now()))
            self._start_those_that_fit()

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
        at, trial_id = self._clock.now(), process.trial_id
        self._ready.append(
            TrialExited(trial_id=trial_id, at=at, failure=failure, is_done=is_done, reusable=reusable)
        )
        self._start_those_that_fit()
