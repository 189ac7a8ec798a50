"""Match machines to records: arrived, refused, missing, gone, not terminated, or without a record.

A machine (M) names the request that it answers in its tag, where the provider keeps tags. A record is
provisional (P) while only a node shows that its machine exists, because no list has shown the machine yet;
which request such a node answers is a guess, which the list may correct. So they meet in four ways:

    M has         its request          what happens                                           where
    ------------  -------------------  -----------------------------------------------------  --------------
 1  no record     W waits for it       W gets M: by the tag first, then by type, oldest first  _match
 2  a record P    W waits for it       P and W swap requests: P had guessed W's (a)            _confirm
 3  no record     P has guessed it     P and the next W of the type swap requests, W gets M    _pass_on
 4  no record     P or a QUEUED        a new record takes M and the request; P answers the     _adopt
                  record has it        next QUEUED request of the type, or none

(a) A P that has guessed no request keeps M and takes over a QUEUED one, or hands M over to a REQUESTED W.
    Where nobody waits for M's request, P keeps M. If M is of another type, the guessed request waits again.
A machine that nobody asked for gets a record without a request (_adopt).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from muster.base.ids import CloudId, RequestId
from muster.cluster.backoff import after_refusals, after_success, by_attempt
from muster.cluster.identity import as_requested, requested_types, type_of
from muster.cluster.model import CloudInstance, Instance, NodeKind, NodeStatus, Offer, StopCause, health_key
from muster.cluster.plan import Reason, base_id
from muster.cluster.rules.draft import AWAITED, MISSED_S, SERVING, Draft, fields_of_request, is_head
from muster.cluster.states import ON_CLOUD, InstanceState

_S = InstanceState


def observe_cloud(draft: Draft) -> None:
    """Mirror what the provider lists; decides nothing."""
    cloud = draft.snapshot.cloud
    if cloud is None:
        draft.add_cluster_verdict(
            Reason.CLOUD_UNREADABLE, "the provider could not list its machines; nothing was concluded"
        )
        _fail_refused(draft)
        _note_terminate_failures(draft)
        return
    _end_reused(draft, cloud)
    running = _S.RAY_RUNNING  # nearly all, with nothing unusual about them
    unusual = [
        i
        for i in draft.in_state(*_ON_CLOUD_ORDERED)
        if i.missing_since is not None
        or i.launch_request_id is None
        or i.cloud_id not in cloud
        or (i.state is not running and not i.internal_ip)
    ]
    for instance in unusual:  # first: the tags show which requests still wait
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        if machine is not None:
            _confirm(draft, instance, machine)
            _correct_type(draft, draft.instances[instance.instance_id], instance.provisional, machine)
    unowned = _unowned(draft, cloud)
    _bind_arrivals(draft, unowned)
    _fail_refused(draft)
    _note_vanished(draft, cloud, unusual)
    _note_terminate_failures(draft)
    _adopt(draft, unowned.values())


def _end_reused(draft: Draft, cloud: Mapping[CloudId, CloudInstance]) -> None:
    """End records that were released and whose cloud id is listed for a request of another record."""
    leaving = draft.in_state(_S.TERMINATING, _S.TERMINATION_FAILED)
    waiting = {i.launch_request_id for i in draft.in_state(_S.REQUESTED)} if leaving else set()
    for instance in leaving:
        machine = cloud.get(instance.cloud_id) if instance.cloud_id else None
        request = base_id(machine.request_id) if machine is not None and machine.request_id else None
        if request in waiting and request not in (None, instance.launch_request_id):
            draft.move(instance, _S.TERMINATED, "its cloud id is used again, for another request")


def _unowned(draft: Draft, cloud: Mapping[CloudId, CloudInstance]) -> dict[CloudId, CloudInstance]:
    """Machines that no live record holds, without unusable and unmanaged ones."""
    owned = {i.cloud_id for i in draft.in_state(*_ON_CLOUD_ORDERED)}
    result: dict[CloudId, CloudInstance] = {}
    left = [] if cloud.keys() <= owned else [m for name, m in cloud.items() if name not in owned]
    if not left:
        return result
    types = requested_types(draft.instances.values(), left)
    places = {(m.request_id, m.internal_ip) for name, m in cloud.items() if name in owned}
    for machine in left:
        place = machine.request_id, machine.internal_ip  # no two machines have both
        if all(place) and place in places:
            draft.quarantine(f"machine {machine.cloud_id}", "listed under another id, too: ignored")
            continue
        places.add(place)
        usable = as_requested(machine, types, draft.types)
        if usable is not machine:
            text = f"requested as {usable.node_type!r}, listed as {machine.node_type!r}: correct its type tag"
            draft.quarantine(f"machine {machine.cloud_id}", text)
        if machine.kind is not NodeKind.UNMANAGED and usable.node_type:
            result[machine.cloud_id] = usable
            continue
        text = f"kind {machine.kind.name}, type {machine.node_type!r}: not ours"
        if machine.kind is not NodeKind.UNMANAGED:
            draft.unusable += 1
            text = "without a node type it cannot be used, and counts against limits: tag or terminate it"
        draft.quarantine(f"machine {machine.cloud_id}", text)
    return result


def _bind_arrivals(draft: Draft, unowned: dict[CloudId, CloudInstance]) -> None:
    """REQUESTED records get their machines.

    An id that was released answers a request that was made later: the provider uses ids again. A request of
    the same tick was made after the machine had ended; there only the tag shows what it answers.
    """
    known = draft.decided.ended_machines
    returned = {c: m for c, m in unowned.items() if c in known} if known else {}
    _match(draft, draft.in_state(_S.REQUESTED), {c: m for c, m in unowned.items() if c not in known}, unowned)
    if not returned:
        return
    requested = draft.in_state(_S.REQUESTED)
    made_at = {i.launch_request_id: i.since for i in requested}
    tags = {c: base_id(m.request_id) for c, m in returned.items() if m.request_id}
    named = {c: returned[c] for c, tag in tags.items() if made_at.get(tag, float("-inf")) >= known[c]}
    if named:
        _match(draft, [i for i in requested if i.launch_request_id in tags.values()], named, unowned)
    since = max(known[c] for c in returned)
    left = {c: m for c, m in returned.items() if c in unowned}
    _match(draft, [i for i in draft.in_state(_S.REQUESTED) if i.since > since], left, unowned)


def _match(
    draft: Draft,
    requested: Sequence[Instance],
    machines: Mapping[CloudId, CloudInstance],
    unowned: dict[CloudId, CloudInstance],
) -> None:
    """Way 1: bind machines first by request id, then by type, oldest request first."""
    waiting = sorted(requested, key=lambda i: i.entered(_S.REQUESTED))
    by_request: dict[tuple[RequestId, str], deque[CloudInstance]] = {}
    for machine in machines.values():
        if machine.request_id:
            by_request.setdefault((base_id(machine.request_id), machine.node_type), deque()).append(machine)
    left = []
    for instance in waiting:
        queue = by_request.get((instance.launch_request_id or RequestId(""), instance.node_type))
        if queue:
            _bind(draft, instance, queue.popleft(), unowned)
        else:
            left.append(instance)
    # A tagged machine whose own request still waits must not be given to another record.
    open_requests = {i.launch_request_id for i in left}
    by_type: dict[str, deque[CloudInstance]] = {}
    for machine in machines.values():
        if machine.cloud_id not in unowned:
            continue
        # Where launches may be listed late, one that was given up does not stand for another under way.
        is_late = machine.request_id and draft.snapshot.traits.listed_within_s > 0
        if not is_late and (not machine.request_id or base_id(machine.request_id) not in open_requests):
            by_type.setdefault(machine.node_type, deque()).append(machine)
    for instance in left:
        queue = by_type.get(instance.node_type)
        if queue:
            _bind(draft, instance, queue.popleft(), unowned)


def _bind(
    draft: Draft, instance: Instance, machine: CloudInstance, unowned: dict[CloudId, CloudInstance]
) -> None:
    del unowned[machine.cloud_id]
    moved = draft.move(
        instance,
        _S.ALLOCATED,
        "the provider lists the machine",
        cloud_id=machine.cloud_id,
        kind=machine.kind,
        requested_at=instance.requested_at if machine.request_id else None,
        launch_hash=machine.launch_hash or instance.launch_hash,
        internal_ip=machine.internal_ip,
        external_ip=machine.external_ip,
        **_reported_terms(draft, machine, instance.offer),
    )
    if moved is not None and moved.offer is not None:
        _forgive(draft, moved, moved.offer)


def _forgive(draft: Draft, instance: Instance, offer: Offer) -> None:
    """A machine that came shows that its offer sells again, unless a refusal is newer than its request."""
    key = health_key(instance.node_type, offer.name)
    health = draft.decided.health.get(key)
    asked = max(instance.entered(_S.REQUESTED), default=float("-inf"))
    if health is None or asked <= health.failed_at:
        return
    del draft.decided.health[key]
    if (left := after_success(health, draft.now, draft.spec.backoff)) is not None:
        draft.decided.health[key] = left


def _reported_terms(draft: Draft, machine: CloudInstance, asked: Offer | None) -> dict[str, Any]:
    """A machine that came from another offer than was asked for costs what that one costs."""
    known = draft.types.get(machine.node_type)
    if known is None or not known.offers or not (machine.zone or machine.market):
        return {}
    expected = asked or Offer()
    came = Offer(zone=machine.zone or expected.zone, market=machine.market or expected.market)
    if asked is not None and came.name == asked.name:
        return {}
    found = known.offer(came.name) or replace(came, price_per_hour=known.price_per_hour)
    return {"offer": found, "price_per_hour": found.price_per_hour}


def _fail_refused(draft: Draft) -> None:
    """Each refused unit fails exactly one record; a batch of five with one refusal keeps four.

    A late refusal of an earlier attempt does not concern the attempt under way.
    """
    failures, known = draft.snapshot.launch_failures, draft.snapshot.instances.values()
    if not failures:
        return
    draft.decided.health |= after_refusals(
        draft.decided.health, failures, known, draft.now, draft.spec.backoff
    )
    refused = by_attempt(failures)
    for instance in sorted(draft.in_state(_S.REQUESTED), key=lambda i: i.entered(_S.REQUESTED)):
        asked = len(instance.entered(_S.REQUESTED))
        queue = refused.get((instance.launch_request_id or RequestId(""), asked, instance.node_type))
        if queue:
            failure = queue.popleft()
            if failure.may_exist:
                draft.expect_late(instance)
            draft.move(instance, _S.ALLOCATION_FAILED, f"{failure.kind.value}: {failure.message}")


def _note_vanished(draft: Draft, cloud: Mapping[CloudId, CloudInstance], unusual: Sequence[Instance]) -> None:
    """Note which machines the list lacks, and ends the records of those that are gone for good.

    Lists are eventually consistent: in every state a machine may be late, or left out for a while.
    """
    missing = [i for i in unusual if i.cloud_id not in cloud]
    alive = _alive(draft) if missing else set()
    looked_at = draft.decided.listed_at
    for known in missing:
        instance = known
        lives = None in alive or instance.node_id in alive or instance.cloud_id in alive
        is_waited_for = instance.provisional or instance.state in _WAITED_FOR or not lives
        if is_waited_for:
            instance = _without_blind_time(draft, instance, looked_at, _patience_s(draft, instance, lives))
        if is_waited_for or instance.instance_id in draft.decided.unreported:  # as a replaced head's node is
            draft.decided.listed_at = draft.now
        if not _is_gone(draft, instance, lives):
            if instance.missing_since is None:
                draft.amend(instance, missing_since=draft.now)
        elif instance.state in AWAITED and _may_be_ended(draft, instance):
            draft.move(instance, _S.RAY_STOPPED, "the cloud no longer lists its machine")
            if instance.requested_at is None:
                draft.expect_late(instance)  # it was taken for the answer to the request by its type alone
        else:
            draft.move(instance, _S.TERMINATED, "the cloud no longer lists it")
            if instance.provisional:
                draft.expect_late(instance)  # a list has never shown it, and may still do so
            if instance.cloud_id and instance.state in _RELEASED:
                draft.decided.ended_machines[instance.cloud_id] = draft.now


def _without_blind_time(
    draft: Draft, instance: Instance, looked_at: float | None, limit_s: float
) -> Instance:
    """Time in which nobody looked is not time in which lists lacked a machine, and the clock may be wrong.

    Of the time between two lists at most the grace counts. It never brings the end of the wait by itself:
    after a controller was down, or could not read the list, it takes one more list than that.
    """
    since = instance.missing_since
    if since is None or looked_at is None:
        return instance
    waited_s, grace_s = max(since, looked_at) - since, draft.spec.timeouts.listing_grace_s
    if draft.now - since - waited_s <= grace_s:
        return instance
    counted_s = waited_s + grace_s
    if waited_s < limit_s:
        counted_s = min(counted_s, limit_s)
    return draft.amend(instance, missing_since=draft.now - counted_s)


def _may_be_ended(draft: Draft, instance: Instance) -> bool:
    """Return whether a machine that cannot be seen is ours to terminate; then no record ends without that.

    A terminate is idempotent, and right also when only the lists were wrong.
    """
    return not (instance.provisional or is_head(instance) or draft.snapshot.traits.read_only)


def _confirm(draft: Draft, instance: Instance, machine: CloudInstance) -> None:
    """Way 2: the machine is listed. When its tag names a request that still waits, it answers that one."""
    ip = machine.internal_ip or instance.internal_ip  # of a provisional record, it is the node's
    if instance.missing_since is not None or ip != instance.internal_ip:
        draft.amend(instance, missing_since=None, provisional=False, internal_ip=ip)
    tag = base_id(machine.request_id) if instance.provisional and machine.request_id else None
    kind, is_own = type_of(machine, draft.types), tag == instance.launch_request_id
    is_its_node = instance.internal_ip in ("", machine.internal_ip, machine.external_ip)
    if tag is None or (is_own and (is_its_node or kind == instance.node_type)):
        return
    asked = (i for i in draft.in_state(_S.REQUESTED, _S.QUEUED) if i.launch_request_id == tag)
    waiting = next((i for i in asked if i.node_type == kind), None)
    if waiting is None:
        if not instance.launch_request_id or (not is_own and kind not in ("", instance.node_type)):
            _note_late(draft, machine)
            _wait_again(draft, instance)
        return
    if instance.launch_request_id:
        _swap_requests(draft, waiting, instance)
    elif waiting.state is _S.QUEUED:
        draft.move(waiting, _S.TERMINATED, _CAME_LATE)
        draft.amend(instance, **fields_of_request(waiting))
    else:
        draft.move(instance, _S.TERMINATED, "its machine is the answer to another record", node_id=None)
        _bind(draft, waiting, machine, {machine.cloud_id: machine})


def _wait_again(draft: Draft, instance: Instance) -> None:
    """The machine is of another type, and not the answer to the request that its record had guessed."""
    if instance.launch_request_id and instance.entered(_S.REQUESTED):
        waiting = draft.create(_S.QUEUED, instance.node_type, _TAGGED, **fields_of_request(instance))
        draft.move(waiting, _S.REQUESTED, _TAGGED, cancelled=instance.cancelled)
    draft.amend(instance, launch_request_id=None, requested_at=None)


def _correct_type(draft: Draft, instance: Instance, was_early: bool, machine: CloudInstance) -> None:
    """Take the machine's tag for a record adopted with another one, or from a node that had its id."""
    tag = type_of(machine, draft.types)
    is_guessed = instance.launch_request_id is None or (was_early and not machine.request_id)
    if is_guessed and not is_head(instance) and tag != instance.node_type and tag in draft.types:
        draft.amend(instance, node_type=tag, **draft.terms_of(tag))


