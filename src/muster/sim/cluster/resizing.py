"""SimResizer lets simulated nodes count another size, and SizesAreSafe checks what came of all resizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from muster.base.ids import InstanceId
from muster.base.resources import Resources
from muster.cluster.model import ResizeFailure
from muster.cluster.plan import ResizeNode
from muster.cluster.rules.resize import AGAIN_S
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import SimNode
from muster.sim.cluster.world import World

if TYPE_CHECKING:
    from muster.sim.cluster.build import SimulatedCluster

SLACK_S = 200.0  # how much longer than its time-out a change may take: lists and reports may fail meanwhile


class SimResizer:
    """A SimResizer implements the NodeResizer port: a node counts another size a moment later."""

    def __init__(self, world: World, crash_points: CrashPoints, faults: Faults, runtime: SimRuntime) -> None:
        self.crash_points = crash_points
        self._world, self._faults, self._runtime = world, faults, runtime
        self._failures: list[ResizeFailure] = []

    @crash_point("resizer.resize")
    def resize(self, action: ResizeNode) -> None:
        if self._faults.hit("node_resize_lost"):
            return
        if self._faults.hit("node_resize_refused"):
            failure = ResizeFailure(cloud_id=action.cloud_id, message="simulated: no raylet", is_of_node=True)
            self._failures.append(failure)
            return
        node = self._runtime.nodes.get(action.node_id)
        if node is not None and node.alive:
            self._world.after(1.0, lambda: self._count(node, action.desired))

    @crash_point("resizer.poll")
    def poll(self) -> Sequence[ResizeFailure]:
        failures, self._failures = tuple(self._failures), []
        return failures

    def _count(self, node: SimNode, desired: Resources) -> None:
        total = dict(node.total)
        for name, units in desired.items():
            used = total.get(name, 0) - node.free.get(name, 0)
            total[name] = max(units, used)
            node.free[name] = total[name] - used
        node.total = Resources(total)
        self._runtime.schedule()


class SizesAreSafe:
    """SizesAreSafe checks that sizes stay within limits, and that no node counts what its machine lacks."""

    def __init__(self) -> None:
        self._seen = 0
        # By record: a machine whose node starts anew may get another one, and is tried once more then.
        self._failed: dict[InstanceId, float] = {}

    def __call__(self, cluster: SimulatedCluster) -> Iterator[str]:
        sizes = cluster.cloud.sizes
        if not sizes.now:
            return
        for node in cluster.runtime.live_nodes():
            status = sizes.now.get(node.machine.cloud_id)
            lacks = {} if status is None else _more(node.total, status.current)
            if lacks and node.machine.exists:
                yield f"{node.node_id} counts {Resources(lacks)} more than {node.machine.cloud_id} has"
        yield from self._calls(cluster)
        yield from self._records(cluster)

    def _calls(self, cluster: SimulatedCluster) -> Iterator[str]:
        sizes = cluster.cloud.sizes
        owners = {record.cloud_id: record.instance_id for record in cluster.store.live.values()}
        for call in sizes.calls[self._seen :]:
            known = cluster.cloud.sells.types[cluster.cloud.machines[call.cloud_id].node_type]
            if known.resize is not None and _more(call.desired, known.resize.maximum):
                yield f"{call.cloud_id} was asked for {call.desired}, more than its type may have"
            grows = _more(call.desired, call.before.current)
            owner = owners.get(call.cloud_id)
            if grows and owner is not None and self._failed.get(owner, call.at) < call.at:
                yield f"{call.cloud_id} was asked to grow after it had failed"
        self._seen = len(sizes.calls)

    def _records(self, cluster: SimulatedCluster) -> Iterator[str]:
        """A head that starts from an older ledger may have forgotten a failure."""
        if cluster.restored_at and cluster.restored_at[-1] == cluster.world.time:
            self._failed.clear()
        plan = cluster.store.committed
        for record in cluster.store.live.values():
            change = record.resize
            if change is None or record.cloud_id is None or plan is None:
                continue
            if change.failed_at is not None:
                self._failed.setdefault(record.instance_id, cluster.world.time)
            known = cluster.spec.spec.node_type(record.node_type)
            limit_s = known.resize.timeout_s if known and known.resize else float("inf")
            is_late = change.since is not None and plan.at - change.since > limit_s + AGAIN_S + SLACK_S
            if is_late and record.state.name == "RAY_RUNNING" and not cluster.clock_was_set:
                yield f"{record.cloud_id} is being resized for {plan.at - (change.since or 0.0):g} s"


def _more(one: Resources, other: Resources) -> dict[str, int]:
    return {name: units - other[name] for name, units in one.items() if name in other and units > other[name]}
