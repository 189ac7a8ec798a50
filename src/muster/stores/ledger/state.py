"""Define the live part of a ledger as a value, held in memory by both stores.

A store replaces the whole value after its write has succeeded; half of a batch is never visible.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace
from typing_extensions import ParamSpec

from muster.base import codec
from muster.base.ids import InstanceId, RequestId
from muster.cluster.backoff import failures_among
from muster.cluster.model import Instance, NodeKind, merged_records
from muster.cluster.plan import Action, Plan
from muster.cluster.ports import Ledger
from muster.cluster.snapshot import FailedLaunch, Memory
from muster.cluster.states import CREATABLE, INSTANCE_MACHINE, TERMINAL, InstanceState
from muster.errors import LedgerCorrupt, StoreError
from muster.stores.ledger.schema import HAS_FAILED
from muster.stores.sqlite import Database

FAILURES_SHOWN = 100
FAILURES_SHOWN_FOR_S = 3600.0  # `muster status` shows a failed launch for an hour


class Retention(Struct, frozen=True, kw_only=True):
    """Retention defines how much of the past is kept. What exceeds a limit is dropped, oldest first.

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
        """Return a copy for a tick."""
        return Ledger(
            version=self.version,
            instances=dict(self.instances),
            memory=self.memory,
            outbox=tuple(self.outbox.values()),
            recent_failures=shown_failures(self.failures, max(now, self.newest_at)),
            newest_at=self.newest_at,
        )

    def changes(self, plan: Plan) -> bool:
        """Return whether there is anything to write."""
        return bool(plan.writes or plan.actions or plan.memory != self.memory)

    def after(self, plan: Plan, written: Sequence[Instance], version: int) -> LedgerState:
        """Return the state once this plan is committed."""
        outbox = {**self.outbox}
        for action in plan.actions:
            outbox.pop(action.request_id, None)  # asked for again: the newest decision counts, and goes last
            outbox[action.request_id] = action
        return LedgerState(
            version=version,
            instances=merged_records(self.instances, written),
            memory=plan.memory,
            outbox=outbox,
            failures=newest_failures((*self.failures, *failures_among(written))),
            newest_at=newest_time(self.newest_at, plan, written),
        )

    def without_effects(self, request_ids: Sequence[RequestId]) -> LedgerState:
        """Return the state once these effects have been handed over."""
        gone = set(request_ids)
        return replace(self, outbox={key: value for key, value in self.outbox.items() if key not in gone})


EMPTY_STATE = LedgerState(version=0, instances={}, memory=Memory(), outbox={}, failures=(), newest_at=0.0)


def ended_at(record: Instance) -> float:
    """Return when a terminal record ended; 0 for a live one."""
    return record.since if record.state in TERMINAL else 0.0


def newest_time(known: float, plan: Plan, written: Sequence[Instance]) -> float:
    """Return the newest time in the ledger with these: a restarted clock may not begin before it."""
    return max(known, plan.at, *(record.history[-1].at for record in written if record.history))


def newest_failures(failures: Sequence[FailedLaunch]) -> tuple[FailedLaunch, ...]:
    """Return the newest failures, newest first, one of each record and as many as are ever shown."""
    one_each = {failure.instance_id: failure for failure in failures}
    ranked = sorted(one_each.values(), key=lambda failure: (-failure.failed_at, failure.instance_id))
    return tuple(ranked[:FAILURES_SHOWN])


def shown_failures(failures: tuple[FailedLaunch, ...], now: float) -> tuple[FailedLaunch, ...]:
    """Return the failures that are recent enough to be shown."""
    if not failures or failures[-1].failed_at >= now - FAILURES_SHOWN_FOR_S:
        return failures
    return tuple(failure for failure in failures if failure.failed_at >= now - FAILURES_SHOWN_FOR_S)


