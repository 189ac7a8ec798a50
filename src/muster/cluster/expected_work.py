"""Works out from the forecasts of tuners how much room each shape of trial is worth, and when.

Pure. `capacity` asks for it: work that will want room within a boot time is planned like work that waits, and
nothing is bought for work that will have a place before a new machine could serve it.
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


class ExpectedWork(Struct, frozen=True, kw_only=True):
    """An ExpectedWork is what is known about the trials of one shape, in seconds from now."""

    shape: Resources
    waiting: int = 0  # trials that want room now
    soon: int = 0  # trials that will want room within a boot time
    running: tuple[float, ...] = ()  # the rest of each running trial; inf: not known
    each_s: float | None = None  # how long one of those to come will run; None: not known
    work_s: float | None = None  # everything that is still to be done; None: not known
    deadline_s: float | None = None  # the nearest one
    boot_s: float = 0.0

    def served_before_boot(self) -> int:
        """Returns how many trials to come will start where others end before a machine could boot."""
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
        """Returns how many places in all are worth their boot; more where a deadline asks for them."""
        if self.work_s is None:
            return max(first_slots, len(self.running))
        worth = math.ceil(self.work_s * most_boot_share / max(self.boot_s, 1.0))
        return max(1, worth, self._for_deadline())

    def _for_deadline(self) -> int:
        """Returns the places without which the work is not done in time, with a tenth to spare."""
        if self.deadline_s is None or self.work_s is None:
            return 0
        left_s = max(self.deadline_s - self.boot_s, 1.0)
        return min(math.ceil(1.1 * self.work_s / left_s), self.waiting + self.soon + len(self.running))

    def new_places(self, most_boot_share: float, first_slots: int) -> int:
        """Returns how many trials to come may have room bought for them."""
        unserved = self.waiting + self.soon - self.served_before_boot()
        return max(0, min(unserved, self.places(most_boot_share, first_slots) - len(self.running)))


def expected_work(
    forecasts: Iterable[Forecast], spec: ClusterSpec, boot_s: float, now: float
) -> list[ExpectedWork]:
    """Returns what is expected of every shape that a forecast names, in the order in which they name them."""
    gathered: dict[Resources, _Gathered] = {}
    for forecast in forecasts:
        age_s = max(0.0, now - forecast.at)
        for trial in forecast.trials:
            rest = math.inf if trial.rest_s is None else max(0.0, trial.rest_s - age_s)
            gathered.setdefault(trial.shape, _Gathered()).running.append(rest)
        for work in forecast.coming:
            one = gathered.setdefault(work.shape, _Gathered())
            starts_s = work.start_s - age_s
            ends_s = math.inf if work.end_s is None else work.end_s - age_s
            if work.start_s <= 0.0:
                one.waiting += work.count
            elif starts_s <= boot_s < ends_s and work.probability >= spec.forecasts.least_probability:
                one.soon += work.count
            one.coming.append((work.count * work.probability, work.each_s))
        for shape in {trial.shape for trial in forecast.trials} | {work.shape for work in forecast.coming}:
            gathered[shape].note_deadline(forecast, now)
    return [one.total(shape, boot_s) for shape, one in gathered.items()]


class _Gathered:
    """What the forecasts say of one shape, until all of them are read."""

    def __init__(self) -> None:
        self.waiting = self.soon = 0
        self.running: list[float] = []
        self.coming: list[tuple[float, float | None]] = []
        self.deadline_s: float | None = None

    def note_deadline(self, forecast: Forecast, now: float) -> None:
        if forecast.deadline is not None:
            left_s = forecast.deadline - now
            self.deadline_s = left_s if self.deadline_s is None else min(left_s, self.deadline_s)

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
            work_s=sum(self.running) + (each_s or 0.0) * count if is_known else None,
            deadline_s=self.deadline_s,
            boot_s=boot_s,
        )


def everyone_forecasts(forecasts: Sequence[Forecast], runtime: RuntimeReport) -> bool:
    """Returns whether every connected driver has said all that it will need: nothing else will come soon."""
    drivers = runtime.drivers
    if drivers is None or not forecasts or not all(one.is_complete for one in forecasts):
        return False
    known = {one.driver for one in forecasts}  # some may be of drivers that have ended meanwhile
    return drivers.live <= len(known) if drivers.names is None else known.issuperset(drivers.names)


def is_behind(forecasts: Iterable[Forecast], now: float) -> bool:
    """Returns whether an experiment is behind the line of even progress to its deadline."""
    for one in forecasts:
        if one.deadline is None or one.begun_at is None or one.done is None:
            continue
        length_s = one.deadline - one.begun_at
        if length_s <= 0 or one.done < (now - one.begun_at) / length_s:
            return True
    return False


def boot_time(boot_s: Mapping[str, float], spec: ClusterSpec) -> float:
    """Returns how long the next machine will take: the longest of the types that were measured."""
    known = [boot_s[each.name] for each in spec.node_types if each.name in boot_s and each.max_nodes > 0]
    return max(known) if known else spec.forecasts.boot_s


def learned_boots(boot_s: Mapping[str, float], changed: Iterable[Instance]) -> Mapping[str, float]:
    """Returns the boot times after these changes of records; the same object when none has just come up."""
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
