"""Moves QUEUED to REQUESTED: one Launch per request id, within concurrency and upscaling speed."""

from __future__ import annotations

import math
from collections import Counter

from muster.base.ids import RequestId
from muster.cluster.model import Instance, LaunchLimits, StopCause
from muster.cluster.plan import Launch, attempt_id
from muster.cluster.rules.draft import Draft
from muster.cluster.states import InstanceState

_S = InstanceState


def launch(draft: Draft) -> None:
    """Requests the oldest records first; a retried one keeps its place and its request id.

    What the planner took for gone may still come or stay (a request in flight, a refused idle drain), so the
    limits are compared once more with what exists; records without room stay QUEUED.
    """
    queued = sorted(draft.in_state(_S.QUEUED), key=lambda i: i.entered(_S.QUEUED))
    if not queued or draft.seen.traits.read_only:
        return
    by_type: dict[str, list[Instance]] = {}
    for instance in draft.in_state(_S.QUEUED):  # types in the order of the ledger
        by_type.setdefault(instance.node_type, [])
    for instance in queued:
        by_type[instance.node_type].append(instance)
    running = Counter(instance.node_type for instance in draft.in_state(_S.RAY_RUNNING))
    requested, taken = draft.count(_S.REQUESTED), _taken(draft)
    chosen: list[Instance] = []
    for name, waiting in by_type.items():
        room = min(draft.spec.limits.max_concurrent - requested, _room(draft, taken, name))
        batch = waiting[: max(0, min(room, _at_once(draft.spec.limits, running[name])))]
        requested += len(batch)
        taken[name] += len(batch)
        chosen.extend(batch)
    _request(draft, chosen)


def _taken(draft: Draft) -> Counter[str]:
    """Returns the machines by type that stay, or may come or come back, without those of others."""
    kept = (i for i in draft.in_state(*_STAYING) if not i.cancelled)
    ours = (i for i in kept if i.launch_request_id or not i.provisional)
    stopping = draft.in_state(_S.RAY_STOP_REQUESTED)
    idle = (i for i in stopping if i.stop_cause in (None, StopCause.IDLE))
    return Counter(i.node_type for i in (*ours, *idle, *draft.in_state(_S.REQUESTED)))


_STAYING = (_S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING)


def _room(draft: Draft, taken: Counter[str], name: str) -> int:
    known, most = draft.types.get(name), draft.spec.max_nodes
    of_type = known.max_nodes - taken[name] if known else 0
    return of_type if most is None else min(of_type, most - taken.total())


def _at_once(limits: LaunchLimits, running: int) -> int:
    """Returns how many machines of one type may be requested in one tick; an unusable speed counts as 0."""
    speed: object = limits.upscaling_speed
    if not isinstance(speed, int | float) or math.isnan(speed):
        return 1
    return math.ceil(max(1.0, min(speed * max(running, 1), float(limits.max_concurrent))))


def _request(draft: Draft, chosen: list[Instance]) -> None:
    calls: dict[RequestId, list[Instance]] = {}
    fresh: RequestId | None = None
    for instance in chosen:
        base = instance.launch_request_id
        if base is None:
            base = fresh = fresh or RequestId(draft.fresh("r"))
        # Price and hash are those of the config this very launch is made with.
        terms = draft.terms_of(instance.node_type)
        moved = draft.move(instance, _S.REQUESTED, "asked from the provider", launch_request_id=base, **terms)
        if moved is not None:
            attempt = len(moved.entered(_S.REQUESTED))
            calls.setdefault(attempt_id(base, attempt, draft.seen.tick_id), []).append(moved)
    for request_id, members in calls.items():
        shape = dict(Counter(instance.node_type for instance in members))
        ids = tuple(i.instance_id for i in members)
        draft.act(Launch(request_id=request_id, shape=shape, instance_ids=ids))