_TAGGED = "the machine that was taken for its answer has the tag of another request"
_GIVEN_UP = "listed after it had been given up"
_CAME_LATE = "its machine came late, and has its own record"
_ON_CLOUD_ORDERED = tuple(state for state in InstanceState if state in ON_CLOUD)
_RELEASED = frozenset({_S.TERMINATING, _S.TERMINATION_FAILED})
_WAITED_FOR = _RELEASED | {*AWAITED}  # the record of a missing machine ends after a while


def _alive(draft: Draft) -> set[str | None]:
    """Return the nodes that are not dead, and their machines. None stands for "any": no report was read."""
    runtime = draft.snapshot.runtime
    if runtime is None:
        return {None}
    live = {n.node_id: n for n in runtime.nodes if n.status is not NodeStatus.DEAD}
    shown = {n.node_id for n in runtime.nodes}  # what serves, and just this report lacks, lives
    placed = {i.node_id: i.cloud_id for i in draft.instances.values() if i.node_id}  # whatever the node names
    return {
        *live,
        *(placed.get(n.node_id, n.cloud_id) or n.node_id for n in live.values()),
        *(i.node_id for i in draft.in_state(*SERVING) if i.node_id and i.node_id not in shown),
    }


def _is_gone(draft: Draft, instance: Instance, lives: bool) -> bool:
    """Return whether a machine that the list lacks is gone for good; `lives` is about its node.

    One whose node lives exists, whatever the list shows; without a report any node may live. One whose node
    is gone too is terminated by the rules for that. One that was released is gone, and still known if it
    is listed again; before the provider has heard that it goes, a list without it shows nothing. The rest
    gets its grace; a live node that came for a request, as long as a machine may take to come up.
    """
    grace_s = draft.spec.timeouts.listing_grace_s
    if instance.state in _RELEASED:
        is_unheard = instance.instance_id in draft.snapshot.unheard_terminates
        asked_at = min(instance.entered(_S.TERMINATING), default=instance.since)
        is_missed = draft.now - asked_at > grace_s and _waited(draft, instance, grace_s)
        return (is_missed or not is_unheard) and (not lives or draft.snapshot.runtime is None)
    if instance.provisional:
        return _waited(draft, instance, _patience_s(draft, instance, lives))
    if lives or (instance.state not in AWAITED and _may_be_ended(draft, instance)):
        return False
    return _waited(draft, instance, grace_s) and not draft.may_work_unseen(instance)


