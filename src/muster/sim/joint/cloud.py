"""Simulate the machines' half of a joint world: a cloud with spot pools, its notices, tuners' forecasts.

Spot pools follow recorded series: machines are refused and taken as they say. A pool is one (type, zone).
When its series falls, the newest machines above the new number are taken within a few minutes, most of them
with a notice.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from muster.base.forecast import Forecast
from muster.base.ids import CloudId
from muster.base.rng import Seed, Stream
from muster.cluster.model import DriverReport, FailureKind, Notice, NoticeKind, Offer, health_key
from muster.cluster.ports import ForecastReport, NoticeReport, Ports
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.cluster.cloud import SimCloud
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.world import World

SPOT = "spot"
KEPT_S = 900.0  # how long a notice is shown after its deadline


@dataclass(frozen=True)
class SpotSeries:
    """How many machines of a pool were available, in steps of equal length."""

    step_s: float
    runs: tuple[tuple[int, int], ...]  # (machines, steps), in order
    ends: tuple[float, ...] = field(init=False, repr=False, compare=False)  # of the runs, in seconds

    def __post_init__(self) -> None:
        lengths = (steps * self.step_s for _, steps in self.runs)
        object.__setattr__(self, "ends", tuple(accumulate(lengths)))

    @property
    def length_s(self) -> float:
        return self.ends[-1]

    def at(self, offset_s: float) -> tuple[int, float]:
        """Return the number of machines at this moment, and the seconds until the next run.

        After its end the series begins again.
        """
        place = offset_s % self.length_s
        index = min(bisect_right(self.ends, place), len(self.runs) - 1)
        return self.runs[index][0], max(self.ends[index] - place, 1e-6)


@dataclass(frozen=True, kw_only=True)
class SpotModel:
    """How a falling series becomes the end of machines."""

    taken_within_s: float = 180.0
    notice_s: float = 120.0
    noticed_share: float = 0.9


@dataclass
class SpotPool:
    """One (type, zone) with its series from a start within it."""

    key: str  # as `health_key` writes the type and its spot offer
    series: SpotSeries
    start_s: float
    machines: int = 0  # available now

    def update(self, now: float) -> float:
        """Take over the number of now; return the seconds until it may change."""
        self.machines, left_s = self.series.at(self.start_s + now)
        return left_s


@dataclass(frozen=True, kw_only=True)
class BootTime:
    """A lognormal time until a machine runs, and a fixed one until its node serves."""

    median_s: float = 90.0
    sigma: float = 0.3
    setup_s: float = 60.0

    @property
    def expected_s(self) -> float:
        return self.median_s * math.exp(self.sigma**2 / 2) + self.setup_s

    def draw(self, stream: Stream) -> float:
        return round(self.median_s * math.exp(stream.gauss(0.0, self.sigma)) + self.setup_s, 1)


class PoolCloud(SimCloud):
    """Sells on demand without limit, and on the spot market what its pools have."""

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.boot_time: BootTime | None = None  # None: the catalogue's
        self.model = SpotModel()
        self.taken = self.taken_without_notice = 0
        self._pools: dict[str, SpotPool] = {}
        self._going: dict[CloudId, float] = {}  # machines that will be taken, and when
        self._notices: dict[CloudId, Notice] = {}
        self._of_spot = draw

    def open_pools(self, seed: Seed, pools: Sequence[SpotPool]) -> None:
        """Let the pools follow their series from now on."""
        self._pools = {pool.key: pool for pool in pools}
        self._of_spot = seed.derive("sim.spot")
        for pool in pools:
            self._follow(pool)

    def draw_boot_s(self) -> float:
        return super().draw_boot_s() if self.boot_time is None else self.boot_time.draw(self._draw)

    def read_notices(self) -> NoticeReport:
        """Return every notice that is not long over."""
        now = self._world.now()
        over = [key for key, one in self._notices.items() if (one.deadline or now) + KEPT_S < now]
        for key in over:
            del self._notices[key]
        return NoticeReport(notices=tuple(self._notices.values()))

    def _why_not(self, node_type: str, offer: Offer | None) -> FailureKind | None:
        refused = super()._why_not(node_type, offer)
        if refused is None and offer is not None and offer.market == SPOT:
            key = health_key(node_type, offer.name)
            pool = self._pools.get(key)
            if pool is not None and len(self._alive_in(key)) >= pool.machines:
                return FailureKind.CAPACITY
        return refused

    def _alive_in(self, key: str) -> list[CloudMachine]:
        """Return the machines of a pool that have not been announced to go, oldest first."""
        return [m for m in self.alive() if _pool_key(m) == key and m.cloud_id not in self._going]

    def end_shortages(self) -> None:
        super().end_shortages()
        self._pools.clear()

    def _follow(self, pool: SpotPool) -> None:
        if pool.key not in self._pools:
            return
        left_s = pool.update(self._world.time)
        above = self._alive_in(pool.key)[pool.machines :]
        for machine in above:
            self._take(machine)
        self._world.after(left_s, lambda: self._follow(pool))

    def _take(self, machine: CloudMachine) -> None:
        draw, model, world = self._of_spot, self.model, self._world
        is_noticed = draw.random() < model.noticed_share
        self.taken += 1
        if is_noticed:
            wait_s = draw.uniform(0.0, max(0.0, model.taken_within_s - model.notice_s))
            world.after(wait_s, lambda: self._announce(machine))
            wait_s += model.notice_s
        else:
            self.taken_without_notice += 1
            wait_s = draw.uniform(0.0, model.taken_within_s)
        self._going[machine.cloud_id] = world.time + wait_s
        world.after(wait_s, lambda: self.end(machine, "preempted"))

    def _announce(self, machine: CloudMachine) -> None:
        if machine.exists:
            deadline = self._going[machine.cloud_id] + self._world.wall_shift
            self._notices[machine.cloud_id] = Notice(
                cloud_id=machine.cloud_id, kind=NoticeKind.INTERRUPTION, deadline=deadline, source="simulated"
            )


def _pool_key(machine: CloudMachine) -> str:
    offer = machine.offer
    if offer is None or offer.market != SPOT:
        return ""
    return health_key(machine.node_type, offer.name)


class ForecastBoard:
    """Implements the ForecastSource port: the newest forecast of each experiment."""

    def __init__(self) -> None:
        self.newest: dict[str, Forecast] = {}

    def put(self, forecast: Forecast) -> None:
        self.newest[forecast.experiment] = forecast

    def read(self) -> ForecastReport:
        return ForecastReport(forecasts=tuple(self.newest.values()))


class PoolNotices:
    """PoolNotices implement the NoticeSource port with what the cloud announced."""

    def __init__(self, cloud: PoolCloud) -> None:
        self._cloud = cloud

    def read(self) -> NoticeReport:
        return self._cloud.read_notices()


class JointCluster(SimulatedCluster):
    """A SimulatedCluster that tuners use: they place trials and publish forecasts."""

    cloud_class = PoolCloud
    cloud: PoolCloud

    def _connect(self) -> None:
        self.board = ForecastBoard()
        super()._connect()

    def ports(self) -> Ports:
        return replace(super().ports(), notices=PoolNotices(self.cloud), forecasts=self.board)

    def note_drivers(self, live: int) -> None:
        """Report how many tuners are connected from now on."""
        before = self.runtime.drivers
        is_fewer = before is not None and live < before.live
        last_end = self.world.now() if is_fewer else (before.last_end if before is not None else 0.0)
        self.runtime.drivers = DriverReport(live=live, last_end=last_end)