VERSION_LIMIT = 2**62  # SQLite and the runtime's protocol count in signed 64 bits
_NEEDED = {
    InstanceState.REQUESTED: ("launch_request_id", "node_type"),
    InstanceState.ALLOCATED: ("cloud_id", "node_type"),
    InstanceState.RAY_RUNNING: ("node_id",),
    InstanceState.TERMINATING: ("cloud_id",),
}


def checked_writes(
    plan: Plan, version: int, live: Mapping[InstanceId, Instance], has_ended: Callable[[InstanceId], bool]
) -> tuple[Instance, ...]:
    """Return the records of the plan, with the version they are about to be written at.

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
    """Return the higher of the two, when that is a version at all."""
    if at_least >= VERSION_LIMIT:
        raise StoreError(f"version {at_least} is out of range", fix=f"the version {version} is kept")
    return max(version, at_least)


def _check_record(record: Instance, known: Instance | None) -> None:
    seen = known.version if known is not None else 0
    if record.version != seen:
        raise _refused(record, f"was read at version {record.version}, but the ledger has it at {seen}")
    if record.state is InstanceState.UNKNOWN:
        raise _refused(record, "UNKNOWN is not a state to be in")
    _check_history(record, known)
    # What a machine in this state must be known by and is not.
    missing = [name for name in _NEEDED.get(record.state, ()) if not getattr(record, name)]
    if record.state is InstanceState.ALLOCATED and record.kind is NodeKind.UNMANAGED:
        missing.append("a kind (HEAD or WORKER)")
    if missing and (known is None or known.state is not record.state):
        raise _refused(record, f"cannot be {record.state.name} without {' and '.join(missing)}")


def _check_history(record: Instance, known: Instance | None) -> None:
    """Entries are only added, each transition is in the table, and the last one is the current state."""
    earlier = known.history if known is not None else ()
    if record.history[: len(earlier)] != earlier:
        raise _refused(record, "its history was rewritten; entries may only be added")
    state = known.state if known is not None else None
    for change in record.history[len(earlier) :]:
        if not math.isfinite(change.at):
            raise _refused(record, f"entered {change.state.name} at {change.at!r}, which is not a time")
        if state is None and change.state not in CREATABLE:
            raise _refused(record, f"a new record may not start in {change.state.name}")
        # The one entry that is not a transition: a history without the time at which the state was entered.
        is_without = all(one.state is not change.state for one in earlier)
        is_repaired = known is not None and change.state is state and is_without
        if state is not None and not is_repaired and not INSTANCE_MACHINE.allows(state, change.state):
            raise _refused(record, f"may not go from {state.name} to {change.state.name}")
        earlier, state = (*earlier, change), change.state
    if state is not record.state:
        last = state.name if state is not None else "nothing"
        raise _refused(record, f"is {record.state.name}, but its history ends in {last}")


def _refuse_repeated(what: str, ids: list[str]) -> None:
    seen: set[str] = set()
    for each in ids:
        if each in seen:
            raise StoreError(f"{what} {each} is twice in one batch", fix="nothing was written")
        seen.add(each)


def _refused(record: Instance, why: str) -> StoreError:
    return StoreError(f"record {record.instance_id}: {why}", fix="nothing was written")


P = ParamSpec("P")
T = TypeVar("T")

# As bytes: one row with broken text must not make its neighbours unreadable.
_LIVE = "SELECT CAST(instance_id AS BLOB), CAST(record AS BLOB) FROM instances WHERE terminal = 0"
_FAILED = (
    "SELECT CAST(instance_id AS BLOB), CAST(record AS BLOB) FROM instances INDEXED BY instances_failed"
    f" WHERE terminal = 1 AND {HAS_FAILED} AND ended_at >= ? ORDER BY ended_at DESC, instance_id LIMIT ?"
)
_OUTBOX = "SELECT position, CAST(request_id AS BLOB), CAST(action AS BLOB) FROM outbox ORDER BY position"


@dataclass(frozen=True)
class Damage:
    """One row that cannot be used: its key, its bytes, how it is removed, and why."""

    source: str
    content: bytes
    removal: str
    key: object
    message: str = ""


class Loader:
    """Reads one file once; `damage` holds what was left out."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self.damage: list[Damage] = []

    def state(self, now: float) -> LedgerState:
        """Return everything a tick may see, from one committed state of the file."""
        with self._database.read_transaction():
            version, newest_at = self._head()
            horizon = max(now, newest_at) - FAILURES_SHOWN_FOR_S
            failed = self._instances(_FAILED, (horizon, FAILURES_SHOWN), terminal=True)
            live = dict(sorted(self._instances(_LIVE, (), terminal=False).items()))
            return LedgerState(
                version=version,
                instances=live,
                memory=self._memory(),
                outbox=self._outbox(),
                failures=newest_failures(failures_among((*failed.values(), *live.values()))),
                newest_at=newest_at,
            )

    def _head(self) -> tuple[int, float]:
        rows = self._database.execute("SELECT version, newest_at FROM ledger")
        if len(rows) == 1:
            version, newest_at = rows[0]
            if isinstance(version, int) and version >= 0 and isinstance(newest_at, float):
                return version, newest_at if math.isfinite(newest_at) else 0.0
        raise LedgerCorrupt(
            f"{self._database.path}: its version is unreadable ({rows!r}). Nothing was changed. Restore a "
            f"backup, or repair the one row of the table `ledger` with sqlite3"
        )

    def _instances(
        self, sql: str, values: tuple[object, ...], *, terminal: bool
    ) -> dict[InstanceId, Instance]:
        found: dict[InstanceId, Instance] = {}
        removal = f"DELETE FROM instances WHERE terminal = {int(terminal)} AND CAST(instance_id AS BLOB) = ?"
        for key, content in self._database.execute(sql, values):
            name = key.decode(errors="replace")
            damage = Damage(f"record {name}", content, removal, key)
            record = self._readable(damage, _record, name, content, terminal)
            if record is not None:
                found[record.instance_id] = record
        return found

    def _memory(self) -> Memory:
        for (content,) in self._database.execute("SELECT CAST(value AS BLOB) FROM memory"):
            damage = Damage("memory", content, "DELETE FROM memory WHERE only_row = ?", 1)
            return self._readable(damage, codec.decode, content, Memory) or Memory()
        return Memory()

    def _outbox(self) -> dict[RequestId, Action]:
        waiting: dict[RequestId, Action] = {}
        for position, key, content in self._database.execute(_OUTBOX):
            name = key.decode(errors="replace")
            damage = Damage(f"effect {name}", content, "DELETE FROM outbox WHERE position = ?", position)
            action = self._readable(damage, _action, name, content)
            if action is not None:
                waiting[action.request_id] = action
        return waiting

    def _readable(self, damage: Damage, read: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T | None:
        try:
            return read(*args, **kwargs)
        except (ValueError, KeyError, RecursionError) as error:
            self.damage.append(dataclasses.replace(damage, message=str(error)))
            return None


def set_aside(database: Database, damage: list[Damage], now: float) -> None:
    """Move unusable rows to the table `damaged`, so that each is reported and none is lost."""
    with database.transaction():
        for each in damage:
            database.execute(
                "INSERT INTO damaged (source, message, content, found_at) VALUES (?, ?, ?, ?)",
                (each.source, each.message, each.content, now),
            )
            database.execute(each.removal, (each.key,))


def _record(name: str, content: bytes, terminal: bool) -> Instance:
    record = codec.decode(content, Instance)
    if record.instance_id != name:
        raise ValueError(f"its record has the id {record.instance_id}")
    if record.state is InstanceState.UNKNOWN or (record.state in TERMINAL) is not terminal:
        raise ValueError(
            f"its record has state {record.state.name}, which contradicts terminal={int(terminal)}"
        )
    return record


def _action(name: str, content: bytes) -> Action:
    action: Action = codec.decode(content, Action)  # type: ignore[arg-type]  # to mypy a union is not a class
    if action.request_id != name:
        raise ValueError(f"its content has the id {action.request_id}")
    return action
