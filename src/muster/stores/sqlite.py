"""Open, lock and migrate SQLite files, and write batches; the only file that knows SQL pragmas.

Stores use a `Database` and never see a `sqlite3` exception: every failure becomes a StoreError that names the
file and what to do. Nothing here knows what the tables mean.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import Self

from muster.base.clock import Clock
from muster.errors import LedgerCorrupt, LedgerLocked, StoreError, StoreFull
from muster.host.file_lock import FileLock
from muster.host.regular_file import refuse_irregular

Row = tuple[Any, ...]
LEDGER_REPAIR = (
    "Restore a backup, or move it and its -wal file away and start again: running machines are found again "
    "in the provider's list"
)


@dataclass(frozen=True)
class Schema:
    """Describes one kind of file: its mark in the SQLite header, and the steps that build it.

    Step k brings a file from version k to k+1. Steps are only ever added, never edited.
    """

    name: str
    application_id: int
    steps: tuple[Callable[[Database], None], ...]
    synchronous: str = "FULL"  # FULL: every commit is on the disk; NORMAL: survives kill -9, not the power
    log_pages: int = 1000  # the log is copied into the file, with a disk flush, after so many pages
    shrinks: bool = False  # its deleted rows are returned to the disk by `shrink`
    unfound: str = "is the cluster's name right, and was it ever started?"
    repair: str = LEDGER_REPAIR


class Closing:
    """A Closing object is closed when its `with` block ends, whatever happens in it."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Database(Closing):
    """One connection to one file. A writer holds the lock of the file until `close`."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, lock: FileLock | None, repair: str = LEDGER_REPAIR
    ) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._repair = repair

    @classmethod
    def open(cls, path: str | Path, schema: Schema, *, clock: Clock, wait_s: float) -> Database:
        """Open the file as its one writer and creates or migrates it; LedgerLocked: another writer lives."""
        real = Path(os.path.realpath(path))
        if not real.parent.is_dir():
            raise StoreError(f"{real}: its directory does not exist", fix=f"create {real.parent} first")
        lock = FileLock.acquire(real, clock=clock, wait_s=wait_s)
        try:
            database = cls(real, _connect(real, "rwc", wait_s, schema.repair), lock, schema.repair)
        except BaseException:
            lock.release()
            raise
        with _closed_on_error(database):
            version = database._check_kind(
                schema
            )  # before anything is written to a file that may not be ours
            if version == 0 and schema.shrinks:
                database.execute("PRAGMA auto_vacuum = INCREMENTAL")  # only an empty file can learn it
            database._harden(schema)
            database._migrate(schema, version)
        return database

    @classmethod
    def open_read_only(
        cls, path: str | Path, schema: Schema, *, wait_s: float = 5.0, any_thread: bool = False
    ) -> Database:
        """Open the file as a reader, which sees committed batches only, never waits and never writes.

        `any_thread`: the caller sees to it that only one thread at a time uses it.
        """
        try:
            for suffix in ("", "-journal", "-wal", "-shm"):  # SQLite would wait for a FIFO, and follow links
                refuse_irregular(f"{path}{suffix}")
        except OSError as error:
            raise StoreError(
                f"{error.filename}: {error.strerror}", fix="only regular files are read"
            ) from error
        real = Path(os.path.realpath(path))
        if not real.is_file():
            raise StoreError(f"{real}: no such file", fix=f"{schema.unfound}")
        connection = _connect(real, "ro", wait_s, schema.repair, any_thread=any_thread)
        database = cls(real, connection, None, schema.repair)
        with _closed_on_error(database):
            version = database._check_kind(schema)
            if version == 0:
                fix = "if its process was killed, start it again"
                raise LedgerCorrupt(f"{real}: nothing was written to it yet", fix=fix)
            if version != len(schema.steps):
                raise LedgerCorrupt(
                    f"{real}: schema version {version}, this muster reads {len(schema.steps)}",
                    fix="start the newer muster on it once",
                )
        return database

    def execute(self, sql: str, values: Sequence[object] = ()) -> list[Row]:
        """Run one statement and returns all of its rows."""
        try:
            return self._connection.execute(sql, tuple(values)).fetchall()
        except sqlite3.Error as error:
            raise explained(error, self.path, self._repair) from error

    def execute_many(self, sql: str, rows: Iterable[Sequence[object]]) -> None:
        """Run one statement per row, prepared once."""
        try:
            self._connection.executemany(sql, rows)
        except sqlite3.Error as error:
            raise explained(error, self.path, self._repair) from error

    def delete(self, sql: str, values: Sequence[object] = ()) -> int:
        """Run one DELETE and returns how many rows it removed."""
        try:
            return self._connection.execute(sql, tuple(values)).rowcount
        except sqlite3.Error as error:
            raise explained(error, self.path, self._repair) from error

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Open a transaction. IMMEDIATE: the wait for another writer happens here, not in the middle."""
        with self._transaction("BEGIN IMMEDIATE"):
            yield

    @contextlib.contextmanager
    def read_transaction(self) -> Iterator[None]:
        """Read inside see one committed state."""
        with self._transaction("BEGIN"):
            yield

    @contextlib.contextmanager
    def unsynced(self) -> Iterator[None]:
        """Write inside survive kill -9 but may be lost with the power: for what is harmless to repeat."""
        self.execute("PRAGMA synchronous = NORMAL")
        try:
            yield
        finally:
            self.execute("PRAGMA synchronous = FULL")

    def shrink(self, *, beyond: float = 0.0) -> None:
        """Give free pages back to the disk, when the schema shrinks; never inside a transaction.

        Only when they are more than this share of the file: new rows would use them again.
        """
        free = int(self.execute("PRAGMA freelist_count")[0][0])
        if free <= beyond * int(self.execute("PRAGMA page_count")[0][0]):
            return
        try:
            # A script is stepped to its end; `execute` would stop after the first page.
            self._connection.executescript("PRAGMA incremental_vacuum")
        except sqlite3.Error as error:
            raise explained(error, self.path, self._repair) from error

    def copy_to(self, target: str | Path) -> None:
        """Write one committed state to a separate file, without a -wal; the writer is not disturbed."""
        try:
            with contextlib.closing(sqlite3.connect(target)) as copy:
                self._connection.backup(copy)
                copy.execute("PRAGMA journal_mode = DELETE")
        except sqlite3.Error as error:
            raise explained(error, Path(target), self._repair) from error

    def data_version(self) -> int:
        """Change when another connection has written; own writes do not change it."""
        return int(self.execute("PRAGMA data_version")[0][0])

    def integrity(self) -> str:
        """SQLite's own full check; "ok" when nothing is wrong."""
        return str(self.execute("PRAGMA integrity_check(1)")[0][0])

    def close(self) -> None:
        try:
            self._connection.close()
        finally:
            if self._lock is not None:
                self._lock.release()

    @contextlib.contextmanager
    def _transaction(self, begin: str) -> Iterator[None]:
        self.execute(begin)
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
            raise

    def _check_kind(self, schema: Schema) -> int:
        """Return the schema version of the file; 0 for an empty one. Refuses foreign and damaged files."""
        application_id = int(self.execute("PRAGMA application_id")[0][0])
        tables = int(self.execute("SELECT count(*) FROM sqlite_master")[0][0])
        if tables == 0 and application_id == 0:
            return 0
        if application_id != schema.application_id:
            raise LedgerCorrupt(
                f"{self.path}: an SQLite file, but not a muster {schema.name}",
                fix="give muster another path",
            )
        found = str(self.execute("PRAGMA quick_check(1)")[0][0])
        if found != "ok":
            raise LedgerCorrupt(_damaged(self.path, found, self._repair))
        return self._schema_version(schema)

    def _schema_version(self, schema: Schema) -> int:
        rows = self.execute("SELECT version FROM schema_version")
        known = len(schema.steps)
        if len(rows) != 1 or not isinstance(rows[0][0], int) or rows[0][0] < 1:
            raise LedgerCorrupt(_damaged(self.path, f"no readable schema version: {rows!r}", self._repair))
        if rows[0][0] > known:
            raise LedgerCorrupt(
                f"{self.path}: schema version {rows[0][0]}, this muster knows up to {known}",
                fix="it was written by a newer muster: upgrade this one",
            )
        return int(rows[0][0])

    def _harden(self, schema: Schema) -> None:
        mode = str(self.execute("PRAGMA journal_mode = WAL")[0][0])
        if mode != "wal":
            raise StoreError(
                f"{self.path}: its file system cannot do WAL ({mode})", fix="put it on a local disk"
            )
        self.execute(f"PRAGMA synchronous = {schema.synchronous}")  # FULL: on the disk before we act on it
        self.execute("PRAGMA fullfsync = ON")  # macOS: a plain fsync stops at the drive's cache
        self.execute(f"PRAGMA wal_autocheckpoint = {schema.log_pages}")
        self.execute("PRAGMA journal_size_limit = 67108864")

    def _migrate(self, schema: Schema, version: int) -> None:
        """Run missing steps, each in one transaction with its version: a crash repeats none, skips none."""
        for number, step in enumerate(schema.steps[version:], start=version + 1):
            with self.transaction():
                step(self)
                self.execute(f"PRAGMA application_id = {schema.application_id}")
                self.execute("CREATE TABLE IF NOT EXISTS schema_version (version INTEGER NOT NULL)")
                self.execute("DELETE FROM schema_version")
                self.execute("INSERT INTO schema_version VALUES (?)", (number,))


