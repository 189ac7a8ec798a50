"""Random worlds for property tests: records, machines, nodes, demand and failures that need not agree.

Written against one function that picks from a list, so that hypothesis (which shrinks) and plain seeds
(which are fast) make the same worlds. Ids come from small pools: machines and nodes are often shared or lost.
"""

from __future__ import annotations

from hypothesis import strategies as st
from tests.support.builders import NOW

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    Constraint,
    Demand,
    DrainFailure,
    FailureKind,
    Gang,
    InstallFailure,
    Instance,
    LaunchFailure,
    LaunchLimits,
    NodeKind,
    NodeReport,
    NodeStatus,
    NodeType,
    Offer,
    RuntimeReport,
    StatusChange,
    StopCause,
    Strategy,
    TerminateFailure,
)
from muster.cluster.snapshot import Memory, ProviderTraits, Snapshot, TypeHealth
from muster.cluster.states import ON_CLOUD, RUNNING, TERMINAL, InstanceState

S = InstanceState
LIVE = [s for s in S if s not in TERMINAL and s is not S.UNKNOWN]
TYPES = ["cpu", "gpu", "head", "removed"]
IPS = ("", "10.0.0.1", "10.0.0.2", "10.0.0.3")
CLOUD_IDS = [f"c-{i}" for i in range(8)]
NODE_IDS = [f"n-{i}" for i in range(8)]
REQUEST_IDS = ["r-1", "r-2", "r-1~2.t-0", "r-2~2.t-0"]
AGES = [0.0, 1.0, 50.0, 100.0, 400.0, 700.0, 2_000.0, 5_000.0, 1e9]
SIZES = [
    Resources.of(quantities)
    for quantities in (
        {},
        {"CPU": 1},
        {"CPU": 4},
        {"CPU": 0.5, "GPU": 1},
        {"GPU": 1},
        {"exotic": 1},
        {"CPU": 0},
    )
]
RARELY = [False] * 9 + [True]
OFFERS = [
    Offer(zone="a", market="spot", price_per_hour=0.5, max_nodes=2),
    Offer(zone="b", market="spot", price_per_hour=0.5, billing_granularity_s=3600.0),
    Offer(market="reserved", price_per_hour=0.0, max_nodes=0),
    Offer(zone="a", price_per_hour=None, billing_minimum_s=60.0),
]
SOLD = [(), (), tuple(OFFERS), tuple(OFFERS[:1]), (OFFERS[0], OFFERS[0])]  # the last one is nonsense


