"""LedgerState: the live part of a ledger as a value, held in memory by both stores.

A store replaces it whole, after its write has succeeded; nobody ever sees half of a batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from muster.base.ids import InstanceId, RequestId
from muster.cluster.model import Instance
from muster.cluster.plan import Action, Plan
from muster.cluster.ports import Ledger
from muster.cluster.snapshot import FailedLaunch, Memory
from muster.cluster.states import TERMINAL, InstanceState

FAILURES_SHOWN = 100
FAILURES_SHOWN_FOR_S = 3600.0  # W13: a launch that failed is news for an hour, not for ever


class Retention(Struct, frozen=True, kw_only=True):
    """How much of the past is kept. Whatever exceeds one of the limits goes, oldest first.

    What pruned machines cost is not lost: the planner adds a machine's cost to `Memory.spent` in the same
    commit that ends it, so nothing needs to be added up here.
    """

    max_age_s: float = 86_400.0  # terminal records and decisions
    max_ended: int = 10_000
    max_decisions: int = 10_000
    max_decision_bytes: int = 64 * 2**20  # a decision about 10,000 nodes takes a megabyte or two
    step: int = 200  # rows per commit beyond what the commit itself added: no commit pauses for a clean-up


DEFAULT_RETENTION = Retention()


class LedgerState(Struct, frozen=True, kw_only=True):
    """What a tick may see, and the version it was written at."""

    version: int
    instances: Mapping[InstanceId, Instance]  # live, in the order of their ids
    memory: Memory
    outbox: Mapping[RequestId, Action]  # oldest first
    failures: tuple[FailedLaunch, ...]  # newest first, not more than are shown
    newest_at: float

    def ledger(self, now: float) -> Ledger:
        """A tick's own copy."""
        return Ledger(
            version=self.version,
            instances=dict(self.instances),
            memory=self.memory,
            outbox=tuple(self.outbox.values()),
            recent_failures=shown_failures(self.failures, max(now, self.newest_at)),
            newest_at=self.newest_at,
        )

    def changes(self, plan: Plan) -> bool:
        """Whether there is anything to write down."""
        return bool(plan.writes or plan.actions or plan.memory != self.memory)

    def after(self, plan: Plan, written: Sequence[Instance], version: int) -> LedgerState:
        """The state once this plan is committed."""
        outbox = {**self.outbox}
        for action in plan.actions:
            outbox.pop(action.request_id, None)  # asked for again: the newest decision counts, and goes last
            outbox[action.request_id] = action
        return LedgerState(
            version=version,
            instances=_merged(self.instances, written),
            memory=plan.memory,
            outbox=outbox,
            failures=newest_failures((*self.failures, *failures_among(written))),
            newest_at=newest_time(self.newest_at, plan, written),
        )

    def without_effects(self, request_ids: Sequence[RequestId]) -> LedgerState:
        """The state once these effects have been handed over."""
        gone = set(request_ids)
        return replace(self, outbox={key: value for key, value in self.outbox.items() if key not in gone})


EMPTY_STATE = LedgerState(version=0, instances={}, memory=Memory(), outbox={}, failures=(), newest_at=0.0)


def ended_at(record: Instance) -> float:
    """When a terminal record ended; 0 for a live one."""
    return record.since if record.state in TERMINAL else 0.0


def newest_time(known: float, plan: Plan, written: Sequence[Instance]) -> float:
    """The newest time in the ledger once these are in it: a restarted clock may not begin before it."""
    return max(known, plan.at, *(record.history[-1].at for record in written if record.history))


def failures_among(records: Sequence[Instance]) -> tuple[FailedLaunch, ...]:
    """The failed launches among these records."""
    return tuple(_failed(r) for r in records if r.state is InstanceState.ALLOCATION_FAILED)


def newest_failures(failures: Sequence[FailedLaunch]) -> tuple[FailedLaunch, ...]:
    """Newest first, as many as are ever shown."""
    ranked = sorted(failures, key=lambda failure: (-failure.failed_at, failure.instance_id))
    return tuple(ranked[:FAILURES_SHOWN])


def shown_failures(failures: tuple[FailedLaunch, ...], now: float) -> tuple[FailedLaunch, ...]:
    """Those that are still news."""
    if not failures or failures[-1].failed_at >= now - FAILURES_SHOWN_FOR_S:
        return failures
    return tuple(failure for failure in failures if failure.failed_at >= now - FAILURES_SHOWN_FOR_S)


def _failed(record: Instance) -> FailedLaunch:
    return FailedLaunch(
        instance_id=record.instance_id,
        node_type=record.node_type,
        started_at=max(record.entered(InstanceState.REQUESTED), default=0.0),
        failed_at=record.since,
        reason=record.details,
    )


def _merged(live: Mapping[InstanceId, Instance], written: Sequence[Instance]) -> dict[InstanceId, Instance]:
    merged = dict(live)
    for record in written:
        if record.state in TERMINAL:
            merged.pop(record.instance_id, None)
        else:
            merged[record.instance_id] = record
    if any(record.instance_id not in live for record in written):
        return dict(sorted(merged.items()))  # the order a restart would find, so that restarts change nothing
    return merged
