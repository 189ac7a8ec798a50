"""Let a controller plan beside the autoscaler that runs a cluster: reads everything, writes nothing into it.

A ShadowWorld is all ports but the ledger. What the controller buys and ends happens in a ShadowBook, a file
of the shadow's own home; nodes and demand are those of the real cluster at every tick. Built by `build`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from muster.autoscaler.events import Event, EventLog
from muster.autoscaler.shadow_book import SeenNode, ShadowBook, busy_nodes
from muster.base.clock import Clock, SteadyClock
from muster.base.ids import CloudId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    DrainFailure,
    NodeKind,
    NodeReport,
    NodeStatus,
    Offer,
    RuntimeReport,
    health_key,
)
from muster.cluster.plan import Drain, Launch, Reason, ScalingReport
from muster.cluster.ports import CloudProvider, Drainer, SpecSource, TickResult
from muster.cluster.snapshot import ProviderTraits
from muster.config.to_spec import readonly_spec, type_name
from muster.host.atomic_write import atomic_write

logger = logging.getLogger(__name__)

HOME_SUFFIX = "-shadow"  # the shadow of cluster c1 has the home c1-shadow
UNNEEDED_S = 10.0  # an imagined machine goes this long after its demand: nodes of another type serve it
BOOT_S = 60.0  # a machine that no real node has come for counts in muster's bill when it would have booted
SAVE_S = 30.0  # of the bills; what is launched or ended is saved at once
_OF_THE_MACHINE = ("memory", "object_store_memory")  # which differ between machines of one type


class ShadowWorld(CloudProvider, Drainer):
    """Provider, runtime, drainer and cluster file of a controller that acts on nothing."""

    def __init__(self, real: Callable[[], RuntimeReport], file: SpecSource, book: Path, clock: Clock) -> None:
        self._real, self._file, self._path = real, file, book
        self._clock = SteadyClock(clock)  # bills must not jump with the wall clock
        self.boot_s = BOOT_S
        self.book = _read_book(book)
        self._in_file = ClusterSpec()
        self._spec = ClusterSpec()  # the file's, as the shadow plans with it
        self._last: RuntimeReport | None = None
        self._report: RuntimeReport | None = None  # read with the list, for `read` of the same tick
        self._looked_at: float | None = None
        self._saved_at = -math.inf
        self._lines: list[str] = []

    # -- the provider ---------------------------------------------------------------------------------

    def traits(self) -> ProviderTraits:
        return ProviderTraits(buys_offers=True)

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        """Return the machines of the real nodes until muster ends them, and those it would have launched."""
        self._report = None
        if self._last is None:
            self.current()  # the first list comes before the first spec, and needs its prices
        self._report = self._look()
        machines = [
            CloudInstance(
                cloud_id=node.cloud_id,
                node_type=node.node_type,
                kind=NodeKind.HEAD if node.is_head else NodeKind.WORKER,
            )
            for node in self.book.nodes.values()
            if node.looks_since < 0
        ]
        machines += [
            CloudInstance(cloud_id=one.cloud_id, node_type=one.node_type, request_id=one.request_id)
            for one in self.book.opened()
        ]
        return {machine.cloud_id: machine for machine in machines}

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        price = (lambda _: offers[0].price_per_hour) if offers else self._price
        self.book.buy(request_id, shape, price, self._clock.now())
        self.save()

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        self._lines += self.book.release(cloud_ids, self._clock.now())
        self.save()

    # -- the runtime ----------------------------------------------------------------------------------

    def read(self) -> RuntimeReport:
        """Return the real cluster's report without the nodes that muster would have ended."""
        report = self._report or self._look()
        self._report = None
        nodes = []
        for node in report.nodes:
            known = self.book.nodes.get(node.node_id)
            if known is not None and known.ended_at is None:
                nodes.append(replace(node, cloud_id=known.cloud_id, node_type=known.node_type))
        return replace(report, nodes=tuple(nodes))

    def publish(self, version: int, report: ScalingReport) -> None:
        """Publish nothing: the cluster has its own autoscaler."""

    def drain(self, action: Drain) -> None:
        self.book.end(action.node_id, self._clock.now())
        self.save()

    def poll(self) -> Sequence[DrainFailure]:
        return ()

    # -- the cluster file -----------------------------------------------------------------------------

    def current(self) -> tuple[ClusterSpec, str]:
        """Return the file's spec, with the types of real nodes that the file does not name."""
        self._in_file, fault = self._file.current()
        if self._last is None:  # a type that is not known would count as outdated
            self._last = self._real()
        self._spec = shadowed(self._in_file, self._last)
        return self._spec, fault

    # -- how ------------------------------------------------------------------------------------------

    def happened(self) -> list[str]:
        """Return what happened since the last call, for the log."""
        lines, self._lines = self._lines, []
        return lines

    def _look(self) -> RuntimeReport:
        report, now = self._real(), self._clock.now()
        alive = [node for node in report.nodes if node.status is not NodeStatus.DEAD]
        if self._looked_at is not None:
            self.book.count(max(0.0, now - self._looked_at), now, self.boot_s)
        self._looked_at = now
        self._last = report
        self._spec = shadowed(self._in_file, report)
        lines = self.book.look([self._seen(node) for node in alive], busy_nodes(alive), now)
        self._lines += lines
        unpriced = {node.node_type for node in self.book.nodes.values() if not node.is_head}
        self.book.summary.unpriced = sorted(name for name in unpriced if self._price(name) is None)
        if lines or now - self._saved_at >= SAVE_S:
            self.save()
        return report

    def save(self) -> None:
        """Write the book; also called when the monitor ends."""
        self._saved_at = self._clock.now()
        atomic_write(self._path, msgspec.json.encode(self.book), mode=0o600)

    def _seen(self, node: NodeReport) -> SeenNode:
        name = type_of(node, self._spec)
        return SeenNode(
            node_id=node.node_id,
            cloud_id=node.cloud_id or CloudId(node.node_id),
            node_type=name,
            price_per_hour=self._price(name),
            is_head=node.is_head,
        )

    def _price(self, node_type: str) -> float | None:
        known = self._spec.node_type(node_type)
        return known.price_per_hour if known is not None else None


