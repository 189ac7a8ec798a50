"""Turn the rows and orders of one trial into bytes of its files.

The control thread makes a TrialLog and hands it over; after that only the writer uses it: a thread of the
driver, or a separate process, which is given the state of the files.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.base.framing import SCALARS
from muster.tune.logger.files.csv_rows import Flat, Table, flat_row, widened
from muster.tune.logger.files.json_rows import RowEncoder, is_plain, pretty, shortened
from muster.tune.logger.files.log_files import (
    OpenFiles,
    append_all,
    append_once,
    content,
    csv_columns,
    cut_repeated_records,
    cut_repeated_rows,
    iteration_of,
    last_iteration,
    truncate_after,
    write_new,
    write_whole,
)
from muster.tune.logger.tensorboard.events import EventEncoder, opening
from muster.tune.logger.tensorboard.hparams import HparamsEncoder, hparams_of

JSON, CSV, TBX = 1, 2, 4
RESULTS, PROGRESS, PARAMS, PICKLED_PARAMS = "result.json", "progress.csv", "params.json", "params.pkl"
ERRORS, PICKLED_ERROR = "error.txt", "error.pkl"
Row = tuple[int, dict[str, Any], float]  # for which files, the result, when it came
ReportProblem = Callable[[str, Exception], None]
Position = tuple[int, int | None]  # rows in the files, and the iteration for TensorBoard; None: unknown
Session = tuple[Any, float]  # a config, or its hparams, and when the trial began
Order = tuple[Any, ...]  # one of TrialLog's verbs and its arguments: plain data but for a config


class WriterContext:
    """Holds what the logs of all trials share on the writer's side."""

    def __init__(self, hostname: str, open_limit: int, report_problem: ReportProblem) -> None:
        self.hostname = hostname
        self.open_files = OpenFiles(open_limit)
        self.events, self.hparams = EventEncoder(), HparamsEncoder()
        self.report_problem = report_problem
        self._tables: dict[tuple[str, ...], Table] = {}

    def table_for(self, records: Sequence[Flat]) -> Table:
        """Return the table for the first records of a file; trials that report the same keys share it."""
        keys = tuple(records[0])
        table = self._tables.get(keys)
        if table is None:
            if len(self._tables) > 64:
                self._tables.clear()
            table = self._tables[keys] = Table(keys)
        return table


