"""Turn records into effects: terminate machines, install the runtime on new ones, end an unused cluster.

`launch` has a file for itself. The head is never terminated, nor is a machine that is not listed yet.
"""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.ids import RequestId
from muster.cluster.model import CloudInstance, IdleCluster, Instance, Offer, StopCause
from muster.cluster.plan import EndCluster, Install, Reason, Terminate, base_id
from muster.cluster.rules.draft import AWAITED, Draft, is_head
from muster.cluster.snapshot import WithoutDrivers
from muster.cluster.states import ON_CLOUD, InstanceState

_S = InstanceState
_DONE = (_S.RAY_STOPPED, _S.ALLOCATION_TIMEOUT, _S.RAY_INSTALL_FAILED, _S.TERMINATION_FAILED)
_HOLDING = ON_CLOUD - frozenset(_DONE)  # a record in these states still uses its machine


def terminate(draft: Draft) -> None:
    """Terminate machines; run before launch, so that a provider with a fixed number of places has room."""
    _close_stale(draft)
    if draft.snapshot.traits.read_only:
        return
    going: dict[str, Instance] = {}
    cancelled = [i for i in draft.in_state(*AWAITED) if i.cancelled]
    for instance in (*draft.in_state(*_DONE), *cancelled):
        if is_head(instance) or instance.provisional or not _is_due(draft, instance):
            continue
        if not _may_be_at_work(draft, instance):
            moved = draft.move(instance, _S.TERMINATING, _why(instance))
        elif draft.budget is not None and draft.budget.is_overdue:  # no money to wait for unseen work
            text = f"{_why(instance)}; the budget is used up, and does not pay for waiting"
            moved = draft.move(instance, _S.TERMINATING, text, stop_cause=StopCause.BUDGET)
        else:
            continue
        if moved is not None and moved.cloud_id:
            going[moved.cloud_id] = moved
    if going:
        ids = tuple(i.instance_id for i in going.values())
        cloud_ids = tuple(i.cloud_id for i in going.values() if i.cloud_id)
        draft.act(Terminate(request_id=RequestId(draft.fresh("t")), cloud_ids=cloud_ids, instance_ids=ids))


def _close_stale(draft: Draft) -> None:
    """A record whose machine serves under another record ends without a call; the head's old one too."""
    done = draft.in_state(*_DONE)
    holding = (i for i in draft.instances.values() if i.cloud_id and i.state in _HOLDING)
    active = {i.cloud_id for i in holding} if done else set()
    for instance in done:
        if instance.cloud_id in active:
            draft.move(instance, _S.TERMINATED, "another record owns the machine now")


def _may_be_at_work(draft: Draft, instance: Instance) -> bool:
    """Return whether a node that cannot be seen may be at work on a machine that is to go."""
    if instance.state is _S.RAY_STOPPED:
        return draft.may_be_restarted(instance)
    return instance.state in AWAITED and (draft.snapshot.runtime is None or draft.may_work_unseen(instance))


def _is_due(draft: Draft, instance: Instance) -> bool:
    """The first refusal is retried at once, later ones after a doubling pause: never a hot loop."""
    if instance.state is not _S.TERMINATION_FAILED:
        return True
    refusals = len(instance.entered(_S.TERMINATION_FAILED))
    policy = draft.spec.backoff
    pause = 0.0 if refusals <= 1 else min(policy.max_s, policy.base_s * 2.0 ** min(refusals - 2, 30))
    return draft.now - instance.since >= pause


def _why(instance: Instance) -> str:
    cause = f" ({instance.stop_cause.name.lower()})" if instance.stop_cause else ""
    return f"terminated after {instance.state.name}{cause}: {instance.details}".rstrip(": ")


def install(draft: Draft) -> None:
    """Start the installation on workers. Waits without a report: a node may already run there."""
    cloud = draft.snapshot.cloud
    if cloud is None or draft.snapshot.runtime is None:
        return
    if draft.snapshot.traits.installs_runtime or not draft.spec.install_runtime:
        return
    for instance in draft.in_state(_S.ALLOCATED):
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        if machine is None or not machine.is_running or is_head(instance):
            continue
        if not _is_new(draft, instance, machine) and draft.may_work_unseen(instance):
            continue  # adopted, or of an earlier request: a node that cannot be matched may run there
        if draft.move(instance, _S.RAY_INSTALLING, "the machine is up"):
            offer = instance.offer or Offer(market="")  # `ray start` makes labels of it
            place = {"RAY_NODE_ZONE": offer.zone, "RAY_NODE_MARKET_TYPE": offer.market}
            draft.act(
                Install(
                    request_id=RequestId(draft.fresh("s")),
                    instance_id=instance.instance_id,
                    cloud_id=machine.cloud_id,
                    node_type=instance.node_type,
                    place={name: value for name, value in place.items() if value},
                )
            )


def _is_new(draft: Draft, instance: Instance, machine: CloudInstance) -> bool:
    """Return whether the machine was launched for this record, as far as its tag shows, by this head.

    What was requested before the head's own record began was requested by an earlier head, which may have
    set the machine up after the copy of the ledger was made that this one started from.
    """
    request = machine.request_id
    is_own = request is None or base_id(request) == instance.launch_request_id
    heads = (one.history[0].at for one in draft.instances.values() if is_head(one) and one.history)
    return is_own and any(at >= min(heads, default=0.0) for at in instance.entered(_S.REQUESTED)[-1:])


AGAIN_S = 60.0  # a cluster that should have ended and still runs is asked again


def idle_cluster(draft: Draft) -> None:
    """Count the time without drivers: from the first report that shows none, or from the end of the newest.

    What is not known counts as a driver: the cluster must not end under somebody's work.
    """
    wanted, known = draft.spec.idle_cluster, draft.decided.without_drivers
    drivers = draft.snapshot.runtime.drivers if draft.snapshot.runtime is not None else None
    if wanted is None or drivers is None or drivers.live > 0:
        newest = known.last_end if drivers is None else max(known.last_end, drivers.last_end)
        draft.decided.without_drivers = (
            WithoutDrivers() if wanted is None else WithoutDrivers(last_end=newest)
        )
        return
    # One that came and went between two ticks is known by its end alone.
    is_new = known.since is None or drivers.last_end > known.last_end
    if is_new:
        known = WithoutDrivers(since=draft.now, last_end=max(known.last_end, drivers.last_end))
    draft.decided.without_drivers = _end_if_due(draft, known, wanted)


def _end_if_due(draft: Draft, known: WithoutDrivers, wanted: IdleCluster) -> WithoutDrivers:
    idle_s = draft.now - (draft.now if known.since is None else known.since)
    can = wanted.policy in draft.snapshot.traits.idle_policies
    verb = {"suspend": "suspended", "delete": "deleted"}[wanted.policy.value]
    ends = (
        f"it is {verb} after {wanted.timeout_s:g} s"
        if can
        else f"the provider cannot {wanted.policy.value} it"
    )
    draft.add_cluster_verdict(Reason.WITHOUT_DRIVERS, f"no driver uses the cluster; {ends}")
    is_due = idle_s >= wanted.timeout_s and can and not draft.snapshot.traits.read_only
    if not is_due or (known.asked_at is not None and draft.now - known.asked_at < AGAIN_S):
        return known
    draft.act(EndCluster(request_id=RequestId(draft.fresh("e")), policy=wanted.policy))
    return replace(known, asked_at=draft.now)
