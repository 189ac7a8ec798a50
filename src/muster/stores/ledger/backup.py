"""Copy a ledger to another place, and make a new ledger from the newest copy that is whole.

The monitor writes copies, a new head restores one; the launcher keeps some in its own home. A copy's name has
its generation and the digest of its content, which tells a damaged one from a good one.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.ids import IdSource, InstanceId
from muster.cluster.cost import cost_of, uncharged, unseen_s
from muster.cluster.model import Instance, NodeKind, StatusChange
from muster.cluster.plan import Launch, Plan
from muster.cluster.ports import InstanceStore, Ledger
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.errors import MusterError, StoreError
from muster.host.atomic_write import replacing
from muster.stores.ledger.schema import LEDGER_SCHEMA
from muster.stores.ledger.store import SqliteInstanceStore
from muster.stores.sqlite import Database
from muster.stores.storage import Storage

KEEP = 5
_NAME = re.compile(r"(?P<cluster>.+)\.(?P<generation>\d{9,})\.(?P<digest>[0-9a-f]{16})\.ledger")
_S = InstanceState
# A machine on its way out may be gone, and its id another's by now: what is still there is found by its tags.
LEAVING = ON_CLOUD - {_S.ALLOCATED, _S.RAY_INSTALLING, _S.RAY_RUNNING}
_SET_UP = frozenset({_S.RAY_INSTALLING, _S.RAY_RUNNING})
DETAILS = "the head was lost: found again by its tags if it is still there"
SET_UP_AGAIN = "the head was lost: the machine is set up again under a new record"


class LedgerCopy(Struct, frozen=True, order=True):
    """One copy; of two, the one of the higher generation is newer."""

    generation: int
    digest: str
    name: str


class RestoredLedger(Struct, frozen=True, kw_only=True):
    """The copy that a ledger was made from; `refused` has a sentence per damaged one."""

    copy: LedgerCopy
    refused: tuple[str, ...] = ()


def copy_of(name: str, cluster: str) -> LedgerCopy | None:
    """Return the copy that a file name stands for; None for other files and other clusters."""
    found = _NAME.fullmatch(name)
    if found is None or found["cluster"] != cluster:
        return None
    return LedgerCopy(int(found["generation"]), found["digest"], name)


class LedgerBackups:
    """The copies of one cluster's ledger in one place, a path or an fsspec URL."""

    def __init__(self, location: str | Path, cluster: str, *, keep: int = KEEP) -> None:
        self._storage, self._cluster, self._keep = Storage(location), cluster, max(keep, 1)

    def copies(self) -> list[LedgerCopy]:
        """Return every copy, newest first."""
        found = (copy_of(name, self._cluster) for name in self._storage.listing())
        return sorted((copy for copy in found if copy is not None), reverse=True)

    def write(self, ledger: Path) -> LedgerCopy:
        """Write one committed state, unless the newest copy is the same, and drop copies beyond `keep`.

        The ledger may be in use. Raises StoreError when it cannot be read, or the place not be written.
        """
        with tempfile.TemporaryDirectory(prefix="muster-backup-") as folder:
            draft = Path(folder, "ledger")
            copy_ledger(ledger, draft)
            return self.add(draft)

    def add(self, draft: Path) -> LedgerCopy:
        """Add a copy that was made elsewhere; the launcher's own are fetched from the head."""
        known, digest = self.copies(), _digest(draft.read_bytes())
        if known and known[0].digest == digest:
            return known[0]
        generation = known[0].generation + 1 if known else 1
        made = LedgerCopy(generation, digest, f"{self._cluster}.{generation:09d}.{digest}.ledger")
        if self._storage.is_local:
            self._storage.path.mkdir(parents=True, exist_ok=True, mode=0o700)
            with replacing(self._storage.join(made.name)) as partial:
                Path(partial).write_bytes(draft.read_bytes())
        else:
            self._storage.upload_file(draft, made.name)
        for old in known[self._keep - 1 :]:
            self._storage.delete_file(old.name)
        return made

    def restore(
        self, target: Path, clock: Clock, ids: IdSource, *, is_set_up_again: bool = False
    ) -> RestoredLedger | None:
        """Make `target` from the newest whole copy; None when there is none at all. See `settled`.

        Raises StoreError when `target` exists, and when there are copies and none can be used.
        """
        if target.exists():
            raise StoreError(
                f"{target}: exists already", fix="a copy is restored only where there is no ledger"
            )
        refused: list[str] = []
        for copy in self.copies():
            try:
                content = self._storage.read(copy.name)
                if _digest(content) != copy.digest:
                    size = f"{len(content):,} bytes"
                    raise StoreError(f"it is damaged, {size} with another digest than its name says")
                with _draft(target, content, clock) as store:
                    settle_restored(store, ids.fresh("t"), clock.now(), is_set_up_again=is_set_up_again)
            except MusterError as error:
                refused.append(f"{self._storage.join(copy.name)} is not used: {error}")
            else:
                return RestoredLedger(copy=copy, refused=tuple(refused))
        if refused:
            raise StoreError(
                f"no copy of the ledger of {self._cluster!r} can be used",
                fix=(f"remove them to start without one: {'; '.join(refused)}"),
            )
        return None

    def forget(self) -> None:
        """Delete every copy; for `muster down --purge`."""
        for copy in self.copies():
            self._storage.delete_file(copy.name)


