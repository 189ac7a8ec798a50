"""Draws what goes wrong in a simulated experiment from a seed: the same trial has the same faults.

Faults are drawn per start of a trial and by name, so that they do not depend on the order of events.
"""

from __future__ import annotations

from math import inf

from msgspec import Struct

from muster.base.rng import Seed
from muster.session.session import PreemptionInfo


class MachineFaults(Struct, frozen=True):
    """MachineFaults are what is announced about the machine of one process, and what comes of it."""

    notice_after_s: float = inf  # after the start of the process
    lead_s: float = 0.0  # from the notice to its deadline
    late_s: float = 0.0  # from the deadline to the moment at which the machine really goes
    is_cancelled: bool = False  # half-way to the deadline

    def announced(self, now: float, pid: int) -> PreemptionInfo:
        """Returns the notice that is given now."""
        return PreemptionInfo(now + self.lead_s, "interruption", "simulated", f"machine-{pid}")


STAYS = MachineFaults()


class ProcessFaults(Struct, frozen=True):
    """ProcessFaults are what happens to one process of a trial; times in seconds after its start."""

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
    """FaultRates are all zero by default. Rates are per trial-hour, shares are per trial."""

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
        """Draws each kind on or off, then its rate; `hour_s`: how long a trial usually runs."""
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
    """A FaultPlan draws the faults of every start."""

    def __init__(self, rates: FaultRates, seed: int) -> None:
        self.rates = rates
        self._seed = Seed(seed)
        self._is_empty = rates == FaultRates(loss_noticed_after_s=rates.loss_noticed_after_s)

    def faults_of(self, trial_id: str, attempt: int) -> ProcessFaults:
        """Returns the faults of one start of a trial."""
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
        """Returns by how much the wall clock is set after a step of the driver."""
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
    """Returns whether the `number`-th report or save of a process is one of the odd ones."""
    return share > 0.0 and Seed(faults.draws).derive(f"{what}/{number}").random() < share
