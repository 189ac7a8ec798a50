"""Check safety: properties that hold after every tick, whatever went wrong. One property each.

A check takes the cluster and yields what is wrong with it, as text. Those that must remember something from
tick to tick are objects. `safety_checks()` makes a fresh set for one run; `money.py` has those about money.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise

from tests.simulation.cluster import CLOCK_PRECISION_S, FaultyCluster
from tests.simulation.setups import FailedSetupsPause

from muster.base.ids import InstanceId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import FailureKind, Instance, NodeKind, NodeStatus, StopCause, health_key
from muster.cluster.plan import Drain, Launch, Plan, Subject, base_id
from muster.cluster.rules.resize import AGAIN_S
from muster.cluster.states import CREATABLE, INSTANCE_MACHINE, ON_CLOUD, InstanceState
from muster.sim.cluster.tasks import SimNode

WINDOW_S = 300.0
RESIZE_SLACK_S = 200.0  # how much longer than its time-out a change may take: looks may fail meanwhile
MOST_REFUSALS = 12  # with a pause of 5 s that doubles up to 60 s, nine fit into the window


class NoHotLoop:
    """NoHotLoop limits, per type and offer, the ticks that knew of a refusal, until a machine comes up.

    Sold out, or refused without a reason, is one offer; other refusals are of the type unless they name it.

    A refusal that a call raised is known to the next tick that commits; one that was polled, to the same
    tick. What only a killed controller knew is lost, and need not be remembered.
    """

    def __init__(self) -> None:
        self._calls = self._reported = 0
        self._heads = 1
        self._offers: dict[RequestId, str] = {}  # of launch calls
        self._new_refusals: set[str] = set()  # types and offers refused, not yet part of a decision
        self._refused_at: dict[str, list[tuple[float, float]]] = {}  # true time, and that of the decision

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        if cluster.boots != self._heads:  # what calls raised was lost with the head that made them
            self._heads = cluster.boots
            self._new_refusals.clear()
        found = cluster.cloud.failures_reported[self._reported :]
        self._reported += len(found)
        for failure in found:
            offer = failure.offer or self._offers.get(failure.request_id, "")
            is_of_offer = failure.offer or failure.kind in _OF_ONE_OFFER
            self._new_refusals.add(health_key(failure.node_type, offer if is_of_offer else ""))
        self._clear_refusals(cluster)
        if cluster.store.committed is not None:
            yield from self._decided(cluster)
        self._record_calls(cluster)

    def _decided(self, cluster: FaultyCluster) -> Iterator[str]:
        now, plan = cluster.world.time, cluster.store.committed
        for name in sorted(self._new_refusals):
            times = [times for times in self._refused_at.get(name, ()) if now - times[0] < WINDOW_S]
            self._refused_at[name] = [*times, (now, plan.at if plan else 0.0)]
            if len(times) >= MOST_REFUSALS:
                yield f"{name} was asked for and refused {len(times) + 1} times within {WINDOW_S:g} s"
        self._new_refusals.clear()
        yield from self._asked_too_soon(cluster)

    def _asked_too_soon(self, cluster: FaultyCluster) -> Iterator[str]:
        plan, pause_s = cluster.store.committed, cluster.spec.spec.backoff.base_s
        launches = [a for a in plan.actions if isinstance(a, Launch)] if plan else []
        new = [a for a in launches if base_id(a.request_id) == a.request_id]
        requested = {name for a in new for name in a.shape}
        requested |= {health_key(name, a.offer.name) for a in new if a.offer for name in a.shape}
        for name in sorted(requested):
            at, known_at = self._refused_at.get(name, [_NEVER])[-1]
            since = cluster.world.time - at
            if since + cluster.ran_ahead_s(known_at) < pause_s - CLOCK_PRECISION_S:
                yield f"{name} was asked for {since:g} s after a refusal was known"

    def _record_calls(self, cluster: FaultyCluster) -> None:
        """What the calls of this tick raised is known to the next one, if the controller survives."""
        calls = cluster.cloud.launch_calls[self._calls :]
        self._calls += len(calls)
        self._offers.update({call.request_id: call.offer for call in calls})
        if cluster.plan is None:
            self._new_refusals.clear()
            return
        for call in calls:
            if call.refused is not None:
                offer = call.offer if call.refused in _OF_ONE_OFFER else ""
                self._new_refusals.update(health_key(name, offer) for name in call.shape)

    def _clear_refusals(self, cluster: FaultyCluster) -> None:
        for commit in cluster.store.commits:
            for record in commit.plan.writes:
                if record.state is InstanceState.RAY_RUNNING:
                    self._refused_at.pop(record.node_type, None)
                    self._refused_at.pop(health_key(record.node_type, record.offer_name), None)


_NEVER = (float("-inf"), float("-inf"))
_OF_ONE_OFFER = frozenset({FailureKind.CAPACITY, FailureKind.UNKNOWN})


_S = InstanceState
Check = Callable[[FaultyCluster], Iterator[str]]
STAYING = frozenset({_S.QUEUED, _S.REQUESTED, _S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING})


def safety_checks() -> tuple[Check, ...]:
    """Return every safety property but those about money, for one run."""
    return (
        the_loop_lives,
        no_machine_has_two_owners,
        no_machine_is_forgotten,
        no_launch_goes_over_a_limit,
        nodes_of_removed_types_stay_until_idle,
        busy_nodes_are_drained_first,
        OnlyWhatIsLeavingIsTerminated(),
        BusyNodesAreNotInstalledOver(),
        the_head_is_left_alone,
        nodes_joined_by_hand_are_left_alone,
        states_follow_the_table,
        VersionsGrow(),
        requests_are_resolved_in_time,
        verdicts_add_up,
        NoHotLoop(),
        FailedSetupsPause(),
        SizesAreSafe(),
    )


def the_loop_lives(cluster: FaultyCluster) -> Iterator[str]:
    """Check that no input stops the loop, and that no rule has to be switched off."""
    if cluster.problem:
        yield cluster.problem
    for note in cluster.plan.quarantined if cluster.plan else ():
        if note.source.startswith("rule ") or "may not go from" in note.message:
            yield f"{note.source} failed: {note.message}"


def no_machine_has_two_owners(cluster: FaultyCluster) -> Iterator[str]:
    """Check that at most one live record owns a machine."""
    owners = Counter(i.cloud_id for i in cluster.store.live.values() if i.cloud_id and i.state in ON_CLOUD)
    for cloud_id, count in owners.items():
        if count > 1:
            yield f"machine {cloud_id} is owned by {count} live records"


def no_machine_is_forgotten(cluster: FaultyCluster) -> Iterator[str]:
    """Check that every existing machine in a committed listing has an owner.

    One that is listed without its type, for no request that is known, cannot be used: it is reported.
    """
    plan = cluster.store.committed
    if plan is None or cluster.cloud.listed is None:
        return
    owned = {i.cloud_id for i in cluster.store.live.values() if i.state in ON_CLOUD}
    noted = {note.source.removeprefix("machine ") for note in plan.quarantined}
    for cloud_id, shown in cluster.cloud.listed.items():
        machine = cluster.cloud.machines.get(cloud_id)
        is_reported = not shown.node_type and cloud_id in noted
        if machine is not None and machine.exists and cloud_id not in owned and not is_reported:
            yield f"machine {cloud_id} ({machine.node_type}) is listed and has no owner"


def no_launch_goes_over_a_limit(cluster: FaultyCluster) -> Iterator[str]:
    """Check that, when machines are requested, those that stay are within the limits of that tick."""
    for commit in cluster.store.commits:
        new = [i for i in commit.plan.writes if commit.before[i.instance_id] is None and _is_request(i)]
        added = {i.node_type for i in new if not waits_again(i, commit.plan)}
        if not added:
            continue
        staying = [i for i in cluster.store.live.values() if i.state in STAYING and _is_ours(i)]
        per_type = Counter(i.node_type for i in staying)
        for name in sorted(added):
            known = cluster.spec.spec.node_type(name)
            most = known.max_nodes if known else 0
            if per_type[name] > most:
                yield f"{per_type[name]} machines of {name} were wanted, its maximum is {most}"
        limit = cluster.spec.spec.max_nodes
        if limit is not None and len(staying) > limit:
            yield f"{len(staying)} machines were wanted, the cluster's maximum is {limit}"


def nodes_of_removed_types_stay_until_idle(cluster: FaultyCluster) -> Iterator[str]:
    """Check that no node is drained with a deadline because its type has left the config."""
    for commit in cluster.store.commits:
        for drain in commit.plan.actions:
            if isinstance(drain, Drain) and drain.cause in _BY_LIMIT:
                record = cluster.store.records[drain.instance_id]
                if cluster.spec.spec.node_type(record.node_type) is None:
                    yield f"{drain.instance_id} of removed type {record.node_type} must go: {drain.message}"


_BY_LIMIT = frozenset({StopCause.OUTDATED, StopCause.MAX_NODES, StopCause.MAX_NODES_PER_TYPE})


def _is_ours(instance: Instance) -> bool:
    """Return whether the machine stays, and is not that of a node which may be somebody's own."""
    return not instance.cancelled and not (instance.provisional and instance.launch_request_id is None)


