"""Drain the nodes whose machines the cloud will take, until the deadline that it announced.

Runs before the planner: a node under notice serves nothing new in the same tick, so its replacement is
planned at once, and not from the pool (type, zone, market) that gave the notice, where there is another.
"""

from __future__ import annotations

from datetime import datetime, timezone

from msgspec.structs import replace

from muster.cluster.backoff import decayed_failures, is_blocked
from muster.cluster.model import (
    FailureKind,
    Instance,
    NodeStatus,
    NodeType,
    Notice,
    NoticeKind,
    StopCause,
    health_key,
)
from muster.cluster.plan import Reason, drain_of
from muster.cluster.rules.draft import Draft, is_head
from muster.cluster.snapshot import TypeHealth
from muster.cluster.states import ON_CLOUD, InstanceState

_S = InstanceState
SKEW_S = 30.0  # between the clocks of machines, and until a node that runs is seen
NEARER_S = 1.0  # times of one notice that is read twice differ by less
OVER_S = 3600.0  # a machine that lives so long after its deadline was not taken
_LEAVING = (_S.RAY_STOP_REQUESTED, _S.RAY_STOPPING)
_SAID = {
    NoticeKind.INTERRUPTION: "the cloud takes its machine",
    NoticeKind.MAINTENANCE: "the cloud stops its machine for maintenance",
    NoticeKind.REBALANCE: "the cloud may take its machine soon",
}


def notices(draft: Draft) -> None:
    """Act on every notice once; one that is repeated changes nothing, one that was cancelled is undone."""
    given = draft.snapshot.notices
    known = draft.decided.noticed or draft.decided.drained_until
    if draft.snapshot.traits.read_only or not (given or known):
        return
    if given is None or draft.snapshot.runtime is None:
        _drain_refused(draft)
        return
    before = draft.decided.noticed_at
    draft.decided.noticed_at = {
        n.cloud_id: earlier
        if (earlier := before.get(n.cloud_id)) and earlier[0] == n.written_at
        else (n.written_at, draft.now)
        for n in given
    }
    owners = {i.cloud_id: i for i in draft.instances.values() if i.cloud_id and i.state in ON_CLOUD}
    noticed: dict[str, NoticeKind] = {}
    for notice in given:
        owner = owners.get(notice.cloud_id)
        if owner is None:
            _note_unknown(draft, notice, noticed)
        elif notice.is_cancelled:
            _take_back(draft, owner, notice)
        elif _is_over(draft, owner, notice):
            draft.quarantine(f"notice {notice.cloud_id}", f"{text_of(notice)}, which is over: ignored")
        else:
            noticed[notice.cloud_id] = notice.kind
            _act(draft, owner, notice)
    draft.decided.noticed = noticed
    until = draft.decided.drained_until.items()
    draft.decided.drained_until = {name: at for name, at in until if name in owners}


def _drain_refused(draft: Draft) -> None:
    """Where notices or nodes cannot be read, what is remembered counts for nodes that refused to be drained.

    Their replacements are on the way: a node that serves again beside its own would be one too many.
    """
    for owner in draft.in_state(_S.RAY_RUNNING):
        kind = draft.decided.noticed.get(owner.cloud_id or "")
        is_back = owner.since == draft.now and owner.entered(_S.RAY_STOP_REQUESTED)
        if kind is not None and is_back and owner.cloud_id:
            _act(draft, owner, Notice(cloud_id=owner.cloud_id, kind=kind, at=draft.now))


def _is_over(draft: Draft, owner: Instance, notice: Notice) -> bool:
    """Return whether the machine outlived its notice: it was not taken, or has a new life since.

    A machine that was stopped and started again, or whose runtime was restarted, has a newer record. The
    clock by which the notice was written may have been set since.
    """
    _, read_at = draft.decided.noticed_at[notice.cloud_id]
    if owner.history and owner.history[0].at - read_at > SKEW_S:
        return True
    if notice.at is not None and owner.history and owner.history[0].at - notice.at > SKEW_S:
        return True
    if notice.deadline is None:
        return False
    began = min(owner.entered(_S.RAY_RUNNING), default=notice.deadline)
    return draft.now - notice.deadline > OVER_S or began > notice.deadline


def text_of(notice: Notice) -> str:
    """Return the notice in words, with its time and where it was read."""
    at = "" if notice.deadline is None else f" at {_utc(notice.deadline)}"
    source = f" ({notice.source})" if notice.source else ""
    return f"{_SAID[notice.kind]}{at}{source}"


def _utc(at: float) -> str:
    try:
        return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (OverflowError, ValueError, OSError):
        return f"{at:g}"


def _note_unknown(draft: Draft, notice: Notice, noticed: dict[str, NoticeKind]) -> None:
    """A machine that is gone by now was known when its notice came; others are reported."""
    if notice.cloud_id in draft.decided.noticed or notice.cloud_id in draft.decided.ended_machines:
        noticed[notice.cloud_id] = notice.kind
    elif not notice.is_cancelled:
        text = f"{text_of(notice)}, but no machine of this cluster has this id: ignored"
        draft.quarantine(f"notice {notice.cloud_id}", text)


