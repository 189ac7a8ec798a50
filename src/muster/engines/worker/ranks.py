"""Run a trial as several processes: start the ranks, copy their output, end them together.

`run_ranks` runs in the trial's process, the parent of all ranks. A rank is a fork where the fork server has
found forks to be safe, otherwise a new interpreter below a guard. Ranks end with their parent. What a rank
leaves behind, the guard ends, or the fork server when the trial's process has ended.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, NamedTuple, NoReturn

from muster.base.clock import Clock, SystemClock
from muster.engines.worker.child_reports import fork_rules, new_path, reports_to, several_forks
from muster.engines.worker.exit_report import MESSAGE_LINES, failed_exit
from muster.engines.worker.main import leave, stop_on_sigterm
from muster.engines.worker.output import flush
from muster.engines.worker.run_trainable import report_output
from muster.errors import RankFailed
from muster.host.die_with_parent import adopt_orphans, die_with_parent, end_children
from muster.host.machine import boot_code, environment, oom_kills
from muster.session.report import OUTER_RANKS, REPORT_TO, report
from muster.session.session import TrialStopped, current, forget

_HOST = "127.0.0.1"
_LOOK_S = 0.2  # a rank whose output a descendant holds open is looked for so often
_LEAVE_S = 1.0  # between SIGTERM and SIGKILL
_CAUSE_S = 0.3  # after a rank raised, another may show that it died before
_LAST_READS = 20  # of what an ended rank has printed; what it started may print forever
_CHUNK, _MOST_LINE, _SHOWN_LINE = 1 << 16, 1 << 16, 500


class RankTask(NamedTuple):
    """What every rank of a trial runs."""

    function: Callable[..., Any]
    config: dict[str, Any]
    arguments: Mapping[str, Any] = {}


def run_ranks(
    task: RankTask,
    workers: int,
    variables: Mapping[str, str] = {},
    session: Any = None,  # noqa: ANN401
) -> None:
    """Run `task` in so many processes, and return when all have ended well.

    Args:
        task: The function, its config and further arguments.
        workers: The number of ranks.
        variables: More environment variables for all ranks.
        session: What gets the reports of rank 0 and answers its questions, with the methods of TrialSession
            that `Reporters` calls. Default: the session of the trial that this process runs.

    Raises:
        RankFailed: A rank has failed; all others have ended by then.
        TrialStopped: The trial is to stop; all ranks have ended by then.
    """
    sessions, kills = (session, current()), oom_kills()
    if session is not None:
        variables = {**variables, REPORT_TO: new_path(environment())}

    def is_stopped() -> bool:
        return any(getattr(each, "stopped", False) for each in sessions)

    with _reserved_port() as port:
        group = RankGroup(task, _environments(workers, port, variables), SystemClock())
        try:
            with nullcontext() if session is None else reports_to(session, variables[REPORT_TO]):
                group.watch(is_stopped)
        finally:
            group.end()
    if is_stopped():
        raise TrialStopped
    if group.failed is not None:
        raise group.failed.failure(workers, lacked_memory=oom_kills() > kills)


@contextmanager
def _reserved_port() -> Iterator[int]:
    """Reserve a free port: no other program is given it, and rank 0 may listen there (with SO_REUSEADDR)."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("", 0))
        yield held.getsockname()[1]


def _environments(workers: int, port: int, variables: Mapping[str, str]) -> list[dict[str, str]]:
    """Return what torch's `env://` reads, for each rank."""
    shared = {
        "WORLD_SIZE": str(workers),
        "LOCAL_WORLD_SIZE": str(workers),
        "MASTER_ADDR": _HOST,
        "MASTER_PORT": str(port),
        "GROUP_RANK": "0",
        OUTER_RANKS: "",
        **variables,
    }
    return [{**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)} for rank in range(workers)]


class Rank:
    """One process, with the last lines of its output."""

    def __init__(self, number: int) -> None:
        self.number, self.pid = number, 0
        self.exit_code: int | None = None  # None: it runs; negative: a signal
        self.is_stopping = False
        self.raised_at: float | None = None  # by the monotonic clock, when its function raised
        self.tail: deque[str] = deque(maxlen=MESSAGE_LINES)

    @property
    def is_running(self) -> bool:
        return self.pid > 0 and self.exit_code is None

    def look(self) -> None:
        """Note the end of the process."""
        if self.is_running:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.exit_code = os.waitstatus_to_exitcode(status) if pid else None

    def stop(self) -> None:
        """Send SIGTERM once, unless its function has raised: it is about to print why."""
        if not self.is_stopping and self.raised_at is None:
            self.is_stopping = True
            self.signal(signal.SIGTERM)

    def signal(self, number: int) -> None:
        if self.is_running:
            os.kill(self.pid, number)  # not reaped yet: the pid is still its own

    def failure(self, of: int, *, lacked_memory: bool) -> RankFailed:
        """Return the error of a rank that has failed; its last line says how."""
        code = 1 if self.raised_at is not None else self.exit_code or 0
        how = f"failed: {self.tail[-1]}" if self.raised_at and self.tail else f"ended with exit code {code}"
        if code < 0:
            why = "; the kernel killed a process because memory ran out" if lacked_memory else ""
            how = f"was killed by signal {-code} ({signal.Signals(-code).name}){why}"
        where = f"rank {self.number} of {of}"
        lines = "\n".join((f"last lines of {where}:", *self.tail, ""))
        text = f"{lines if self.tail else ''}{where} {how}"
        return RankFailed(text, rank=self.number, exit_code=code)


