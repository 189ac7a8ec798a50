"""Hold the working copy that rules write to; checks every transition and numbers new ids.

A transition that is not allowed sets the one record aside (quarantine) instead of raising: no input may stop
the loop.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from copy import copy
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.cluster.budget import BudgetState, budget_state, period_at
from muster.cluster.cost import cost_of, spend_so_far, uncharged
from muster.cluster.expected_work import ExpectedWork, boot_time, is_behind, learned_boots
from muster.cluster.identity import find_unplaced, is_of_type, known_ips, may_be_on, was_elsewhere
from muster.cluster.model import (
    InstallFailure,
    Instance,
    NodeKind,
    NodeReport,
    NodeType,
    NoticeKind,
    Offer,
    StatusChange,
    StopCause,
)
from muster.cluster.plan import Action, Plan, Reason, ScalingReport, Subject, Verdict, newer_mark
from muster.cluster.planner.moves import ConsolidationPlan, with_consolidation
from muster.cluster.planner.offers import NEVER, after_ends, left_of, lost_work_s, offer_states, risks
from muster.cluster.planner.pack import pack
from muster.cluster.planner.request import OfferState, Packing, PackRequest, Removal, without_offers
from muster.cluster.snapshot import (
    BudgetPeriod,
    Memory,
    Quarantined,
    Snapshot,
    TypeHealth,
    UnclearLaunch,
    UnplacedNode,
    WithoutDrivers,
)
from muster.cluster.states import CREATABLE, INSTANCE_MACHINE, InstanceState

AWAITED = (InstanceState.ALLOCATED, InstanceState.RAY_INSTALLING)  # their nodes have not come yet
STAYING = (*AWAITED, InstanceState.RAY_RUNNING)
SERVING = (InstanceState.RAY_RUNNING, InstanceState.RAY_STOP_REQUESTED, InstanceState.RAY_STOPPING)
MISSED_S = 300.0  # no list lacks a machine for longer; ids may be used again
_OFFERS_UNUSED = (
    "the offers of node types are not used, because the provider cannot choose the zone and the market; "
    "remove `offers` and `muster.prices`, or use a provider that supports offers"
)


class Planned(Struct):
    """What the cluster needs. `solve` asks the planner; each rule that changes the answer has its field."""

    expected: Sequence[ExpectedWork] = ()  # what tuners expect to need
    request: PackRequest | None = None
    packing: Packing | None = None
    consolidation: ConsolidationPlan | None = None  # by consolidate
    unpaid: tuple[Removal, ...] = ()  # by the budget: machines that it does not pay for
    is_used_up: bool = False  # by the budget: nothing is launched at all
    whole_slices: tuple[Removal, ...] | None = None  # by scale_down: all removals, whole slices together
    may_scale: bool = True  # False: plan and explain, but launch and remove nothing

    def solve(self, request: PackRequest) -> Packing:
        """Plan for a request; what followed from an earlier plan is dropped."""
        self.request, self.consolidation, self.packing = request, None, pack(request)
        return self.packing

    @property
    def outcome(self) -> Packing | None:
        """The planner's answer with what the rules have changed about it; None before there is one."""
        packing = self.packing
        if packing is None:
            return None
        if self.consolidation is not None and self.request is not None:
            packing = with_consolidation(packing, self.consolidation, self.request.nodes)
        if self.is_used_up:
            packing = replace(packing, launch={}, launched_offers={})
        removals = (*packing.removals, *self.unpaid) if self.whole_slices is None else self.whole_slices
        return packing if removals == packing.removals else replace(packing, removals=removals)


