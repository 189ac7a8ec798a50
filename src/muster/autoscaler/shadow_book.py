"""Keep the books of a shadow run: what muster would have launched and ended, what the cluster really had.

Values in, values out: ShadowWorld reports what was seen and when. Both books count what is there from look to
look, so they stay small; neither counts the time in which a machine boots.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import median

from msgspec import Struct, field

from muster.base.ids import CloudId, NodeId, RequestId
from muster.base.text import duration, moment
from muster.cluster.model import NodeReport, NodeStatus

KEPT_WAITS = 500
KEPT_REQUESTS = 200


class Purchase(Struct, kw_only=True):
    """A machine that muster would have launched."""

    cloud_id: CloudId
    request_id: RequestId
    node_type: str
    price_per_hour: float | None
    asked_at: float
    is_open: bool = True  # muster still waits for it
    is_served: bool = False  # a node has come, of its type or instead of it


class SeenNode(Struct, kw_only=True):
    """A node of the real cluster while it lives."""

    node_id: NodeId
    cloud_id: CloudId  # by which the ledger knows its machine
    node_type: str
    price_per_hour: float | None
    is_head: bool
    instead_of: tuple[CloudId, ...] = ()  # the purchases whose place it took
    ended_at: float | None = None  # when muster would have ended it
    looks_since: int = -1  # looks since its machine was released; -1: not yet
    lives: int = 1


class Bill(Struct, kw_only=True):
    """Adds up machines over time."""

    hours: float = 0.0
    cost: float = 0.0  # in the currency of the prices

    def add(self, seconds: float, prices: Iterable[float | None]) -> None:
        for price in prices:
            self.hours += seconds / 3600
            self.cost += (price or 0.0) * seconds / 3600


class ShadowSummary(Struct, kw_only=True):
    """Compares muster with the autoscaler that ran the cluster."""

    started_at: float = 0.0
    watched_s: float = 0.0
    launched: dict[str, int] = field(default_factory=dict)  # would have been, by type
    came: int = 0  # as nodes of the same type
    served_otherwise: int = 0  # nodes of another type came instead
    not_needed: int = 0  # their demand went away
    waiting: int = 0
    ended: dict[str, int] = field(default_factory=dict)  # would have been, by type
    used_again: int = 0  # after muster would have ended them
    cluster_added: dict[str, int] = field(default_factory=dict)
    cluster_removed: dict[str, int] = field(default_factory=dict)
    removed_later: int = 0  # by the cluster, than by muster
    later_s: float = 0.0  # the sum of these delays
    waits_s: list[float] = field(default_factory=list)  # from muster's request to the real node; the newest
    ours: Bill = field(default_factory=Bill)
    cluster: Bill = field(default_factory=Bill)
    unpriced: list[str] = field(default_factory=list)  # types that count as free of charge

    def lines(self) -> list[str]:
        """Return the comparison for users."""
        ways = f"{self.came} came, {self.served_otherwise} were served by other types, "
        ways += f"{self.not_needed} were not needed after all, {self.waiting} are waited for"
        later = f", {self.removed_later} of them {duration(self.later_s / max(1, self.removed_later))} later"
        again = f"; {self.used_again} were used again" if self.used_again else ""
        ours, real = self.ours, self.cluster
        found = [
            f"shadow since {moment(self.started_at)}, {duration(self.watched_s)} watched; nothing was done",
            f"muster would have launched {_counted(self.launched)}: {ways}",
            f"the cluster added {_counted(self.cluster_added)}",
            f"muster would have ended {_counted(self.ended)}{again}",
            f"the cluster removed {_counted(self.cluster_removed)}{later if self.removed_later else ''}",
            f"worker hours: {ours.hours:.3g} with muster, {real.hours:.3g} in the cluster",
        ]
        if real.cost or ours.cost:
            saved = (real.cost - ours.cost) / real.cost if real.cost else 0.0
            share = f" ({abs(saved):.0%} {'saved' if saved >= 0 else 'more'})" if real.cost else ""
            found.append(f"cost: {ours.cost:.4g} with muster, {real.cost:.4g} in the cluster{share}")
        if self.unpriced:
            found.append(f"price_per_hour is not set for: {', '.join(self.unpriced)}")
        if self.waits_s:
            middle, longest = duration(median(self.waits_s)), duration(max(self.waits_s))
            found.append(
                f"nodes came {middle} (median; longest {longest}) after muster would have asked for them"
            )
        return found


class ShadowBook(Struct, kw_only=True):
    """What is imagined and what is real right now, with the sums of what was."""

    summary: ShadowSummary = field(default_factory=ShadowSummary)
    purchases: dict[CloudId, Purchase] = field(default_factory=dict)  # open ones, and those a node stands for
    nodes: dict[NodeId, SeenNode] = field(default_factory=dict)
    requests: list[RequestId] = field(default_factory=list)  # the newest: a repeated one buys nothing more

    def count(self, seconds: float, now: float, boot_s: float) -> None:
        """Add what was there since the last look to both bills."""
        workers = [node for node in self.nodes.values() if not node.is_head]
        kept = [node for node in workers if node.ended_at is None]
        stood_for = {cloud_id for node in kept for cloud_id in node.instead_of}
        imagined = [
            purchase.price_per_hour
            for purchase in self.purchases.values()
            if purchase.cloud_id in stood_for
            or (purchase.is_open and not purchase.is_served and now - purchase.asked_at >= boot_s)
        ]
        own = [node.price_per_hour for node in kept if not node.instead_of]
        self.summary.watched_s += seconds
        self.summary.ours.add(seconds, [*own, *imagined])
        self.summary.cluster.add(seconds, [node.price_per_hour for node in workers])

    def look(self, alive: Sequence[SeenNode], busy: frozenset[str], now: float) -> list[str]:
        """Follow the real cluster to its nodes of now; return what happened, for the log."""
        is_first = not self.summary.started_at
        if is_first:
            self.summary.started_at = now
        found = {node.node_id: node for node in alive}
        lines = [self._leave(node, now) for node in [*self.nodes.values()] if node.node_id not in found]
        for node in alive:
            known = self.nodes.get(node.node_id)
            if known is None:
                lines.append(self._arrive(node, now, is_first))
            elif known.ended_at is not None and known.looks_since > 0 and known.node_id in busy:
                lines.append(self._return(known, now))
            elif known.looks_since >= 0:
                known.looks_since += 1
        self._forget()
        return [line for line in lines if line]

    def buy(self, request_id: RequestId, shape: Mapping[str, int], price: Callable[[str], float | None],
            now: float) -> None:  # fmt: skip
        """Note machines that muster would have launched; once per request id."""
        if request_id in self.requests:
            return
        self.requests = [*self.requests[1 - KEPT_REQUESTS :], request_id]
        for node_type, count in shape.items():
            _add(self.summary.launched, node_type, count)
            for number in range(count):
                cloud_id = CloudId(f"shadow-{request_id}-{node_type}-{number}")
                self.purchases[cloud_id] = Purchase(
                    cloud_id=cloud_id,
                    request_id=request_id,
                    node_type=node_type,
                    price_per_hour=price(node_type),
                    asked_at=now,
                )
        self._forget()

    def end(self, node_id: str, now: float) -> None:
        """Note that muster would have drained the node."""
        node = self.nodes.get(NodeId(node_id))
        if node is not None and node.ended_at is None:
            node.ended_at = now
            _add(self.summary.ended, node.node_type)

    def release(self, cloud_ids: Iterable[str], now: float) -> list[str]:
        """Note that muster would have terminated machines; returns what that means for its purchases."""
        gone = set(cloud_ids)
        for node in self.nodes.values():
            if node.cloud_id in gone:
                self.end(node.node_id, now)
                node.looks_since = 0
        lines = []
        for purchase in [self.purchases[CloudId(one)] for one in gone if one in self.purchases]:
            if purchase.is_open:
                purchase.is_open = False
                why = "other nodes serve its demand" if purchase.is_served else "its demand is gone"
                self.summary.served_otherwise += purchase.is_served
                self.summary.not_needed += not purchase.is_served
                age = duration(now - purchase.asked_at)
                lines.append(
                    f"the {purchase.node_type} that would have been launched {age} ago is not needed: {why}"
                )
        self._forget()
        return lines

    def opened(self) -> list[Purchase]:
        """Return the purchases that no node has come for, oldest first."""
        return [purchase for purchase in self.purchases.values() if purchase.is_open]

    def _arrive(self, node: SeenNode, now: float, is_first: bool) -> str:
        self.nodes[node.node_id] = node
        if node.is_head or is_first:
            return ""
        _add(self.summary.cluster_added, node.node_type)
        return self._join(node, now) or f"{_name(node)} came; muster would not have launched it now"

    def _join(self, node: SeenNode, now: float) -> str:
        """Give the node the oldest purchase of its type, or the place of all that are open."""
        opened = self.opened()
        own = next((purchase for purchase in opened if purchase.node_type == node.node_type), None)
        taken = opened if own is None else [own]
        waited = duration(now - taken[0].asked_at) if taken else ""
        for purchase in taken:
            if not purchase.is_served:
                self.summary.waits_s = [*self.summary.waits_s[1 - KEPT_WAITS :], now - purchase.asked_at]
                purchase.is_served = True
        node.instead_of = tuple(purchase.cloud_id for purchase in taken)
        if own is None:
            types = _counted(Counter(purchase.node_type for purchase in taken))
            return f"{_name(node)} came {waited} after muster would have launched {types}" if taken else ""
        own.is_open, node.cloud_id = False, own.cloud_id
        self.summary.came += 1
        for other in self.nodes.values():
            if other is not node and own.cloud_id in other.instead_of:
                other.instead_of = tuple(one for one in other.instead_of if one != own.cloud_id)
        return f"{_name(node)} came {waited} after muster would have asked for it"

    def _return(self, node: SeenNode, now: float) -> str:
        """A node that muster would have ended has work again: muster would have had to buy another."""
        away = duration(now - (node.ended_at or now))
        node.ended_at, node.looks_since, node.lives = None, -1, node.lives + 1
        node.cloud_id = CloudId(f"{node.cloud_id}+{node.lives}")
        self.summary.used_again += 1
        if not self._join(node, now):
            _add(self.summary.launched, node.node_type)
            self.summary.came += 1
        return (
            f"{_name(node)} is used again {away} after muster would have ended it: another would be launched"
        )

    def _leave(self, node: SeenNode, now: float) -> str:
        del self.nodes[node.node_id]
        if node.is_head:
            return ""
        _add(self.summary.cluster_removed, node.node_type)
        if node.ended_at is None:
            return f"{_name(node)} is gone; muster would have kept it"
        self.summary.removed_later += 1
        self.summary.later_s += now - node.ended_at
        return f"{_name(node)} is gone, {duration(now - node.ended_at)} after muster would have ended it"

    def _forget(self) -> None:
        """Only purchases that are open, or that a living node stands for, are of use."""
        kept = {one for node in self.nodes.values() if node.ended_at is None for one in node.instead_of}
        self.purchases = {
            key: purchase for key, purchase in self.purchases.items() if purchase.is_open or key in kept
        }
        self.summary.waiting = len(self.opened())


def busy_nodes(nodes: Iterable[NodeReport]) -> frozenset[str]:
    """Return the ids of the nodes that run something."""
    return frozenset(node.node_id for node in nodes if node.status is NodeStatus.RUNNING)


def _name(node: SeenNode) -> str:
    return f"node {node.node_id[:12]} of type {node.node_type}"


def _add(counts: dict[str, int], name: str, number: int = 1) -> None:
    counts[name] = counts.get(name, 0) + number


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in counts.items()) or "no machine"