def waits_again(record: Instance, plan: Plan) -> bool:
    """Return whether a new record has the request of an earlier one: it launches nothing."""
    return record.requested_at is not None and record.requested_at < plan.at


def _is_request(instance: Instance) -> bool:
    return instance.history[0].state is _S.QUEUED and instance.state in STAYING


def busy_nodes_are_drained_first(cluster: FaultyCluster) -> Iterator[str]:
    """Check that no machine is given up while its node works, unless a drain's deadline has passed.

    Checked when the decision is written: it cannot be taken back when a node restarts on the machine later.
    The controller cannot know a node that no report showed, unless it did not read the report.
    """
    for commit in cluster.store.commits:
        for record in commit.plan.writes:
            before = commit.before[record.instance_id]
            if not record.entered(_S.TERMINATING) or (before is not None and before.entered(_S.TERMINATING)):
                continue
            if before is not None and cluster.ran_ahead_s(before.since) > 0:
                continue  # by the controller's clock the wait was as long as it may be
            machine = cluster.cloud.machines.get(record.cloud_id) if record.cloud_id else None
            node = cluster.runtime.node_on(machine) if machine and machine.exists else None
            if (
                node is not None
                and node.running
                and _is_known(cluster, node)
                and not _is_drained(cluster, node)
                and not _is_unpaid(cluster, record)
            ):
                deadline = f"drain deadline {node.drain_deadline_at}"
                yield f"{record.cloud_id} was given up under {len(node.running)} running tasks ({deadline})"