class Decided(Struct):
    """What a tick has decided so far: the parts of its Plan, and what the next tick remembers."""

    health: dict[str, TypeHealth]
    ended_nodes: dict[str, float]
    ended_machines: dict[str, float]
    unreported: Mapping[InstanceId, tuple[float, float, float]]
    unplaced_nodes: Mapping[str, UnplacedNode]
    unclear_launches: dict[str, UnclearLaunch]
    ungrowing: dict[str, float]
    listed_at: float | None
    without_drivers: WithoutDrivers
    noticed: Mapping[str, NoticeKind]
    noticed_at: Mapping[str, tuple[float | None, float]]
    drained_until: Mapping[str, float]
    quarantined: list[Quarantined]
    changed: dict[InstanceId, Instance] = {}
    actions: list[Action] = []
    verdicts: list[Verdict] = []
    undecided: list[InstallFailure] = []  # to be decided by a later tick
    node_verdicts: list[Verdict] = []  # of nodes that still serve; reported last
    report: ScalingReport = ScalingReport()

    def copied(self) -> Decided:
        twin = copy(self)
        for name in _COPIED:
            setattr(twin, name, getattr(self, name).copy())
        return twin


_COPIED = (
    *("health", "ended_nodes", "ended_machines", "unclear_launches", "ungrowing"),
    *("changed", "actions", "verdicts", "undecided", "node_verdicts", "quarantined"),
)
_REMEMBERED = tuple(name for name in Decided.__struct_fields__ if name in Memory.__struct_fields__)


def decided_before(snapshot: Snapshot) -> Decided:
    """Return what holds before any rule has run."""
    memory, now = snapshot.memory, snapshot.now
    known = {name: getattr(memory, name) for name in _REMEMBERED}
    known["unclear_launches"] = {k: one for k, one in memory.unclear_launches.items() if one.until > now}
    known["ungrowing"] = {name: until for name, until in memory.ungrowing.items() if until > now}
    return Decided(**known, quarantined=list(snapshot.quarantined)).copied()


