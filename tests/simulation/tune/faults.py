"""Draw what goes wrong in a simulated experiment from a seed, and an engine where that happens.

Faults are drawn per start of a trial and by name, so that they do not depend on the order of events: the same
trial has the same faults.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, nan
from typing import Any

from msgspec import Struct, structs

from muster.base.clock import ManualClock
from muster.base.rng import Seed
from muster.session.session import PreemptionInfo
from muster.sim.tune.engine import SimulatedEngine
from muster.sim.tune.experiment import NullTrialStore, SimulatedExperiment, SimulatedRun
from muster.sim.tune.trial import Config, Costs, Curve, Metrics, SimulatedProcess
from muster.trials.events import (
    CheckpointSaved,
    StartTrial,
    TrialFailure,
    TrialFailureKind,
    TrialNoticed,
)
from muster.trials.model import CheckpointRef
from muster.trials.ports import TrialStore
from muster.trials.preemption import AFTER_S


class MachineFaults(Struct, frozen=True):
    """What is announced about the machine of one process, and what comes of it."""

    notice_after_s: float = inf  # after the start of the process
    lead_s: float = 0.0  # from the notice to its deadline
    late_s: float = 0.0  # from the deadline to the moment at which the machine really goes
    is_cancelled: bool = False  # half-way to the deadline

    def announced(self, now: float, pid: int) -> PreemptionInfo:
        """Return the notice that is given now."""
        return PreemptionInfo(now + self.lead_s, "interruption", "simulated", f"machine-{pid}")


STAYS = MachineFaults()


class ProcessFaults(Struct, frozen=True):
    """What happens to one process of a trial; times in seconds after its start."""

    crash_after_s: float = inf  # its code raises, or a signal ends it
    is_killed: bool = False  # which of the two
    loss_after_s: float = inf  # it falls silent; noticed later
    start_factor: float = 1.0
    pace: float = 1.0  # of every iteration
    odd_reports: float = 0.0  # the share of reports with NaN or infinity
    lost_saves: float = 0.0  # the share of saves without a checkpoint
    draws: int = 0  # seeds what is drawn later, per report and per save
    machine: MachineFaults = STAYS


NO_FAULTS = ProcessFaults()


class FaultRates(Struct, frozen=True, kw_only=True):
    """All zero by default. Rates are per trial-hour, shares are per trial."""

    crashes_per_h: float = 0.0
    losses_per_h: float = 0.0
    loss_noticed_after_s: float = 30.0
    slow_starts: float = 0.0  # the share of starts that take ten times as long, plus a minute
    stragglers: float = 0.0  # the share of processes at a third of the pace
    odd_reports: float = 0.0
    lost_saves: float = 0.0
    notices_per_h: float = 0.0  # "this machine will be taken"
    longest_lead_s: float = 120.0  # from the notice to its deadline
    cancelled_notices: float = 0.0  # the share of notices that are taken back
    clock_jumps: float = 0.0  # the share of the driver's steps after which somebody sets the wall clock

    @staticmethod
    def swarm(seed: int, hour_s: float = 3600.0) -> FaultRates:
        """Draw each kind on or off, then its rate; `hour_s`: how long a trial usually runs."""
        stream = Seed(seed).derive("sim.tune.swarm")

        def maybe(most: float) -> float:
            rate = stream.uniform(0.0, most)
            return rate if stream.random() < 0.5 else 0.0

        per_h = 3600.0 / hour_s
        return FaultRates(
            crashes_per_h=maybe(1.5) * per_h,
            losses_per_h=maybe(0.7) * per_h,
            loss_noticed_after_s=0.1 * hour_s,
            slow_starts=maybe(0.5),
            stragglers=maybe(0.5),
            odd_reports=maybe(0.4),
            lost_saves=maybe(0.4),
            notices_per_h=maybe(2.0) * per_h,
            longest_lead_s=stream.choice([0.01, 0.05, 0.3]) * hour_s,
            cancelled_notices=maybe(0.4),
            clock_jumps=Seed(seed).derive("sim.tune.clock").choice([0.0, 0.01, 0.1]),
        )


class FaultPlan:
    """Draws the faults of every start."""

    def __init__(self, rates: FaultRates, seed: int) -> None:
        self.rates = rates
        self._seed = Seed(seed)
        self._is_empty = rates == FaultRates(loss_noticed_after_s=rates.loss_noticed_after_s)

    def faults_of(self, trial_id: str, attempt: int) -> ProcessFaults:
        """Return the faults of one start of a trial."""
        if self._is_empty:
            return NO_FAULTS
        rates, stream = self.rates, self._seed.derive(f"sim.tune.fate/{trial_id}/{attempt}")
        crash, loss = stream.expovariate(1.0), stream.expovariate(1.0)
        killed, slow, straggles = stream.random(), stream.random(), stream.random()
        return ProcessFaults(
            crash_after_s=crash * 3600.0 / rates.crashes_per_h if rates.crashes_per_h else inf,
            is_killed=killed < 0.5,
            loss_after_s=loss * 3600.0 / rates.losses_per_h if rates.losses_per_h else inf,
            start_factor=10.0 if slow < rates.slow_starts else 1.0,
            pace=3.0 if straggles < rates.stragglers else 1.0,
            odd_reports=rates.odd_reports,
            lost_saves=rates.lost_saves,
            draws=stream.getrandbits(62),
            machine=self._machine(trial_id, attempt),
        )

    def jump_s(self, step: int) -> float:
        """Return by how much the wall clock is set after a step of the driver."""
        if not self.rates.clock_jumps:
            return 0.0
        stream = self._seed.derive(f"sim.tune.clock/{step}")
        return stream.choice((-3600, -20, 3600, 2.6e6)) if stream.random() < self.rates.clock_jumps else 0.0

    def _machine(self, trial_id: str, attempt: int) -> MachineFaults:
        """From a stream of its own: the other faults of a seed stay as they are."""
        rates = self.rates
        if not rates.notices_per_h:
            return STAYS
        stream = self._seed.derive(f"sim.tune.machine/{trial_id}/{attempt}")
        after, lead = stream.expovariate(1.0), stream.random()
        return MachineFaults(
            notice_after_s=after * 3600.0 / rates.notices_per_h,
            lead_s=lead * rates.longest_lead_s,
            late_s=stream.choice([0.0, 0.0, 30.0]),
            is_cancelled=stream.random() < rates.cancelled_notices,
        )


def happens(faults: ProcessFaults, what: str, number: int, share: float) -> bool:
    """Return whether the `number`-th report or save of a process is one of the odd ones."""
    return share > 0.0 and Seed(faults.draws).derive(f"{what}/{number}").random() < share


class FaultyCurve(Curve):
    """The curve of one process: slower, and with odd reports."""

    def __init__(self, inner: Curve, faults: ProcessFaults) -> None:
        self._inner, self._faults = inner, faults
        self.iterations, self.begin = inner.iterations, inner.begin  # type: ignore[method-assign]

    def seconds(self, config: Config, iteration: int) -> float:
        return self._inner.seconds(config, iteration) * self._faults.pace

    def advance(self, config: Config, iteration: int, memory: Any) -> tuple[Metrics, Any]:
        metrics, memory = self._inner.advance(config, iteration, memory)
        if happens(self._faults, "report", iteration, self._faults.odd_reports):
            odd = nan if (iteration - 1) % 3 else inf
            metrics = {key: odd if isinstance(value, float) else value for key, value in metrics.items()}
        return metrics, memory


class FaultyProcess(SimulatedProcess):
    """Knows its faults, and what is announced about its machine."""

    def __init__(self, command: StartTrial, curve: Curve, pid: int, faults: ProcessFaults) -> None:
        super().__init__(command, FaultyCurve(curve, faults), pid)
        self.faults = faults
        self.saves = 0
        self.info: PreemptionInfo | None = None  # what is announced about its machine
        self.has_answered = False  # it has reported a checkpoint since


class FaultyCosts(Costs, frozen=True, kw_only=True):
    """FaultyCosts also say of which kind the trainable is."""

    is_function: bool = False  # saves nothing when asked; reports a checkpoint when its machine is announced


class FaultyEngine(SimulatedEngine):
    """A SimulatedEngine where things go wrong, and where machines are taken."""

    def __init__(self, *given: Any, costs: Costs | None = None, **more: Any) -> None:
        costs = costs or Costs()
        known = costs if isinstance(costs, FaultyCosts) else FaultyCosts(**structs.asdict(costs))
        super().__init__(*given, costs=known, **more)
        self._costs: FaultyCosts = known
        self.faults = FaultPlan(FaultRates(), 0)
        self._starts: dict[str, int] = {}

    def _make_process(self, command: StartTrial, curve: Curve, pid: int) -> FaultyProcess:
        attempt = self._starts[command.trial_id] = self._starts.get(command.trial_id, 0) + 1
        return FaultyProcess(command, curve, pid, self.faults.faults_of(command.trial_id, attempt))

    def _start_s(self, process: FaultyProcess, is_reused: bool) -> float:
        delay_s, factor = super()._start_s(process, is_reused), process.faults.start_factor
        return delay_s if factor == 1.0 else delay_s * factor + 60.0

    def _plan_the_end(self, process: FaultyProcess) -> None:
        faults = process.faults
        self.timeline.plan_anyway(faults.crash_after_s, process, lambda: self._crash(process))
        self.timeline.plan_anyway(faults.loss_after_s, process, lambda: self._fall_silent(process))
        self.timeline.plan_anyway(faults.machine.notice_after_s, process, lambda: self._announce(process))
        super()._plan_the_end(process)

    def _checkpoint(self, process: FaultyProcess) -> CheckpointRef | None:
        process.saves += 1
        is_lost = happens(process.faults, "save", process.saves, process.faults.lost_saves)
        return None if is_lost else super()._checkpoint(process)

    def _saved(self, process: FaultyProcess) -> None:
        is_function = self._costs.is_function
        ref = None if is_function else self._checkpoint(process)
        message = "" if ref is not None or is_function else "the save was lost, simulated"
        at = self._clock.now()
        self._ready.append(CheckpointSaved(trial_id=process.trial_id, at=at, checkpoint=ref, message=message))

    def _reported(self, process: FaultyProcess, seconds: float, *, saves: bool = False) -> None:
        info, save_s = process.info, self._costs.save_s
        must_answer = info is not None and not process.has_answered and self._costs.is_function
        if not saves and must_answer and save_s <= info.left_s(self._clock.now()):
            process.has_answered = True
            self.timeline.plan(save_s, process, lambda: self._reported(process, seconds, saves=True))
        else:
            super()._reported(process, seconds, saves=saves)

    def notice(self, trial_id: str, info: PreemptionInfo | None) -> None:
        """Announce that the machine of a trial will be taken, or, without `info`, that it stays."""
        process = self._processes.get(trial_id)
        if process is None or process.info == info:
            return
        process.info, process.has_answered = info, False
        self._ready.append(TrialNoticed(trial_id=trial_id, at=self._clock.now(), info=info))
        if info is not None:  # the controller looks at the clock then, whatever else happens
            left_s = info.left_s(self._clock.now())
            self.timeline.plan_anyway(left_s + AFTER_S, process, lambda: None)

    def _announce(self, process: FaultyProcess) -> None:
        machine, trial_id = process.faults.machine, process.trial_id
        self.notice(trial_id, machine.announced(self._clock.now(), process.pid))
        if machine.is_cancelled:
            self.timeline.plan_anyway(machine.lead_s / 2, process, lambda: self.notice(trial_id, None))
        else:
            end_s = machine.lead_s + machine.late_s
            failure = TrialFailure(
                kind=TrialFailureKind.PREEMPTED, message="its machine was taken, simulated"
            )
            self.timeline.plan_anyway(end_s, process, lambda: self._exit(process, failure=failure))

    def _crash(self, process: FaultyProcess) -> None:
        if process.is_lost:
            return
        kind, message = TrialFailureKind.USER_ERROR, "RuntimeError: a simulated crash"
        if process.faults.is_killed:
            kind, message = TrialFailureKind.KILLED, "killed by signal 9 (SIGKILL), simulated"
        self._exit(process, failure=TrialFailure(kind=kind, message=message))

    def _fall_silent(self, process: FaultyProcess) -> None:
        """The process does nothing more; after a while that is noticed."""
        process.is_lost = True
        failure = TrialFailure(kind=TrialFailureKind.NODE_LOST, message="its machine went away, simulated")
        delay = self.faults.rates.loss_noticed_after_s
        self.timeline.plan(delay, process, lambda: self._exit(process, failure=failure))


@dataclass(frozen=True, kw_only=True)
class FaultyExperiment(SimulatedExperiment):
    """A SimulatedExperiment on an engine with faults."""

    faults: FaultPlan = FaultPlan(FaultRates(), 0)  # noqa: RUF009 - it has no state

    def begin(self, store: TrialStore | None = None) -> FaultyRun:
        engine = FaultyEngine(
            ManualClock(),
            self.capacity(),
            self.curve,
            costs=self.costs,
            price_per_hour=self.price_per_hour,
        )
        return FaultyRun(self, store or NullTrialStore(), engine)


class FaultyRun(SimulatedRun):
    """A FaultyRun also sets the wall clock, as somebody may at any time."""

    experiment: FaultyExperiment

    def __init__(self, experiment: FaultyExperiment, store: TrialStore, engine: FaultyEngine) -> None:
        engine.faults = experiment.faults
        super().__init__(experiment, store, engine)

    def step(self) -> bool:
        continues = super().step()
        self.engine.world.jump(self.experiment.faults.jump_s(self.steps))
        return continues