def _is_known(cluster: FaultyCluster, node: SimNode) -> bool:
    report = cluster.runtime.report_read
    if report is None:
        return True
    shown = next((seen for seen in report.nodes if seen.node_id == node.node_id), None)
    return shown is not None or node.node_id in cluster.runtime.shown_alive


def _is_drained(cluster: FaultyCluster, node: SimNode) -> bool:
    return node.drain_deadline_at is not None and node.drain_deadline_at <= cluster.world.time


def _is_unpaid(cluster: FaultyCluster, record: Instance) -> bool:
    """Return whether a used-up budget ends it: its node was not known as its own, or was asked in time."""
    if record.stop_cause is not StopCause.BUDGET:
        return False
    asked, stopped = record.entered(_S.RAY_STOP_REQUESTED), record.entered(_S.RAY_STOPPED)
    given_s = cluster.options.spec.timeouts.drain_deadline_s
    return not asked or bool(stopped) or cluster.world.now() - asked[-1] >= given_s


class BusyNodesAreNotInstalledOver:
    """BusyNodesAreNotInstalledOver checks that no install restarts a runtime with known work."""

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        new = cluster.installer.started[self._seen :]
        self._seen += len(new)
        for action in new:
            machine = cluster.cloud.machines.get(action.cloud_id)
            node = cluster.runtime.node_on(machine) if machine else None
            if node is not None and node.running and _is_known(cluster, node):
                yield f"{action.cloud_id} was installed under {len(node.running)} running tasks"