def _patience_s(draft: Draft, instance: Instance, lives: bool) -> float:
    """Return for how long lists may lack a machine."""
    limits = draft.spec.timeouts
    if instance.provisional and instance.launch_request_id is not None and lives:
        late_s = draft.snapshot.traits.listed_within_s
        return max(limits.request_s, limits.allocate_s, late_s)  # it serves meanwhile: there is no hurry
    return limits.listing_grace_s


def _waited(draft: Draft, instance: Instance, limit_s: float) -> bool:
    since = draft.now if instance.missing_since is None else instance.missing_since
    return limit_s <= 0 or draft.now - since > limit_s


def _note_terminate_failures(draft: Draft) -> None:
    messages = {f.cloud_id: f"{f.kind.value}: {f.message}" for f in draft.snapshot.terminate_failures}
    for instance in draft.in_state(_S.TERMINATING):
        if instance.cloud_id in messages:
            draft.move(instance, _S.TERMINATION_FAILED, messages[instance.cloud_id])


def _adopt(draft: Draft, machines: Collection[CloudInstance]) -> None:
    """Machines without a record get one: the head, machines started by hand, and leaks.

    From there the ordinary rules decide: useful ones stay, surplus and silent ones go. One that was
    terminated a moment ago goes again, unless a node works on it.
    """
    known = draft.decided.ended_machines
    if known:
        draft.decided.ended_machines = {c: at for c, at in known.items() if draft.now - at <= MISSED_S}
    claims = _claims(draft) if machines else []
    for machine in machines:
        is_back = machine.cloud_id in draft.decided.ended_machines
        if not is_back and _pass_on(draft, claims, machine):
            continue
        claimed = None if is_back else _claim(draft, claims, machine)
        _note_late(draft, machine)
        terms = {} if claimed is None else fields_of_request(claimed)
        terms |= _reported_terms(draft, machine, claimed.offer if claimed is not None else None)
        draft.create(
            _S.ALLOCATED,
            machine.node_type,
            _GIVEN_UP if is_back else "found in the cloud without a record: adopted",
            kind=machine.kind,
            cloud_id=machine.cloud_id,
            cancelled=is_back,
            stop_cause=StopCause.UNKNOWN if is_back else None,
            internal_ip=machine.internal_ip,
            external_ip=machine.external_ip,
            **terms,
            **({"launch_hash": machine.launch_hash} if machine.launch_hash else {}),
        )


