"""Read a history into what a replay needs: work, configurations, machines, and how long things took.

Says of each part whether it was observed or inferred.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.base.text import counted, duration, moment
from muster.cluster.model import ClusterSpec, Instance, NodeKind, health_key
from muster.cluster.states import ON_CLOUD, TERMINAL, InstanceState
from muster.errors import StoreError
from muster.sim.backtest.work import WorkFinder, WorkTrace
from muster.stores.history.files import read_history
from muster.stores.history.past import PastReader, cost_until, moments

_S = InstanceState
_STAYING = frozenset({_S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING})
ASSUMED_BOOT_S = (60.0, 120.0)
ASSUMED_END_S = (2.0, 10.0)


@dataclass
class Timings:
    """How long machines took, as observed: seconds by node type."""

    request_s: dict[str, list[float]] = field(default_factory=dict)  # from the request to the machine
    boot_s: dict[str, list[float]] = field(default_factory=dict)  # from the machine to its node
    end_s: dict[str, list[float]] = field(default_factory=dict)  # from the call to the end

    def sample(self, of: Mapping[str, list[float]], node_type: str) -> list[float]:
        """Return what was seen of a type, else of all types."""
        return of.get(node_type) or [each for seen in of.values() for each in seen]


@dataclass
class Recording:
    """One history, ready to be replayed; times are seconds since the epoch."""

    cluster: str
    since: float
    until: float
    specs: list[tuple[float, ClusterSpec]]
    machines: list[Instance]
    work: WorkTrace
    timings: Timings
    gaps: list[tuple[float, float]]
    damage: list[str]

    @property
    def length_s(self) -> float:
        return self.until - self.since

    @property
    def cost(self) -> float:
        """Return what the machines cost between the first and the last entry."""
        return sum(cost_until(one, self.until) - cost_until(one, self.since) for one in self.machines)

    @property
    def node_hours(self) -> float:
        return sum(_paid_s(one, self.since, self.until) for one in self.machines) / 3600.0

    @property
    def machines_launched(self) -> int:
        """Return how many workers came after the beginning."""
        begun = [_begun(one) for one in self.machines if one.kind is NodeKind.WORKER]
        return sum(at is not None and at >= self.since for at in begun)

    def node_lives(self) -> list[tuple[float, float]]:
        """Return when each worker's node came up and its machine ended; infinity: it is there."""
        found = []
        for one in self.machines:
            up = one.entered(_S.RAY_RUNNING)
            if up and one.kind is NodeKind.WORKER:
                found.append((up[0], one.since if one.state in TERMINAL else math.inf))
        return found

    def there_at_start(self) -> list[Instance]:
        """Return the workers that had been launched before the history began."""
        found = []
        for one in self.machines:
            before = [change.state for change in one.history if change.at < self.since]
            if one.kind is NodeKind.WORKER and before and before[-1] in _STAYING:
                found.append(one)
        return found

    def losses(self) -> dict[str, float]:
        """Return, by pool, how many machines per hour of one machine were lost without being asked for."""
        lost: dict[str, int] = {}
        hours: dict[str, float] = {}
        for one in self.machines:
            pool = health_key(one.node_type, one.offer_name)
            hours[pool] = hours.get(pool, 0.0) + _paid_s(one, self.since, self.until) / 3600.0
            is_lost = one.loss is not None and one.loss.at > self.since
            lost[pool] = lost.get(pool, 0) + (is_lost and one.kind is NodeKind.WORKER)
        return {pool: count / hours[pool] for pool, count in lost.items() if count and hours[pool] > 0}

    def provenance(self) -> list[tuple[str, str]]:
        """Return what was observed and what was inferred, in words."""
        works, gangs = self.work.works, self.work.gangs
        seen = sum(one.is_arrival_seen for one in works)
        ended = sum(one.is_end_seen for one in works)
        boots = sum(map(len, self.timings.boot_s.values()))
        lines = [
            ("observed", f"{counted(len(self.machines), 'machine')} with prices, states and their times"),
            (
                "observed",
                f"the arrival of {counted(seen, 'request')} that waited, and {counted(len(gangs), 'gang')}",
            ),
            ("observed", f"the time to start a machine, {boots} times" if boots else ""),
            ("inferred", f"how long {counted(len(works), 'request')} ran, from the use of nodes"),
            ("inferred", "where and in which order they ran: the simulated runtime places them by itself"),
            ("inferred", "" if boots else "the time to start a machine: 60 to 120 s is assumed"),
        ]
        guessed = (
            (len(works) - seen, "arrived when their use began: they were never seen waiting"),
            (len(works) - ended - self.work.withdrawn, "ended with the recording: they still ran"),
            (
                self.work.withdrawn,
                "were withdrawn: where they are served now, as long as others of their shape",
            ),
        )
        lines += [("inferred", f"{counted(count, 'request')} {what}") for count, what in guessed if count > 0]
        lines += [
            ("not known", f"from {moment(a)} for {duration(b - a)}: no monitor ran") for a, b in self.gaps
        ]
        lines += [("not known", text) for text in self.damage]
        return [(kind, text) for kind, text in lines if text]


def read_recording(place: Path) -> Recording:
    """Read a history; StoreError in one sentence when there is nothing to replay."""
    damage: list[str] = []
    past, finder, experiments = PastReader(), WorkFinder(), set[str]()
    for each in moments(past, read_history(place, damage.append)):
        finder.step(each)
        experiments |= past.forecasts.keys()
    if past.since is None or past.until is None or not past.specs:
        raise StoreError(damage[0] if damage else f"{place}: the history is empty; let the cluster run first")
    if past.until - past.since < 1.0:
        raise StoreError(
            f"{place}: the history is {past.until - past.since:.1f} s long", fix="let the cluster run first"
        )
    if experiments:
        told = f"what the forecasts of {counted(len(experiments), 'experiment')} told, by which idle machines"
        damage.append(f"{told} went early: here they stay for their idle timeout, and cost more")
    machines = [one for one in past.machines.values() if one.history]
    return Recording(
        cluster=past.cluster,
        since=past.since,
        until=past.until,
        specs=past.specs,
        machines=machines,
        work=finder.finish(past.until),
        timings=timings_of(machines),
        gaps=past.gaps,
        damage=damage,
    )


def timings_of(machines: Iterable[Instance]) -> Timings:
    """Return how long each step of workers took, where both ends of it were seen."""
    found = Timings()
    steps = (
        (found.request_s, _S.REQUESTED, _S.ALLOCATED),
        (found.boot_s, _S.ALLOCATED, _S.RAY_RUNNING),
        (found.end_s, _S.TERMINATING, _S.TERMINATED),
    )
    for one in machines:
        for into, begin, end in steps if one.kind is NodeKind.WORKER else ():
            first, last = one.entered(begin), one.entered(end)
            if first and last and last[0] >= first[-1]:
                into.setdefault(one.node_type, []).append(last[0] - first[-1])
    return found


def _begun(machine: Instance) -> float | None:
    return next((change.at for change in machine.history if change.state in ON_CLOUD), None)


def _paid_s(machine: Instance, since: float, until: float) -> float:
    begun = _begun(machine)
    if begun is None:
        return 0.0
    end = machine.since if machine.state in TERMINAL else until
    return max(0.0, min(end, until) - max(begun, since))