@contextlib.contextmanager
def _draft(target: Path, content: bytes, clock: Clock) -> Iterator[SqliteInstanceStore]:
    """Yield a ledger of this content, which becomes `target` unless the block raises."""
    draft = target.with_name(f".{target.name}.restored")
    try:
        draft.write_bytes(content)
        with SqliteInstanceStore(draft, clock=clock) as store:
            found = store.integrity()
            if found != "ok":
                raise StoreError(f"it is damaged: {found}")
            yield store
        os.replace(draft, target)
    finally:
        for side in ("", "-wal", "-shm", ".lock"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{draft}{side}")


def settle_restored(store: InstanceStore, tick_id: str, now: float, *, is_set_up_again: bool = False) -> None:
    """Make an older ledger safe to continue from on a new head, on which no node runs yet.

    Of the effects only launches are kept: a launch carries its request id, by which the provider's list shows
    whether it has happened.
    """
    ledger = store.load()
    store.handed_over([action.request_id for action in ledger.outbox if not isinstance(action, Launch)])
    plan = settled(ledger, tick_id, now, is_set_up_again=is_set_up_again)
    if plan.writes:
        store.commit(ledger.version, plan)


def settled(ledger: Ledger, tick_id: str, now: float, *, is_set_up_again: bool = False) -> Plan:
    """Return the plan for the first moment of a new head; pure.

    Records of the old head, and of machines on their way out, end. Where muster sets machines up
    (`is_set_up_again`), those that served get a new record, to be set up; elsewhere the rules end them.
    """
    at = max(now, ledger.newest_at)
    ended: list[Instance] = []
    begun: list[Instance] = []
    for record in ledger.instances.values():
        is_kept = record.state not in LEAVING and record.kind is not NodeKind.HEAD
        is_again = is_kept and is_set_up_again and record.state in _SET_UP and not record.provisional
        if is_again:
            begun.append(_begun(record, InstanceId(f"i-{tick_id}-{len(begun) + 1:04d}"), at))
        if is_again or (record.state in ON_CLOUD and not is_kept):
            change = StatusChange(_S.TERMINATED, at, SET_UP_AGAIN if is_again else DETAILS)
            ended.append(replace(record, state=_S.TERMINATED, history=(*record.history, change)))
    spent = sum(cost_of(ledger.instances[record.instance_id], at) for record in ended)
    unseen = uncharged(ledger.instances.values(), at, unseen_s(at - ledger.newest_at))
    memory = ledger.memory
    memory = replace(memory, spent=memory.spent + spent, uncharged=memory.uncharged + unseen)
    return Plan(tick_id=tick_id, at=at, writes=(*ended, *begun), memory=memory)


def _begun(record: Instance, instance_id: InstanceId, at: float) -> Instance:
    """The same machine, as if it had just come: node and drain were those of the old head."""
    change = StatusChange(_S.ALLOCATED, at, f"a new head: follows {record.instance_id}")
    return replace(
        record,
        instance_id=instance_id,
        state=_S.ALLOCATED,
        history=(change,),
        node_id=None,
        stop_cause=None,
        missing_since=None,
        version=0,
    )


def copy_ledger(ledger: Path, target: Path) -> None:
    """Write one committed state of a ledger that may be in use to a separate file."""
    with Database.open_read_only(ledger, LEDGER_SCHEMA) as database:
        database.copy_to(target)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def main(arguments: list[str]) -> int:
    """Run on a head, for the launcher: `copy LEDGER FILE`, and `forget PLACE CLUSTER`."""
    try:
        if arguments[0] == "copy":
            Path(arguments[2]).unlink(missing_ok=True)
            copy_ledger(Path(arguments[1]), Path(arguments[2]))
        else:
            LedgerBackups(arguments[1], arguments[2]).forget()
    except MusterError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
