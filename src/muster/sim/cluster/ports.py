"""Implements the ports of a simulated cluster beside cloud and runtime: spec, drains, installer, resizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from muster.base.ids import CloudId, RequestId
from muster.base.resources import Resources
from muster.base.rng import Stream
from muster.cluster.model import (
    ClusterSpec,
    DrainFailure,
    InstallFailure,
    NodeStatus,
    NodeType,
    Offer,
    ResizeFailure,
    health_key,
)
from muster.cluster.plan import Drain, Install, ResizeNode
from muster.sim.cluster.cloud import Catalogue, CloudMachine
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import SimNode, listeners_on
from muster.sim.cluster.world import World


class SimSpec:
    """A SimSpec implements the SpecSource port; `edits` lists what was changed, newest last.

    Of a rack the file names the hosts: the spec has as many of each type as are on the list now.
    """

    def __init__(
        self, crash_points: CrashPoints, faults: Faults, spec: ClusterSpec, sells: Catalogue
    ) -> None:
        self.crash_points = crash_points
        self.spec = spec
        self.edits: list[str] = []
        self._faults, self._sells = faults, sells

    def list_hosts(self, listed: Mapping[str, int]) -> None:
        """Writes how many hosts of each type are on the list of the rack."""
        types = tuple(t if t.name == HEAD_TYPE else _existing(t, listed) for t in self.spec.node_types)
        if types != self.spec.node_types:
            self.spec = replace(self.spec, node_types=types)

    @crash_point("spec.current")
    def current(self) -> tuple[ClusterSpec, str]:
        bad = self._faults.hit("edit_invalid")
        return self.spec, "simulated: available_node_types.gpu: not a mapping" if bad else ""

    def edit(self, draw: Stream) -> None:
        """Changes the config as a user would: one drawn change to one worker type, or to the whole."""
        workers = self.spec.node_types[1:]
        if not workers:
            return
        chosen = draw.choice(workers)
        change = draw.choice(
            (self._price, self._price, self._limits, self._limits, self._cluster, self._hash, self._gone)
        )
        change(chosen, draw)

    def _price(self, chosen: NodeType, draw: Stream) -> None:
        if chosen.offers:
            self._offer(chosen, draw)
            return
        price = round((chosen.price_per_hour or 1.0) * draw.uniform(0.5, 2.0), 3)
        self._sells.prices[chosen.name] = price
        self._put(chosen, replace(chosen, price_per_hour=price), f"{chosen.name} costs ${price}/h")

    def _offer(self, chosen: NodeType, draw: Stream) -> None:
        """Changes the limit of an offer, or removes it, as long as another one is left."""
        offer = draw.choice(chosen.offers)
        if len(chosen.offers) > 1 and draw.random() < 0.3:
            kept = tuple(o for o in chosen.offers if o is not offer)
            self._put(chosen, replace(chosen, offers=kept), f"{chosen.name} {offer.name} removed")
        else:
            most = draw.choice((None, 0, 1, 2, 4))
            self._put_offer(chosen, offer, replace(offer, max_nodes=most), f"at most {most}")

    def offers(self) -> list[tuple[NodeType, Offer]]:
        """Returns every offer of the config with its type."""
        return [(known, offer) for known in self.spec.node_types for offer in known.offers]

    def reprice_offer(self, draw: Stream) -> None:
        """Changes the price of an offer, as an edit of the price file does; the cloud charges it too."""
        known, offer = draw.choice(self.offers())
        price = round((offer.price_per_hour or 1.0) * draw.uniform(0.4, 2.5), 3)
        self._sells.prices[health_key(known.name, offer.name)] = price
        self._put_offer(known, offer, replace(offer, price_per_hour=price), f"costs ${price}/h")

    def _put_offer(self, known: NodeType, old: Offer, new: Offer, text: str) -> None:
        offers = tuple(new if o is old else o for o in known.offers)
        self._put(known, replace(known, offers=offers), f"{known.name} {old.name} {text}")

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


def _existing(known: NodeType, listed: Mapping[str, int]) -> NodeType:
    return replace(known, existing=listed.get(known.name, 0))


class SimDrains:
    """SimDrains implements the Drainer port; with `ends_at_deadline` work ends when its time is up."""

    def __init__(self, world: World, crash_points: CrashPoints, faults: Faults, runtime: SimRuntime) -> None:
        self.crash_points = crash_points
        self.requested: list[Drain] = []
        self.ends_at_deadline = True
        self._world, self._faults, self._runtime = world, faults, runtime
        self._failures: list[DrainFailure] = []

    @crash_point("drainer.drain")
    def drain(self, action: Drain) -> None:
        self.requested.append(action)
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

    @crash_point("drainer.poll")
    def poll(self) -> Sequence[DrainFailure]:
        failures, self._failures = tuple(self._failures), []
        return failures

    def begin(self, node: SimNode, deadline_s: float) -> None:
        """Lets the node take no new work; running work may continue until the deadline."""
        deadline_at = self._world.time + deadline_s
        earlier = node.drain_deadline_at
        node.drain_deadline_at = deadline_at if earlier is None else min(earlier, deadline_at)
        node.status = NodeStatus.DRAINING
        if node.running and self.ends_at_deadline:
            self._world.after(deadline_s, lambda: self._runtime.kill_node(node))
        for listener in tuple(listeners_on(node)):
            listener.draining(node.drain_deadline_at)
        if not node.running:
            self._runtime.kill_node(node)

    def _refuse(self, action: Drain, message: str) -> None:
        self._failures.append(DrainFailure(instance_id=action.instance_id, message=message))


class SimInstaller:
    """A SimInstaller implements the Installer port, idempotent per request id."""

    def __init__(
        self,
        world: World,
        crash_points: CrashPoints,
        faults: Faults,
        find: Callable[[CloudId], CloudMachine | None],
    ) -> None:
        self.crash_points = crash_points
        self.takes_s = 10.0
        self.on_installed: Callable[[CloudMachine], None] = lambda machine: None
        self._world, self._faults, self._find = world, faults, find
        self.started: list[Install] = []
        self._seen: set[RequestId] = set()
        self._failures: list[InstallFailure] = []

    @crash_point("installer.start")
    def start(self, action: Install) -> None:
        if action.request_id in self._seen:
            return
        self._seen.add(action.request_id)
        self.started.append(action)
        machine = self._find(action.cloud_id)
        if machine is None or self._faults.hit("install_hangs"):
            return
        fails = self._faults.hit("install_fails")
        self._world.after(self.takes_s, lambda: self._finish(action, machine, fails))

    def _finish(self, action: Install, machine: CloudMachine, fails: bool) -> None:
        if fails or not machine.answers(self._world.time):
            failure = InstallFailure(instance_id=action.instance_id, message="simulated: ssh never answered")
            self._failures.append(failure)
        else:
            self.on_installed(machine)

    @crash_point("installer.poll")
    def poll(self) -> Sequence[InstallFailure]:
        failures, self._failures = tuple(self._failures), []
        return failures


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
