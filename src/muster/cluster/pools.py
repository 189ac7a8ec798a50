"""Computes how likely the cloud is to take a machine of a pool, and what that adds to its price; pure.

A pool is one (type, zone, market). Machines that one pool lost are counted when their records end, older ones
less; live machines count with the time they have lived.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from muster.base.forecast import Forecast
from muster.cluster.model import ClusterSpec, Instance, StopCause, health_key
from muster.cluster.snapshot import PoolRecord
from muster.cluster.states import ON_CLOUD

HALF_LIFE_S = 6 * 3600.0
PRIOR_S, PRIOR_LOSSES = 36_000.0, 1.0  # before anything was seen: one machine taken in ten hours
_SPOT = "spot"
NEVER = 1e6  # a share that no difference of price makes up for


def after_ends(
    pools: Mapping[str, PoolRecord], ended: Iterable[Instance], now: float
) -> Mapping[str, PoolRecord]:
    """Returns the pools after these records have ended; the same object when none came from a spot pool."""
    found: dict[str, PoolRecord] | None = None
    for record in ended:
        if record.offer is None or record.offer.market != _SPOT:
            continue
        lived_s = _lived_s(record, now)
        if lived_s <= 0.0:
            continue
        found = dict(pools) if found is None else found
        key = health_key(record.node_type, record.offer.name)
        before = _faded(found.get(key, PoolRecord(at=now)), now)
        is_taken = record.stop_cause is StopCause.NOTICE or record.loss is not None
        found[key] = PoolRecord(
            machine_s=before.machine_s + lived_s, losses=before.losses + float(is_taken), at=now
        )
    return pools if found is None else found


def risks(
    spec: ClusterSpec,
    pools: Mapping[str, PoolRecord],
    live: Iterable[Instance],
    lost_s: float,
    now: float,
) -> dict[str, float]:
    """Returns for every spot offer the share of its price that is expected to be lost with its machines.

    `lost_s` is the work that a machine's end costs: what is repeated, the restart, and the wait for another.
    """
    lived: dict[str, float] = {}
    for record in live:
        if record.offer is not None and record.offer.market == _SPOT and record.state in ON_CLOUD:
            key = health_key(record.node_type, record.offer.name)
            lived[key] = lived.get(key, 0.0) + _lived_s(record, now)
    found: dict[str, float] = {}
    for known in spec.node_types:
        for offer in known.offers:
            if offer.market == _SPOT:
                key = health_key(known.name, offer.name)
                past = _faded(pools.get(key, PoolRecord(at=now)), now)
                exposed_s = PRIOR_S + past.machine_s + lived.get(key, 0.0)
                found[key] = (PRIOR_LOSSES + past.losses) / exposed_s * lost_s
    return found


def lost_work_s(forecasts: Iterable[Forecast], boot_s: float) -> float:
    """Returns the seconds that the end of a machine costs: known from the trials, else a boot time."""
    costs = [trial.unsaved_s + trial.restart_s for one in forecasts for trial in one.trials]
    return boot_s + (fmean(costs) if costs else boot_s)


def _lived_s(record: Instance, now: float) -> float:
    started = next((change.at for change in record.history if change.state in ON_CLOUD), None)
    return 0.0 if started is None else max(0.0, now - started)


def _faded(record: PoolRecord, now: float) -> PoolRecord:
    share = 0.5 ** min(max(0.0, now - record.at) / HALF_LIFE_S, 64.0)
    return PoolRecord(machine_s=record.machine_s * share, losses=record.losses * share, at=now)
