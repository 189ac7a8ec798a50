"""Simulates a rack: a fixed list of hosts, each of one node type, which a cluster takes and gives back.

The truth about the hosts is here; machines are in `cloud.py`. A host has one address for ever, and whoever
takes it gets a new cloud id. Hosts may be off, taken by another cluster, or not on the list for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec.structs import replace

from muster.base.ids import CloudId
from muster.base.rng import Stream
from muster.cluster.model import ClusterSpec


@dataclass
class SimHost:
    """A SimHost is one computer of the rack as it truly is."""

    ip: str
    node_type: str
    held_by: CloudId | None = None  # a machine of this cluster
    off_until: float = 0.0
    taken_until: float = 0.0  # by another cluster
    unlisted_until: float = 0.0
    busy_until: float = 0.0  # processes of the last machine still run

    def why_not(self, now: float) -> str:
        """Returns why the host cannot be taken now; "" when it can."""
        if self.held_by is not None:
            return "in use by this cluster"
        reasons = {
            "off": self.off_until,
            "taken by another cluster": self.taken_until,
            "not on the list": self.unlisted_until,
            "busy": self.busy_until,
        }
        return next((reason for reason, until in reasons.items() if now < until), "")


@dataclass
class SimRack:
    """A SimRack has hosts in the order of their list; without any, machines come from a cloud."""

    hosts: dict[str, SimHost] = field(default_factory=dict)  # by ip

    @classmethod
    def of(cls, counts: Mapping[str, int]) -> SimRack:
        """Returns a rack with so many hosts of each type."""
        hosts = [
            SimHost(f"10.1.{number}.{place}", name)
            for number, (name, count) in enumerate(counts.items())
            for place in range(1, count + 1)
        ]
        return cls({host.ip: host for host in hosts})

    def __bool__(self) -> bool:
        return bool(self.hosts)

    def count(self, node_type: str) -> int:
        """Returns how many hosts of the type there are, in whatever state."""
        return sum(host.node_type == node_type for host in self.hosts.values())

    def listed(self, now: float) -> dict[str, int]:
        """Returns how many hosts of each type are on the list now, whoever has them."""
        return Counter(host.node_type for host in self.hosts.values() if now >= host.unlisted_until)

    def free(self, now: float, node_type: str | None = None) -> list[SimHost]:
        """Returns the hosts, of one type or of any, that can be taken now."""
        of_type = (h for h in self.hosts.values() if node_type in (None, h.node_type))
        return [host for host in of_type if not host.why_not(now)]

    def is_exhausted(self, node_type: str, now: float) -> bool:
        """Returns whether this is a rack and no host of the type can be taken now."""
        return bool(self.hosts) and not self.free(now, node_type)

    def take(self, node_type: str, cloud_id: CloudId, now: float) -> SimHost | None:
        """Takes the first free host of the type; None when there is none, and without a rack."""
        host = next(iter(self.free(now, node_type)), None)
        if host is not None:
            host.held_by = cloud_id
        return host

    def give_back(self, host: SimHost, busy_until: float) -> None:
        """Frees a host; it can be taken again once nothing of ours runs there."""
        host.held_by, host.busy_until = None, busy_until

    def drawn_on(self, draw: Stream, now: float) -> SimHost | None:
        """Draws a host that is on, whoever has it; None when all are off."""
        on = [host for host in self.hosts.values() if now >= host.off_until]
        return draw.choice(on) if on else None

    def lend(self, draw: Stream, now: float, for_s: float) -> None:
        """Lets another cluster have one of the free hosts for a while."""
        free = self.free(now)
        if free:
            draw.choice(free).taken_until = now + for_s

    def unlist(self, draw: Stream, now: float, for_s: float) -> None:
        """Removes one of the free hosts from the list for a while."""
        free = self.free(now)
        if free:
            draw.choice(free).unlisted_until = now + for_s

    def end_shortages(self) -> None:
        """Puts every host on the list again; other clusters give theirs back."""
        for host in self.hosts.values():
            host.taken_until = host.unlisted_until = 0.0


def on_rack(draw: Stream, spec: ClusterSpec) -> ClusterSpec:
    """Returns the config for a rack: no offers, muster sets hosts up, and prices in half of the runs."""
    is_priced = draw.random() < 0.5
    head, *workers = spec.node_types
    bare = [replace(t, offers=(), price_per_hour=t.price_per_hour if is_priced else None) for t in workers]
    return replace(spec, node_types=(head, *bare), install_runtime=True)


def draw_hosts(draw: Stream, spec: ClusterSpec) -> dict[str, int]:
    """Draws the hosts of each type: as many as its maximum, or others: more, fewer or none."""
    is_exact = draw.random() < 0.5
    return {t.name: t.max_nodes if is_exact else draw.randint(0, 6) for t in spec.node_types[1:]}
