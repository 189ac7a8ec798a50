"""Ends a cluster that no driver uses any more, where its provider can and its owner has asked for it."""

from __future__ import annotations

from msgspec.structs import replace

from muster.base.ids import RequestId
from muster.cluster.model import IdleCluster
from muster.cluster.plan import EndCluster, Reason
from muster.cluster.rules.draft import Draft
from muster.cluster.snapshot import WithoutDrivers

AGAIN_S = 60.0  # a cluster that should have ended and still runs is asked again


def idle_cluster(draft: Draft) -> None:
    """Counts the time without drivers: from the first report that shows none, or from the end of the newest.

    What is not known counts as a driver: the cluster must not end under somebody's work.
    """
    wanted, known = draft.spec.idle_cluster, draft.without_drivers
    drivers = draft.seen.runtime.drivers if draft.seen.runtime is not None else None
    if wanted is None or drivers is None or drivers.live > 0:
        newest = known.last_end if drivers is None else max(known.last_end, drivers.last_end)
        draft.without_drivers = WithoutDrivers() if wanted is None else WithoutDrivers(last_end=newest)
        return
    # One that came and went between two ticks is known by its end alone.
    is_new = known.since is None or drivers.last_end > known.last_end
    if is_new:
        known = WithoutDrivers(since=draft.now, last_end=max(known.last_end, drivers.last_end))
    draft.without_drivers = _end_if_due(draft, known, wanted)


def _end_if_due(draft: Draft, known: WithoutDrivers, wanted: IdleCluster) -> WithoutDrivers:
    idle_s = draft.now - (draft.now if known.since is None else known.since)
    can = wanted.policy in draft.seen.traits.idle_policies
    verb = {"suspend": "suspended", "delete": "deleted"}[wanted.policy.value]
    ends = (
        f"it is {verb} after {wanted.timeout_s:g} s"
        if can
        else f"the provider cannot {wanted.policy.value} it"
    )
    draft.add_cluster_verdict(Reason.WITHOUT_DRIVERS, f"no driver uses the cluster; {ends}")
    is_due = idle_s >= wanted.timeout_s and can and not draft.seen.traits.read_only
    if not is_due or (known.asked_at is not None and draft.now - known.asked_at < AGAIN_S):
        return known
    draft.act(EndCluster(request_id=RequestId(draft.fresh("e")), policy=wanted.policy))
    return replace(known, asked_at=draft.now)
