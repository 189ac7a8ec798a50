"""SimSpec: the config file of a simulated cluster, and what people do to it while it runs."""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.rng import Stream
from muster.cluster.model import ClusterSpec, NodeType
from muster.sim.cluster.crash_points import Wire, step
from muster.sim.cluster.faults import Faults
from muster.sim.machines import Catalogue


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
