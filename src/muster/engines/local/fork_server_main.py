"""Fork worker processes on request, in a separate process: single-threaded, with the user's imports done.

Forks a child per request where that is safe, otherwise starts new interpreters. This process is the parent of
every worker: it reaps them, kills their process groups, adopts and kills what they left in other sessions
(Linux), and ends all of them when the driver is gone.
"""

from __future__ import annotations

import _socket  # `socket` itself brings much that forks would carry along
import gc
import os
import select
import signal
import sys
import traceback
from _signal import signal as set_handler  # type: ignore[import-not-found]  # without Enums: each child calls it
from _socket import CMSG_LEN, socket
from collections import deque
from collections.abc import Sequence
from types import FrameType
from typing import IO, TYPE_CHECKING, Any, NoReturn

from muster.base.clock import SystemClock
from muster.base.framing import FrameKind, FrameReader, frame, pack, unpack
from muster.engines.local.fork_safety import (
    be_killed_first,
    fork_with_short_hooks,
    fresh_randomness,
    needs_fresh_randomness,
    shorten_hooks,
    why_not_fork,
)
from muster.engines.worker.channel import WorkerChannel
from muster.engines.worker.child_reports import fork_rules
from muster.engines.worker.main import ForkOrigin, Worker, become, import_all, stop_on_sigterm
from muster.engines.worker.output import flush
from muster.engines.worker.protocol import StartOrder, write_order
from muster.engines.worker.trainable_cache import TrainableCache
from muster.host.die_with_parent import (
    adopt_orphans,
    children,
    die_with_parent,
    end_children,
    kill,
    kill_group,
    prepare_death_signal,
)
from muster.host.machine import boot_code, note_working_directory, working_directory
from muster.session.report import report

if TYPE_CHECKING:
    import subprocess

_WARM_UP = "muster warm-up"  # the name of its trainable
ROUNDS = 12  # the interpreter specialises a function after eight calls
COLD_FORKS = 16  # before the warm-up, which costs what about 30 forks save: few processes do without


def warm_up(worker: Worker) -> None:
    """Run a few empty trials in `worker`, in its current directory."""
    to_driver_read, to_driver = os.pipe()
    from_driver, from_driver_write = os.pipe()

    def train(config: dict[str, Any]) -> None:
        os.write(from_driver_write, frame(FrameKind.CONTINUE))
        report({"loss": 0.5, "step": 1})

    order = StartOrder(
        trial_id="warm-up",
        trial_name="warm-up",
        trainable_name=_WARM_UP,
        config={"x": 1.0},
        bundles=([{"CPU": 1.0}], "PACK"),
        trial_dir=working_directory(),
        experiment_name="warm-up",
    )
    message = write_order(order)
    worker.channel.connect(from_driver, to_driver, os.getppid())
    with worker.trainables.lent(_WARM_UP, train):
        for _ in range(ROUNDS):
            os.write(from_driver_write, message)
            worker.serve()
            os.read(to_driver_read, 1 << 16)
    for fd in (to_driver_read, to_driver, from_driver, from_driver_write):
        os.close(fd)


MAX_FDS = 200
CHUNK = 1 << 16  # larger ones are mapped and unmapped each time
_ROOM_FOR_FDS = CMSG_LEN(MAX_FDS * 4)
_CLOSED_BY_EXEC = getattr(_socket, "MSG_CMSG_CLOEXEC", 0)  # what a trial starts must not hold its pipes open
POLL_MS = 1000
SWEEP_MS = 10  # orphans are looked for when nothing has come for so long after a child's end,
SWEEP_EACH = 64  # or after so many: right after a fork every page that this process writes to is costly
LEAVE_WITHIN = 10  # polls, after the driver has ended
_SIGCHLD, _DEFAULT = int(signal.SIGCHLD), int(signal.SIG_DFL)


