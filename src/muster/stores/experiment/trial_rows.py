"""Keep one digest per trial for the facts since the last snapshot, until a snapshot writes the rows.

Rows, and the other bytes of a snapshot, are compressed.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping

from muster.stores.experiment.codec import CREATED, REPORTED, StoredFact
from muster.stores.experiment.summary import Digest
from muster.stores.sqlite import Database, Row, Schema

_MOST_WAITING = 2048  # facts
_ROW = "SELECT number, status, starts, reports, failures, record FROM trials WHERE trial_id = ?"
_ALL = "SELECT trial_id, status, starts, reports, failures, record FROM trials ORDER BY number"


class RowBuffer:
    """Needs memory for the trials that had facts since the last snapshot, not for results."""

    def __init__(self) -> None:
        self._digests: dict[str, Digest] = {}
        self._waiting: list[StoredFact] = []  # many are folded faster than one by one

    @property
    def digests(self) -> dict[str, Digest]:
        self._fold()
        return self._digests

    def note(self, facts: Iterable[StoredFact]) -> None:
        self._waiting.extend(facts)
        if len(self._waiting) > _MOST_WAITING:
            self._fold()

    def _fold(self) -> None:
        facts, self._waiting = self._waiting, []
        for fact in facts:
            kind, trial_id, body, pickles, reports = fact
            if trial_id:
                digest = self._digests.get(trial_id)
                if digest is None:
                    digest = self._digests[trial_id] = Digest(trial_id)
                if kind == REPORTED:  # as `note` does, without a call: most facts are reports
                    digest.reports += reports
                    digest.kept[REPORTED] = (body, pickles)
                else:
                    digest.note(fact)

    def write(self, database: Database, statuses: Mapping[str, str]) -> None:
        """Write one row per trial, inside the transaction of the caller."""
        number = int(database.execute("SELECT coalesce(max(number), 0) FROM trials")[0][0])
        dictionary = self._dictionary(database)
        rows: list[Row] = []
        for digest in self.digests.values():
            known = None if CREATED in digest.kept else _earlier(database, digest.trial_id, dictionary)
            if known is None:
                number += 1
                rows.append(_row(number, digest, statuses, dictionary))
            else:
                rows.append(_row(known[0], digest.after(known[1]), statuses, dictionary))
        database.execute_many("REPLACE INTO trials VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        database.execute_many(
            "UPDATE trials SET status = ? WHERE trial_id = ?",
            [(status, trial_id) for trial_id, status in statuses.items() if trial_id not in self.digests],
        )

    def _dictionary(self, database: Database) -> bytes | None:
        """Return the compression dictionary: the first few records of the file that hold a result."""
        found: bytes | None = database.execute("SELECT dictionary FROM experiment")[0][0]
        if found is None:
            samples = [digest.record() for digest in self.digests.values() if REPORTED in digest.kept][:4]
            found = b"".join(samples)[:DICTIONARY_BYTES] or None
            database.execute("UPDATE experiment SET dictionary = ?", (found,))
        return found


def read_digests(database: Database) -> dict[str, Digest]:
    """Return every row; ValueError for a damaged one."""
    dictionary: bytes | None = database.execute("SELECT dictionary FROM experiment")[0][0]
    found: dict[str, Digest] = {}
    for trial_id, status, starts, reports, failures, record in database.execute(_ALL):
        content = decompress(record, dictionary)
        found[trial_id] = Digest.from_row(trial_id, status, (starts, reports, failures), content)
    return found


def _earlier(database: Database, trial_id: str, dictionary: bytes | None) -> tuple[int, Digest] | None:
    for number, status, starts, reports, failures, record in database.execute(_ROW, (trial_id,)):
        content = decompress(record, dictionary)
        return number, Digest.from_row(trial_id, status, (starts, reports, failures), content)
    return None


def _row(number: int, digest: Digest, statuses: Mapping[str, str], dictionary: bytes | None) -> Row:
    return (
        number,
        digest.trial_id,
        statuses.get(digest.trial_id, digest.status or "PENDING"),
        digest.starts,
        digest.reports,
        digest.failures,
        compress(digest.record(), dictionary),
    )


_AS_IT_IS, _DEFLATED, _WITH_DICTIONARY = b"\0", b"\1", b"\2"
_WORTH_IT = 64  # bytes
DICTIONARY_BYTES = 8192


def compress(data: bytes, dictionary: bytes | None = None) -> bytes:
    """Compress fast rather than well: level 1. A dictionary of similar records helps short ones most."""
    if len(data) < _WORTH_IT:
        return _AS_IT_IS + data
    if dictionary is None:
        return _DEFLATED + zlib.compress(data, 1)
    # A window as long as the dictionary, and small tables: making a large packer takes longer than packing.
    packer = zlib.compressobj(1, zlib.DEFLATED, -13, 5, zlib.Z_DEFAULT_STRATEGY, dictionary)
    return _WITH_DICTIONARY + packer.compress(data) + packer.flush()


def decompress(stored: bytes, dictionary: bytes | None = None) -> bytes:
    """Decompresses; ValueError when the bytes are damaged."""
    how, data = stored[:1], stored[1:]
    try:
        if how == _AS_IT_IS:
            return data
        if how == _DEFLATED:
            return zlib.decompress(data)
        if how == _WITH_DICTIONARY and dictionary is not None:
            return zlib.decompressobj(-15, dictionary).decompress(data)
    except zlib.error as error:
        raise ValueError(f"damaged: {error}") from error
    raise ValueError(f"stored in an unknown way: {how!r}")


_TABLES = (
    # One row. `saved`: for how many facts, of all that were ever appended, the snapshot stands.
    """CREATE TABLE experiment (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        saved INTEGER NOT NULL,
        settings BLOB NOT NULL,
        settings_pickles BLOB,
        snapshot BLOB,
        dictionary BLOB)""",
    # One row per `append`: its facts as msgpack, and beside them the pickles of values that are not data. The
    # key is the number of its last fact. Rows are deleted once a snapshot includes them.
    """CREATE TABLE batches (
        last INTEGER PRIMARY KEY,
        facts BLOB NOT NULL,
        pickles BLOB)""",
    # Saved state of plug-ins, taken with the snapshot. Theirs to read: pickles, as a rule.
    "CREATE TABLE plugins (name TEXT PRIMARY KEY, state BLOB NOT NULL) WITHOUT ROWID",
    # For readers: what became of each trial, up to the snapshot. Its size follows the number of trials, not
    # of results. `record` holds the last fact of each kind, compressed with `experiment.dictionary`.
    """CREATE TABLE trials (
        number INTEGER PRIMARY KEY,
        trial_id TEXT NOT NULL UNIQUE,
        status TEXT NOT NULL,
        starts INTEGER NOT NULL,
        reports INTEGER NOT NULL,
        failures INTEGER NOT NULL,
        record BLOB NOT NULL)""",
)


def _first_tables(database: Database) -> None:
    for statement in _TABLES:
        database.execute(statement)
    database.execute("INSERT INTO experiment VALUES (1, 0, x'80', NULL, NULL, NULL)")


def _archives(database: Database) -> None:
    # Trials that are over, as the core wrote them: each snapshot adds those that ended since the one before.
    database.execute("CREATE TABLE archives (number INTEGER PRIMARY KEY, records BLOB NOT NULL)")


# Large arrays of configurations, by the hash of their content. Created with the first one.
ARRAYS = "CREATE TABLE IF NOT EXISTS arrays (digest BLOB PRIMARY KEY, content BLOB NOT NULL) WITHOUT ROWID"

TRIALS_SCHEMA = Schema(
    name="experiment",
    application_id=0x6D757378,
    steps=(_first_tables, _archives),
    synchronous="NORMAL",
    log_pages=4000,  # 16 MB: an append changes one page or two, and a flush takes as long as 500 appends
    shrinks=True,
    unfound="is this the directory of an experiment, and was it ever started?",
    repair=(
        "Restore a copy, or move it and its -wal file away and start the experiment again: results and "
        "checkpoints in the trials' directories are not touched"
    ),
)
