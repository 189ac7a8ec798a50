"""Define the tables of the ledger and their migrations; the comments help to query it by hand."""

from __future__ import annotations

from typing import Any, TypeVar

from muster.base import codec
from muster.cluster.states import InstanceState
from muster.errors import StoreError
from muster.stores.sqlite import Database, Schema

# A launch that failed, or a machine that could not be set up: its history has an entry of that state.
HAS_FAILED = (
    f"(state = 'ALLOCATION_FAILED' OR instr(record, '[{InstanceState.RAY_INSTALL_FAILED.value},') > 0)"
)

_TABLES = (
    # One row. `version` moves by one with every commit and never goes back.
    """CREATE TABLE ledger (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        version INTEGER NOT NULL,
        newest_at REAL NOT NULL)""",
    # One row: what planning remembers from tick to tick.
    """CREATE TABLE memory (
        only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
        value TEXT NOT NULL)""",
    # `record` is the truth; the other columns repeat parts of it for queries. The key keeps live rows
    # (0, 0.0) side by side, so that reading them costs the same however many ended ones there are, and
    # ended rows in the order in which they are pruned. The history is inside the record: one read and one
    # write per change, one truth, nothing to join at start; the view `history` shows it line by line.
    """CREATE TABLE instances (
        terminal INTEGER NOT NULL,
        ended_at REAL NOT NULL,
        instance_id TEXT NOT NULL,
        state TEXT NOT NULL,
        node_type TEXT NOT NULL,
        cloud_id TEXT,
        launch_request_id TEXT,
        version INTEGER NOT NULL,
        record TEXT NOT NULL,
        PRIMARY KEY (terminal, ended_at, instance_id)) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX instances_by_id ON instances (instance_id)",
    "CREATE INDEX instances_by_cloud_id ON instances (cloud_id) WHERE cloud_id IS NOT NULL",
    """CREATE INDEX instances_by_launch ON instances (launch_request_id)
        WHERE launch_request_id IS NOT NULL""",
    "CREATE INDEX instances_by_type ON instances (node_type, state)",
    f"CREATE INDEX instances_failed ON instances (ended_at) WHERE {HAS_FAILED}",
    # Effects that were decided and may not have reached their port.
    """CREATE TABLE outbox (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        request_id TEXT NOT NULL UNIQUE,
        version INTEGER NOT NULL,
        action TEXT NOT NULL)""",
    # One row per tick that changed something, keyed by the version it made. `size` stands before the long
    # columns, so that adding it up does not read them.
    """CREATE TABLE decisions (
        version INTEGER PRIMARY KEY,
        tick_id TEXT NOT NULL,
        at REAL NOT NULL,
        size INTEGER NOT NULL,
        moved TEXT NOT NULL,
        actions TEXT NOT NULL,
        quarantined TEXT NOT NULL,
        verdicts TEXT NOT NULL)""",
    "CREATE INDEX decisions_by_tick ON decisions (tick_id)",
    # What could not be read, kept for the user to inspect.
    """CREATE TABLE damaged (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        source TEXT NOT NULL,
        message TEXT NOT NULL,
        content BLOB,
        found_at REAL NOT NULL)""",
    "CREATE TABLE states (number INTEGER PRIMARY KEY, name TEXT NOT NULL)",
    """CREATE VIEW history AS
        SELECT instances.instance_id AS instance_id, line.key AS position, states.name AS state,
            json_extract(line.value, '$[1]') AS at, json_extract(line.value, '$[2]') AS details
        FROM instances, json_each(instances.record, '$.d.history') AS line
        LEFT JOIN states ON states.number = json_extract(line.value, '$[0]')""",
)


def _first_tables(database: Database) -> None:
    for statement in _TABLES:
        database.execute(statement)
    database.execute_many("INSERT INTO states VALUES (?, ?)", [(s.value, s.name) for s in InstanceState])
    database.execute("INSERT INTO ledger VALUES (1, 0, 0.0)")


LEDGER_SCHEMA = Schema(name="ledger", application_id=0x6D757374, steps=(_first_tables,))


T = TypeVar("T")


def stored(value: T, kind: Any, name: str) -> tuple[str, T]:  # noqa: ANN401 - a type or a union of types
    """Return the text to store, and the value that a restart will read from it.

    Characters that no file can hold (half of a surrogate pair, from a provider's garbled message) are
    replaced: a bad message must not stop the loop. What else cannot be read back is refused: StoreError.
    """
    try:
        try:
            text = codec.encode(value).decode()
        except UnicodeEncodeError:
            value = codec.convert(codec.cleaned(codec.to_builtins(value)), kind)
            text = codec.encode(value).decode()
        codec.decode(text.encode(), kind)
    except (ValueError, TypeError, OverflowError, NotImplementedError) as error:
        raise StoreError(f"{name} cannot be stored: {error}", fix="nothing was written") from error
    return text, value
