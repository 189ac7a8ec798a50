"""A simulated cluster to which everything happens that faults and checks need.

Heads are lost and start from an older ledger, nodes are joined by hand, clocks jump, users edit the config.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from msgspec.structs import replace
from tests.simulation.garbage import corrupt

from muster.base.ids import CloudId, InstanceId, NodeId
from muster.base.rng import Stream
from muster.cluster.model import Instance, NodeKind, NodeReport, NodeType, Offer, RuntimeReport, health_key
from muster.sim.cluster.build import SimStore, SimulatedCluster
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.ports import SimSpec
from muster.sim.cluster.runtime import SimRuntime
from muster.sim.cluster.tasks import SimNode
from muster.stores.ledger.backup import settle_restored
from muster.stores.ledger.memory import MemoryInstanceStore


@dataclass(frozen=True)
class ClockChange:
    """A controller whose time differs from that of the one before by more than what passed.

    Time inside a controller is steady; only a start reads the wall clock again, or stands still behind the
    ledger. What began before such a start may seem longer or shorter than it was; what began later is exact.
    """

    at: float  # true time of its first decision
    plan_at: float  # the same in its own time
    ahead_s: float  # by how much more than true time its own has moved; negative: it stood still


CLOCK_PRECISION_S = 1e-3  # times are sums of floats near 1.8e9
PARTIAL_APART_S = 90.0  # a report that lacks nodes is the exception
KEPT_COPIES = 12  # ticks that the ledger of a new head is behind at most
LedgerAtTick = tuple[MemoryInstanceStore, dict[InstanceId, Instance]]  # with its pruned records


class EditedSpec(SimSpec):
    """A spec that users edit; `edits` lists what was changed, newest last."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.edits: list[str] = []

    def edit(self, draw: Stream) -> None:
        """Change the config as a user would: one drawn change to one worker type, or to the whole."""
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
        """Change the limit of an offer, or remove it, as long as another one is left."""
        offer = draw.choice(chosen.offers)
        if len(chosen.offers) > 1 and draw.random() < 0.3:
            kept = tuple(o for o in chosen.offers if o is not offer)
            self._put(chosen, replace(chosen, offers=kept), f"{chosen.name} {offer.name} removed")
        else:
            most = draw.choice((None, 0, 1, 2, 4))
            self._put_offer(chosen, offer, replace(offer, max_nodes=most), f"at most {most}")

    def offers(self) -> list[tuple[NodeType, Offer]]:
        """Return every offer of the config with its type."""
        return [(known, offer) for known in self.spec.node_types for offer in known.offers]

    def reprice_offer(self, draw: Stream) -> None:
        """Change the price of an offer, as an edit of the price file does; the cloud charges it too."""
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


class FaultyRuntime(SimRuntime):
    """A runtime whose nodes may report another machine, and whose reports may lack nodes."""

    def join(self, *args: Any, **kwargs: Any) -> SimNode | None:
        running = [node.machine.cloud_id for node in self.live_nodes() if not node.is_head]
        node = super().join(*args, **kwargs)
        if node is not None and not node.is_head and running and self._faults.hit("node_with_other_id"):
            self.names_other[node.node_id] = self._faults.stream("node_with_other_id").choice(running)
        return node

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.names_other: dict[NodeId, CloudId] = {}  # nodes that report the id of another machine
        self._whole_until = 0.0

    def _shown(self, node: SimNode) -> NodeReport:
        shown, other = super()._shown(node), self.names_other.get(node.node_id)
        # As a missing id, a wrong one is set right when the faults stop.
        is_wrong = other is not None and shown.cloud_id is not None and not self._faults.stopped
        return replace(shown, cloud_id=other) if is_wrong else shown

    def _altered(self, report: RuntimeReport) -> RuntimeReport:
        if self._faults.hit("report_garbage"):
            report = corrupt(report, self._faults.stream("report_garbage"))
        if self._world.time < self._whole_until or not self._faults.hit("report_partial"):
            return report
        self._whole_until = self._world.time + PARTIAL_APART_S
        kept = tuple(node for place, node in enumerate(report.nodes) if node.is_head or place % 2)
        return replace(report, nodes=kept)


