"""Serves the spec of a simulated cluster, and edits it as its users would."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from muster.base.rng import Stream
from muster.cluster.model import (
    ClusterSpec,
    NodeType,
    Offer,
    health_key,
)
from muster.sim.cluster.cloud import Catalogue
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import HEAD_TYPE


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