class WorldMaker:
    """Makes one world out of picks."""

    def __init__(self, pick, *, unique: bool = False, broken: bool = True) -> None:
        self.pick = pick
        self.unique = unique  # machines and nodes are not shared between records
        self.broken = broken  # fields and histories may be missing

    def some(self, make, most: int) -> list:
        return [make() for _ in range(self.pick(range(most + 1)))]

    def is_broken(self) -> bool:
        return self.broken and self.pick(RARELY)

    def history(self, state):
        pick = self.pick
        if self.is_broken():
            return pick([(), (StatusChange(S.QUEUED, 1.0),)])
        since = NOW - pick(AGES)
        retries = pick(range(5)) if state in (S.REQUESTED, S.QUEUED) else 0
        story = [StatusChange(s, since - 100.0) for _ in range(retries) for s in (S.QUEUED, S.REQUESTED)]
        if state is S.TERMINATION_FAILED:
            story += [StatusChange(s, since - 1.0) for s in (S.TERMINATING, S.TERMINATION_FAILED)]
        return (*story, StatusChange(state, since))

    def record(self, name: str) -> Instance:
        pick, state = self.pick, self.pick(LIVE)
        cloud_id = f"c-{name}" if self.unique else pick(CLOUD_IDS)
        node_id = f"n-{name}" if self.unique else pick(NODE_IDS)
        return Instance(
            instance_id=name,
            node_type="" if self.is_broken() else pick(TYPES),
            state=state,
            cloud_id=cloud_id if state in ON_CLOUD and not self.is_broken() else None,
            node_id=node_id if state in RUNNING | {S.RAY_STOPPED} and not self.is_broken() else None,
            launch_request_id=None if self.is_broken() else pick(REQUEST_IDS[:2]),
            requested_at=pick([None, NOW - 50.0]),
            cancelled=state is S.REQUESTED and pick(RARELY),
            stop_cause=pick([None, StopCause.IDLE, StopCause.MAX_NODES]),
            missing_since=pick([None, NOW - 10.0, NOW - 100.0]),
            provisional=state in RUNNING | {S.RAY_STOPPED} and pick(RARELY),
            internal_ip=pick(IPS),
            price_per_hour=pick([None, 1.0]),
            offer=pick([None, None, *OFFERS, Offer(zone="gone", market="spot")]),
            history=self.history(state),
        )

    def head(self) -> Instance:
        state = self.pick([S.RAY_RUNNING] * 9 + [s for s in LIVE if s in ON_CLOUD])
        return Instance(
            instance_id="head",
            node_type="head",
            state=state,
            kind=NodeKind.HEAD,
            cloud_id="c-head",
            node_id="n-head",
            history=(StatusChange(state, NOW - self.pick(AGES)),),
        )

    def machine(self) -> CloudInstance:
        pick = self.pick
        return CloudInstance(
            cloud_id=pick([*CLOUD_IDS, "c-i-0", "c-i-1", "c-i-2"]),
            node_type=pick([*TYPES, ""]),
            kind=NodeKind.UNMANAGED if pick(RARELY) else NodeKind.WORKER,
            is_running=pick([True, False]),
            request_id=pick([None, *REQUEST_IDS]),
            zone=pick(["", "a", "elsewhere"]),
            market=pick(["", "spot", "on-demand"]),
            internal_ip=pick(IPS),
        )

    def node(self) -> NodeReport:
        pick = self.pick
        return NodeReport(
            node_id=pick([*NODE_IDS, "n-i-0", "n-i-1", "n-i-2", ""]),
            cloud_id=pick([None, *CLOUD_IDS, "c-i-0", "c-i-1", "c-i-2"]),
            node_type=pick([*TYPES, ""]),
            status=pick(list(NodeStatus)),
            total=pick(SIZES),
            available=pick(SIZES),
            idle_s=pick([0.0, 10.0, 1e4]),
            ip=pick(IPS),
        )

    def demand(self) -> Demand:
        return Demand(shape=self.pick(SIZES), count=self.pick([0, 1, 3, 40, -5, 10**10]))

    def gang(self) -> Gang:
        options = self.some(lambda: tuple(self.some(self.demand, 2)), 2)
        return Gang(
            gang_id=self.pick(["", "g-1", "g-2"]),
            strategy=self.pick(list(Strategy)),
            options=tuple(options),
        )

    def launch_failure(self) -> LaunchFailure:
        return LaunchFailure(
            request_id=self.pick(REQUEST_IDS),
            node_type=self.pick(TYPES),
            kind=self.pick(list(FailureKind)),
            offer=self.pick(["", "", "a/spot", "nowhere/spot"]),
        )

    def spec(self) -> ClusterSpec:
        pick = self.pick
        few, roomy = Resources.of(CPU=4), Resources.of(CPU=4, GPU=1)
        speed = pick([0.0, 1.0, 100.0, float("nan"), float("inf"), float("-inf"), -3.0, None])
        return ClusterSpec(
            node_types=(
                NodeType(name="head", resources=Resources.of(CPU=1), max_nodes=1),
                NodeType(
                    name="cpu",
                    resources=few,
                    min_nodes=pick([0, 0, 2]),
                    max_nodes=pick([0, 2, 6, 20]),
                    offers=pick(SOLD),
                ),
                NodeType(name="gpu", resources=roomy, max_nodes=pick([0, 2, 6, 20]), offers=pick(SOLD)),
            ),
            max_nodes=pick([None, 0, 1, 4, 10, 30]),
            idle_timeout_s=pick([None, 0.0, 300.0]),
            install_runtime=pick([True, False]),
            limits=LaunchLimits(upscaling_speed=speed, max_concurrent=pick([0, 2, 10])),
        )

    def runtime(self) -> RuntimeReport:
        head = NodeReport(
            node_id="n-head",
            cloud_id="c-head",
            node_type="head",
            is_head=True,
            status=self.pick([NodeStatus.RUNNING] * 4 + list(NodeStatus)),
        )
        constraint = Constraint(demands=tuple(self.some(self.demand, 1)))
        return RuntimeReport(
            version=1,
            nodes=(*([] if self.pick(RARELY) else [head]), *self.some(self.node, 6)),
            demands=tuple(self.some(self.demand, 2)),
            gangs=tuple(self.some(self.gang, 1)),
            constraints=(constraint,),
        )

    def world(self) -> Snapshot:
        """A head in some state, up to six records, and a world that agrees with them only by chance."""
        pick = self.pick
        mine = [self.record(f"i-{i}") for i in range(pick(range(7)))]
        head_machine = CloudInstance(cloud_id="c-head", node_type="head", kind=NodeKind.HEAD)
        listed = {m.cloud_id: m for m in (head_machine, *self.some(self.machine, 6))}
        mishap = TypeHealth(failures=2.0, failed_at=NOW - 1, blocked_until=NOW + pick([-1, 30]))
        names = [f"i-{i}" for i in range(7)]
        return Snapshot(
            tick_id="t-1",
            now=NOW,
            version=1,
            spec=self.spec(),
            instances={i.instance_id: i for i in (self.head(), *mine)},
            cloud=None if pick(RARELY) else listed,
            runtime=None if pick(RARELY) else self.runtime(),
            launch_failures=tuple(self.some(self.launch_failure, 3)),
            terminate_failures=tuple(self.some(lambda: TerminateFailure(cloud_id=pick(CLOUD_IDS)), 2)),
            drain_failures=tuple(self.some(lambda: DrainFailure(instance_id=pick(names)), 2)),
            install_failures=tuple(self.some(lambda: InstallFailure(instance_id=pick(names)), 1)),
            traits=ProviderTraits(
                read_only=pick(RARELY), installs_runtime=pick([True, False]), buys_offers=pick([True, False])
            ),
            memory=Memory(
                health=pick([{}, {"cpu": mishap}, {"cpu a/spot": mishap, "gpu b/spot": mishap}]),
                ended_nodes={"n-7": 1.0},
                ended_machines=pick([{}, {"c-1": NOW}]),
            ),
        )


@st.composite
def snapshots(draw, **options):
    """Worlds that hypothesis can shrink."""
    return WorldMaker(lambda choices: draw(st.sampled_from(choices)), **options).world()


def seeded_world(number: int, **options) -> Snapshot:
    """World number `number`: the same forever, and quick to make."""
    return WorldMaker(Seed(number).derive("strange world").choice, **options).world()