def _act(draft: Draft, owner: Instance, notice: Notice) -> None:
    left_s = _left_s(draft, notice)
    is_new = draft.decided.noticed.get(notice.cloud_id) is not notice.kind
    if is_new and notice.kind is not NoticeKind.MAINTENANCE:
        _pause_pool(draft, owner, notice)
    if owner.state in _LEAVING and left_s is not None:
        _hurry(draft, owner, notice, max(0.0, left_s))
    if owner.state is not _S.RAY_RUNNING:
        return  # it leaves already, or nothing runs there yet
    is_due = left_s is not None and left_s <= draft.spec.notices.ahead_s
    if is_due and owner.node_id and not owner.provisional and not is_head(owner):
        # A drain that was refused or got lost is repeated in the same tick: its replacement may have come.
        if draft.move(owner, _S.RAY_STOP_REQUESTED, text_of(notice), stop_cause=StopCause.NOTICE) is not None:
            _ask(draft, owner, notice, max(0.0, left_s or 0.0))
    else:
        head = "; this is the head, which is not drained: save what you need" if is_head(owner) else ""
        draft.add_node_verdict(owner, Reason.WILL_BE_TAKEN, f"{text_of(notice)}{head}", last=True)


def _left_s(draft: Draft, notice: Notice) -> float | None:
    """Return the seconds that the node has left; None when it stays for the time being."""
    if notice.kind is NoticeKind.REBALANCE:
        limit_s = draft.spec.notices.rebalance_s
        return limit_s if limit_s is None else min(limit_s, draft.spec.notices.ahead_s)
    if notice.deadline is None:
        return draft.spec.timeouts.drain_deadline_s
    return notice.deadline - draft.now


def _hurry(draft: Draft, owner: Instance, notice: Notice, left_s: float) -> None:
    """A drain that is under way gets a deadline that has come nearer; the runtime takes the newest one.

    A node that is drained because it is idle has nothing to finish, and drains of others are theirs.
    """
    if owner.stop_cause in (None, StopCause.IDLE) or not owner.node_id or is_head(owner):
        return
    asked = max(owner.entered(_S.RAY_STOP_REQUESTED), default=draft.now)
    told = draft.decided.drained_until.get(notice.cloud_id, asked + draft.spec.timeouts.drain_deadline_s)
    if draft.now + left_s <= told - NEARER_S:
        _ask(draft, owner, notice, left_s)


def _ask(draft: Draft, owner: Instance, notice: Notice, left_s: float) -> None:
    draft.decided.drained_until = {**draft.decided.drained_until, notice.cloud_id: draft.now + left_s}
    draft.act(drain_of(owner, draft.fresh("d"), StopCause.NOTICE, left_s, text_of(notice)))


def _take_back(draft: Draft, owner: Instance, notice: Notice) -> None:
    """A drain that has not begun is given up; one that has cannot be: the runtime knows no way back.

    It continues, also one that was refused, where there is no room for the node beside its replacement.
    """
    key = health_key(owner.node_type, owner.offer_name)
    paused = draft.decided.health.get(key)
    if paused is not None and owner.offer_name and paused.message == text_of(notice):
        del draft.decided.health[key]
        if paused.is_on_trial:
            draft.decided.health[key] = replace(paused, blocked_until=draft.now)
    before, has_room = draft.snapshot.instances.get(owner.instance_id, owner), _has_room(draft, owner)
    if owner.state is _S.RAY_RUNNING and before.stop_cause is StopCause.NOTICE and not has_room:
        left_s = draft.decided.drained_until.get(notice.cloud_id, draft.now) - draft.now
        draft.move(owner, _S.RAY_STOP_REQUESTED, text_of(notice), stop_cause=StopCause.NOTICE)
        _ask(draft, owner, notice, max(0.0, left_s))
    if owner.state is not _S.RAY_STOP_REQUESTED or owner.stop_cause is not StopCause.NOTICE:
        return
    node = draft.nodes.get(owner.node_id or "")
    if node is not None and node.status in (NodeStatus.RUNNING, NodeStatus.IDLE) and has_room:
        draft.move(owner, _S.RAY_RUNNING, "the cloud took its notice back", stop_cause=None)


def _has_room(draft: Draft, owner: Instance) -> bool:
    others = [one for one in (*draft.holding(), *draft.in_state(_S.QUEUED)) if one is not owner]
    known, most = draft.types.get(owner.node_type), draft.spec.max_nodes
    of_type = sum(one.node_type == owner.node_type for one in others)
    return known is not None and of_type < known.max_nodes and (most is None or len(others) < most)


def _pause_pool(draft: Draft, owner: Instance, notice: Notice) -> None:
    """Launch nothing from the pool for a while, unless it is the only one that has such machines."""
    known = draft.types.get(owner.node_type)
    if known is None or not owner.offer_name or not _has_alternative(draft, known, owner.offer_name):
        return
    key = health_key(owner.node_type, owner.offer_name)
    health = draft.decided.health.get(key, TypeHealth())
    until = draft.now + draft.spec.notices.pool_pause_s
    if until <= health.blocked_until:
        return
    draft.decided.health[key] = replace(
        health,
        failures=decayed_failures(health, draft.now, draft.spec.backoff) + 1.0,
        failed_at=draft.now,
        blocked_until=until,
        kind=FailureKind.CAPACITY,
        message=text_of(notice),
    )


def _has_alternative(draft: Draft, known: NodeType, offer_name: str) -> bool:
    """Return whether machines as large as these can be launched now from another pool."""
    head = draft.spec.head_node_type
    return any(
        other.resources.holds(known.resources) and _can_be_launched(draft, other, known, offer_name)
        for other in draft.spec.node_types
        if other.name != head or head == known.name
    )


def _can_be_launched(draft: Draft, other: NodeType, known: NodeType, offer_name: str) -> bool:
    if other.max_nodes <= 0 or is_blocked(draft.decided.health.get(other.name), draft.now):
        return False
    if not other.offers:
        return other is not known
    return any(
        each.room > 0 and (other is not known or each.offer.name != offer_name)
        for each in draft.choices_of(other)
    )
