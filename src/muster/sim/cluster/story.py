"""Simulate a calm scripted day of an autoscaled cluster with prices, as data for the terminal.

What users do is scripted (`Script`); everything the cluster does in answer is read from the controller's
own plans, records and verdicts (`StoryWriter`), never written in advance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial

from msgspec.structs import replace

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.cost import price_per_hour
from muster.cluster.model import (
    ClusterSpec,
    Instance,
    LaunchLimits,
    NodeKind,
    NodeType,
    Objective,
    StopCause,
    Strategy,
)
from muster.cluster.plan import Drain, Plan, Reason, Subject
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import GIB, HEAD_TYPE, RunOptions, catalogue_for, head_type
from muster.sim.cluster.tasks import GangWork, TaskClass
from muster.sim.cluster.world import START_OF_DAY, World

_S = InstanceState
_REQUESTS = (Subject.DEMAND, Subject.GANG, Subject.CONSTRAINT)
_BLOCKED = (Reason.INFEASIBLE, Reason.BLOCKED_BY_TYPE_LIMIT, Reason.BLOCKED_BY_CLUSTER_LIMIT)


@dataclass
class StoryEvent:
    """One thing that happened; machines are counted by type, so that events can merge."""

    who: str  # "users", "cloud" or "muster"
    what: str
    machines: Counter[str] = field(default_factory=Counter)
    why: str = ""


class StoryWriter:
    """Turns decisions into events; a state that lasts is reported once."""

    def __init__(self) -> None:
        self._reported: set[tuple[str, Reason]] = set()

    def events(self, cluster: SimulatedCluster) -> Iterator[StoryEvent]:
        """Yield what this tick learned and decided."""
        plan = cluster.plan
        if plan is None:
            return
        before = {str(i): old for commit in cluster.store.commits for i, old in commit.before.items()}
        failed = [i for i in plan.writes if i.state is _S.ALLOCATION_FAILED]
        for details in dict.fromkeys(i.details for i in failed):
            yield StoryEvent("cloud", "refuses", _by_type(i for i in failed if i.details == details), details)
        yield from _arrivals(plan, before)
        yield from _purchases(plan, before)
        yield from self._obstacles(plan)
        yield from _drains(cluster, plan)
        gone = [i for i in plan.writes if i.state is _S.TERMINATED and i.cloud_id]
        if gone:
            yield StoryEvent("muster", "gone:", _by_type(gone))

    def _obstacles(self, plan: Plan) -> Iterator[StoryEvent]:
        verdicts = [v for v in plan.verdicts if v.subject in _REQUESTS and v.reason in _BLOCKED]
        for verdict in verdicts:
            if (verdict.subject_id, verdict.reason) not in self._reported:
                what = f"cannot place {verdict.count} of “{verdict.subject_id}”"
                yield StoryEvent("muster", what, why=f"{verdict.reason.value}: {verdict.detail}".rstrip(": "))
        self._reported = {(v.subject_id, v.reason) for v in verdicts}


def _arrivals(plan: Plan, before: dict[str, Instance | None]) -> Iterator[StoryEvent]:
    up = [
        i
        for i in plan.writes
        if i.state is _S.RAY_RUNNING and i.kind is not NodeKind.HEAD and _was(before, i) is not _S.RAY_RUNNING
    ]
    if up:
        yield StoryEvent("muster", "ready:", _by_type(up))


def _purchases(plan: Plan, before: dict[str, Instance | None]) -> Iterator[StoryEvent]:
    requested = [i for i in plan.writes if _was(before, i) is None and i.state in (_S.QUEUED, _S.REQUESTED)]
    if not requested:
        return
    waiting: Counter[str] = Counter()
    for verdict in plan.verdicts:
        if verdict.subject in _REQUESTS and verdict.reason is Reason.WAITING_FOR_LAUNCH:
            waiting[verdict.subject_id] += verdict.count
    price = sum(i.price_per_hour or 0.0 for i in requested)
    whom = ", ".join(f"{count} of “{name}”" for name, count in waiting.items())
    yield StoryEvent("muster", "buys", _by_type(requested), f"{whom} waiting for it, +${price:.2f}/h")


def _drains(cluster: SimulatedCluster, plan: Plan) -> Iterator[StoryEvent]:
    drained = [a for a in plan.actions if isinstance(a, Drain)]
    report = cluster.runtime.report_read
    idle = {node.node_id: node.idle_s for node in report.nodes} if report else {}
    for cause in dict.fromkeys(a.cause for a in drained):
        group = [a for a in drained if a.cause is cause]
        why = cause.name.lower().replace("_", " ")
        if cause is StopCause.IDLE:
            why = f"idle for {min(idle.get(a.node_id, 0.0) for a in group) / 60:.0f} min, nothing needs them"
        yield StoryEvent(
            "muster", "drains", _by_type(cluster.store.records[a.instance_id] for a in group), why
        )


def _was(before: dict[str, Instance | None], instance: Instance) -> InstanceState | None:
    old = before.get(instance.instance_id)
    return old.state if old else None


def _by_type(instances: Iterable[Instance]) -> Counter[str]:
    return Counter(instance.node_type for instance in instances)


MINUTE, HOUR = 60.0, 3600.0
OPENS, CLOSES = 7 * HOUR, 20 * HOUR
NOTICE_S = 120.0


class Script:
    """Schedules the day's events; `take_events()` returns those since the last call."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._events: list[StoryEvent] = []
        self._at(8, 30, lambda: self._tasks("features", 100, 20, CPU=1))
        self._at(9, 10, lambda: self._tasks("notebooks", 6, 175, CPU=4))
        self._at(9, 45, lambda: self._tasks("experiments", 5, 50, CPU=6, GPU=1))
        self._at(11, 0, self._start_gang)
        self._at(14, 0, lambda: self._tasks("backfill", 160, 25, CPU=1))
        self._at(14, 15, self._reclaim_spot)
        self._at(16, 0, lambda: self._tasks("giant", 1, 10, GPU=8))
        self._at(16, 20, self._withdraw_giant)
        self._at(17, 15, lambda: self._tasks("evening-report", 20, 10, CPU=2))

    def take_events(self) -> list[StoryEvent]:
        """Return what users and the cloud did since the last call."""
        events, self._events = self._events, []
        return events

    def _at(self, hour: int, minute: int, happen: Callable[[], None]) -> None:
        self._cluster.world.after(hour * HOUR + minute * MINUTE - OPENS, happen)

    def _tasks(self, name: str, count: int, minutes: float, **shape: float) -> None:
        each = " + ".join(f"{amount:g} {what}" for what, amount in shape.items())
        what = f"submit {count} {'task' if count == 1 else 'tasks'} “{name}”"
        self._events.append(StoryEvent("users", what, why=f"{each} each, {minutes:g} min"))
        self._cluster.runtime.submit(TaskClass(Resources.of(shape), name=name), count, minutes * MINUTE)

    def _start_gang(self) -> None:
        runtime = self._cluster.runtime
        bundles = [runtime.bundle(Resources.of(CPU=12)) for _ in range(4)]
        why = "4 bundles of 12 CPU, all or nothing, on 4 different nodes, 45 min"
        self._events.append(StoryEvent("users", "start the gang “trainer”", why=why))
        runtime.submit_gang(GangWork("trainer", Strategy.STRICT_SPREAD, bundles, 45 * MINUTE))

    def _reclaim_spot(self) -> None:
        cluster = self._cluster
        spot = [m for m in cluster.cloud.alive() if m.node_type == "cpu-16-spot" and m.up][:2]
        why = f"spot, {NOTICE_S / MINUTE:g} min notice; their work starts again elsewhere"
        self._events.append(StoryEvent("cloud", "takes back", Counter(m.node_type for m in spot), why))
        for machine in spot:
            node = cluster.runtime.node_on(machine)
            if node is not None:
                cluster.drains.begin(node, NOTICE_S)
            cluster.world.after(NOTICE_S, partial(cluster.cloud.end, machine, "preempted"))

    def _withdraw_giant(self) -> None:
        pending = self._cluster.runtime.withdraw("giant")
        self._events.append(
            StoryEvent("users", "withdraw “giant”", why=f"{pending} task that could never run")
        )


