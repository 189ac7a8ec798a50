"""Compute the back-off of node types after failures, lists failures, and Ray's availability scores; pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping

from msgspec.structs import replace

from muster.base.ids import RequestId
from muster.cluster.model import NEEDS_USER_ACTION, Backoff, FailureKind, Instance, LaunchFailure, health_key
from muster.cluster.plan import attempt_of, base_id
from muster.cluster.snapshot import FailedLaunch, TypeHealth
from muster.cluster.states import InstanceState

_MAX_DOUBLINGS = 30  # keeps 2**n finite; every back-off is clipped long before


def decayed_failures(health: TypeHealth, now: float, policy: Backoff) -> float:
    """Return the failure count, halved for every quiet `decay_s`."""
    quiet = max(0.0, now - max(health.failed_at, health.blocked_until))
    return float(health.failures * 0.5 ** min(quiet / policy.decay_s, 64.0))


def after_failure(
    health: TypeHealth,
    kind: FailureKind,
    message: str,
    now: float,
    policy: Backoff,
    first_s: float | None = None,
) -> TypeHealth:
    """Return the health after one more failure: the type is blocked for twice as long as last time.

    `first_s` is the provider's own first pause, for a stock that is empty for minutes.
    """
    failures = decayed_failures(health, now, policy) + 1.0
    base = policy.user_action_base_s if kind in NEEDS_USER_ACTION else policy.base_s
    longest = policy.max_s
    if first_s is not None:
        base, longest = max(base, first_s), max(longest, policy.sold_out_max_s)
        in_a_row = round(failures)
        message = f"{message} (refused {in_a_row} times in a row)" if in_a_row > 1 else message
    pause = min(longest, base * 2.0 ** min(failures - 1.0, _MAX_DOUBLINGS))
    return replace(
        health,
        failures=failures,
        failed_at=now,
        blocked_until=max(health.blocked_until, now + pause),  # a lesser failure ends no pause
        kind=kind,
        message=message,
        is_on_trial=health.is_on_trial or kind is FailureKind.SETUP,
    )


def as_requested(health: TypeHealth, asked_at: float, now: float, policy: Backoff) -> TypeHealth:
    """Return the health to count the failure of a machine from that was requested at `asked_at`.

    The time that it took to fail was not quiet. A machine requested before the last failure was known adds
    nothing: it makes the pause begin again, as long as it was.
    """
    is_known = asked_at < health.failed_at
    failures = max(0.0, health.failures - 1.0) if is_known else decayed_failures(health, asked_at, policy)
    return replace(health, failures=failures, failed_at=now)


def after_success(health: TypeHealth, now: float, policy: Backoff) -> TypeHealth | None:
    """Return the health after a machine came that was asked for later: half of the failures; None: none.

    A machine that came was not set up yet: only a running node clears failed set-ups.
    """
    if health.is_on_trial:
        return health
    failures = decayed_failures(health, now, policy) / 2
    if failures < 1.0 and not is_blocked(health, now) and health.timed_out_at is None:
        return None
    return replace(health, failures=failures)


def is_blocked(health: TypeHealth | None, now: float) -> bool:
    """Return whether the type is backed off at `now`."""
    return health is not None and now < health.blocked_until


def recoverable(health: TypeHealth | None, now: float, recovery_s: float) -> float:
    """Return 0 just after a machine failed to come up, growing to 1 over `recovery_s`."""
    if health is None or health.timed_out_at is None or recovery_s <= 0:
        return 1.0
    age = max(0.0, now - health.timed_out_at)
    return 0.0 if age < min(10.0, 0.1 * recovery_s) else min(1.0, age / recovery_s)


def availabilities(health: Mapping[str, TypeHealth]) -> dict[str, float]:
    """Rank the types whose machines failed to come up: the newest failure is 0, absent types count 1.

    Only the order matters. Ray divides epoch seconds, which leaves differences of one in ten million; ranks
    give the same order and are readable.
    """
    times = sorted({h.timed_out_at for h in health.values() if h.timed_out_at is not None}, reverse=True)
    score = {at: rank / len(times) for rank, at in enumerate(times)}
    return {name: score[h.timed_out_at] for name, h in health.items() if h.timed_out_at is not None}


_FAILED = frozenset({InstanceState.ALLOCATION_FAILED, InstanceState.RAY_INSTALL_FAILED})


def failures_among(records: Iterable[Instance]) -> tuple[FailedLaunch, ...]:
    """Return the failed launches and set-ups among these records."""
    return tuple(
        FailedLaunch(
            instance_id=record.instance_id,
            node_type=record.node_type,
            started_at=max(record.entered(InstanceState.REQUESTED), default=0.0),
            failed_at=change.at,
            reason=change.details,
            offer=record.offer_name,
        )
        for record in records
        for change in record.history
        if change.state in _FAILED
    )


# Failures that say nothing about the other offers of the type, unless the provider names one.
_OF_ONE_OFFER = frozenset({FailureKind.CAPACITY, FailureKind.UNKNOWN})


def failures_by_key(
    failures: Iterable[LaunchFailure], records: Iterable[Instance]
) -> dict[str, LaunchFailure]:
    """Return the newest failure of each type or offer, by the key of its health.

    All records of a request that wait have the same offer, also those that are not refused; one that got a
    machine may have got it from another offer. When none waited any more, the failure counts for the type.
    """
    waiting = (i for i in records if i.state in (InstanceState.REQUESTED, InstanceState.QUEUED))
    offers = {i.launch_request_id: i.offer_name for i in waiting}
    newest: dict[str, LaunchFailure] = {}
    for failure in failures:
        offer = failure.offer
        if not offer and failure.kind in _OF_ONE_OFFER:
            offer = offers.get(base_id(failure.request_id), "")
        for name in (offer, *failure.also):
            newest[health_key(failure.node_type, name)] = failure
    return newest


def after_refusals(
    health: Mapping[str, TypeHealth],
    failures: Collection[LaunchFailure],
    records: Iterable[Instance],
    now: float,
    policy: Backoff,
) -> dict[str, TypeHealth]:
    """Return the health of each type or offer that was refused."""
    return {
        name: after_failure(health.get(name, TypeHealth()), f.kind, f.message, now, policy, f.pause_s)
        for name, f in failures_by_key(failures, records).items()
    }


def by_attempt(failures: Iterable[LaunchFailure]) -> dict[tuple[RequestId, int, str], deque[LaunchFailure]]:
    """Return the refusals by request, attempt and type, without those of repeats that may have worked."""
    found: dict[tuple[RequestId, int, str], deque[LaunchFailure]] = {}
    for failure in failures:
        call = (base_id(failure.request_id), attempt_of(failure.request_id), failure.node_type)
        if not failure.is_repeat:
            found.setdefault(call, deque()).append(failure)
    return found