class FaultyCluster(SimulatedCluster):
    """A simulated cluster that seeds can break."""

    spec_class = EditedSpec
    runtime_class = FaultyRuntime
    forgets_hosts: ClassVar[bool] = False  # a new head knows taken hosts only by what they answer
    spec: EditedSpec
    runtime: FaultyRuntime

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.copies: deque[LedgerAtTick] = deque(maxlen=KEPT_COPIES)  # newest last
        self.restored_at: list[float] = []  # when a new head started from one
        self.joined_by_hand: list[CloudMachine] = []  # never in the cloud's list, and not ours
        self.clock_changes: list[ClockChange] = []
        self._lead_s: float | None = None  # of the newest controller's time over true time
        super().__init__(*args, **kwargs)

    def tick(self) -> None:
        super().tick()
        self._note_clock()

    def _forget_nodes(self) -> None:
        """End every node; the runtime of the next head knows none of them."""
        for node in self.runtime.live_nodes():
            self.runtime.kill_node(node)
        self.runtime.nodes.clear()
        self.runtime.last_report = None

    def keep_copy(self) -> None:
        """Copy the ledger, as a monitor does after every tick."""
        if isinstance(self.store.inner, MemoryInstanceStore):
            self.copies.append((self.store.inner.copy(), dict(self.store.records)))

    def lose_head(self, ticks_ago: int) -> None:
        """End the head's machine and every node; a new head starts from the ledger as it was so long ago."""
        if not self.copies:
            return
        self._forget_nodes()
        for machine in self.cloud.alive():
            if machine.kind is NodeKind.HEAD:
                self.cloud.end(machine, "lost")
        older, records = self.copies[max(-ticks_ago, -len(self.copies))]
        self.copies.clear()
        tick_id = f"restored-{len(self.restored_at) + 1}"
        settle_restored(older, tick_id, self.world.now(), is_set_up_again=self.options.spec.install_runtime)
        restart_from(self.store, older, records)
        self._open_store = lambda: older
        self.restored_at.append(self.world.time)
        self.controller = None
        self.boots += 1
        self._start_head()

    def replace_head(self, old_listed_s: float) -> None:
        """End the head's machine, which stays listed, and every node; a new head has the same ledger."""
        self._forget_nodes()
        for machine in self.cloud.alive():
            if machine.kind is NodeKind.HEAD:
                self.cloud.end(machine, "lost")
                machine.listed_until = self.world.time + old_listed_s
        self.controller = None
        self.boots += 1
        self._start_head()

    def _note_clock(self) -> None:
        plan = self.store.committed
        if plan is None:
            return
        before, self._lead_s = self._lead_s, plan.at - self.world.time
        ahead_s = 0.0 if before is None else self._lead_s - before
        if abs(ahead_s) > CLOCK_PRECISION_S:
            self.clock_changes.append(ClockChange(self.world.time, plan.at, ahead_s))

    def ran_ahead_s(self, since_plan: float) -> float:
        """Return by how much too long the time since then, by the controllers' clock, may seem to them."""
        return sum(max(0.0, c.ahead_s) for c in self.clock_changes if c.plan_at > since_plan)

    def stood_still_s(self, since: float) -> float:
        """Return for how much of the true time since then the controllers' clock stood still."""
        return sum(max(0.0, -c.ahead_s) for c in self.clock_changes if c.at > since)

    def restart_node(self, machine: CloudMachine, after_s: float) -> None:
        """End the runtime's process on this machine and starts it again under a new id."""
        node = self.runtime.node_on(machine)
        if node is not None:
            self.runtime.kill_node(node)
            self.world.after(after_s, lambda: self.join(machine))

    def join_by_hand(self, draw: Stream, for_s: float) -> None:
        """Let somebody join a node of their own for a while, with or without a type and a cloud id."""
        number = len(self.joined_by_hand) + 1
        name = draw.choice(("", *sorted(self.cloud.sells.types)))
        machine = CloudMachine(CloudId(f"hand-{number}"), name, 0.0, self.world.time, up=True)
        self.joined_by_hand.append(machine)
        node = self.runtime.join(machine, self.cloud.sells.types.get(name))
        if node is not None:
            self.runtime.names_other.pop(node.node_id, None)
            node.hides_id, node.ip = draw.random() < 0.5, draw.choice(("", f"192.168.0.{number}"))
            self.world.after(for_s, lambda: self._leave(node))

    def _leave(self, node: SimNode) -> None:
        self.runtime.kill_node(node)
        node.machine.ended_at = self.world.time


def restart_from(store: SimStore, inner: MemoryInstanceStore, records: Mapping[InstanceId, Instance]) -> None:
    """Continue from an older ledger and the records of then, as if nothing had been written since."""
    store.inner, store.committed, store.newest = inner, None, None
    store.commits.clear()
    store.records = {**records, **{record.instance_id: record for record in inner.find()}}
    store.live = dict(inner.load().instances)
    store.version = inner.load().version
