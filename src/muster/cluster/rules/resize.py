"""Follow each change of a machine's size to its end: the machine, then its node; or back again.

The planner asks for growth (`scale_up`); everything after that is decided here, from what the provider and
the runtime show. A node never counts more than its machine has: it grows after it and shrinks before it.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from muster.base.ids import RequestId
from muster.base.resources import EMPTY, Resources
from muster.cluster.model import FailureKind, Instance, NodeReport, ResizeFailure
from muster.cluster.plan import Reason, ResizeNode, resize_of
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState, ResizeLimits, ResizeRecord, ResizeStatus

AGAIN_S = 15.0  # what was asked for and is not seen is asked for again
_PASSING = (FailureKind.THROTTLED,)  # refusals after which the same request may succeed


def resize(draft: Draft) -> None:
    """Follow the machines of nodes that run; one that leaves keeps the size it has.

    A change that was under way when the provider lost the right to resize is followed to its end.
    """
    traits, cloud = draft.snapshot.traits, draft.snapshot.cloud
    limits = {name: known.resize for name, known in draft.types.items() if known.resize is not None}
    if not limits or traits.read_only or cloud is None:
        return
    refused = {failure.cloud_id: failure for failure in draft.snapshot.resize_failures}
    running = (i for i in draft.in_state(InstanceState.RAY_RUNNING) if i.node_type in limits)
    for instance in (i for i in running if traits.resizable or i.resize is not None):
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        node = draft.nodes.get(instance.node_id or "")
        if machine is None or machine.resize is None or node is None:
            continue
        change = _Change(draft, instance, node, machine.resize, limits[instance.node_type])
        record = change.next(refused.get(machine.cloud_id))
        if record.failed_at is not None:
            draft.add_node_verdict(instance, Reason.RESIZE_FAILED, record.reason)
        record_or_none = None if record == ResizeRecord() else record
        if record_or_none != instance.resize:
            draft.amend(instance, resize=record_or_none)


class _Change:
    """The change of size of one machine, at one tick; `next` returns its record and may cause effects."""

    def __init__(
        self, draft: Draft, instance: Instance, node: NodeReport, status: ResizeStatus, limits: ResizeLimits
    ) -> None:
        self._draft, self._instance, self._node = draft, instance, node
        self._status, self._limits = status, limits

    def next(self, refused: ResizeFailure | None) -> ResizeRecord:
        """Return the record after this tick."""
        record, status, now = self._known(), self._status, self._draft.now
        if record.since is None:
            return record
        if record.failed_at is not None:
            return self._back(record)
        if status.failed or (refused is not None and not (refused.is_of_node or refused.kind in _PASSING)):
            why = status.message if status.failed else refused.message if refused else ""
            return self._given_up(record, why or "the host reports an error")
        if refused is not None and refused.is_of_node and self._shrinks(record.desired):
            return _without_change(record)  # the machine must not shrink under a node that counts more
        if now - record.since > self._limits.timeout_s:
            waited = f"not done within {self._limits.timeout_s:g} s"
            return self._given_up(record, f"{waited}: {status.message}".rstrip(": "))
        return self._count(record) if self._is_there(record) else self._ask(self._within_reach(record))

    def _known(self) -> ResizeRecord:
        """Return the record; a change under way that is not in the ledger was in an earlier ledger."""
        record, status, now = self._instance.resize or ResizeRecord(), self._status, self._draft.now
        if status.suggested_maximum is not None:
            most = Resources({**(record.suggested_maximum or {}), **status.suggested_maximum})
            record = replace(record, suggested_maximum=most)
        if record.since is None and record.failed_at is None and (status.in_progress or status.failed):
            record = replace(record, desired=self._bounded(status.desired), since=now, asked_at=now)
        return record

    def _back(self, record: ResizeRecord) -> ResizeRecord:
        """Follow a request that was taken back, until the node counts what the machine has kept of it."""
        if self._is_there(record):
            return self._count(record)
        is_late = record.since is not None and self._draft.now - record.since > self._limits.timeout_s
        return _without_change(record) if is_late else self._ask(record)

    def _is_there(self, record: ResizeRecord) -> bool:
        status = self._status
        sizes = (status.current, status.desired)  # a request that failed is not taken back while it stands
        has_all = all(one.units(name) == units for one in sizes for name, units in record.desired.items())
        return has_all and not status.in_progress and not self._shrinks(record.desired)

    def _within_reach(self, record: ResizeRecord) -> ResizeRecord:
        """Return the change cut to what the host could give; never below the size that was launched."""
        known = self._draft.types.get(self._instance.node_type)
        most, least = record.suggested_maximum, (known.resources if known is not None else EMPTY)
        if most is None or self._status.suggested_maximum is None:
            return record
        cut = {
            name: max(min(units, most.units(name)), least.units(name)) if name in most else units
            for name, units in record.desired.items()
        }
        if Resources(cut) == record.desired:
            return record
        self._plan_smaller()
        return replace(
            record, desired=Resources(cut), since=self._draft.now, asked_at=None, node_asked_at=None
        )

    def _ask(self, record: ResizeRecord) -> ResizeRecord:
        """Ask the machine, or first its node to count less; each again when nothing is seen of it."""
        lower = self._shrinks(record.desired)
        if lower and record.node_asked_at is None:
            return self._resize_node(record, lower)
        if lower and not self._is_due(record.node_asked_at):
            return record  # the next report shows what the node could do without
        desired = self._at_least_counted(record.desired)
        is_asked = all(self._status.desired.units(name) == units for name, units in desired.items())
        record = replace(record, desired=desired)
        return record if is_asked or not self._is_due(record.asked_at) else self._resize_machine(record)

    def _count(self, record: ResizeRecord) -> ResizeRecord:
        """Let the runtime count what the machine has; over when it does."""
        have = {name: self._status.current.units(name) for name in record.desired}
        if all(self._node.total.units(name) == units for name, units in have.items()):
            return _without_change(record)
        return self._resize_node(record, have) if self._is_due(record.node_asked_at) else record

    def _given_up(self, record: ResizeRecord, why: str) -> ResizeRecord:
        """Take the request back, to what the machine has; it is never asked again."""
        self._plan_smaller()
        now, current = self._draft.now, self._status.current
        back = self._at_least_counted(Resources({name: current.units(name) for name in record.desired}))
        record = replace(record, desired=back, since=now, asked_at=None, node_asked_at=None)
        return self._back(replace(record, failed_at=now, reason=why))

    def _plan_smaller(self) -> None:
        draft = self._draft
        draft.decided.ungrowing[self._instance.node_type] = draft.now + draft.spec.backoff.max_s

    def _shrinks(self, desired: Mapping[str, int]) -> dict[str, int]:
        """Return the resources of which the node counts more than its machine shall have."""
        return {name: units for name, units in desired.items() if units < self._node.total.units(name)}

    def _at_least_counted(self, desired: Resources) -> Resources:
        counted = self._node.total
        return Resources({name: max(units, counted.units(name)) for name, units in desired.items()})

    def _bounded(self, size: Resources) -> Resources:
        return Resources({name: size.units(name) for name in self._limits.maximum if name in size})

    def _is_due(self, asked_at: float | None) -> bool:
        return asked_at is None or self._draft.now - asked_at > AGAIN_S

    def _resize_node(self, record: ResizeRecord, size: Mapping[str, int]) -> ResizeRecord:
        instance = self._instance
        if instance.node_id and instance.cloud_id:
            self._draft.act(
                ResizeNode(
                    request_id=RequestId(self._draft.fresh("zn")),
                    instance_id=instance.instance_id,
                    cloud_id=instance.cloud_id,
                    node_id=instance.node_id,
                    desired=Resources(size),
                )
            )
        return replace(record, node_asked_at=self._draft.now)

    def _resize_machine(self, record: ResizeRecord) -> ResizeRecord:
        if self._instance.cloud_id:
            self._draft.act(resize_of(self._instance, self._draft.fresh("z"), record.desired))
        return replace(record, asked_at=self._draft.now)


def _without_change(record: ResizeRecord) -> ResizeRecord:
    return replace(record, desired=EMPTY, since=None, asked_at=None, node_asked_at=None)
