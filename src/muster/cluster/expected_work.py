"""Works out from the forecasts of tuners how much room each shape of trial is worth, and when.

Pure. `capacity` asks for it: work that will want room within a boot time is planned like work that waits, and
nothing is launched for work that will have a place before a new machine could serve it.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct

from muster.base.forecast import Forecast
from muster.base.resources import Resources
from muster.cluster.model import ClusterSpec, Instance, RuntimeReport
from muster.cluster.states import InstanceState

_LEARNING = 0.3  # how much one new boot counts against those before it
_TO_LEARN = 0.05  # of the time to a deadline: it may pass until it is known how long trials take
_SPARE = 1.1  # work takes a tenth longer than expected


class Level(Struct, frozen=True):
    """A stretch of time in which so many of the trials to come will run at once."""

    length_s: float
    count: float


class ExpectedWork(Struct, frozen=True, kw_only=True):
    """What is known about the trials of one shape, in seconds from now."""

    shape: Resources
    waiting: int = 0  # trials that want room now
    soon: int = 0  # trials that will want room within a boot time
    running: tuple[float, ...] = ()  # the rest of each running trial; inf: not known
    each_s: float | None = None  # how long one of those to come will run; None: not known
    most_s: float | None = None  # until one of those to come may be over, however many run; None: not known
    work_s: float | None = None  # everything that is still to be done; None: not known
    later: tuple[Level, ...] = ()  # of it, what cannot begin yet: it waits for what runs now
    deadline_s: float | None = None  # the nearest one
    begun_s: float = 0.0  # since when its experiment has run
    speed: float = 1.0  # of the machines on which these times were measured
    boot_s: float = 0.0

    def served_before_boot(self) -> int:
        """Return how many trials to come will start where others end before a machine could boot."""
        if self.each_s is None:
            return 0
        ends = [rest for rest in self.running if rest < self.boot_s]
        heapq.heapify(ends)
        started, most = 0, self.waiting + self.soon
        while ends and started < most:
            end = heapq.heappop(ends)
            started += 1
            if end + self.each_s < self.boot_s:
                heapq.heappush(ends, end + max(self.each_s, 1.0))
        return started

    def places(self, most_boot_share: float, first_slots: int) -> int:
        """Return how many places in all are worth their boot; more where a deadline asks for them."""
        if self.work_s is None:
            # Machines for all, although nobody knows how long trials take: the deadline is too near to learn.
            known, begun_s = self.deadline_s, self.begun_s
            if known is not None and too_short_to_learn(known, begun_s, self.boot_s):
                return self.wanted
            return max(first_slots, len(self.running))
        return max(1, self._worth(most_boot_share), self.for_deadline())

    def _worth(self, most_boot_share: float) -> int:
        """Return up to which place each is used so long that its boot is at most this share of that."""
        least_s = max(self.boot_s, 1.0) / max(most_boot_share, 1e-9)
        low, high = 0, self.wanted
        while low < high:
            middle = (low + high + 1) // 2
            # How long the last of so many places would be used, if nothing else than this work comes.
            later_s = sum(level.count * level.length_s for level in self.later)
            now_s = max(0.0, (self.work_s or 0.0) - later_s)
            used_s = now_s / middle + sum(level.length_s for level in self.later if level.count >= middle)
            low, high = (middle, high) if used_s >= least_s else (low, middle - 1)
        return low

    @property
    def wanted(self) -> int:
        """Return how many trials run, wait, or will want room within a boot time."""
        return self.waiting + self.soon + len(self.running)

    def for_deadline(self) -> int:
        """Return the places with which the work is done in time, with a tenth to spare.

        However trials follow each other, the last ends after at most the work of a place and the longest
        trial; as many places as there are trials always do.
        """
        if self.deadline_s is None or self.work_s is None:
            return 0
        left_s = self.deadline_s - self.boot_s - (self.most_s or 0.0)
        if _SPARE * self.work_s >= left_s * self.wanted:
            return self.wanted
        return math.ceil(_SPARE * self.work_s / left_s)

    def needs_faster_than(self, speed: float) -> bool:
        """Return whether a machine of that speed may be too slow for the deadline."""
        if self.deadline_s is None:
            return False
        if self.most_s is None or self.work_s is None:
            return True
        return _SPARE * self.most_s * self.speed > (self.deadline_s - self.boot_s) * speed

    def new_places(self, most_boot_share: float, first_slots: int) -> int:
        """Return how many trials to come may have room launched for them."""
        unserved = self.waiting + self.soon - self.served_before_boot()
        return max(0, min(unserved, self.places(most_boot_share, first_slots) - len(self.running)))


def expected_work(
    forecasts: Iterable[Forecast],
    spec: ClusterSpec,
    boot_s: float,
    now: float,
    speeds: Mapping[str, float] | None = None,
) -> list[ExpectedWork]:
    """Return what is expected of every shape that a forecast names, in the order in which they name them.

    `speeds`: of nodes, by their id; the speed of a node that is not there is 1.
    """
    gathered: dict[Resources, _Gathered] = {}
    for forecast in forecasts:
        age_s = max(0.0, now - forecast.at)
        for trial in forecast.trials:
            rest = math.inf if trial.rest_s is None else max(0.0, trial.rest_s - age_s)
            one = gathered.setdefault(trial.shape, _Gathered())
            one.running.append(rest)
            one.speeds.append((speeds or {}).get(trial.node_id, 1.0))
        for work in forecast.coming:
            one = gathered.setdefault(work.shape, _Gathered())
            starts_s = work.start_s - age_s
            ends_s = math.inf if work.end_s is None else work.end_s - age_s
            if work.start_s <= 0.0:
                one.waiting += work.count
            elif starts_s <= boot_s < ends_s and work.probability >= spec.forecasts.least_probability:
                one.soon += work.count
            elif starts_s > boot_s and math.isfinite(ends_s):
                one.later.append((starts_s, ends_s, work.count * work.probability))
            one.coming.append((work.count * work.probability, work.each_s))
            most_s = work.each_s if work.most_s is None else work.most_s
            if most_s is not None:
                one.most_s.append(max(0.0, starts_s) + most_s)
        for shape in {trial.shape for trial in forecast.trials} | {work.shape for work in forecast.coming}:
            gathered[shape].note_deadline(forecast, now)
    return [one.total(shape, boot_s) for shape, one in gathered.items()]


class _Gathered:
    """What the forecasts say of one shape, until all of them are read."""

    def __init__(self) -> None:
        self.waiting = self.soon = 0
        self.running: list[float] = []
        self.speeds: list[float] = []  # of the nodes of those that run
        self.coming: list[tuple[float, float | None]] = []
        self.most_s: list[float] = []  # until those to come may be over, if nothing but they ran
        self.later: list[tuple[float, float, float]] = []  # from, until, trials
        self.deadline_s: float | None = None
        self.begun_s = 0.0

    def note_deadline(self, forecast: Forecast, now: float) -> None:
        if forecast.deadline is not None:
            left_s = forecast.deadline - now
            if self.deadline_s is None or left_s < self.deadline_s:
                self.deadline_s = left_s
                self.begun_s = max(0.0, now - forecast.begun_at) if forecast.begun_at is not None else 0.0

    def total(self, shape: Resources, boot_s: float) -> ExpectedWork:
        amounts = [(count, each) for count, each in self.coming if each is not None]
        count = sum(amount for amount, _ in amounts)
        each_s = sum(amount * each for amount, each in amounts) / count if count > 0 else None
        is_known = len(amounts) == len(self.coming) and all(map(math.isfinite, self.running))
        return ExpectedWork(
            shape=shape,
            waiting=self.waiting,
            soon=self.soon,
            running=tuple(sorted(self.running)),
            each_s=each_s,
            most_s=max(self.most_s, default=None),
            work_s=sum(self.running) + (each_s or 0.0) * count if is_known else None,
            later=_levels(self.later),
            deadline_s=self.deadline_s,
            begun_s=self.begun_s,
            speed=sum(self.speeds) / len(self.speeds) if self.speeds else 1.0,
            boot_s=boot_s,
        )


def _levels(spans: Sequence[tuple[float, float, float]]) -> tuple[Level, ...]:
    """Return how many trials run at once from one change of their number to the next."""
    changes: dict[float, float] = {}
    for start_s, end_s, count in spans:
        changes[start_s] = changes.get(start_s, 0.0) + count
        changes[end_s] = changes.get(end_s, 0.0) - count
    found, running, before = [], 0.0, 0.0
    for at_s in sorted(changes):
        if running > 0.0:
            found.append(Level(at_s - before, running))
        running, before = running + changes[at_s], at_s
    return tuple(found)


def everyone_forecasts(forecasts: Sequence[Forecast], runtime: RuntimeReport) -> bool:
    """Return whether every connected driver has said all that it will need: nothing else will come soon."""
    drivers = runtime.drivers
    if drivers is None or not forecasts or not all(one.is_complete for one in forecasts):
        return False
    known = {one.driver for one in forecasts}  # some may be of drivers that have ended meanwhile
    return drivers.live <= len(known) if drivers.names is None else known.issuperset(drivers.names)


def is_behind(forecasts: Iterable[Forecast], now: float, boot_s: float) -> bool:
    """Return whether an experiment is behind the line of even progress to its deadline.

    One that cannot say yet, and has no time to find out, counts as behind.
    """
    for one in forecasts:
        if one.deadline is None:
            continue
        begun_at = now if one.begun_at is None else one.begun_at
        length_s = one.deadline - begun_at
        if one.done is None:
            has_work = bool(one.trials or one.coming)
            if has_work and too_short_to_learn(one.deadline - now, now - begun_at, boot_s):
                return True
        elif length_s <= 0 or one.done < (now - begun_at) / length_s:
            return True
    return False


def too_short_to_learn(left_s: float, begun_s: float, boot_s: float) -> bool:
    """Return whether a deadline leaves no time to find out how long trials take before machines are launched.

    A few machines would tell, but what is launched afterwards comes a boot time and a step later.
    """
    return boot_s + begun_s > _TO_LEARN * (left_s + begun_s)


def boot_time(boot_s: Mapping[str, float], spec: ClusterSpec) -> float:
    """Return how long the next machine will take: the longest of the types that were measured."""
    known = [boot_s[each.name] for each in spec.node_types if each.name in boot_s and each.max_nodes > 0]
    return max(known) if known else spec.forecasts.boot_s


def learned_boots(boot_s: Mapping[str, float], changed: Iterable[Instance]) -> Mapping[str, float]:
    """Return the boot times after these changes of records; the same object when none has just come up."""
    learned: dict[str, float] | None = None
    for record in changed:
        asked = record.entered(InstanceState.REQUESTED)
        ran = record.entered(InstanceState.RAY_RUNNING)
        is_new = record.state is InstanceState.RAY_RUNNING and len(ran) == 1 and asked
        if not is_new or record.history[-1].at != ran[0]:
            continue
        took_s = max(0.0, ran[0] - asked[-1])
        learned = dict(boot_s) if learned is None else learned
        before = learned.get(record.node_type, took_s)
        learned[record.node_type] = before + _LEARNING * (took_s - before)
    return boot_s if learned is None else learned