class LineCopier:
    """Copies whole lines from a rank's pipe to a stream of the trial, with the rank before each."""

    def __init__(self, fd: int, rank: Rank, stream: Any) -> None:  # noqa: ANN401 - sys.stdout or its wrapper
        self.fd, self.rank, self._stream, self._rest = fd, rank, stream, b""
        os.set_blocking(fd, False)

    def copy(self) -> bool:
        """Copy what has arrived; return False at the end."""
        try:
            data = os.read(self.fd, _CHUNK)
        except BlockingIOError:
            return True
        *lines, self._rest = (self._rest + data).replace(b"\r", b"\n").split(b"\n")
        if not data or len(self._rest) > _MOST_LINE:
            lines, self._rest = [*lines, self._rest], b""
        for line in filter(None, lines):
            text = line.decode("utf-8", "replace")
            self.rank.tail.append(text[:_SHOWN_LINE])
            with contextlib.suppress(OSError, ValueError):  # a full disk, a closed stream
                self._stream.write(f"(rank {self.rank.number}) {text}\n")
        return bool(data)


@contextmanager
def _interpreters(task: RankTask) -> Iterator[Callable[[dict[str, str], list[int]], int]]:
    """Yield what starts a rank as a new interpreter, which reads its task from a file."""
    import subprocess
    import tempfile

    from muster.base import by_value

    with tempfile.TemporaryFile(buffering=0) as stored:
        stored.write(by_value.dumps(task))

        def start(variables: dict[str, str], ends: list[int]) -> int:
            numbers = [stored.fileno(), ends[2], os.getpid()]
            made = subprocess.Popen(
                [sys.executable, "-c", boot_code(__name__), "\n".join(sys.path), *map(str, numbers)],
                env={**environment(), **variables},
                pass_fds=numbers[:2],
                stdin=subprocess.DEVNULL,
                stdout=ends[0],
                stderr=ends[1],
            )
            made.returncode = 0  # reaped here, so Popen must not wait for it
            return made.pid

        yield start


