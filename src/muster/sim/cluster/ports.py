"""SimSpec: the config file of a simulated cluster, and what people do to it while it runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from muster.base.ids import CloudId, RequestId
from muster.base.rng import Stream
from muster.cluster.model import ClusterSpec, DrainFailure, InstallFailure, NodeStatus, NodeType
from muster.cluster.plan import Drain, Install
from muster.sim.cluster.cloud import Catalogue, Machine
from muster.sim.cluster.crash_points import Wire, step
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import SimNode
from muster.sim.cluster.world import World


class SimSpec:
    """The SpecSource port; `edits` tells what was done, newest last."""

    def __init__(self, wire: Wire, faults: Faults, spec: ClusterSpec, sells: Catalogue) -> None:
        self.wire = wire
        self.spec = spec
        self.edits: list[str] = []
        self._faults, self._sells = faults, sells

    @step("spec.current")
    def current(self) -> tuple[ClusterSpec, str]:
        bad = self._faults.hit("edit_invalid")
        return self.spec, "simulated: available_node_types.gpu: not a mapping" if bad else ""

    def edit(self, draw: Stream) -> None:
        """Somebody saves the file: one drawn change to one worker type, or to the whole."""
        workers = self.spec.node_types[1:]
        if not workers:
            return
        chosen = draw.choice(workers)
        change = draw.choice(
            (self._price, self._price, self._limits, self._limits, self._cluster, self._hash, self._gone)
        )
        change(chosen, draw)

    def _price(self, chosen: NodeType, draw: Stream) -> None:
        price = round((chosen.price_per_hour or 1.0) * draw.uniform(0.5, 2.0), 3)
        self._sells.prices[chosen.name] = price
        self._put(chosen, replace(chosen, price_per_hour=price), f"{chosen.name} costs ${price}/h")

    def _limits(self, chosen: NodeType, draw: Stream) -> None:
        most = draw.randint(0, 6)
        least = min(most, draw.choice((0, 0, 1, 2)))
        edited = replace(chosen, min_nodes=least, max_nodes=most)
        self._put(chosen, edited, f"{chosen.name} {least}..{most} nodes")

    def _cluster(self, chosen: NodeType, draw: Stream) -> None:
        most = draw.choice((None, 3, 5, 8))
        self.spec = replace(self.spec, max_nodes=most)
        self.edits.append(f"max_nodes {most}")

    def _hash(self, chosen: NodeType, draw: Stream) -> None:
        edited = replace(chosen, launch_hash=f"{chosen.name}/{len(self.edits) + 2}")
        self._sells.types[chosen.name] = edited
        self._put(chosen, edited, f"{chosen.name} has a new launch config")

    def _gone(self, chosen: NodeType, draw: Stream) -> None:
        kept = tuple(t for t in self.spec.node_types if t.name != chosen.name)
        self.spec = replace(self.spec, node_types=kept)
        self.edits.append(f"{chosen.name} removed")

    def _put(self, old: NodeType, new: NodeType, text: str) -> None:
        types = tuple(new if t.name == old.name else t for t in self.spec.node_types)
        self.spec = replace(self.spec, node_types=types)
        self.edits.append(text)


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


class SimInstaller:
    """The Installer port; idempotent per request id."""

    def __init__(
        self, world: World, wire: Wire, faults: Faults, find: Callable[[CloudId], Machine | None]
    ) -> None:
        self.wire = wire
        self.takes_s = 10.0
        self.on_installed: Callable[[Machine], None] = lambda machine: None
        self._world, self._faults, self._find = world, faults, find
        self.started: list[Install] = []
        self._seen: set[RequestId] = set()
        self._failures: list[InstallFailure] = []

    @step("installer.start")
    def start(self, action: Install) -> None:
        if action.request_id in self._seen:
            return
        self._seen.add(action.request_id)
        self.started.append(action)
        machine = self._find(action.cloud_id)
        if machine is None or self._faults.hit("install_hangs"):
            return
        if self._faults.hit("install_fails"):
            failure = InstallFailure(instance_id=action.instance_id, message="simulated: ssh never answered")
            self._world.after(self.takes_s, lambda: self._failures.append(failure))
            return
        self._world.after(self.takes_s, lambda: self.on_installed(machine))

    @step("installer.poll")
    def poll(self) -> Sequence[InstallFailure]:
        told, self._failures = tuple(self._failures), []
        return told
