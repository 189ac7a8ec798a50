"""SimDrains: empties nodes of the simulated runtime, as Ray does it.

An idle drain of a node that became busy is refused; an idle node dies at once. Any other drain lets running
work finish until its deadline.
"""

from __future__ import annotations

from collections.abc import Sequence

from muster.cluster.model import DrainFailure, NodeStatus
from muster.cluster.plan import Drain
from muster.sim.cluster.crash_points import Wire, step
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import SimNode
from muster.sim.cluster.world import World


class SimDrains:
    """The Drainer port. `ends_at_deadline`: the runtime itself ends work whose time is up."""

    def __init__(self, world: World, wire: Wire, faults: Faults, runtime: SimRuntime) -> None:
        self.wire = wire
        self.asked: list[Drain] = []
        self.ends_at_deadline = True
        self._world, self._faults, self._runtime = world, faults, runtime
        self._failures: list[DrainFailure] = []

    @step("drainer.drain")
    def drain(self, action: Drain) -> None:
        self.asked.append(action)
        if self._faults.hit("drain_lost"):
            return
        if self._faults.hit("drain_refused"):
            if self._faults.stream("drain_refused").random() < 0.5:
                raise ConnectionError("simulated: the drain could not be delivered")
            self._refuse(action, "simulated: drain refused")
            return
        node = self._runtime.nodes.get(action.node_id)
        if node is None or not node.alive:
            return  # as the runtime does it: a node it does not know is drained already
        if not action.may_be_refused:
            self.begin(node, action.deadline_s)
        elif node.running:
            self._refuse(action, "the node to be idle terminated is no longer idle")
        else:
            self._runtime.kill_node(node)

    @step("drainer.poll")
    def poll(self) -> Sequence[DrainFailure]:
        told, self._failures = tuple(self._failures), []
        return told

    def begin(self, node: SimNode, deadline_s: float) -> None:
        """No new work from now on; what runs may run until the deadline."""
        deadline_at = self._world.time + deadline_s
        earlier = node.drain_deadline_at
        node.drain_deadline_at = deadline_at if earlier is None else min(earlier, deadline_at)
        node.status = NodeStatus.DRAINING
        if not node.running:
            self._runtime.kill_node(node)
        elif self.ends_at_deadline:
            self._world.after(deadline_s, lambda: self._runtime.kill_node(node))

    def _refuse(self, action: Drain, message: str) -> None:
        self._failures.append(DrainFailure(instance_id=action.instance_id, message=message))