class OnlyWhatIsLeavingIsTerminated:
    """OnlyWhatIsLeavingIsTerminated checks that terminate calls name only machines in TERMINATING."""

    def __init__(self) -> None:
        self._seen = 0

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        calls = cluster.cloud.terminated[self._seen :]
        self._seen += len(calls)
        leaving = (
            {r.cloud_id for r in cluster.store.live.values() if r.state is _S.TERMINATING} if calls else set()
        )
        for _, cloud_id in calls:
            if cloud_id not in leaving:
                yield f"{cloud_id} was terminated, but no record is TERMINATING"


def the_head_is_left_alone(cluster: FaultyCluster) -> Iterator[str]:
    """Check that the head is never terminated or drained."""
    heads = {m.cloud_id for m in cluster.cloud.machines.values() if m.kind is NodeKind.HEAD}
    if any(cloud_id in heads for _, cloud_id in cluster.cloud.terminated):
        yield "the head was terminated"
    head_nodes = {node.node_id for node in cluster.runtime.nodes.values() if node.is_head}
    if any(drain.node_id in head_nodes for drain in cluster.drains.requested):
        yield "the head was drained"


def nodes_joined_by_hand_are_left_alone(cluster: FaultyCluster) -> Iterator[str]:
    """Check that a node that somebody joined by hand is never drained, nor its machine terminated."""
    theirs = {machine.cloud_id for machine in cluster.joined_by_hand}
    if theirs and any(cloud_id in theirs for _, cloud_id in cluster.cloud.terminated):
        yield "a machine that somebody joined by hand was terminated"
    nodes = (
        {n.node_id for n in cluster.runtime.nodes.values() if n.machine.cloud_id in theirs}
        if theirs
        else set()
    )
    if nodes and any(drain.node_id in nodes for drain in cluster.drains.requested):
        yield "a node that somebody joined by hand was drained"


def states_follow_the_table(cluster: FaultyCluster) -> Iterator[str]:
    """Check that every record follows the table of transitions."""
    for commit in cluster.store.commits:
        for after in commit.plan.writes:
            yield from _bad_hops(after.instance_id, commit.before[after.instance_id], after)


def _bad_hops(name: InstanceId, before: Instance | None, after: Instance) -> Iterator[str]:
    known = before.history if before else ()
    if after.history[: len(known)] != known:
        yield f"{name}: its history was rewritten"
    if not after.history or after.history[-1].state is not after.state:
        yield f"{name}: is {after.state.name}, its history does not end with it"
        return
    if before is None and after.history[0].state not in CREATABLE:
        yield f"{name}: began as {after.history[0].state.name}"
    new = after.history[max(len(known) - 1, 0) :]
    for one, two in pairwise(new):
        if not INSTANCE_MACHINE.allows(one.state, two.state):
            yield f"{name}: went from {one.state.name} to {two.state.name}"


class VersionsGrow:
    """VersionsGrow checks that neither the ledger's version nor the published one ever falls."""

    def __init__(self) -> None:
        self._version = 0
        self._published = 0
        self._heads = self._first = 0

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        if len(cluster.restored_at) != self._heads:  # an older ledger, and a runtime that knows none
            self._heads = len(cluster.restored_at)
            self._version, self._first = 0, self._published
        for commit in cluster.store.commits:
            if commit.new_version < self._version or commit.old_version < self._version:
                yield f"the ledger went from version {self._version} to {commit.new_version}"
            self._version = commit.new_version
        published = cluster.runtime.published
        for version in published[self._published :]:
            if self._published > self._first and version < published[self._published - 1]:
                yield f"version {version} was published after {published[self._published - 1]}"
            self._published += 1


def requests_are_resolved_in_time(cluster: FaultyCluster) -> Iterator[str]:
    """Check that with a listing and a report no request waits too long; else nobody knows if it is needed.

    Where machines are listed late, a launch may wait in the provider for as long as a listing takes.
    """
    plan, limit_s = cluster.store.committed, cluster.spec.spec.timeouts.request_s
    late_s = cluster.cloud.traits().listed_within_s
    limit_s = max(limit_s, late_s) + late_s
    if plan is None or cluster.cloud.listed is None or cluster.runtime.report_read is None:
        return
    for instance in cluster.store.live.values():
        if instance.state is _S.REQUESTED and plan.at - instance.since > limit_s:
            yield f"{instance.instance_id} is REQUESTED for {plan.at - instance.since:g} s"


