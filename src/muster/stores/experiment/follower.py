"""Follow the file of an experiment beside its writer: what changed since the last look, and nothing else.

For the page, which looks ten times a second. Reads are short, so that the writer's log can be emptied.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from muster.errors import MusterError, StoreError
from muster.host.file_lock import holder_of
from muster.stores.experiment import values
from muster.stores.experiment.codec import CREATED, ExperimentLocation, StoredFact, unpack_batch
from muster.stores.experiment.reader import store_path
from muster.stores.experiment.summary import Digest, TrialSummary
from muster.stores.experiment.trial_rows import TRIALS_SCHEMA, RowBuffer, decompress
from muster.stores.sqlite import Database, Row

_COLUMNS = "trial_id, status, starts, reports, failures"
_CHUNK = 250  # trials per query


class FollowStep(Struct, kw_only=True):
    """Trials with new facts, or with another status, as they are now."""

    digests: list[Digest] = field(default_factory=list)
    unreadable: int = 0  # rows and batches that are damaged and were left out


class ExperimentFollower:
    """Reads one file again and again; `poll` raises StoreError when it is gone.

    Any thread may call it, one at a time.
    """

    def __init__(self, path: str | Path, *, root: str | None = None) -> None:
        self._path = store_path(path)
        self._location = ExperimentLocation(root or os.path.abspath(self._path.parent))
        self._database = Database.open_read_only(self._path, TRIALS_SCHEMA, any_thread=True)
        self._opened = self._marks()
        self._version = -1
        self._saved = self._last = -1
        self._known: dict[str, tuple[str, int, int, int]] = {}  # status, starts, reports, failures
        self._sizes: dict[str, int] = {}  # of the records in the rows
        self._later = RowBuffer()  # facts after the snapshot

    def poll(self, take: Callable[[list[Digest]], None] | None = None) -> FollowStep:
        """Return what other processes have committed since the last call; digests are valid until the next.

        With `take`, whole trials are not returned but passed to it, a few hundred at a time: ten thousand at
        once would fill the memory that is then needed for nothing else.
        """
        marks = self._marks()
        if marks != self._opened:  # replaced, or closed and opened again by a writer
            self._reopen(marks)
        version = self._database.data_version()
        if version == self._version:
            return FollowStep()
        step = FollowStep()
        take = take or step.digests.extend
        with self._database.read_transaction():
            saved = int(self._database.execute("SELECT saved FROM experiment")[0][0])
            if saved != self._saved:
                self._read_rows(step, take, is_gap=self._last < saved)
                self._last, self._later = saved, RowBuffer()  # rows hold what came before
            self._read_facts(step, take)
        self._saved, self._version = saved, version
        return step

    def settings(self) -> Mapping[str, Any]:
        """Return what the experiment was started with."""
        rows = self._database.execute("SELECT settings, settings_pickles FROM experiment")
        try:
            return dict(values.decode(*rows[0]))
        except ValueError:
            return {}

    def trial(self, trial_id: str) -> TrialSummary | None:
        """Return one trial as it is now; None when there is none with this id."""
        with self._database.read_transaction():
            later = RowBuffer()
            for _, facts in self._batches(-1, FollowStep()):
                later.note(fact for fact in facts if fact.trial_id == trial_id)
            found = next(iter(self._joined([trial_id], later, FollowStep())), None)
        try:
            return None if found is None else found.summary(self._location)
        except ValueError as error:
            raise StoreError(f"{self._path}: trial {trial_id} cannot be read ({error})") from error

    def writer(self) -> int | None:
        """Return the process that runs the experiment now; None when none does, 0 when it is not known."""
        return holder_of(self._path)

    def close(self) -> None:
        self._database.close()

    def _marks(self) -> tuple[int, bool]:
        try:
            return os.stat(self._path).st_ino, os.path.exists(f"{self._path}-wal")
        except OSError as error:
            raise StoreError(
                f"{self._path} is gone ({error.strerror}): was the experiment's directory deleted or moved?"
            ) from error

    def _reopen(self, marks: tuple[int, bool]) -> None:
        is_other = marks[0] != self._opened[0]
        self._database.close()
        self._database = Database.open_read_only(self._path, TRIALS_SCHEMA, any_thread=True)
        self._opened, self._version = marks, -1
        if is_other:
            raise StoreError(f"{self._path} was replaced by another experiment: open the page again")

    def _read_rows(self, step: FollowStep, take: Callable[[list[Digest]], None], *, is_gap: bool) -> None:
        """Read the rows that changed; with a gap, facts went into them before they were seen here."""
        if self._saved < 0:
            chunks = self._all_rows()
        else:
            sql = f"SELECT length(record), {_COLUMNS} FROM trials ORDER BY number"
            rows = self._database.execute(sql)
            sizes, self._sizes = self._sizes, {row[1]: row[0] for row in rows}
            chunks = self._rows_of(
                [
                    row[1]
                    for row in rows
                    if self._known.get(row[1]) != row[2:] or (is_gap and sizes.get(row[1]) != row[0])
                ]
            )
        for chunk in chunks:
            self._pass_on(list(self._decoded(chunk, step)), take)

    def _all_rows(self) -> Iterator[list[Row]]:
        sql = f"SELECT {_COLUMNS}, record, number FROM trials WHERE number > ? ORDER BY number LIMIT ?"
        last = -1
        while rows := self._database.execute(sql, (last, _CHUNK)):
            last = rows[-1][-1]
            yield [row[:-1] for row in rows]

    def _rows_of(self, ids: list[str]) -> Iterator[list[Row]]:
        for start in range(0, len(ids), _CHUNK):
            chunk = ids[start : start + _CHUNK]
            marks = ", ".join("?" * len(chunk))
            sql = f"SELECT {_COLUMNS}, record FROM trials WHERE trial_id IN ({marks}) ORDER BY number"
            yield self._database.execute(sql, chunk)

    def _decoded(self, rows: list[Row], step: FollowStep) -> Iterator[Digest]:
        dictionary: bytes | None = self._database.execute("SELECT dictionary FROM experiment")[0][0]
        for trial_id, status, starts, reports, failures, record in rows:
            try:
                content = decompress(record, dictionary)
                self._sizes[trial_id] = len(record)
                yield Digest.from_row(trial_id, status, (starts, reports, failures), content)
            except ValueError:
                step.unreadable += 1

    def _read_facts(self, step: FollowStep, take: Callable[[list[Digest]], None]) -> None:
        changed: dict[str, None] = {}
        for last, facts in self._batches(self._last, step):
            self._last = last
            self._later.note(facts)
            changed.update(dict.fromkeys(fact.trial_id for fact in facts if fact.trial_id))
        ids = list(changed)
        for start in range(0, len(ids), _CHUNK):
            self._pass_on(self._joined(ids[start : start + _CHUNK], self._later, step), take)

    def _joined(self, ids: list[str], later: RowBuffer, step: FollowStep) -> list[Digest]:
        """Return trials from their rows and from later facts; leave out those that have neither."""
        with_rows = [one for one in ids if one not in later.digests or CREATED not in later.digests[one].kept]
        known = {row.trial_id: row for rows in self._rows_of(with_rows) for row in self._decoded(rows, step)}
        joined = []
        for trial_id in ids:
            row, newer = known.get(trial_id), later.digests.get(trial_id)
            found = newer.after(row) if newer is not None and row is not None else newer or row
            joined += [found] if found is not None else []
        return joined

    def _pass_on(self, digests: list[Digest], take: Callable[[list[Digest]], None]) -> None:
        for digest in digests:
            counts = digest.starts, digest.reports, digest.failures
            self._known[digest.trial_id] = (digest.status, *counts)
        if digests:
            take(digests)

    def _batches(self, after: int, step: FollowStep) -> Iterator[tuple[int, list[StoredFact]]]:
        sql = "SELECT last, facts, pickles FROM batches WHERE last > ? ORDER BY last"
        for last, data, pickles in self._database.execute(sql, (after,)):
            try:
                yield last, list(unpack_batch(data, pickles))
            except ValueError:
                step.unreadable += 1
                yield last, []


def follow(path: str | Path, *, root: str | None = None) -> ExperimentFollower:
    """Open an experiment to follow it; raises MusterError with a hint when there is none."""
    try:
        return ExperimentFollower(path, root=root)
    except MusterError:
        raise
    except OSError as error:
        raise StoreError(f"{path} cannot be read: {error}") from error
