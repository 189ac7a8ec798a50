"""Defines the tables of the file of an experiment; the comments help to query it by hand.

`synchronous = NORMAL`: a commit survives kill -9 and a crash of the program at once, because it is with the
operating system. Only a power cut may take the last steps away, as a whole and never out of the middle; those
results are computed again from the last checkpoint, while a disk flush per report would cost every run
milliseconds. Deleting a checkpoint cannot be computed again: `SqliteTrialStore.sync` flushes before that.
"""

from __future__ import annotations

from muster.stores.sqlite import Database, Schema

_TABLES = (
    # One row. `saved`: for how many facts, of all that were ever appended, the snapshot stands.
    """CREATE TABLE experiment (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        saved INTEGER NOT NULL,
        settings BLOB NOT NULL,
        settings_pickles BLOB,
        snapshot BLOB,
        dictionary BLOB)""",
    # One row per `append`: its facts as msgpack, and beside them the pickles of values that are no data. The
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
        "Restore a copy, or move it and its -wal file away and start the experiment anew: results and "
        "checkpoints in the trials' directories are not touched"
    ),
)