def verdicts_add_up(cluster: FaultyCluster) -> Iterator[str]:
    """Check that every request of every named demand and gang in the report has exactly one reason."""
    plan, report = cluster.plan, cluster.runtime.report_read
    if plan is None or report is None or not plan.verdicts:
        return
    found: Counter[tuple[Subject, str]] = Counter()
    for verdict in plan.verdicts:
        found[verdict.subject, verdict.subject_id] += verdict.count
    for demand in report.demands:
        if demand.name and found[Subject.DEMAND, demand.name] != demand.count:
            yield f"{demand.name}: {found[Subject.DEMAND, demand.name]} reasons for {demand.count} requests"
    for gang in report.gangs:
        counted, bundles = found[Subject.GANG, gang.gang_id], len(gang.options[0])
        if counted != bundles:
            yield f"gang {gang.gang_id}: {counted} reasons for {bundles} bundles"


class SizesAreSafe:
    """SizesAreSafe checks that sizes stay within limits, and that no node counts what its machine lacks."""

    def __init__(self) -> None:
        self._seen = self._restores = 0
        # By record: a machine whose node starts again may get another one, and is tried once more then.
        self._failed: dict[InstanceId, float] = {}

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        sizes = cluster.cloud.sizes
        if not sizes.now:
            return
        for node in cluster.runtime.live_nodes():
            status = sizes.now.get(node.machine.cloud_id)
            lacks = {} if status is None else _more(node.total, status.current)
            if lacks and node.machine.exists:
                yield f"{node.node_id} counts {Resources(lacks)} more than {node.machine.cloud_id} has"
        yield from self._calls(cluster)
        yield from self._records(cluster)

    def _calls(self, cluster: FaultyCluster) -> Iterator[str]:
        sizes = cluster.cloud.sizes
        owners = {record.cloud_id: record.instance_id for record in cluster.store.live.values()}
        for call in sizes.calls[self._seen :]:
            known = cluster.cloud.sells.types[cluster.cloud.machines[call.cloud_id].node_type]
            if known.resize is not None and _more(call.desired, known.resize.maximum):
                yield f"{call.cloud_id} was asked for {call.desired}, more than its type may have"
            grows = _more(call.desired, call.before.current)
            owner = owners.get(call.cloud_id)
            if grows and owner is not None and self._failed.get(owner, call.at) < call.at:
                yield f"{call.cloud_id} was asked to grow after it had failed"
        self._seen = len(sizes.calls)

    def _records(self, cluster: FaultyCluster) -> Iterator[str]:
        """A head that starts from an older ledger may have forgotten a failure."""
        if len(cluster.restored_at) > self._restores:
            self._restores = len(cluster.restored_at)
            self._failed.clear()
        plan = cluster.store.committed
        if cluster.cloud.listed is None:
            return  # nobody knows how far the machines are
        for record in cluster.store.live.values():
            change = record.resize
            if change is None or record.cloud_id is None or plan is None:
                continue
            if change.failed_at is not None:
                self._failed.setdefault(record.instance_id, cluster.world.time)
            known = cluster.spec.spec.node_type(record.node_type)
            limit_s = known.resize.timeout_s if known and known.resize else float("inf")
            since = plan.at if change.since is None else change.since
            took_s = plan.at - since - cluster.ran_ahead_s(since)
            is_late = took_s > limit_s + AGAIN_S + RESIZE_SLACK_S
            if is_late and record.state is _S.RAY_RUNNING and _is_shown(cluster, record):
                yield f"{record.cloud_id} is being resized for {took_s:g} s"


def _is_shown(cluster: FaultyCluster, record: Instance) -> bool:
    """Return whether this tick could end a change: it saw the machine's size and what its node counts."""
    machines, report = cluster.cloud.listed or {}, cluster.runtime.report_read
    readable = (n.node_id for n in report.nodes if n.status is not NodeStatus.UNSPECIFIED) if report else ()
    return record.cloud_id in machines and record.node_id in readable


def _more(one: Resources, other: Resources) -> dict[str, int]:
    return {name: units - other[name] for name, units in one.items() if name in other and units > other[name]}