class TrialLog:
    """Holds what is still to be written to one trial's directory, and the state of its files."""

    __slots__ = (
        *("_encoder", "_events", "_has_header", "_is_new", "_pending", "_table", "_whole"),
        *("directory", "ended", "failures", "number", "retry_at", "rows", "sent_config", "session"),
    )

    def __init__(
        self,
        directory: str,
        columns: Sequence[str] | None = None,
        has_header: bool = False,
        events: str = "",
        is_new: bool = False,
        session: Session | None = None,
    ) -> None:
        self.directory = directory
        self.number = 0  # its number in the writer process; 0: none there
        self.sent_config: Any = None  # the last one that this process was given
        self.session = session  # what TensorBoard gets at its end
        self.rows: list[Row] = []
        self.ended = False
        self.failures = 0  # of writing, one after the other
        self.retry_at = 0.0
        self._is_new = is_new  # its files are new and unchanged since
        self._pending: dict[str, list[bytes]] = {}  # file name -> to be appended
        self._whole: dict[str, bytes] = {}  # file name -> to be rewritten
        self._encoder: RowEncoder | None = None
        self._table = None if columns is None else Table(columns)
        self._has_header = has_header
        self._events = events

    # what happens to the trial: the verbs of an order

    def start(
        self,
        context: WriterContext,
        kinds: int,
        config: Any,  # noqa: ANN401 - the user's
        after: Position,
        at: float,
        params: Mapping[str, bytes] | None = None,
    ) -> None:
        """Handle a start after a position: later rows in the files go, as they are reported again.

        `params`: the files made of a config that is not available here; then `config` holds its hparams.
        """
        rows, iteration = after
        self.ended = False
        self.encode_rows(context)
        try:
            self.write(context)
        except OSError as error:
            context.report_problem(self.directory, error)
        self._is_new = not (os.path.exists(self._path(RESULTS)) or os.path.exists(self._path(PROGRESS)))
        if self._is_new:
            self._table = Table()
        else:
            self._repair(context, rows)
        if kinds & JSON:
            self._pending.setdefault(RESULTS, [])
            self._whole.update(self.params(context.report_problem, config) if params is None else params)
        if kinds & TBX:
            resumed = None if self._is_new or iteration is None else iteration + 1
            self._open_events(context, at, resumed)
            self.note_session(config, at)

    def note_session(self, config: object, at: float) -> None:
        """Note the config that the trial runs with; the last config counts, and the first time."""
        self.session = (config, at if self.session is None else self.session[1])

    def fail(self, context: WriterContext, text: bytes, exception: bytes | None, unless: bytes = b"") -> None:
        """Append the text of another failure; its exception replaces the one before.

        Nothing happens when `unless` has been written already.
        """
        if unless and unless in content(self._path(ERRORS)):
            return
        self._pending.setdefault(ERRORS, []).append(text)
        if exception is not None:
            self._whole[PICKLED_ERROR] = exception

    def end(self, context: WriterContext, at: float, failed: bool) -> None:
        """Handle the end of the trial: after this the files are closed."""
        self.ended = True
        session, self.session = self.session, None
        if session is not None:
            config, started_at = session
            self._add_events(context, context.hparams.record(hparams_of(config), started_at, at, failed), at)

    def carry_out(self, context: WriterContext, order: Order) -> None:
        _VERBS[order[0]](self, context, *order[1:])

    # handing over to another writer

    def params(self, report_problem: ReportProblem, config: object) -> dict[str, bytes]:
        """Return the files that are made of a config, as far as they can be made."""
        made: dict[str, bytes] = {}
        try:
            made[PARAMS] = pretty(shortened(config)).encode()
            made[PICKLED_PARAMS] = _pickled(config)
        except Exception as error:  # noqa: BLE001 - a user's object may do anything when it is pickled
            report_problem(self._path(PICKLED_PARAMS), error)
        return made

    def hand_over(self) -> tuple[list[str] | None, bool, str, bool, Session | None]:
        """Return the state of the files for another TrialLog; this one then knows nothing of them."""
        table, session = self._table, self.session
        standing = (
            table.columns if table is not None else None,
            self._has_header,
            self._events,
            self._is_new,
            None if session is None else (hparams_of(session[0]), session[1]),
        )
        self._table, self._has_header, self._events, self._is_new = None, False, "", False
        return standing

    def reclaim(self, context: WriterContext, entries: Sequence[Entry]) -> list[Entry]:
        """Return `entries` of a writer that ended suddenly, made fit to be written again."""
        self.number, self.sent_config = 0, None
        self._table, self._has_header, self._events, self._is_new = None, False, "", False
        self._repair(context, None)
        rows = _rows_before_a_cut(entries)
        if rows:
            self._unwrite(context, rows)
        return [
            (log, 0, (*what[:3], what[1]), at) if not kinds and what[0] == "fail" else (log, kinds, what, at)
            for log, kinds, what, at in entries
        ]

    def _unwrite(self, context: WriterContext, rows: Sequence[Row]) -> None:
        """Cut off those of `rows` that are at the ends of the files: all will be written again."""
        try:
            cut_repeated_rows(self._path(RESULTS), [row for kinds, row, _ in rows if kinds & JSON])
            table = [flat_row(row) for kinds, row, _ in rows if kinds & CSV]
            cut_repeated_records(self._path(PROGRESS), self._columns(), table)
            kinds, row, at = rows[0]
            if kinds & TBX:
                first, last = iteration_of(row), last_iteration(self._path(RESULTS)) or 0
                self._open_events(context, at, first if first > last else None)
        except OSError as error:
            context.report_problem(self.directory, error)

    # from rows to bytes to files

    def encode_rows(self, context: WriterContext) -> None:
        """Turn the waiting rows into bytes; of one that cannot be written the plain values are."""
        if not self.rows:
            return
        rows, self.rows = self.rows, []
        try:
            self._encode(context, rows)
        except Exception as error:  # noqa: BLE001 - a user's value may do anything when it is turned into text
            if len(rows) == 1:
                context.report_problem(self._path(RESULTS), error)
                kinds, result, at = rows[0]  # rows are counted, so none may be missing: its plain values
                plain = {str(key): value for key, value in result.items() if type(value) in SCALARS}
                self._encode(context, [(kinds, plain, at)])
                return
            for row in rows:
                self.rows = [row]
                self.encode_rows(context)

    def write(self, context: WriterContext) -> None:
        """Write everything to the disk. OSError: what was not written is kept for another attempt."""
        if self._whole:
            self._write_whole()
        for name in tuple(self._pending):
            self._append(context, name)
        if self.ended:
            self._encoder = None  # it holds the config, as text
            self.close(context)

    def close(self, context: WriterContext) -> None:
        if len(context.open_files) == 0:
            return
        for name in (RESULTS, PROGRESS, self._events):
            context.open_files.close(self._path(name))

    @property
    def waiting_bytes(self) -> int:
        parts = sum(len(part) for parts in self._pending.values() for part in parts)
        return parts + sum(map(len, self._whole.values()))

    def give_up(self) -> int:
        """Forget what could not be written, and returns how many bytes that is."""
        lost = self.waiting_bytes
        self._pending.clear()
        self._whole.clear()
        return lost

    # private helpers

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def _repair(self, context: WriterContext, rows: int | None) -> None:
        try:
            truncate_after(self.directory, rows)
            self._table = None
            self._columns()
        except OSError as error:
            context.report_problem(self.directory, error)

    def _open_events(self, context: WriterContext, at: float, first_step: int | None) -> None:
        self._events = f"events.out.tfevents.{int(at)}.{context.hostname}"
        self._pending.setdefault(self._events, []).append(opening(at, first_step))

    def _encode(self, context: WriterContext, rows: Sequence[Row]) -> None:
        lines = [row for kinds, row, _ in rows if kinds & JSON]
        if lines:
            self._encoder = self._encoder or RowEncoder()
            json_bytes = self._encoder.lines(lines)
        flats = [(kinds, flat_row(row), at) for kinds, row, at in rows if kinds & (CSV | TBX)]
        records = [flat for kinds, flat, _ in flats if kinds & CSV]
        csv_bytes = self._csv_bytes(context, records) if records else b""
        shown = [(at, flat) for kinds, flat, at in flats if kinds & TBX]
        if shown:
            self._add_events(context, context.events.records(shown), shown[0][0])
        # Nothing can fail from here on, so a batch that failed has left nothing behind and is done again.
        if csv_bytes:
            header = b"" if self._has_header else self._columns().header()
            self._pending.setdefault(PROGRESS, []).append(header + csv_bytes)
            self._has_header = True
        if lines:
            self._pending.setdefault(RESULTS, []).append(json_bytes)

    def _add_events(self, context: WriterContext, records: bytes, at: float) -> None:
        if not self._events:
            self._open_events(context, at, None)
        if records:
            self._pending.setdefault(self._events, []).append(records)

    def _csv_bytes(self, context: WriterContext, records: Sequence[Flat]) -> bytes:
        if not self._columns().columns:
            self._table = context.table_for(records)
        new = self._columns().new_columns(records)
        if new and self._has_header:
            self._widen(context, new)
        elif new:
            self._table = self._columns().widened(new)
        return self._columns().encode(records)

    def _columns(self) -> Table:
        if self._table is None:
            self._table = Table(csv_columns(self._path(PROGRESS)))
            self._has_header = bool(self._table.columns)
        return self._table

    def _widen(self, context: WriterContext, new: Sequence[str]) -> None:
        """Rewrite the file with more columns, in one step; when that fails the new keys wait."""
        table, path = self._columns(), self._path(PROGRESS)
        try:
            self._append(context, PROGRESS)
            context.open_files.close(path)
            with open(path, "rb") as file:
                data = file.read()
            wider = table.widened(new)
            write_whole(path, widened(data, wider.header(), len(new)))
        except OSError as error:
            context.report_problem(path, error)
        else:
            self._table = wider

    def _write_whole(self) -> None:
        write = write_new if self._is_new else write_whole
        for name in tuple(self._whole):
            try:
                write(self._path(name), self._whole[name])
            except FileNotFoundError:
                os.makedirs(self.directory, exist_ok=True)
                write(self._path(name), self._whole[name])
            del self._whole[name]
        self._is_new = False

    def _append(self, context: WriterContext, name: str) -> None:
        parts = self._pending.get(name)
        if parts is None:
            return
        path, data = self._path(name), b"".join(parts)
        for_now = self.ended or name == ERRORS  # another write is not expected soon
        try:
            self._append_to(context, path, data, for_now=for_now)
        except FileNotFoundError:
            os.makedirs(self.directory, exist_ok=True)
            self._append_to(context, path, data, for_now=for_now)
        del self._pending[name]

    def _append_to(self, context: WriterContext, path: str, data: bytes, *, for_now: bool) -> None:
        if for_now:
            if len(context.open_files):
                context.open_files.close(path)
            append_once(path, data)
        else:
            append_all(context.open_files.descriptor(path), data)


Entry = tuple[TrialLog, int, Any, float]  # a row for `kinds` of files that came at a time; kinds 0: an Order
_VERBS: dict[str, Callable[..., None]] = {"start": TrialLog.start, "fail": TrialLog.fail, "end": TrialLog.end}


def _rows_before_a_cut(entries: Sequence[Entry]) -> list[Row]:
    """Return the rows before an order that itself cuts off what is too much."""
    found: list[Row] = []
    for _, kinds, what, at in entries:
        if kinds:
            found.append((kinds, what, at))
        elif what[0] == "start":
            break
    return found


def _pickled(config: object) -> bytes:
    """Pickle plain configs by pickle, which is fast, and others by cloudpickle, which also takes lambdas."""
    if is_plain(config):
        return pickle.dumps(config)
    import cloudpickle  # type: ignore[import-untyped]

    data: bytes = cloudpickle.dumps(config)
    return data