def _note_late(draft: Draft, machine: CloudInstance) -> None:
    """A machine that is listed counts by its record from now on."""
    unclear, tag = draft.decided.unclear_launches, base_id(machine.request_id or RequestId(""))
    same = (k for k, one in unclear.items() if (one.request_id, one.node_type) == (tag, machine.node_type))
    unclear.pop(next(same, ""), None)


def _claims(draft: Draft) -> list[Instance]:
    """Return the records whose request a machine without a record may be the answer to.

    Either the request is about to be repeated, or a node that no list shows was taken for the answer.
    """
    coming = (i for i in draft.in_state(_S.QUEUED, *_ON_CLOUD_ORDERED) if i.launch_request_id)
    return [i for i in coming if i.provisional or i.state is _S.QUEUED]


def _pass_on(draft: Draft, claims: list[Instance], machine: CloudInstance) -> bool:
    """Way 3: the node that was taken for this machine's may answer the next request of its type."""
    taken = next((i for i in claims if i.provisional and _is_answer(machine, i)), None)
    asked = (i for i in draft.in_state(_S.REQUESTED) if i.node_type == machine.node_type)
    waiting = next(asked, None) if taken is not None else None
    if taken is None or waiting is None:
        return False
    place = claims.index(taken)
    claims[place], waiting = _swap_requests(draft, taken, waiting)
    _bind(draft, waiting, machine, {machine.cloud_id: machine})
    return True


