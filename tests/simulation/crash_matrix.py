"""Run a scripted day once for every moment at which the controller can be killed.

The day has no faults of its own: bursts of work, a gang, a sold-out type, a lowered limit, machines that go
idle. `run_day(k)` kills the controller right after its k-th store write or provider call and starts a
new one at the next tick; the day must end with the same cluster as the undisturbed day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace
from tests.simulation.checkers import safety_checks
from tests.simulation.cluster import FaultyCluster
from tests.simulation.liveness import unsettled
from tests.simulation.money import money_checks
from tests.simulation.options import BACKOFF, TIMEOUTS

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, LaunchLimits, Strategy
from muster.sim.cluster.build import OpenStore
from muster.sim.cluster.crash_points import CrashPoints, Killed
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE, WORKER_TYPES, RunOptions, catalogue_for, head_type
from muster.sim.cluster.tasks import FOREVER, GangWork, TaskClass

TICK_S = 10.0
DAY_TICKS = 56
# Store writes, provider calls, and the drains: everything that leaves a mark outside the controller.
KILL_POINTS = frozenset(
    {
        "store.commit",
        "store.handed_over",
        "cloud.list_instances",
        "cloud.launch",
        "cloud.terminate",
        "cloud.poll_launch_failures",
        "cloud.poll_terminate_failures",
        "drainer.drain",
    }
)


class CountingCrashPoints(CrashPoints):
    """CountingCrashPoints count the kill points, and kill right after the chosen one."""

    def __init__(self, fatal: int | None) -> None:
        super().__init__()
        self.kill_points: list[str] = []
        self._fatal = fatal

    def after(self, name: str) -> None:
        super().after(name)
        if name in KILL_POINTS:
            self.kill_points.append(name)
            if len(self.kill_points) == self._fatal:
                raise Killed(name)


@dataclass(frozen=True)
class FinalState:
    """The cluster at the end of the day."""

    machines: Mapping[str, int]  # by type
    records: Mapping[tuple[str, str], int]  # live ones, by state and type
    launched: Mapping[str, int]  # by type, over the whole day
    unowned: int
    doubled: int
    pending: int


@dataclass(frozen=True)
class CrashRun:
    """One run of the day: its final state, its kill points, and what was wrong with it."""

    final_state: FinalState
    kill_points: tuple[str, ...]
    complaints: tuple[str, ...]
    lives: int


def run_day(fatal: int | None = None, open_store: OpenStore | None = None) -> CrashRun:
    """Run the whole day; the controller dies right after kill point number `fatal` (the first is 1)."""
    crash_points = CountingCrashPoints(fatal)
    cluster = FaultyCluster(Seed(1), _options(), Faults.none(), open_store, crash_points)
    _schedule_events(cluster)
    checks = (*safety_checks(), *money_checks())
    complaints: list[str] = []
    ticks = 0
    while ticks < DAY_TICKS or cluster.plan is None:  # one more when the last tick was the fatal one
        ticks += 1
        cluster.tick()
        complaints.extend(text for check in checks for text in check(cluster))
        cluster.store.commits.clear()
        cluster.world.advance(TICK_S)
    complaints.extend(f"not at rest: {text}" for text in unsettled(cluster))
    return CrashRun(_final_state(cluster), tuple(crash_points.kill_points), tuple(complaints), cluster.lives)


def _options() -> RunOptions:
    shop = {t.name: t for t in WORKER_TYPES}
    spec = ClusterSpec(
        cluster_name="crash-day",
        head_node_type=HEAD_TYPE,
        node_types=(
            head_type(),
            replace(shop["cpu-4"], min_nodes=1, max_nodes=5),
            replace(shop["cpu-16"], max_nodes=2),
            replace(shop["gpu-1"], max_nodes=2),
            replace(shop["gpu-4"], max_nodes=1),
        ),
        idle_timeout_s=30.0,
        timeouts=replace(TIMEOUTS, request_s=30.0),
        limits=LaunchLimits(upscaling_speed=10.0),
        backoff=BACKOFF,
    )
    sells = catalogue_for(spec)
    sells.boot_s, sells.shutdown_s = (5.0, 5.0), (3.0, 3.0)
    sells.capacity["gpu-1"] = 0  # sold out all day: its work must go elsewhere
    return RunOptions(spec=spec, catalogue=sells, tick_s=TICK_S, dead_kept_s=60.0)


def _schedule_events(cluster: FaultyCluster) -> None:
    """The events are far enough apart that one lost tick does not change the day."""
    world, runtime = cluster.world, cluster.runtime
    small, large = Resources.of(CPU=1), Resources.of(CPU=4)

    def gang_arrives() -> None:
        bundles = [runtime.bundle(large) for _ in range(3)]
        runtime.submit_gang(GangWork("trainers", Strategy.STRICT_SPREAD, bundles, 40.0))

    def maximum_is_lowered() -> None:
        lowered = (replace(t, max_nodes=3) if t.name == "cpu-4" else t for t in cluster.spec.spec.node_types)
        cluster.spec.spec = replace(cluster.spec.spec, node_types=tuple(lowered))

    world.after(15.0, lambda: runtime.submit(TaskClass(small, name="morning"), 14, 50.0))
    world.after(85.0, lambda: runtime.submit(TaskClass(Resources.of(CPU=1, GPU=1), name="render"), 2, 40.0))
    world.after(265.0, gang_arrives)
    world.after(375.0, lambda: runtime.submit(TaskClass(large, name="service"), 4, FOREVER))
    world.after(455.0, maximum_is_lowered)


def _final_state(cluster: FaultyCluster) -> FinalState:
    alive = cluster.cloud.alive()
    owners = Counter(r.cloud_id for r in cluster.store.live.values() if r.cloud_id)
    return FinalState(
        machines=dict(sorted(Counter(m.node_type for m in alive).items())),
        records=dict(
            sorted(Counter((r.state.name, r.node_type) for r in cluster.store.live.values()).items())
        ),
        launched=dict(sorted(Counter(m.node_type for m in cluster.cloud.machines.values()).items())),
        unowned=sum(owners[m.cloud_id] == 0 for m in alive),
        doubled=sum(count > 1 for count in owners.values()),
        pending=cluster.runtime.pending_tasks() + len(cluster.runtime.pending_gangs()),
    )