class ForkServer:
    """Serves the driver's requests until the driver is gone."""

    def __init__(self, control: socket, driver_pid: int) -> None:
        self._control = control
        self._control_fd = control.fileno()
        self._driver_pid = driver_pid
        self._frames = FrameReader()
        self._fds: deque[int] = deque()
        self._children: dict[int, int] = {}  # pid -> token
        self._helpers: set[int] = set()  # pids of children that imported modules have started
        self._popen: dict[int, subprocess.Popen[bytes]] = {}  # started interpreters, by pid
        self._trainables = TrainableCache()
        self._worker: Worker | None = None  # what every fork becomes
        self._boot_frames: list[bytes] = []  # frames that a fresh interpreter needs
        self._saved: IO[bytes] | None = None  # the same, as a file that such an interpreter reads
        self._forks: bool | None = None  # None: find out
        self._reseeds = True
        self._cold_left = COLD_FORKS
        self._warm = True
        self._beat_s = 5.0
        self._address = ("", "")
        self._has_ended = False  # some child
        self._unswept = 0  # children that have ended since orphans were looked for
        fds = os.pipe()
        for fd in fds:
            os.set_blocking(fd, False)
        self._wake = fds
        self._be_woken_by_children()

    def serve(self) -> None:
        poller = select.poll()
        poller.register(self._control, select.POLLIN)
        poller.register(self._wake[0], select.POLLIN)
        is_running = True
        while is_running and os.getppid() == self._driver_pid:
            ready = poller.poll(SWEEP_MS if self._unswept else POLL_MS)
            for fd, _ in ready:
                if fd == self._control_fd:
                    is_running = self._take()
                else:
                    os.read(fd, 4096)
                    self._has_ended = True
            if self._has_ended or not ready:  # also now and then without a signal
                self._reap()
            if self._unswept >= SWEEP_EACH or (self._unswept and not ready):
                self._end_orphans()

    def _be_woken_by_children(self) -> None:
        """Make the first descriptor of `_wake` readable when a child ends."""
        signal.signal(signal.SIGCHLD, self._note_end)
        signal.set_wakeup_fd(self._wake[1], warn_on_full_buffer=False)

    def _note_end(self, number: int, where: FrameType | None) -> None:
        self._has_ended = True

    def _take(self) -> bool:
        """Handle what the driver sent; returns False when the driver is gone."""
        try:
            data, notes, _, _ = self._control.recvmsg(CHUNK, _ROOM_FOR_FDS, _CLOSED_BY_EXEC)
        except ConnectionResetError:
            return False
        for _, _, fds in notes:  # nothing else is ever sent along
            self._fds.extend(memoryview(fds).cast("i"))
        for kind, payload in self._frames.feed(data) if data else ():
            self._handle(kind, payload)
        return bool(data)

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.FORK:
            self._make_children(unpack(payload))
        elif kind == FrameKind.KILL:
            token, number, whole_group = unpack(payload)
            for pid in [pid for pid, known in self._children.items() if known == token]:
                _signal(pid, number, whole_group=whole_group)
        elif kind == FrameKind.TRAINABLE:
            self._boot_frames.append(frame(kind, payload))
            self._trainables.put(*unpack(payload))
            self._forks = None
        elif kind == FrameKind.PRELOAD and self._forks:
            import_all(unpack(payload)[0])
            self._forks = None
        elif kind == FrameKind.INIT:
            argv, self._address, self._warm, self._beat_s = unpack(payload)
            self._boot_frames.append(frame(kind, pack((argv, self._address))))
            sys.argv[:] = argv

    def _saved_frames(self) -> int:
        """Return the descriptor of a file with all that a new interpreter needs."""
        if self._saved is None:
            import tempfile

            self._saved = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as this process
        self._saved.write(b"".join(self._boot_frames))
        self._saved.flush()
        self._boot_frames.clear()
        return self._saved.fileno()

    def _load(self) -> bool:
        """Do the user's imports; return whether forks are safe afterwards, and report why not."""
        self._end_orphans()
        self._trainables.load_all()
        self._helpers.update(pid for pid in children() if pid not in self._children)
        flush()
        prepare_death_signal()
        reason = why_not_fork()
        if reason:
            self._send(FrameKind.FORKS, (0, reason))
        return not reason

    def _prepare_forks(self) -> None:
        """Do once what every child would have to do, and leaves memory in a state that forks well."""
        if self._worker is None:
            self._move_into_a_fork()
        stop_on_sigterm()
        fork_rules[:] = [(why_not_fork, fresh_randomness)]
        self._worker = Worker(
            WorkerChannel(beat_s=self._beat_s), self._trainables, SystemClock(), self._address
        )
        self._worker.origin = ForkOrigin(why_not_fork)
        self._reseeds = needs_fresh_randomness()
        self._cold_left = COLD_FORKS
        shorten_hooks()
        self._worker.channel.spinner.skip_next()  # a new process does not get its first answer at once
        gc.freeze()  # children do not touch, hence do not copy, what is here now

    def _warm_up(self, worker: Worker) -> None:
        """Make further forks cheaper, once there are so many that this pays."""
        gc.collect()
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])  # else it would stop an empty trial only
        warm_up(worker)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        worker.channel.spinner.skip_next()
        gc.freeze()

    def _move_into_a_fork(self) -> None:
        """Continue as a child of this process, so that what libraries do after a fork has been done once.

        The process that the driver knows only waits, and ends when the child ends.
        """
        parent_pid = os.getpid()
        pid = os.fork()
        if pid:
            _wait_for(pid, self._driver_pid)
        os.setsid()
        for _ in range(ROUNDS):
            _leave_parent(parent_pid)
        self._driver_pid, self._helpers = parent_pid, set()
        self._be_woken_by_children()
        self._send(FrameKind.FORKS, (os.getpid(), ""))

    def _make_children(self, tokens: list[int]) -> None:
        """Make several children at once: every fork makes pages that this process writes to costly."""
        if self._forks is None:
            self._forks = self._warm and sys.platform.startswith("linux") and self._load()
            if self._forks:
                self._prepare_forks()
        make = self._fork if self._forks else self._start_interpreter
        made: list[tuple[int, int]] = []
        for token in tokens:
            read_fd, write_fd = self._fds.popleft(), self._fds.popleft()
            try:
                pid = make(read_fd, write_fd)
            except OSError as error:
                self._send(FrameKind.GONE, [(token, 0, f"no process could be made: {error}")])
            else:
                self._children[pid] = token
                made.append((token, pid))
            os.close(read_fd)
            os.close(write_fd)
            if self._has_ended:  # the driver waits for that report, and a fork takes its time
                self._reap()
            if self._forks:
                os.sched_yield()  # trials that wait for a processor go first: a fork takes long
        self._send(FrameKind.CHILD, made)
        if self._forks and self._cold_left > 0:
            self._cold_left -= len(made)
            if self._cold_left <= 0 and self._worker is not None:
                self._warm_up(self._worker)

    def _fork(self, read_fd: int, write_fd: int) -> int:
        worker: Worker = self._worker  # type: ignore[assignment]  # made before the first fork
        worker.channel.expect(read_fd)
        parent_pid = os.getpid()
        pid = fork_with_short_hooks(os.fork)
        if pid == 0:
            try:
                self._be_child(worker, read_fd, write_fd, parent_pid)
            except BaseException:  # noqa: BLE001 - must never return into the server's loop
                traceback.print_exc()
            finally:
                os._exit(70)
        return pid

    def _be_child(self, worker: Worker, read_fd: int, write_fd: int, parent_pid: int) -> NoReturn:
        """Become a worker; every page that is touched first here is copied by the kernel, for each trial."""
        os.setsid()
        _leave_parent(parent_pid)
        for fd in (self._control_fd, *self._wake, *self._fds):
            os.close(fd)
        if self._reseeds:
            fresh_randomness()
        worker.channel.connect(read_fd, write_fd, parent_pid)
        become(worker)

    def _start_interpreter(self, read_fd: int, write_fd: int) -> int:
        import subprocess

        saved = self._saved_frames()
        numbers = [read_fd, write_fd, saved, self._beat_s, os.getpid()]
        made = subprocess.Popen(
            [
                sys.executable,
                "-c",
                boot_code("muster.engines.worker.main"),
                "\n".join(sys.path),
                *map(str, numbers),
            ],
            pass_fds=[read_fd, write_fd, saved],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._popen[made.pid] = made
        return made.pid

    def _reap(self) -> None:
        """Report ended children to the driver, and end what they have left behind."""
        self._has_ended = False
        gone: list[tuple[int, int, str]] = []
        pid = -1
        while pid:
            pid, status = _next_ended()
            self._unswept += bool(pid)
            token = self._children.pop(pid, None)
            started = self._popen.pop(pid, None)
            if started is not None:
                started.returncode = 0  # reaped here, so Popen must not wait for it
            if token is not None:
                gone.append((token, status, ""))
        if gone:
            self._send(FrameKind.GONE, gone)

    def _end_orphans(self) -> None:
        """Kill what ended trials have left; what that had started becomes a child of this process next."""
        self._unswept = 0
        for pid in children():
            if pid not in self._children and pid not in self._helpers:
                kill(pid)

    def _send(self, kind: int, body: Sequence[Any]) -> None:
        try:
            self._control.sendall(frame(kind, pack(body)))
        except OSError:
            return  # the driver is gone; the loop sees that next

    def end_all(self) -> None:
        """Kill every worker with all that it started, and waits until they are gone."""
        for pid in self._children:
            _signal(pid, signal.SIGKILL, whole_group=True)
        for pid in self._children:
            try:
                os.waitpid(pid, 0)
            except ChildProcessError:
                continue
        end_children()


def _next_ended() -> tuple[int, int]:
    """Return an ended child and its wait status, its process group killed; (0, 0) when none has ended."""
    try:
        if hasattr(os, "waitid"):
            # Kill before reaping: until then the pid, hence the group's number, cannot be used again.
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if ended is None:
                return 0, 0
            kill_group(ended.si_pid)
            return os.waitpid(ended.si_pid, 0)
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            kill_group(pid)
        return pid, status
    except ChildProcessError:
        return 0, 0


def _signal(pid: int, number: int, *, whole_group: bool) -> None:
    """Signal a child and its group: a new child may not lead its group yet."""
    for send in (os.killpg, os.kill) if whole_group else (os.kill,):
        try:
            send(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def _wait_for(pid: int, driver_pid: int) -> NoReturn:
    """Only waits for that process as its parent, passes SIGTERM on to it, and ends what it leaves behind.

    When the driver has ended, that process ends by itself, unless it is stopped.
    """
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGTERM, lambda number, where: os.kill(pid, number))
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))  # also the pipes of trials, which only the child may hold
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    patience = LEAVE_WITHIN
    while not os.waitpid(pid, os.WNOHANG)[0] and patience:
        signal.sigtimedwait([signal.SIGCHLD], POLL_MS / 1000)
        patience -= os.getppid() != driver_pid
    end_children()
    os._exit(0)


def _leave_parent(parent_pid: int) -> None:
    """Do what every fork does first: it will end with its parent, and forgets its signal handlers."""
    die_with_parent(parent_pid)
    adopt_orphans()  # its own: only when it ends itself, they are its parent's to end
    signal.set_wakeup_fd(-1)
    set_handler(_SIGCHLD, _DEFAULT)


def main() -> NoReturn:
    """Run the fork server: `sys.argv` is path, control descriptor, driver's pid."""
    adopt_orphans()
    be_killed_first()  # children inherit this and the next
    note_working_directory()
    control = socket(fileno=int(sys.argv[2]))
    os.set_inheritable(control.fileno(), False)
    server = ForkServer(control, int(sys.argv[3]))
    try:
        server.serve()
    finally:
        server.end_all()
        os._exit(0)
