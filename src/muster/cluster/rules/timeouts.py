"""End records that make no sense or stay in a state too long, and withdraw queued machines of what failed.

`repair` runs before any other rule.
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.cluster.backoff import after_failure, as_requested, is_blocked
from muster.cluster.budget_policy import NEXT_CHECKPOINT_S
from muster.cluster.model import (
    NEEDS_USER_ACTION,
    FailureKind,
    Instance,
    NodeStatus,
    StatusChange,
    StopCause,
    health_key,
)
from muster.cluster.plan import Reason
from muster.cluster.planner.offers import held_types, is_queued, problem_of
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.snapshot import TypeHealth
from muster.cluster.states import ON_CLOUD, TERMINAL, InstanceState

_S = InstanceState
_WARN_ONLY = (_S.RAY_STOPPING, _S.RAY_INSTALL_FAILED, _S.RAY_STOPPED, _S.TERMINATION_FAILED, _S.QUEUED)


def timeouts(draft: Draft) -> None:
    """Expire records; "too long" is strictly longer than the limit.

    What could not be observed has not failed to come: without a list no request expires (a repeated request
    would launch a second machine), without a report no machine is given up (its node may be there and busy)
    and no request repeated (nobody may need it).
    """
    limits = draft.spec.timeouts
    _note_queues(draft)
    if draft.snapshot.runtime is not None:
        is_listed = draft.snapshot.cloud is not None
        for instance in _overdue(draft, _S.REQUESTED, limits.request_s) if is_listed else ():
            _expire_request(draft, instance)
        _expire_arrivals(draft)
    for instance in _overdue(draft, _S.TERMINATING, limits.terminating_s):
        draft.move(instance, _S.TERMINATION_FAILED, f"still listed after {limits.terminating_s:g} s")
    _blame_setups(draft)
    _end_unpaid(draft)
    for instance in _overdue(draft, _S.RAY_STOP_REQUESTED, limits.stop_requested_s):
        _expire_stop(draft, instance)
    for instance in draft.in_state(_S.RAY_STOPPING):  # drains of others are left alone
        is_late = draft.now - instance.since > _longest_drain_s(draft, instance)
        if is_late and instance.stop_cause is not None and not is_head(instance):
            draft.move(instance, _S.RAY_STOPPED, "the drain is long past its deadline")
    for state in _WARN_ONLY:
        for instance in _overdue(draft, state, limits.warn_s):
            _warn(draft, instance)


def _note_queues(draft: Draft) -> None:
    """Note which machines wait for their turn, and when that ended: their start is timed from then on."""
    cloud = draft.snapshot.cloud or {}
    served = (i for i in draft.in_state(_S.RAY_RUNNING) if i.is_queued)  # before a list showed their start
    for instance in (*draft.in_state(_S.ALLOCATED), *served):
        if instance.cloud_id not in cloud:
            continue
        waits = is_queued(problem_of(instance, cloud))
        if waits and not instance.is_queued:
            draft.amend(instance, is_queued=True, dequeued_at=None)
        elif instance.is_queued and not waits:
            draft.amend(instance, is_queued=False, dequeued_at=draft.now)


def _expire_arrivals(draft: Draft) -> None:
    limits = draft.spec.timeouts
    _expire_problems(draft)
    for instance in _seen_overdue(draft, _S.ALLOCATED, limits.allocate_s):
        problem = problem_of(instance, draft.snapshot.cloud or {})
        if is_head(instance) or is_queued(problem):
            continue  # never given up
        if draft.now - (instance.dequeued_at or instance.since) <= limits.allocate_s:
            continue  # it has left a queue a while ago
        if _is_kept(draft, instance):
            _warn(draft, instance)
        else:
            _expire_allocation(draft, instance)
    for instance in _seen_overdue(draft, _S.RAY_INSTALLING, limits.install_s):
        if not _is_kept(draft, instance):
            draft.move(instance, _S.RAY_INSTALL_FAILED, f"not installed within {limits.install_s:g} s")


def _is_kept(draft: Draft, instance: Instance) -> bool:
    """Return whether a machine is not given up: a node that cannot be matched may be at work there.

    A provider that is read-only for a while terminates nothing, and its node may come meanwhile.
    """
    return draft.snapshot.traits.read_only or draft.may_work_unseen(instance)


def _expire_problems(draft: Draft) -> None:
    """A machine whose provider knows why it does not come up is explained at once.

    One in a queue, or held back by a quota, keeps its place; one with a wrong configuration ends sooner.
    """
    cloud = draft.snapshot.cloud or {}
    for instance in draft.in_state(_S.ALLOCATED):
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        if machine is None or machine.problem is None or is_head(instance):
            continue
        problem = machine.problem
        if is_queued(problem):
            is_quota = problem.kind is FailureKind.QUOTA
            reason = Reason.WAITING_FOR_QUOTA if is_quota else Reason.WAITING_IN_QUEUE
            _warn(draft, instance, problem.message, reason)
            continue
        is_mistake = problem.kind in NEEDS_USER_ACTION
        limit_s = draft.spec.timeouts.mistake_s if is_mistake else draft.spec.timeouts.allocate_s
        if draft.now - instance.since > limit_s and not _is_kept(draft, instance):
            if draft.move(instance, _S.ALLOCATION_TIMEOUT, problem.message):
                _blame(draft, instance, problem.message, problem.kind)
            continue
        _warn(draft, instance, problem.message)
        health = draft.decided.health.get(health_key(instance.node_type, instance.offer_name))
        is_blamed = health is not None and health.failed_at >= instance.since
        if is_mistake and not is_blamed:
            _blame(draft, instance, problem.message, problem.kind)


def _overdue(draft: Draft, state: InstanceState, limit_s: float) -> list[Instance]:
    return [i for i in draft.in_state(state) if draft.now - i.since > limit_s]


def _seen_overdue(draft: Draft, state: InstanceState, limit_s: float) -> list[Instance]:
    """A time that passes while nobody looks is over at the second report: the first may lack a new node."""
    looked_at = draft.snapshot.memory.reported_at
    late = _overdue(draft, state, limit_s)
    if looked_at is None or draft.now - looked_at <= draft.spec.timeouts.listing_grace_s:
        return late
    return [i for i in late if looked_at - i.since > limit_s]


def _expire_request(draft: Draft, instance: Instance) -> None:
    """Ask again or give up, unless the machine may exist and be listed later.

    A launch that is still in the outbox may happen until it is withdrawn, so its machine may come even later.
    """
    limit_s, within_s = draft.spec.timeouts.request_s, draft.snapshot.traits.listed_within_s
    may_happen = within_s > 0 and instance.instance_id in draft.snapshot.open_launches
    limit_s = max(limit_s, within_s) + (within_s if may_happen else 0.0)
    if draft.now - instance.since <= limit_s:
        return
    if may_happen:
        draft.expect_late(instance)
    attempts = len(instance.entered(_S.REQUESTED))
    waited = f"no machine within {limit_s:g} s"
    if attempts > draft.spec.limits.max_request_retries or instance.cancelled:
        draft.move(instance, _S.ALLOCATION_FAILED, f"{waited}, attempt {attempts}")
        _blame(draft, instance, waited)
    else:
        draft.move(instance, _S.QUEUED, f"{waited}: asking again")


def _expire_allocation(draft: Draft, instance: Instance) -> None:
    text = f"its node did not come within {draft.spec.timeouts.allocate_s:g} s"
    if draft.move(instance, _S.ALLOCATION_TIMEOUT, text):
        _blame(draft, instance, text)
        known = draft.decided.health.get(instance.node_type, TypeHealth())
        draft.decided.health[instance.node_type] = replace(known, timed_out_at=draft.now)


def _blame(draft: Draft, instance: Instance, text: str, kind: FailureKind = FailureKind.UNKNOWN) -> None:
    """The offer failed, where there is one: another may bring machines of the type."""
    key = health_key(instance.node_type, instance.offer_name)
    health, policy = draft.decided.health.get(key, TypeHealth()), draft.spec.backoff
    asked_at = max(instance.entered(_S.REQUESTED), default=draft.now)
    health = as_requested(health, asked_at, draft.now, policy)
    draft.decided.health[key] = after_failure(health, kind, text, draft.now, policy)


def _blame_setups(draft: Draft) -> None:
    """Back off what could not be set up in this tick.

    A failure is the offer's. When another offer of the type failed as well, it is also the type's.
    """
    before, health = draft.snapshot.instances, draft.decided.health
    for instance in draft.in_state(_S.RAY_INSTALL_FAILED):
        known = before.get(instance.instance_id)
        if known is None or known.state is not _S.RAY_INSTALLING:
            continue  # an earlier tick's
        offers = draft.types[instance.node_type].offers if instance.node_type in draft.types else ()
        others = {"", *(offer.name for offer in offers)} - {instance.offer_name}
        keys = (health_key(instance.node_type, offer) for offer in others)
        is_common = any(key in health and health[key].is_on_trial for key in keys)
        _blame(draft, instance, instance.details, FailureKind.SETUP)
        if is_common:
            _blame(draft, replace(instance, offer=None), instance.details, FailureKind.SETUP)


def _end_unpaid(draft: Draft) -> None:
    """Where the budget is used up, there is no money for longer than a drain was given; lost ones too."""
    for instance in draft.in_state(_S.RAY_STOP_REQUESTED, _S.RAY_STOPPING):
        asked = instance.entered(_S.RAY_STOP_REQUESTED)
        since = asked[-1] if asked else instance.since
        is_due = draft.now - since > draft.spec.timeouts.drain_deadline_s
        if instance.stop_cause is StopCause.BUDGET and is_due and not is_head(instance):
            draft.move(instance, _S.RAY_STOPPED, "the time of its drain is over, and the budget is used up")


def _expire_stop(draft: Draft, instance: Instance) -> None:
    """Back to work when its node lives; without a report nothing is known, so nothing is done."""
    node = draft.nodes.get(instance.node_id or "")
    if node is not None and node.status is not NodeStatus.DEAD:
        text = f"the drain did not start within {draft.spec.timeouts.stop_requested_s:g} s"
        draft.move(instance, _S.RAY_RUNNING, text, stop_cause=None)


def _longest_drain_s(draft: Draft, instance: Instance) -> float:
    """A node that the cloud will take was given until then, which may be later than other drains end."""
    limits, policy = draft.spec.timeouts, draft.spec.notices
    given_s = policy.ahead_s if instance.stop_cause is StopCause.NOTICE else 0.0
    if instance.stop_cause is StopCause.CONSOLIDATION:
        given_s = NEXT_CHECKPOINT_S
    return max(limits.drain_deadline_s, given_s) + limits.stopping_s


def _warn(draft: Draft, instance: Instance, why: str = "", reason: Reason = Reason.STUCK) -> None:
    why = why or instance.details
    waited = f"{instance.state.name} for {draft.now - instance.since:.0f} s: {why}".rstrip(": ")
    draft.add_node_verdict(instance, reason, waited, last=reason is not Reason.STUCK)


def backoff(draft: Draft) -> None:
    """End QUEUED records of a backed-off type or offer; nothing was launched for them yet.

    A record without an offer, of a type with offers, gets its offer when it is launched: it is withdrawn
    only when the offers that are left have no room for it.
    """
    left: dict[str, int] = {}
    holds = held_types(draft.spec, draft.in_state(_S.ALLOCATED), draft.snapshot.cloud or {}, draft.now)
    for instance in draft.in_state(_S.QUEUED):
        known, hold = draft.types.get(instance.node_type), holds.get(instance.node_type)
        held = "" if hold is None or hold.is_soft else hold.message
        reason = held or _failed(draft, instance)
        if known is not None and known.offers and instance.offer and not known.offer(instance.offer_name):
            reason = reason or f"{known.name} is no longer offered as {instance.offer_name}"
        if not reason and known is not None and known.offers and instance.offer is None:
            if known.name not in left:
                left[known.name] = sum(each.room for each in draft.choices_of(known))
            left[known.name] -= 1
            if left[known.name] < 0:
                reason = f"every offer of {known.name} is backed off or at its maximum"
        if reason:
            draft.move(instance, _S.TERMINATED, f"withdrawn: {reason}")


def _failed(draft: Draft, instance: Instance) -> str:
    for name in (instance.node_type, health_key(instance.node_type, instance.offer_name)):
        health = draft.decided.health.get(name)
        if health is not None and is_blocked(health, draft.now):
            return f"{name} is backed off ({health.kind.value}: {health.message})"
    return ""


def repair(draft: Draft) -> None:
    """Quarantine the records that cannot be used; the rest of the tick continues."""
    on_cloud = ON_CLOUD
    for instance in [
        i
        for i in draft.instances.values()
        if not (  # nearly all of them are as they should be
            i.cloud_id
            and i.node_type
            and i.history
            and i.history[-1].state is i.state
            and i.state in on_cloud
        )
    ]:
        history = instance.history
        dated = bool(history) and history[-1].state is instance.state
        fault = _fault(instance)
        if fault:
            _close(draft, instance, fault)
        elif not dated and all(change.state is not instance.state for change in history):
            # Without a date every timeout would fire at once, so the time starts now.
            draft.quarantine(
                f"record {instance.instance_id}",
                f"its history does not contain when it became {instance.state.name}",
            )
            entry = StatusChange(instance.state, draft.now, "history was incomplete: counted from here")
            draft.amend(instance, history=(*instance.history, entry))


def _fault(instance: Instance) -> str:
    """Return what is missing for the record's state; "" when nothing is."""
    state = instance.state
    if state is _S.UNKNOWN or state in TERMINAL:
        return f"{state.name} is not a state of a live record"
    if not instance.node_type:
        return "it has no node type"
    if state in ON_CLOUD and not instance.cloud_id:
        return f"{state.name} needs a cloud id"
    if state is _S.REQUESTED and not instance.launch_request_id:
        return "REQUESTED needs a launch request id"
    return ""


def _close(draft: Draft, instance: Instance, fault: str) -> None:
    """A record that refers to nothing ends. Its machine, if the cloud lists one, is adopted."""
    if instance.state is _S.UNKNOWN or instance.state in TERMINAL:
        draft.set_aside(instance, fault)
        return
    draft.quarantine(f"record {instance.instance_id}", f"{fault}: closed")
    target = _S.ALLOCATION_FAILED if instance.state is _S.REQUESTED else _S.TERMINATED
    draft.move(instance, target, f"closed: {fault}")