TICK_S = 30.0
TOGETHER_S = 4 * MINUTE  # the same thing again within this time is merged with the first
SAMPLE_S = 15 * MINUTE


@dataclass
class Moment:
    """An event, and the state of the cluster at that time."""

    time_s: float  # since midnight
    event: StoryEvent
    nodes: dict[str, int]  # machines paid for, by type, the head left out
    price_per_hour: float
    spent: float


@dataclass
class DayStory:
    """The whole day."""

    types: tuple[NodeType, ...]  # workers, in the order of the config
    head_price_per_hour: float
    moments: list[Moment] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)  # highest $/hour of every quarter of an hour
    spent: float = 0.0
    bill: float = 0.0
    peak_per_hour: float = 0.0
    peak_at_s: float = 0.0
    machines_launched: int = 0
    machines_left: int = 0  # in the evening, the head included
    tasks_finished: int = 0
    median_wait_s: float = 0.0
    longest_wait_s: float = 0.0
    ticks: int = 0
    hours: float = (CLOSES - OPENS) / HOUR

    @property
    def at_peak_all_day(self) -> float:
        """Return the cost of the busiest minute's machines from opening to closing."""
        return self.peak_per_hour * self.hours


def simulate_day(seed: int = 2) -> DayStory:
    """Simulate the day. The seed changes boot times a little; the script is always the same."""
    options = _options()
    cluster = SimulatedCluster(Seed(seed), options, Faults.none(), world=World(START_OF_DAY + OPENS))
    script, writer = Script(cluster), StoryWriter()
    head, *workers = options.spec.node_types
    story = DayStory(types=tuple(workers), head_price_per_hour=head.price_per_hour or 0.0)
    while cluster.world.time < CLOSES - OPENS:
        cluster.tick()
        _record(story, cluster, [*script.take_events(), *writer.events(cluster)])
        cluster.store.commits.clear()
        cluster.world.advance(TICK_S)
    _close(story, cluster)
    return story