class Draft:
    """The working copy of one tick: what was observed, what is `planned`, what was `decided`."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.now = snapshot.now
        self.spec = snapshot.spec if snapshot.traits.buys_offers else without_offers(snapshot.spec)
        self.types: dict[str, NodeType] = {t.name: t for t in self.spec.node_types}
        self.instances: Mapping[InstanceId, Instance] = snapshot.instances
        self.nodes: Mapping[str, NodeReport] = {}  # readable node reports by node id; filled by observe_nodes
        self.planned = Planned()
        self.boot_s = boot_time(snapshot.memory.boot_s, self.spec)
        self._budget: BudgetState | None = None  # None: not worked out
        self.uncharged, unseen_s = snapshot.memory.uncharged, snapshot.unseen_s
        self.uncharged += unseen_s and uncharged(self.instances.values(), self.now, unseen_s)
        self._risks: Mapping[str, float] | None = None
        self.decided = decided_before(snapshot)
        if self.spec is not snapshot.spec:
            self.quarantine("offers", _OFFERS_UNUSED)
        self._fresh = self.unusable = 0  # unusable: listed machines of ours that have no type
        self._unplaced: Mapping[str, UnplacedNode] | None = None  # None: not worked out
        self._grace_s = self.spec.timeouts.listing_grace_s
        self._by_state: dict[InstanceState, dict[InstanceId, None]] = {state: {} for state in InstanceState}
        self._listed: dict[InstanceState, list[Instance]] = {}  # answers of `in_state` that still hold
        self._own: dict[InstanceId, Instance] | None = None  # `instances`, once this draft has changed them
        state = None
        for key, instance in self.instances.items():
            if instance.state is not state:  # neighbours mostly have the same
                state = instance.state
                alike = self._by_state[state]
            alike[key] = None

    def fork(self) -> Draft:
        """Return a copy to try a rule on; dropping the copy undoes everything the rule did."""
        twin = copy(self)
        twin.planned = copy(self.planned)
        twin._own = None  # records are copied at the first change: most rules change none
        twin.decided, twin._listed = self.decided.copied(), dict(self._listed)
        twin._budget = None if self._budget is None else replace(self._budget)
        return twin

    def _owned(self) -> dict[InstanceId, Instance]:
        """Return the records as a copy that only this draft has."""
        if self._own is None:
            self.instances = self._own = dict(self.instances)
            self._by_state = {state: dict(ids) for state, ids in self._by_state.items()}
        return self._own

    def in_state(self, *states: InstanceState) -> list[Instance]:
        """Return the records in these states: state by state as listed, then in the order of the ledger."""
        found: list[Instance] = []
        for state in states:
            known = self._listed.get(state)
            if known is None:
                records = self.instances
                known = self._listed[state] = [records[key] for key in self._by_state[state]]
            found += known
        return found

    def holding(self) -> list[Instance]:
        """Return the records whose machines stay, or may come or come back, without those of others.

        One that is to go, and is not terminated because its node runs or may run unseen, is still there.
        """
        running = InstanceState.RAY_RUNNING
        kept = (i for i in self.in_state(*STAYING) if not i.cancelled or i.state is running)
        ours = (i for i in kept if i.launch_request_id or not i.provisional)
        stopping = self.in_state(InstanceState.RAY_STOP_REQUESTED)
        idle = (i for i in stopping if i.stop_cause in (None, StopCause.IDLE))
        return [*ours, *idle, *self.restartable(), *self.in_state(InstanceState.REQUESTED)]

    def expect_late(self, instance: Instance) -> None:
        """Note that the machine of a request that is over may exist, and be listed later."""
        within_s, attempt = self.snapshot.traits.listed_within_s, len(instance.history)
        if within_s and instance.launch_request_id:
            self.decided.unclear_launches[f"{instance.instance_id}/{attempt}"] = UnclearLaunch(
                request_id=instance.launch_request_id, node_type=instance.node_type, until=self.now + within_s
            )

    def unclear_by_type(self) -> Counter[str]:
        """Count the machines that may exist although their requests are over: they take room."""
        found = Counter(launch.node_type for launch in self.decided.unclear_launches.values())
        if self.snapshot.traits.listed_within_s:  # nor can one be terminated that lost its node meanwhile
            lost = (i for i in self.in_state(InstanceState.RAY_STOPPED) if i.provisional)
            found.update(i.node_type for i in lost if i.launch_request_id)
        return found

    @property
    def budget(self) -> BudgetState | None:
        """Return what is left of the budget; worked out once what the tick found is among the records."""
        if self._budget is None:
            records = self.instances.values()
            memory = replace(self.snapshot.memory, uncharged=self.uncharged)
            state = budget_state(self.spec, records, memory, self.now, self.boot_s)
            if state is not None and self.unusable:  # nobody knows what they cost: at most the dearest type
                prices = (known.price_per_hour or 0.0 for known in self.spec.node_types)
                state.per_hour += self.unusable * max(prices, default=0.0)
            self._budget = state
        return self._budget

    @property
    def risks(self) -> Mapping[str, float]:
        """Return what spot offers are expected to lose; nothing is risked behind the line to a deadline."""
        if self._risks is None:
            forecasts, records = self.snapshot.forecasts, self.instances.values()
            lost_s = lost_work_s(forecasts, self.boot_s)
            found = risks(self.spec, self.snapshot.memory.pools, records, lost_s, self.now)
            behind = bool(found) and is_behind(forecasts, self.now, self.boot_s)
            self._risks = dict.fromkeys(found, NEVER) if behind else found
        return self._risks

    def choices_of(self, known: NodeType) -> tuple[OfferState, ...]:
        """Return the offers of a type, each with the room that machines and repeated requests leave."""
        taken = (*self.holding(), *self.in_state(InstanceState.QUEUED))
        counts = Counter(i.offer.name for i in taken if i.offer is not None and i.node_type == known.name)
        return left_of(offer_states(known, self.decided.health, self.now, self.risks), counts)

    def may_work_unseen(self, instance: Instance) -> bool:
        """Return whether a live node that is on no known machine may be on this record's machine.

        Such a node lacks its machine's id, or has another one, and is not taken for the answer to a request.
        A report that lacks nodes of serving records may also lack the node of a machine that is listed.
        """
        records, lacking, since = self.instances, self.decided.unreported, instance.missing_since
        if since is None and any(name in records and records[name].state in SERVING for name in lacking):
            return True
        nodes, cloud = self.unplaced, self.snapshot.cloud or {}
        if not nodes or (since is not None and self.now - since > MISSED_S):
            return False
        ended = lacking.get(instance.instance_id)
        noticed_at = ended[0] if ended else max(instance.entered(InstanceState.RAY_STOPPED), default=self.now)
        lost_at = float("-inf") if self._is_elsewhere(instance) else noticed_at
        return any(
            may_be_on(node, instance, cloud)
            and not was_elsewhere(node, instance, cloud, lost_at, self._grace_s)
            for node in nodes.values()
        )

    def _is_elsewhere(self, instance: Instance) -> bool:
        """Return whether its node has another ip, or where none is known another type: it proves nothing."""
        own, cloud = self.nodes.get(instance.node_id or ""), self.snapshot.cloud or {}
        ips = known_ips(instance, cloud)
        is_of_its_type = own is None or is_of_type(own.node_type, instance, cloud)
        return own.ip not in ips if own is not None and own.ip and ips else not is_of_its_type

    def is_held(self, instance: Instance) -> bool:
        """Return whether a machine would be given up by now, if no unseen node could be on it."""
        limits = self.spec.timeouts
        limit_s = limits.allocate_s if instance.state is InstanceState.ALLOCATED else limits.install_s
        is_due = instance.state in AWAITED and self.now - instance.since > limit_s
        return is_due and self.may_work_unseen(instance)

    @property
    def unplaced(self) -> Mapping[str, UnplacedNode]:
        """Return the live nodes that are on no known machine, also those of unusable rows.

        One that this report lacks counts for a grace.
        """
        if self._unplaced is None:
            report, before = self.snapshot.runtime, self.decided.unplaced_nodes
            self._unplaced = before
            if report is not None:
                records, cloud = self.instances.values(), self.snapshot.cloud or {}
                self._unplaced = find_unplaced(report, records, before, cloud, self.now, self._grace_s)
        return self._unplaced

    def note_unplaced(self, is_complete: bool, are_left: bool) -> None:
        """Works out again which nodes are left, now that records have got theirs."""
        self._unplaced = None
        if is_complete and (are_left or self.decided.unplaced_nodes):
            self.decided.unplaced_nodes = self.unplaced

    def may_be_restarted(self, instance: Instance) -> bool:
        """Return whether a machine without its node is kept: one that cannot be seen may run there."""
        if self.snapshot.runtime is None:
            return instance.since < self.now  # it was kept by an earlier tick
        # A machine that is stopped for maintenance comes back, and its node with it.
        may_return = instance.stop_cause in (None, StopCause.NOTICE) or self._is_elsewhere(instance)
        # The report that shows a death may lack the node that came after it; so may a next one without both.
        before = self.snapshot.instances.get(instance.instance_id)
        may_come = before is not None and before.state is InstanceState.RAY_RUNNING
        if instance.node_id not in self.nodes:
            is_next = bool(instance.node_id) and instance.since == self.snapshot.memory.reported_at
            may_come = is_next and self.now - instance.since <= self._grace_s
        return may_return and (may_come or self.may_work_unseen(instance))

    def restartable(self) -> list[Instance]:
        """Return the records of our machines that are kept without a node: they may serve again.

        So may one that was cancelled, if a node that cannot be matched yet may be on it.
        """
        stopped = (i for i in self.in_state(InstanceState.RAY_STOPPED) if not is_head(i))
        kept = [i for i in stopped if not i.provisional and self.may_be_restarted(i)]
        cancelled = (i for i in self.in_state(*AWAITED) if i.cancelled and self.may_work_unseen(i))
        return [*kept, *(i for i in cancelled if i.launch_request_id or not i.provisional)]

    def fresh(self, prefix: str) -> str:
        """Return a new id made from the tick's id, so that the plan is a function of the snapshot alone."""
        self._fresh += 1
        return f"{self.snapshot.tick_id}-{prefix}{self._fresh}"

    def move(
        self,
        instance: Instance,
        target: InstanceState,
        details: str = "",
        **fields: Any,  # noqa: ANN401 - the record's own fields, checked by msgspec
    ) -> Instance | None:
        """Move a record to a state; None, and a quarantine note, when the transition is not allowed."""
        current = self.instances[instance.instance_id]
        if not INSTANCE_MACHINE.allows(current.state, target):
            story = " > ".join(change.state.name for change in current.history)
            self.quarantine(
                f"record {current.instance_id}",
                f"may not go from {current.state.name} to {target.name} ({story})",
            )
            return None
        history = (*current.history, StatusChange(target, self.now, details))
        return self._put(replace(current, state=target, history=history, **fields), current.state)

    def create(self, state: InstanceState, node_type: str, details: str, **fields: Any) -> Instance:  # noqa: ANN401
        """Add a new record, in one of the states in which a record may begin."""
        if state not in CREATABLE:
            raise ValueError(f"a record may not begin as {state.name}")
        instance = Instance(
            instance_id=InstanceId(self.fresh("i")),
            node_type=node_type,
            state=state,
            history=(StatusChange(state, self.now, details),),
            **{**self.terms_of(node_type), **fields},
        )
        return self._put(instance, None)

    def amend(self, instance: Instance, **fields: Any) -> Instance:  # noqa: ANN401
        """Change a record without a transition."""
        current = self.instances[instance.instance_id]
        return self._put(replace(current, **fields), current.state)

    def set_aside(self, instance: Instance, message: str) -> None:
        """Leave a record out of this tick: it stays in the ledger as it is, and is reported."""
        self._owned().pop(instance.instance_id)
        self._by_state[instance.state].pop(instance.instance_id)
        self._listed.clear()
        self.quarantine(f"record {instance.instance_id}", message)

    def act(self, action: Action) -> None:
        """Add an effect."""
        self.decided.actions.append(action)

    def add_verdicts(self, *verdicts: Verdict) -> None:
        self.decided.verdicts.extend(verdicts)

    def add_node_verdict(self, node: Instance, reason: Reason, detail: str, *, last: bool = False) -> None:
        """Add why a node is as it is; of several reasons, report show the last."""
        verdict = Verdict(
            subject=Subject.NODE,
            subject_id=node.instance_id,
            reason=reason,
            target=node.node_type,
            detail=detail,
        )
        (self.decided.node_verdicts if last else self.decided.verdicts).append(verdict)

    def add_cluster_verdict(self, reason: Reason, detail: str) -> None:
        self.add_verdicts(Verdict(subject=Subject.CLUSTER, subject_id="", reason=reason, detail=detail))

    def quarantine(self, source: str, message: str) -> None:
        """Note an input that is left out of this tick."""
        self.decided.quarantined.append(Quarantined(source=source, message=message))

    def plan(self) -> Plan:
        """Return the plan that this draft amounts to."""
        memory, reading, packing = self.snapshot.memory, self.snapshot.clock, self.planned.outcome
        # Nodes change too often to be worth dating, and there may be thousands; a record has its history.
        node, now, since = Subject.NODE, self.now, memory.verdict_since
        dated = tuple([v if v.subject is node else _dated(v, since, now) for v in self.decided.verdicts])
        ended = [i for i in self.decided.changed.values() if i.state is InstanceState.TERMINATED]
        is_followed = self.decided.changed or self.in_state(*AWAITED)
        report = self.snapshot.runtime if is_followed else None
        return Plan(
            tick_id=self.snapshot.tick_id,
            at=self.now,
            writes=tuple(self.decided.changed.values()),
            actions=tuple(self.decided.actions),
            verdicts=dated,
            quarantined=tuple(self.decided.quarantined),
            report=self.decided.report,
            undecided=tuple(self.decided.undecided),
            occupied=frozenset(
                i.instance_id
                for i in self.in_state(InstanceState.RAY_INSTALLING)
                if self.snapshot.runtime is None or self.may_work_unseen(i)
            ),
            memory=replace(
                memory,
                **{name: getattr(self.decided, name) for name in _REMEMBERED if name != "ended_nodes"},
                pending_idle=packing.pending_idle if packing else memory.pending_idle,
                spent=memory.spent + sum(cost_of(i, self.now) for i in ended),
                # Nodes stay in the runtime's list for long; they must not be taken for new machines.
                ended_nodes={**self.decided.ended_nodes, **{i.node_id: self.now for i in ended if i.node_id}},
                report_version=memory.report_version if report is None else report.version,
                reported_at=memory.reported_at if report is None else self.now,
                boot_s=learned_boots(memory.boot_s, self.decided.changed.values()),
                pools=after_ends(memory.pools, ended, self.now),
                budget_period=self._budget_period(),
                clock=newer_mark(memory.clock, reading) if reading else memory.clock,
                uncharged=self.uncharged,
                verdict_since={_verdict_key(v): v.since for v in dated if v.since is not None},
            ),
        )

    def _budget_period(self) -> BudgetPeriod:
        memory, budget = self.snapshot.memory, self.spec.budget
        if budget is None:
            return memory.budget_period
        memory = replace(memory, uncharged=self.uncharged)
        spent = spend_so_far(self.snapshot.instances.values(), memory, self.now)
        return period_at(budget, memory, spent, self.now)

    def _put(self, instance: Instance, previous: InstanceState | None) -> Instance:
        records = self._owned()
        self._listed.clear()
        old = records.get(instance.instance_id) if (unseen_s := self.snapshot.unseen_s) else None
        if old is not None:  # another price holds for that time, too
            new = replace(old, offer=instance.offer, price_per_hour=instance.price_per_hour)
            self.uncharged += uncharged([new], self.now, unseen_s) - uncharged([old], self.now, unseen_s)
        if previous is not None and previous is not instance.state:
            self._by_state[previous].pop(instance.instance_id, None)
        self._by_state[instance.state][instance.instance_id] = None
        records[instance.instance_id] = instance
        self.decided.changed[instance.instance_id] = instance
        return instance

    def terms_of(self, node_type: str, offer: Offer | None = None) -> dict[str, Any]:
        """Return the price and the launch hash of a machine of this type that is launched now."""
        known = self.types.get(node_type)
        if known is None:
            return {}
        price = known.price_per_hour if offer is None else offer.price_per_hour
        return {"price_per_hour": price, "launch_hash": known.launch_hash, "offer": offer}


def _verdict_key(verdict: Verdict) -> str:
    return f"{verdict.subject.value}/{verdict.subject_id}/{verdict.reason.value}"


def _dated(verdict: Verdict, since: Mapping[str, float], now: float) -> Verdict:
    if verdict.reason is Reason.PLACED:
        return verdict  # changes with every task: not worth remembering
    return replace(verdict, since=since.get(_verdict_key(verdict), now))


def is_head(instance: Instance) -> bool:
    """Return whether the record is the head's."""
    return instance.kind is NodeKind.HEAD


def fields_of_request(record: Instance, receiver: Instance | None = None) -> dict[str, Any]:
    """Return what passes with a record's request to another record, which may have made another."""
    swapped = () if receiver is None else ("node_type", "launch_hash")
    terms = () if receiver is None and record.offer is None else ("offer", "price_per_hour")
    return {name: getattr(record, name) for name in ("launch_request_id", "requested_at", *swapped, *terms)}
