"""What a ledger refuses: batches that would store a change nobody can have made. Both stores call this.

The planner has checked every transition already; here a bug in it is caught before it becomes history.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.cluster.model import Instance, NodeKind, StatusChange
from muster.cluster.plan import Plan
from muster.cluster.states import CREATABLE, INSTANCE_MACHINE, InstanceState
from muster.errors import StoreError

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