def _swap_requests(draft: Draft, one: Instance, other: Instance) -> tuple[Instance, Instance]:
    """Let each of two records continue with the request of the other."""
    swapped = draft.amend(one, **fields_of_request(other, one))
    return swapped, draft.amend(other, **fields_of_request(one, other))


def _is_answer(machine: CloudInstance, record: Instance) -> bool:
    tag = base_id(machine.request_id) if machine.request_id else None
    return record.node_type == machine.node_type and tag in (None, record.launch_request_id)


def _claim(draft: Draft, claims: list[Instance], machine: CloudInstance) -> Instance | None:
    """Way 4: the machine takes over the request of the record returned, so that no second one is launched."""
    for record in claims:
        if not _is_answer(machine, record):
            continue
        claims.remove(record)
        if record.state is _S.QUEUED:
            draft.move(record, _S.TERMINATED, _CAME_LATE)
        else:
            _answer_another(draft, claims, record)
        return record
    return None


def _answer_another(draft: Draft, claims: list[Instance], record: Instance) -> None:
    """The node that was taken for a machine's is on another: it came for the next request to be repeated."""
    asked = (i for i in claims if i.state is _S.QUEUED and i.node_type == record.node_type)
    repeated = next(asked, None)
    if repeated is None:
        draft.amend(record, launch_request_id=None, **draft.terms_of(record.node_type))
        return
    claims.remove(repeated)
    draft.move(repeated, _S.TERMINATED, _CAME_LATE)
    draft.amend(record, **fields_of_request(repeated, record))