def _read_book(path: Path) -> ShadowBook:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ShadowBook)
    except FileNotFoundError:
        return ShadowBook()
    except (OSError, ValueError) as error:
        logger.warning("%s cannot be used (%s): the comparison starts over", path, error)
        return ShadowBook()


def type_of(node: NodeReport, spec: ClusterSpec) -> str:
    """Return the node's type: the one it reports, the head's, or the only one of exactly its size."""
    if spec.node_type(node.node_type) is not None:
        return node.node_type
    if node.is_head and spec.head_node_type:
        return spec.head_node_type
    size = _asked_size(node.total)
    alike = [kind.name for kind in spec.node_types if size and _asked_size(kind.resources) == size]
    return alike[0] if len(alike) == 1 and not node.node_type else type_name(node)


def _asked_size(resources: Resources) -> dict[str, float]:
    """Return what a cluster file writes: without memory, and without what Ray adds for each node."""
    return {
        name: amount
        for name, amount in resources.to_floats().items()
        if amount and name not in _OF_THE_MACHINE and not name.startswith(("node:", "accelerator_type:"))
    }


def shadowed(spec: ClusterSpec, report: RuntimeReport) -> ClusterSpec:
    """Return the spec for imagined machines: they boot for as long as the demand waits.

    Real nodes of types that the file does not name are never launched and never ended.
    """
    timeouts = replace(spec.timeouts, allocate_s=math.inf, warn_s=math.inf, pending_idle_s=UNNEEDED_S)
    named = replace(spec, timeouts=timeouts, check_launch_hash=False, install_runtime=False)
    unnamed = replace(
        report, nodes=tuple(n for n in report.nodes if spec.node_type(type_of(n, spec)) is None)
    )
    others = readonly_spec(spec, unnamed).node_types
    return replace(
        named, node_types=(*named.node_types, *(replace(kind, min_nodes=kind.max_nodes) for kind in others))
    )


class ShadowReport(EventLog):
    """Logs what muster would have done, one line per decision, and never that it was done."""

    def __init__(self, world: ShadowWorld) -> None:
        super().__init__()
        self._world = world

    def on_tick(self, tick: TickResult) -> None:
        """Log warnings as every monitor does; events of a change of size are those of the shadow."""
        read_only = replace(tick.snapshot, traits=ProviderTraits(read_only=True))
        super().on_tick(replace(tick, snapshot=read_only))
        for line in (*self._world.happened(), *decisions(tick)):
            self.log(Event(at=tick.plan.at, level="info", message=f"shadow: {line}"))

    def close(self) -> None:
        """Log the comparison, at the end of the monitor."""
        self._world.save()
        for line in self._world.book.summary.lines():
            logger.info("%s", line)


def decisions(tick: TickResult) -> list[str]:
    """Return what the tick decided, in words; pure."""
    lines = []
    types = {record.node_id: record.node_type for record in tick.ledger.instances.values()}
    for action in tick.plan.actions:
        if isinstance(action, Launch):
            lines += [_would_buy(tick, name, count, action.offer) for name, count in action.shape.items()]
        elif isinstance(action, Drain):
            name = types.get(action.node_id, "")
            lines.append(f"would terminate node {action.node_id[:12]} of type {name}: {action.message}")
    return lines


def _would_buy(tick: TickResult, name: str, count: int, offer: Offer | None) -> str:
    terms = offer or tick.spec.node_type(name)
    price = terms.price_per_hour if terms is not None else None
    wanted = [
        f"{verdict.count} x {verdict.subject_id}"
        for verdict in tick.plan.verdicts
        if verdict.reason in (Reason.WAITING_FOR_LAUNCH, Reason.WAITING_FOR_NODE) and verdict.target == name
    ]
    each = f" at {price:g}/h each" if price is not None else ""
    what = name if offer is None else health_key(name, offer.name)
    return f"would launch {count} x {what}{each}" + (f" for {', '.join(wanted)}" if wanted else "")
