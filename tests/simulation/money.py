"""Check what is launched and paid for: nothing twice, nothing over a limit, nothing unexplained, to the cent.

`money_checks()` makes a fresh set for one run, beside `safety_checks()`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import pairwise

from tests.simulation.checkers import Check, waits_again
from tests.simulation.cluster import CLOCK_PRECISION_S, KEPT_COPIES, FaultyCluster
from tests.simulation.setups import is_tried

from muster.base.ids import CloudId, InstanceId, RequestId
from muster.cluster.cost import spend_so_far
from muster.cluster.expected_work import boot_time
from muster.cluster.model import Instance, NodeKind, NodeReport, NodeStatus, Offer, StopCause, health_key
from muster.cluster.plan import Launch, Plan, base_id
from muster.cluster.planner.offers import lost_work_s, risks
from muster.cluster.rules.draft import MISSED_S, SERVING
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.sim.cluster.build import CommittedPlan
from muster.sim.cluster.machines import CloudMachine

_S = InstanceState
CLEARLY = 1.01
SPREAD = 1.3  # how much dearer another pool may be
_STAYING = frozenset({_S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING})


def money_checks() -> tuple[Check, ...]:
    """Return every property about money, for one run."""
    return SpendAddsUp(), SpendFollowsTrueTime(), PurchasesAreExplained(), launches_take_the_cheapest_offer


def launches_take_the_cheapest_offer(cluster: FaultyCluster) -> Iterator[str]:
    """Check every new launch of a type with offers, as the decision that made it could know the offers.

    It has an offer of the config, at the config's price. That offer is not backed off and, with the machines
    of this launch, not above its maximum. No cheaper offer of the type, with what it is expected
    to lose, that is not backed off is below its maximum. A repeated request keeps its offer; that may be a
    dearer one by then.
    """
    for commit in cluster.store.commits:
        held = Counter(_offer_key(i) for i in cluster.store.live.values() if _counts(i))
        for action in commit.plan.actions:
            if isinstance(action, Launch) and base_id(action.request_id) == action.request_id:
                for name in action.shape:
                    yield from _wrong_offer(cluster, commit.plan, held, name, action.offer)


def _expected_losses(cluster: FaultyCluster, plan: Plan) -> dict[str, float]:
    """Return the share of the price of spot offers that is expected to be lost with their machines.

    The decision was made with what was known before; what it ended and learned counts afterwards.
    """
    spec, found = cluster.spec.spec, dict[str, float]()
    before = cluster.result.snapshot if cluster.result is not None else None
    known = [(plan.memory, cluster.store.live.values())]
    if before is not None:
        known.append((before.memory, before.instances.values()))
    for memory, records in known:
        lost_s = lost_work_s((), boot_time(memory.boot_s, spec))
        for name, share in risks(spec, memory.pools, records, lost_s, plan.at).items():
            found[name] = max(share, found.get(name, 0.0))
    return found


def _wrong_offer(
    cluster: FaultyCluster, plan: Plan, held: Counter[str], name: str, launched: Offer | None
) -> Iterator[str]:
    known = cluster.spec.spec.node_type(name)
    if known is None or not known.offers:
        return
    if launched is None or launched not in known.offers:
        yield f"{name} was launched from {launched}, which is not an offer of it"
        return
    full = {o.name for o in known.offers if o.max_nodes is not None and held[_key(name, o)] >= o.max_nodes}
    blocked = {o.name for o in known.offers if _blocked_until(plan, _key(name, o)) > plan.at}
    tried = {o.name for o in known.offers if is_tried(cluster, plan, _key(name, o))}
    if launched.name in blocked:
        yield f"{name} was launched from {launched.name}, which is backed off"
    if launched.max_nodes is not None and held[_key(name, launched)] > launched.max_nodes:
        yield f"{held[_key(name, launched)]} of {name} from {launched.name}, at most {launched.max_nodes}"
    expected = _expected_losses(cluster, plan)
    for offer in known.offers:
        price = (offer.price_per_hour or 0.0) * (1.0 + expected.get(_key(name, offer), 0.0))
        if cluster.runtime.drivers is not None and offer.market == "spot":
            # The leaders of a tuner are spread over pools that cost about the same; late for its deadline,
            # machines are launched on demand.
            price *= SPREAD if launched.market == "spot" else math.inf
        # What is expected to be lost is known here as it is after the decision: a little less, or more.
        paid = (launched.price_per_hour or 0.0) * _hours(launched)
        if price * _hours(offer) * CLEARLY < paid and offer.name not in full | blocked | tried:
            yield f"{name} came from {launched.name}, although {offer.name} was cheaper and available"


def _hours(offer: Offer) -> float:
    """Return what an hour of use costs in hours: on average, half of a billing step is not used."""
    return max(1.0, offer.billing_minimum_s / 3600) + offer.billing_granularity_s / 7200


def _key(node_type: str, offer: Offer) -> str:
    return health_key(node_type, offer.name)


def _offer_key(record: Instance) -> str:
    return health_key(record.node_type, record.offer_name)


def _counts(record: Instance) -> bool:
    """Return whether the machine stays, or may come or come back, or is about to be asked for again.

    One that lost its node, or was cancelled, and was not terminated in that tick is kept, since a node may be
    there or be started there.
    """
    if record.offer is None or record.state in (_S.QUEUED, _S.REQUESTED):
        return record.offer is not None
    is_stopped = record.state is _S.RAY_STOPPED and not record.provisional
    is_ours = record.launch_request_id is not None or not record.provisional
    is_kept = is_stopped or (is_ours and record.cancelled and record.state in _STAYING)
    return record.state in ON_CLOUD and (is_kept or not _is_leaving(record))


def _blocked_until(plan: Plan, key: str) -> float:
    health = plan.memory.health.get(key)
    return health.blocked_until if health is not None else 0.0


class PurchasesAreExplained:
    """PurchasesAreExplained checks that machines ever launched <= machines wanted + explained replacements.

    Every record that was requested wants one machine. A repeated request is explained when no machine of
    that request was known and free; a record that ends, when its machine was released, is owned by another
    record, or was never listed for longer than the grace. What is paid for and stays is within the limits,
    not counting machines that came after their request had been given up.
    """

    def __init__(self) -> None:
        self._wanted = self._explained = self._restores = 0
        self._held: set[CloudId] = set()  # machines that a requested record ever had
        self._let_go: set[CloudId] = set()  # of these, the ones whose record ended and was explained
        self._most: dict[str | None, float] = {}  # the highest limit so far of each type; None: the cluster's
        self._heads = 0
        self._forgotten: dict[str | None, float] = {}  # machines above a limit when a new head started
        self._shown: set[CloudId] = set()  # machines that any list has shown

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        if len(cluster.restored_at) != self._restores:  # what was leaving has no record until it is listed
            self._restores = len(cluster.restored_at)
            self._let_go |= self._held - {i.cloud_id for i in cluster.store.live.values() if i.cloud_id}
        given_back = {cloud_id for _, cloud_id in cluster.cloud.terminated}
        for commit in cluster.store.commits:
            for record in commit.plan.writes:
                before = commit.before[record.instance_id]
                is_new = not _requests(before) and not waits_again(record, commit.plan)
                self._wanted += is_new and bool(_requests(record))
                yield from self._repeated(cluster, before, record)
                yield from self._ended(cluster, commit, before, record, given_back)
        launched = sum(machine.request_id is not None for machine in cluster.cloud.machines.values())
        if launched > self._wanted + self._explained + _taken_again(cluster):
            yield f"{launched} machines launched, {self._wanted} wanted, {self._explained} replaced"
        yield from self._limits(cluster, given_back)

    def _repeated(self, cluster: FaultyCluster, before: Instance | None, after: Instance) -> Iterator[str]:
        again = _requests(after) - max(_requests(before), 1)
        if again <= 0:
            return
        self._explained += again
        came = (m for m in _unheld(cluster) if _answers(m, after) and m.cloud_id not in self._held)
        free = [m.cloud_id for m in came if _is_known(cluster, m)]
        if free:
            yield f"{after.instance_id} was asked for again, although {free[0]} had come for it"

    def _ended(
        self,
        cluster: FaultyCluster,
        commit: CommittedPlan,
        before: Instance | None,
        after: Instance,
        given_back: set[CloudId],
    ) -> Iterator[str]:
        if after.launch_request_id and after.cloud_id and not after.provisional:
            self._held.add(after.cloud_id)
        machine = cluster.cloud.machines.get(after.cloud_id) if after.cloud_id else None
        if machine is None or after.state is not _S.TERMINATED or not machine.exists:
            return
        owned = any(i.cloud_id == after.cloud_id and i.state in ON_CLOUD for i in cluster.store.live.values())
        remembered = {*given_back, *commit.plan.memory.ended_machines}  # ended as soon as it is listed again
        if owned or machine.cloud_id in remembered:
            return
        self._let_go.add(machine.cloud_id)
        since = before.missing_since if before and before.missing_since is not None else commit.plan.at
        # A worker that a list has shown is terminated first, whatever later lists lack.
        is_ours = machine.kind is NodeKind.WORKER and not after.provisional
        if is_ours or commit.plan.at - since <= cluster.spec.spec.timeouts.listing_grace_s:
            yield f"{machine.cloud_id} exists, and its record ended without a call: {after.details}"

    def _limits(self, cluster: FaultyCluster, given_back: set[CloudId]) -> Iterator[str]:
        spec = cluster.spec.spec
        self._raise_limit(None, float("inf") if spec.max_nodes is None else spec.max_nodes)
        for known in spec.node_types:
            self._raise_limit(known.name, known.max_nodes)
        self._shown |= set(cluster.cloud.listed or ())
        known = (m for m in cluster.cloud.alive() if self._is_knowable(cluster, m))
        paid = [m for m in known if m.cloud_id not in given_back]
        leaving = {i.cloud_id for i in cluster.store.live.values() if _is_leaving(i)}
        late = self._late(cluster)
        staying = [m for m in paid if m.cloud_id not in leaving and m.cloud_id not in late]
        counts = _by_type(staying)
        for name in self._above(cluster, counts, _by_type(paid)):
            which = "the maximum of the cluster" if name is None else "its maximum"
            what = "machines" if name is None else f"machines of {name}"
            yield f"{counts[name]} {what} are paid for, {which} is {self._most.get(name, 0):g}"

    def _is_knowable(self, cluster: FaultyCluster, machine: CloudMachine) -> bool:
        """Return whether a new head can know of a machine: a host taken by the head before must answer."""
        is_of_lost_head = cluster.forgets_hosts and bool(cluster.restored_at) and machine.request_id is None
        return machine.cloud_id in self._shown or machine.kind is NodeKind.HEAD or not is_of_lost_head

    def _above(
        self, cluster: FaultyCluster, counts: Counter[str | None], paid: Counter[str | None]
    ) -> list[str | None]:
        """Return the types, or None for the cluster, of which too many are paid for.

        A head that starts from an older ledger has forgotten which machines came late or were on their way
        out, so they count as staying again once they are listed: until they are gone, there may be as many
        as were paid for then.
        """
        over = {name: max(0.0, count - self._most.get(name, 0)) for name, count in paid.items()}
        if len(cluster.restored_at) != self._heads:
            self._heads, self._forgotten = len(cluster.restored_at), over
        self._forgotten = {n: min(more, self._forgotten.get(n, 0.0)) for n, more in over.items()}
        most = {name: self._most.get(name, 0) + self._forgotten.get(name, 0.0) for name in counts}
        return [name for name, count in counts.items() if count > most[name]]

    def _raise_limit(self, name: str | None, limit: float) -> None:
        self._most[name] = max(self._most.get(name, 0), limit)

    def _late(self, cluster: FaultyCluster) -> set[CloudId]:
        """Return the machines of requests that no longer waited for as many, or were called back."""
        waiting: Counter[tuple[RequestId | None, str]] = Counter()
        for record in cluster.store.live.values():
            if record.state is _S.REQUESTED and not record.cancelled:  # else it is ended when it comes
                waiting[record.launch_request_id, record.node_type] += 1
        late = set()
        for machine in _unheld(cluster):
            request = base_id(machine.request_id) if machine.request_id else None
            if waiting[request, machine.node_type] > 0:
                waiting[request, machine.node_type] -= 1
            elif machine.cloud_id not in self._held or machine.cloud_id in self._let_go:
                late.add(machine.cloud_id)
        return late


def _by_type(machines: list[CloudMachine]) -> Counter[str | None]:
    """Count machines by type, and under None all of them."""
    found = Counter[str | None](machine.node_type for machine in machines)
    found[None] = len(machines)
    return found


def _taken_again(cluster: FaultyCluster) -> int:
    """Return how many hosts a new head took for requests that hosts of the head before it answer.

    Only the host knows that it was taken, and while it does not answer nobody else can say so.
    """
    if not (cluster.forgets_hosts and cluster.restored_at):
        return 0
    asked = {call.request_id: sum(call.shape.values()) for call in cluster.cloud.launch_calls}
    made = [m for m in cluster.cloud.machines.values() if m.request_id is not None]
    count = Counter(machine.request_id for machine in made)
    again = {machine.request_id for machine in made if machine.created_at > cluster.restored_at[0]}
    return sum(max(0, count[name] - asked.get(name, 0)) for name in again if name is not None)


def _requests(record: Instance | None) -> int:
    return 0 if record is None else len(record.entered(_S.REQUESTED))


def _unheld(cluster: FaultyCluster) -> list[CloudMachine]:
    """Return the machines that were launched and that no record of a request holds."""
    live = cluster.store.live.values()
    held = {i.cloud_id for i in live if i.launch_request_id and i.cloud_id and i.state in ON_CLOUD}
    return [m for m in cluster.cloud.alive() if m.request_id is not None and m.cloud_id not in held]


def _answers(machine: CloudMachine, record: Instance) -> bool:
    wanted = record.launch_request_id, record.node_type
    return (base_id(machine.request_id or RequestId("")), machine.node_type) == wanted


def _is_known(cluster: FaultyCluster, machine: CloudMachine) -> bool:
    """Return whether this tick could see the machine: on the list, or in time by a node that names it."""
    report = cluster.runtime.report_read
    age_s, limits = cluster.world.time - machine.created_at, cluster.spec.spec.timeouts
    nodes = report.nodes if report and age_s <= max(limits.request_s, limits.allocate_s) else ()
    # A node of another machine may name this one: an image was made while it ran.
    own = {one.node_id for one in cluster.runtime.nodes.values() if one.machine is machine}
    return machine.cloud_id in (cluster.cloud.listed or {}) or any(
        node.cloud_id == machine.cloud_id and node.node_id in own and node.status not in _UNUSABLE
        for node in nodes
    )


# A row whose status cannot be read is set aside, so the tick has not seen its node. A node that drains is
# about to leave, and answers no request.
_UNUSABLE = (NodeStatus.DEAD, NodeStatus.UNSPECIFIED, NodeStatus.DRAINING)


def _is_leaving(record: Instance) -> bool:
    """Return whether the machine serves nothing new for good; an idle drain may still be refused."""
    if record.state is _S.RAY_STOP_REQUESTED:
        return record.stop_cause not in (None, StopCause.IDLE)
    return record.state in ON_CLOUD and (record.cancelled or record.state not in _STAYING)


CENT_FRACTION = 1e-5
Life = tuple[CloudId, float]  # a machine that was stopped and started again has two under one id


def _life(machine: CloudMachine) -> Life:
    return machine.cloud_id, machine.created_at


class SpendAddsUp:
    """SpendAddsUp follows every machine through the listings and reports that could show it."""

    def __init__(self) -> None:
        self._first_seen: dict[CloudId, float] = {}
        self._missed: dict[Life, list[float]] = {}  # ended machines: listings and reports without them
        self._given_back: dict[InstanceId, float] = {}
        self._lacking: set[str] = set()  # nodes of serving records that the last report lacked
        self._flickered: list[float] = []  # when reports showed some of them again
        self._heads = 0

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        if len(cluster.restored_at) != self._heads:  # what was seen since the copy is forgotten
            self._heads = len(cluster.restored_at)
            self._first_seen.clear()
            self._missed.clear()
            self._given_back.clear()
        if cluster.store.committed is not None:
            self._note_flicker(cluster)
        has_listing = cluster.store.committed is not None and cluster.cloud.listed is not None
        if has_listing:
            self._record_listing(cluster)
        for commit in cluster.store.commits:
            for record in commit.plan.writes:
                machine = cluster.cloud.machines.get(record.cloud_id) if record.cloud_id else None
                if machine is not None:
                    yield from self._began_in_time(
                        cluster, commit.before[record.instance_id], record, machine
                    )
                    yield from self._ended_in_time(cluster, record, machine)
        if cluster.store.committed is not None:
            yield from _total(cluster)

    def _record_listing(self, cluster: FaultyCluster) -> None:
        now, listed = cluster.world.time, cluster.cloud.listed or {}
        for cloud_id, shown in listed.items():
            if shown.node_type:  # without its type nobody knows what it costs; it is reported, and not used
                self._first_seen.setdefault(cloud_id, now)
            machine = cluster.cloud.machines.get(cloud_id)
            if machine is not None:
                self._missed.pop(_life(machine), None)
        report = cluster.runtime.report_read
        if report is None:
            return  # its node may live: without a report no machine is taken for gone
        live = [node for node in report.nodes if node.status is not NodeStatus.DEAD]
        if not any(node.is_head and node.status is not NodeStatus.UNSPECIFIED for node in live):
            return  # a report without the head's own node, or with an unusable row of it, is incomplete
        records = cluster.store.live.values()
        followed = {record.node_id for record in records}
        if any(
            node.cloud_id not in cluster.cloud.machines
            or (node.node_id not in followed and not _is_named_by(cluster, node))
            for node in live
        ):
            self._missed.clear()  # it may run on any machine, as far as anyone can see
            return
        nodes = {node.node_id for node in live}
        alive = {record.cloud_id for record in cluster.store.live.values() if record.node_id in nodes}
        alive |= {node.cloud_id for node in live}  # a node that names the machine, whoever follows it
        # Of a node on a machine that no list shows, only another address proves that it is not on this one.
        # A record that no list has confirmed has its id from the node alone: that proves no more.
        placed = {record.node_id for record in records if not record.provisional}
        ips = {node.ip for node in live if node.cloud_id not in listed and node.node_id not in placed}
        unclear = {record.cloud_id for record in records if ips and ("" in ips or not record.internal_ip)}
        for machine in cluster.cloud.machines.values():
            if not machine.exists and machine.cloud_id not in listed and machine.cloud_id not in alive:
                if machine.cloud_id in unclear:
                    self._missed.pop(_life(machine), None)
                else:
                    self._missed.setdefault(_life(machine), []).append(now)

    def _note_flicker(self, cluster: FaultyCluster) -> None:
        """Reports that leave out now these nodes and now those are incomplete: the grace begins again.

        It does so for five minutes at most.
        """
        report = cluster.runtime.report_read
        if report is None or not any(n.is_head and n.status is not NodeStatus.DEAD for n in report.nodes):
            return
        shown = {node.node_id for node in report.nodes}
        if self._lacking & shown:
            self._flickered.append(cluster.world.time)
        serving = (record for record in cluster.store.live.values() if record.state in SERVING)
        self._lacking = {record.node_id for record in serving if record.node_id} - shown

    def _began_in_time(
        self, cluster: FaultyCluster, before: Instance | None, after: Instance, machine: CloudMachine
    ) -> Iterator[str]:
        """A record starts to cost in the tick that first sees its machine, not sooner and not later."""
        if _begun(after) is None or (before is not None and _begun(before) is not None):
            return
        now = cluster.world.time
        if now < machine.created_at:
            yield f"{machine.cloud_id}: paid for {machine.created_at - now:g} s before it was launched"
        first_seen = self._first_seen.get(machine.cloud_id)
        owners = sum(record.cloud_id == machine.cloud_id for record in cluster.store.records.values())
        if owners == 1 and first_seen is not None and now > first_seen:
            yield f"{machine.cloud_id}: seen at {first_seen:g} s, paid for from {now:g} s on"

    def _ended_in_time(
        self, cluster: FaultyCluster, record: Instance, machine: CloudMachine
    ) -> Iterator[str]:
        """A machine that is gone is released, or its record ends, after the grace; then its record ends."""
        now, missed = cluster.world.time, self._missed.get(_life(machine), [])
        is_known = record.instance_id in self._given_back
        if record.entered(_S.TERMINATING):
            self._given_back.setdefault(record.instance_id, now)
        elif record.state is not _S.TERMINATED:
            return
        if not missed or (is_known and record.state is not _S.TERMINATED):
            return
        since = max(missed[0], self._given_back[record.instance_id]) if is_known else missed[0]
        since = max([since, *(at for at in self._flickered if at - missed[0] <= MISSED_S)])
        looks = [since, *(at for at in missed if since < at < now)]
        allowed_s = cluster.spec.spec.timeouts.listing_grace_s
        over_s = list(_overdue_s(looks, allowed_s, allowed_s + cluster.stood_still_s(since)))
        # Without a terminate (a head, a cluster at rest) it ends at the look after its node is lost.
        if len(over_s) > (not record.entered(_S.TERMINATING)):
            yield f"{machine.cloud_id}: closed {over_s[-1]:g} s too late after its end"


def _overdue_s(looks: list[float], grace_s: float, allowed_s: float) -> Iterator[float]:
    """Yield by how much the wait was too long at each look, by the controller's clock.

    Of the time between two looks a grace counts, and it does not bring the end of the wait by itself.
    """
    waited_s = 0.0
    for before, at in pairwise(looks):
        is_gap = at - before > grace_s and waited_s < allowed_s
        waited_s += min(at - before, grace_s)
        waited_s = min(waited_s, allowed_s) if is_gap else waited_s
        if waited_s > allowed_s:
            yield waited_s - allowed_s


def _is_named_by(cluster: FaultyCluster, node: NodeReport) -> bool:
    """Return whether the node names the machine that it is on, and not the one its image was made of."""
    truth = cluster.runtime.nodes.get(node.node_id)
    return truth is not None and truth.machine.cloud_id == node.cloud_id


class SpendFollowsTrueTime:
    """SpendFollowsTrueTime checks that no clock that was set makes machines cost more than they do.

    Only a new head, on another boot, may charge time that has not passed: an hour at most when it restores a
    ledger, and an hour at its first look.
    """

    def __init__(self) -> None:
        self._begun: dict[InstanceId, float] = {}  # true times
        self._ended: dict[InstanceId, float] = {}
        self._allowed, self._boots = 0.0, 1
        self._looked_at = 0.0  # a tick may take some time: what begins in it begins after this

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        now, records = cluster.world.time, cluster.store.records.values()
        if cluster.boots != self._boots:  # an older ledger has forgotten how some records ended since
            recent_s = KEPT_COPIES * cluster.options.tick_s
            self._ended = {name: at for name, at in self._ended.items() if now - at > recent_s}
        for record in records:
            if _begun(record) is not None:
                self._begun.setdefault(record.instance_id, self._looked_at)
            if record.state is _S.TERMINATED:
                self._ended.setdefault(record.instance_id, now)
        self._looked_at = now
        if cluster.boots != self._boots:
            recent = (i for i in records if self._ended.get(i.instance_id, now) == now)
            hourly = sum(_price_of_an_hour(i) for i in recent if _begun(i) is not None)
            self._allowed += 2 * hourly * (cluster.boots - self._boots)
            self._boots = cluster.boots
        plan = cluster.store.committed
        if plan is None:
            return
        due = sum(self._true_cost(record, now) for record in records if _begun(record) is not None)
        spent = spend_so_far(cluster.store.live.values(), plan.memory, plan.at)
        if spent > due + self._allowed + CENT_FRACTION:
            yield f"${spent:.4f} are charged for machines that have cost ${due:.4f}"

    def _true_cost(self, record: Instance, now: float) -> float:
        begun = self._begun[record.instance_id]
        used_s = self._ended.get(record.instance_id, now) - begun + CLOCK_PRECISION_S
        return _paid_s(record.offer, used_s) * (record.price_per_hour or 0.0) / 3600


def _price_of_an_hour(record: Instance) -> float:
    """Return what an hour more may cost: with what is left of the step that it ends in."""
    step_s = record.offer.billing_granularity_s if record.offer is not None else 0.0
    return (record.price_per_hour or 0.0) * (1.0 + step_s / 3600.0)


def _total(cluster: FaultyCluster) -> Iterator[str]:
    """The spend of the ledger is the sum over all records ever, each counted once."""
    plan = cluster.store.committed
    if plan is None:
        return
    recorded = spend_so_far(cluster.store.live.values(), plan.memory, plan.at) + plan.memory.uncharged
    due = sum(_cost(record, plan.at) for record in cluster.store.records.values())
    if abs(recorded - due) > CENT_FRACTION:
        yield f"the ledger has ${recorded:.5f} as spent, its records sum up to ${due:.5f}"


def _begun(record: Instance) -> float | None:
    return next((change.at for change in record.history if change.state in ON_CLOUD), None)


def _cost(record: Instance, now: float) -> float:
    begun = _begun(record)
    if begun is None or record.is_queued:  # a queue costs nothing
        return 0.0
    begun = record.dequeued_at or begun
    end = record.history[-1].at if record.state is InstanceState.TERMINATED else now
    return _paid_s(record.offer, end - begun) * (record.price_per_hour or 0.0) / 3600


def _paid_s(offer: Offer | None, used_s: float) -> float:
    """Count whole steps and what is left of one; not the formula of the ledger."""
    if offer is None:
        return used_s
    paid_s = max(used_s, offer.billing_minimum_s)
    step_s = offer.billing_granularity_s
    if not step_s:
        return paid_s
    whole, rest = divmod(paid_s, step_s)
    return (whole + (rest > step_s * 1e-9)) * step_s