class RankGroup:
    """The ranks of one trial."""

    def __init__(self, task: RankTask, environments: list[dict[str, str]], clock: Clock) -> None:
        self._clock = clock
        self.ranks = [Rank(number) for number in range(len(environments))]
        self._poller = select.poll()
        self._copiers: dict[int, LineCopier] = {}
        self._notes: dict[int, Rank] = {}  # by the descriptor on which a rank notes when it failed
        self.failed: Rank | None = None  # the first, once the others have been ended for that
        flush()
        try:
            is_safe = bool(fork_rules) and not fork_rules[0][0]()
            starter = nullcontext(partial(self._fork, task)) if is_safe else _interpreters(task)
            with several_forks(), starter as start:
                for rank, variables in zip(self.ranks, environments, strict=True):
                    self._start(rank, partial(start, variables))
        except BaseException:
            self.end()
            raise

    def _start(self, rank: Rank, start: Callable[[list[int]], int]) -> None:
        pipes = [os.pipe() for _ in range(3)]
        rank.pid = start([end for _, end in pipes])
        for (fd, end), stream in zip(pipes, (sys.stdout, sys.stderr, None), strict=True):
            os.close(end)
            self._poller.register(fd, select.POLLIN)
            if stream is None:
                self._notes[fd] = rank
            else:
                self._copiers[fd] = LineCopier(fd, rank, stream)

    def _fork(self, task: RankTask, variables: dict[str, str], ends: list[int]) -> int:
        parent_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            try:
                die_with_parent(parent_pid)
                for fd in (*self._copiers, *self._notes):
                    os.close(fd)
                os.dup2(ends[0], 1)
                os.dup2(ends[1], 2)
                sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
                environment().update(variables)
                fork_rules[0][1]()
                be_rank(task, ends[2])
            except BaseException:  # noqa: BLE001 - must never return into the trial's own code
                traceback.print_exc()
            finally:
                os._exit(70)
        return pid

    def watch(self, is_stopped: Callable[[], bool]) -> None:
        """Return when all ranks have ended, one has failed, or the trial is to stop and rank 0 has ended."""
        while any(rank.is_running for rank in self.ranks):
            self._look(_LOOK_S)
            if (failed := self._failed()) is not None and not is_stopped():
                self._find_cause(failed)
                return
            if is_stopped():
                for rank in self.ranks[1:]:
                    rank.stop()  # no answer to a report can stop it
                if self.ranks[0].exit_code is not None:
                    return

    def _find_cause(self, failed: Rank | None) -> None:
        """Wait a moment for a rank that died: its connections close, and others raise, before its end."""
        until = self._clock.monotonic() + _CAUSE_S
        while failed is not None and failed.raised_at is not None and self._clock.monotonic() < until:
            self._look(0.02)
            failed = self._failed()

    def _failed(self) -> Rank | None:
        """Return the rank that failed first: others fail when they miss it. A killed one noted no time."""
        failed = [rank for rank in self.ranks if rank.exit_code or rank.raised_at is not None]
        return min(failed, key=lambda rank: rank.raised_at or 0.0, default=None)

    def _look(self, timeout_s: float) -> None:
        """Read what ranks print and note, and see which have ended."""
        self._read(timeout_s)
        for rank in self.ranks:
            rank.look()
        self._read(0)  # what an ended rank has noted before

    def _read(self, timeout_s: float) -> None:
        for fd, _ in self._poller.poll(timeout_s * 1000):
            if fd in self._notes and (note := os.read(fd, 64)):
                self._notes[fd].raised_at = float(note)
            elif fd in self._notes or not self._copiers[fd].copy():
                self._close(fd)

    def _close(self, fd: int) -> None:
        self._poller.unregister(fd)
        os.close(fd)
        self._copiers.pop(fd, None)
        self._notes.pop(fd, None)

    def end(self) -> None:
        """End all ranks: by SIGTERM, after a moment by SIGKILL; then read what they have printed."""
        self.failed = self._failed()
        due_at = self._clock.monotonic() + _LEAVE_S
        for rank in self.ranks:
            rank.stop()
        while any(rank.is_running for rank in self.ranks):
            if self._clock.monotonic() >= due_at:
                for rank in self.ranks:
                    rank.signal(signal.SIGKILL)
            self._look(0.02)
        for _ in range(_LAST_READS):
            self._read(0)
        for fd in (*self._copiers, *self._notes):
            self._close(fd)


def be_rank(task: RankTask, note_fd: int) -> NoReturn:
    """Run a rank in this process, and end it."""
    forget()
    stop_on_sigterm()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    code: Any = 0
    try:
        report_output(task.function(task.config, **task.arguments), report)
    except SystemExit as leaving:
        code = leaving.code
        if code is not None and not isinstance(code, int):
            sys.stderr.write(f"{code}\n")
            code = 1
    except BaseException as error:  # noqa: BLE001 - whatever user code raises is the outcome of this rank
        os.write(note_fd, repr(SystemClock().monotonic()).encode())
        sys.stderr.write(failed_exit(error).traceback + "\n")
        code = 1
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it leaves already
    leave(code or 0)


def main() -> NoReturn:
    """Run a rank in a new interpreter: `sys.argv` is path, task, note, parent."""
    import pickle

    task_fd, note_fd, parent_pid = (int(text) for text in sys.argv[2:5])
    if hasattr(os, "pidfd_open"):
        os.setpgid(0, 0)  # Ray kills the process group of an actor that died
        adopt_orphans()
        parent_pid = os.getpid()
        if pid := os.fork():
            _guard(pid, note_fd)
    die_with_parent(parent_pid)
    os.set_inheritable(note_fd, False)
    data = os.pread(task_fd, os.fstat(task_fd).st_size, 0)  # without moving the position, which ranks share
    os.close(task_fd)
    del sys.argv[1:]
    be_rank(RankTask(*pickle.loads(data)), note_fd)


def _guard(pid: int, note_fd: int) -> NoReturn:
    """Wait above a rank, and end what it leaves behind, also after the trial's process was killed (Linux)."""
    signal.signal(signal.SIGTERM, lambda number, where: os.kill(pid, number))
    poller = select.poll()
    poller.register(os.pidfd_open(pid), select.POLLIN)
    poller.register(note_fd, 0)  # only errors, that is, nobody reads the notes any more
    poller.poll()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # once reaped, the pid is nobody's
    ended, status = os.waitpid(pid, os.WNOHANG)
    end_children()
    if not ended or os.WIFSIGNALED(status):
        number = os.WTERMSIG(status) if ended else signal.SIGKILL
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    os._exit(os.waitstatus_to_exitcode(status))
