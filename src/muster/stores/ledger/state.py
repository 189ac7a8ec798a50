"""LedgerState: the live part of a ledger as a value, held in memory by both stores.

A store replaces it whole, after its write has succeeded; nobody ever sees half of a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from muster.base.ids import InstanceId, RequestId
from muster.cluster.model import Instance, NodeKind, StatusChange
from muster.cluster.plan import Action, Plan
from muster.cluster.ports import Ledger
from muster.cluster.snapshot import FailedLaunch, Memory
from muster.cluster.states import CREATABLE, INSTANCE_MACHINE, TERMINAL, InstanceState
from muster.errors import StoreError

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


VERSION_LIMIT = 2**62  # SQLite and the runtime's protocol count in signed 64 bits
_NEEDED = {
    InstanceState.REQUESTED: ("launch_request_id", "node_type"),
    InstanceState.ALLOCATED: ("cloud_id", "node_type"),
    InstanceState.RAY_RUNNING: ("node_id",),
    InstanceState.TERMINATING: ("cloud_id",),
}


def checked_writes(
    plan: Plan,
    version: int,
    live: Mapping[InstanceId, Instance],
    has_ended: Callable[[InstanceId], bool],
) -> tuple[Instance, ...]:
    """The plan's records, stamped with the version they are about to be written at.

    Raises StoreError, naming the record, when one of them may not be written: then none may.
    """
    if not math.isfinite(plan.at):
        raise StoreError(f"plan {plan.tick_id}: {plan.at!r} is not a time")
    _refuse_repeated("effect", [action.request_id for action in plan.actions])
    _refuse_repeated("record", [record.instance_id for record in plan.writes])
    for record in plan.writes:
        known = live.get(record.instance_id)
        if known is None and has_ended(record.instance_id):
            raise _refused(record, "its machine has ended; a new machine needs a new id")
        _check_record(record, known)
    return tuple(replace(record, version=version) for record in plan.writes)


def raised_version(version: int, at_least: int) -> int:
    """The higher of the two, when that is a version at all."""
    if at_least >= VERSION_LIMIT:
        raise StoreError(f"version {at_least} is absurd; ours is {version} and stays")
    return max(version, at_least)


def _check_record(record: Instance, known: Instance | None) -> None:
    seen = known.version if known is not None else 0
    if record.version != seen:
        raise _refused(record, f"was read at version {record.version}, but the ledger has it at {seen}")
    if record.state is InstanceState.UNKNOWN:
        raise _refused(record, "UNKNOWN is not a state to be in")
    _check_history(record, known)
    missing = _missing_payload(record)
    if missing and (known is None or known.state is not record.state):
        raise _refused(record, f"cannot be {record.state.name} without {' and '.join(missing)}")


def _check_history(record: Instance, known: Instance | None) -> None:
    """Entries are only added, each hop is in the table, and the last one says where the record is now."""
    earlier = known.history if known is not None else ()
    if record.history[: len(earlier)] != earlier:
        raise _refused(record, "its history was rewritten; entries may only be added")
    state = known.state if known is not None else None
    for change in record.history[len(earlier) :]:
        if not math.isfinite(change.at):
            raise _refused(record, f"entered {change.state.name} at {change.at!r}, which is not a time")
        if state is None and change.state not in CREATABLE:
            raise _refused(record, f"a new record may not start in {change.state.name}")
        # The one entry that is no hop: a history that did not say since when the record is in its state.
        is_mended = known is not None and change.state is state and _lacks(earlier, change.state)
        if state is not None and not is_mended and not INSTANCE_MACHINE.allows(state, change.state):
            raise _refused(record, f"may not go from {state.name} to {change.state.name}")
        earlier, state = (*earlier, change), change.state
    if state is not record.state:
        last = state.name if state is not None else "nothing"
        raise _refused(record, f"is {record.state.name}, but its history ends in {last}")


def _lacks(history: tuple[StatusChange, ...], state: InstanceState) -> bool:
    return all(change.state is not state for change in history)


def _missing_payload(record: Instance) -> list[str]:
    """What a machine in this state must be known by (spec 1.4) and is not."""
    missing = [name for name in _NEEDED.get(record.state, ()) if not getattr(record, name)]
    if record.state is InstanceState.ALLOCATED and record.kind is NodeKind.UNMANAGED:
        missing.append("a kind (HEAD or WORKER)")
    return missing


def _refuse_repeated(what: str, ids: list[str]) -> None:
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            raise StoreError(f"{what} {each} is twice in one batch; nothing was written")
        seen.add(each)


def _refused(record: Instance, why: str) -> StoreError:
    return StoreError(f"record {record.instance_id}: {why}; nothing was written")