@contextlib.contextmanager
def _closed_on_error(database: Database) -> Iterator[None]:
    try:
        yield
    except BaseException:
        database.close()
        raise


def _connect(
    path: Path, mode: str, wait_s: float, repair: str, *, any_thread: bool = False
) -> sqlite3.Connection:
    try:
        return _checked(f"{path.as_uri()}?mode={mode}", wait_s, any_thread)
    except sqlite3.Error as error:
        # A cleanly closed WAL file in a directory that we may not write to: no other process can be writing.
        if mode == "ro" and isinstance(error, sqlite3.OperationalError) and not Path(f"{path}-wal").exists():
            with contextlib.suppress(sqlite3.Error):
                return _checked(f"{path.as_uri()}?mode=ro&immutable=1", wait_s, any_thread)
        raise explained(error, path, repair) from error


def _checked(uri: str, wait_s: float, any_thread: bool) -> sqlite3.Connection:
    """Return a connection that has read the first page: SQLite opens lazily and would fail later."""
    connection = sqlite3.connect(
        uri, uri=True, timeout=wait_s, isolation_level=None, check_same_thread=not any_thread
    )
    try:
        connection.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except sqlite3.Error:
        connection.close()
        raise
    return connection


def _damaged(path: Path, what: str, repair: str) -> str:
    return f"{path}: damaged ({what}). Nothing was changed. {repair}"


def explained(error: sqlite3.Error, path: Path, repair: str = LEDGER_REPAIR) -> StoreError:
    """Return an error that explains what to do. By text: error codes exist only since Python 3.11."""
    text = str(error).lower()
    if "locked" in text or "busy" in text:
        return LedgerLocked(
            f"{path}: another program is writing to it (an open sqlite3 shell?)", fix="close that one"
        )
    if any(sign in text for sign in ("malformed", "not a database", "encrypted", "no such", "corrupt")):
        return LedgerCorrupt(_damaged(path, str(error), repair))
    if "full" in text:
        return StoreFull(f"{path}: the disk is full", fix="nothing was written. Free some space on it")
    if "i/o" in text:
        return StoreFull(
            f"{path}: {error}",
            fix="nothing was written. Is the disk full or gone, or a quota or a file-size limit reached?",
        )
    if "readonly" in text or "unable to open" in text or "permission" in text:
        return StoreError(
            f"{path}: {error}", fix="check that this user may read and write it and its directory"
        )
    return StoreError(f"{path}: {error}", fix="nothing was written")