def _record(story: DayStory, cluster: SimulatedCluster, events: list[StoryEvent]) -> None:
    now = OPENS + cluster.world.time
    owned = [r for r in cluster.store.live.values() if r.state in ON_CLOUD]
    price = price_per_hour(owned)
    nodes = dict(Counter(r.node_type for r in owned if r.kind is not NodeKind.HEAD))
    story.ticks += 1
    if price > story.peak_per_hour:
        story.peak_per_hour, story.peak_at_s = price, now
    if cluster.world.time >= len(story.samples) * SAMPLE_S:
        story.samples.append(price)
    story.samples[-1] = max(story.samples[-1], price)
    for event in events:
        _add(story.moments, Moment(now, event, nodes, price, cluster.spent()))


def _add(moments: list[Moment], new: Moment) -> None:
    """Merge an event with an equal one shortly before, unless users or the cloud acted in between."""
    for old in reversed(moments):
        if new.time_s - old.time_s > TOGETHER_S or old.event.who != "muster" or not new.event.machines:
            break
        if old.event.what == new.event.what and old.event.why == new.event.why:
            moments.remove(old)
            new.event.machines = old.event.machines + new.event.machines
            break
    moments.append(new)


def _close(story: DayStory, cluster: SimulatedCluster) -> None:
    waits = sorted(cluster.runtime.waits) or [0.0]
    story.median_wait_s, story.longest_wait_s = waits[len(waits) // 2], waits[-1]
    story.spent, story.bill = cluster.spent(), cluster.cloud.bill()
    story.machines_launched = len(cluster.cloud.machines) - 1
    story.machines_left = len(cluster.cloud.alive())
    story.tasks_finished = cluster.runtime.finished


def _options() -> RunOptions:
    spec = ClusterSpec(
        cluster_name="a-day",
        head_node_type=HEAD_TYPE,
        node_types=(
            head_type(),
            _type("cpu-16", 0.68, most=6, CPU=16, memory=64 * GIB),
            _type("cpu-16-spot", 0.25, most=6, market="spot", CPU=16, memory=64 * GIB),
            _type("gpu-1", 0.98, most=6, CPU=8, memory=32 * GIB, GPU=1),
            _type("gpu-4", 4.30, most=2, CPU=48, memory=192 * GIB, GPU=4),
        ),
        max_nodes=14,
        idle_timeout_s=5 * MINUTE,
        objective=Objective.COST,
        limits=LaunchLimits(upscaling_speed=10.0, max_concurrent=20),
    )
    sells = catalogue_for(spec)
    sells.boot_s, sells.shutdown_s = (50.0, 110.0), (10.0, 30.0)
    sells.capacity["gpu-1"] = 3  # the zone has three of them today
    return RunOptions(spec=spec, catalogue=sells, tick_s=TICK_S, dead_kept_s=HOUR)


def _type(name: str, price: float, *, most: int, market: str = "on-demand", **resources: float) -> NodeType:
    return replace(
        head_type(),
        name=name,
        resources=Resources.of(resources),
        max_nodes=most,
        price_per_hour=price,
        market=market,
        labels={"market": market},
        launch_hash=f"{name}/1",
    )
