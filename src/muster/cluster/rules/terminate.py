"""Gives back machines that serve nothing any more, in one call; never the head, never one not yet listed."""

from __future__ import annotations

from muster.base.ids import RequestId
from muster.cluster.model import Instance, StopCause
from muster.cluster.plan import Terminate
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.states import ON_CLOUD, InstanceState

_S = InstanceState
_DONE = (_S.RAY_STOPPED, _S.ALLOCATION_TIMEOUT, _S.RAY_INSTALL_FAILED, _S.TERMINATION_FAILED)
_CANCELLED = (_S.ALLOCATED, _S.RAY_INSTALLING)


def terminate(draft: Draft) -> None:
    """Terminates machines; runs before launch, so that a provider with a fixed number of places has room."""
    _close_stale(draft)
    if draft.seen.traits.read_only:
        return
    going: dict[str, Instance] = {}
    cancelled = [i for i in draft.in_state(*_CANCELLED) if i.cancelled]
    for instance in (*draft.in_state(*_DONE), *cancelled):
        if is_head(instance) or instance.provisional or not _is_due(draft, instance):
            continue
        if not _may_be_at_work(draft, instance):
            moved = draft.move(instance, _S.TERMINATING, _why(instance))
        elif _is_unpaid(draft):
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
    active = _active_owners(draft) if done else set()
    for instance in done:
        if instance.cloud_id in active:
            draft.move(instance, _S.TERMINATED, "another record owns the machine now")


def _active_owners(draft: Draft) -> set[str]:
    """Returns the machines held by a record that still uses them."""
    return {i.cloud_id for i in draft.instances.values() if i.cloud_id and i.state in _HOLDING}


_HOLDING = ON_CLOUD - frozenset(_DONE)


def _may_be_at_work(draft: Draft, instance: Instance) -> bool:
    """Returns whether a node that cannot be seen may be at work on a machine that is to go."""
    if instance.state is _S.RAY_STOPPED:
        return draft.may_be_restarted(instance)
    return instance.state in _CANCELLED and (draft.seen.runtime is None or draft.may_work_unseen(instance))


def _is_unpaid(draft: Draft) -> bool:
    """Returns whether there is no money to wait for work that cannot be seen."""
    return draft.budget is not None and draft.budget.is_overdue


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
