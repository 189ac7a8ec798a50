"""WorkerPool holds the processes of LocalEngine: makes them, keeps spares and idle ones, sees them end."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence

from muster.base.clock import Clock
from muster.base.framing import Frame, FrameKind, frame, pack, unpack
from muster.engines.local.fork_server import ForkServerClient
from muster.engines.process_engine import EngineTimeouts, ProcessPool
from muster.engines.worker.handle import TrialRun, WorkerHandle, is_readable
from muster.host import machine
from muster.host.die_with_parent import kill_group
from muster.host.framed_child import ChildGoneError

_log = logging.getLogger(__name__)
_QUICK_S = 0.05  # trials that follow each other like this
_MORE_SPARES = 3  # are worth making so many more processes at once, which is cheaper than one by one
_MOST_AT_ONCE = 32  # one message carries the descriptors of no more than about a hundred
_FILES_EACH = 4  # open files of the driver per process: two pipes, both ends of them until it has been made
_OTHER_FILES = 256  # that the driver and the user's callbacks have open
_RETRY_S = 0.05
_MOST_PRELOADS = 3  # then trials differ too much
_QUIT = frame(FrameKind.QUIT)
_REFUSED = "local engine: the kernel does not accept requests for processes now (%s); muster keeps trying"
_FULL = (
    "local engine: %d trials run at once, as many as the limit of %d open files allows; the others wait; "
    "raise the hard limit of `ulimit -n`, or set max_concurrent_trials"
)
_NOT_FORKING = (
    "local engine: each trial starts a new interpreter and repeats all imports, because forking is not safe: "
    "%s; start threads and open GPUs inside the trainable, not while its module is imported"
)


class LocalOptions(EngineTimeouts, frozen=True, kw_only=True):
    """Holds what few users need to change."""

    max_idle: int = 64  # processes kept for reuse
    spares: int = 2  # processes made ahead of need
    quiet: bool = False  # drops the output of trials without log_to_file; else it goes to the driver's
    env: Mapping[str, str] = {}  # added to the environment of trials; of OMP_NUM_THREADS see `_env_of`
    storage: bytes | None = None  # of remote results, for `get_context().get_storage()`
    price_per_hour: float | None = None  # $ of this whole machine; None: not known


class WorkerPool(ProcessPool[WorkerHandle]):
    """Holds every process that the engine has made and not seen end."""

    def __init__(
        self,
        *,
        clock: Clock,
        options: LocalOptions,
        warm: bool,
        trainables: dict[str, bytes],
        on_frame: Callable[[WorkerHandle, int, bytes], None],
        on_gone: Callable[[WorkerHandle, int | None, str], None],
    ) -> None:
        super().__init__(clock, options)
        self._options = options
        self._check_at = clock.monotonic() + options.beat_s
        self._warm = warm
        self._trainables = trainables
        self._on_frame, self._on_gone = on_frame, on_gone
        self._workers: dict[int, WorkerHandle] = {}  # by token
        self._by_read_fd: dict[int, WorkerHandle] = {}
        self._by_write_fd: dict[int, WorkerHandle] = {}  # only those with something left to send
        self._by_end_fd: dict[int, WorkerHandle] = {}  # that leave
        self._spares: list[WorkerHandle] = []
        self._prober: WorkerHandle | None = None  # the spare that tries the imports of a trial
        self._next_token = 0
        self._spawned_at = 0.0
        self._is_writing = False  # whether bytes wait until the fork server reads
        self._file_limit = 0
        self._has_warned: set[str] = set()
        self._fork_server: ForkServerClient | None = None
        self._open_fork_server()
        if warm and trainables:
            self._spares = self._spawn(1)

    def register(self, name: str, blob: bytes) -> None:
        self._trainables[name] = blob
        if self._fork_server is not None:
            self._fork_server.post(frame(FrameKind.TRAINABLE, pack((name, blob))))
        for worker in [*self._spares, *self.idle, *([self._prober] if self._prober else ())]:
            self._retire(worker)
        self._prober = None

    # Processes for trials

    def has_process_for(self, idle: WorkerHandle | None) -> bool:
        """Return whether a trial can get a process now; if not, the engine retries when a process ends."""
        if idle is not None or self._spares or self._has_room(1):
            return True
        self._warn_once(_FULL, len(self._workers), self._file_limit)
        if self.idle:
            self._retire(self.idle[0])
        return False

    def _has_room(self, more: int) -> bool:
        """Return whether so many more processes can be made; raises the limit on open files for that."""
        count = len(self._workers)
        needed = _OTHER_FILES + _FILES_EACH * (count + more)
        if needed > self._file_limit:
            self._file_limit = machine.allow_open_files(2 * needed)
        return needed <= self._file_limit or not count

    def assign(self, run: TrialRun, idle: WorkerHandle | None) -> WorkerHandle:
        """Bind a trial to that idle process, or to a new one."""
        gpu_ids = run.grant.gpu_ids if run.grant is not None else ()
        worker = idle
        if worker is None:
            # Idle processes may hold memory of GPUs that this trial is about to use.
            for other in [d for d in self.idle if d.key and not set(gpu_ids).isdisjoint(d.key[2])]:
                self._retire(other)
            # The oldest: a younger one may not have been forked yet.
            worker = self._spares.pop(0) if self._spares else self._spawn(1)[0]
            self._spinner.skip_next()  # it has to wake up first
        self.bind(run, worker, gpu_ids)
        return worker

    def replenish(self, run: TrialRun) -> None:
        """Make processes ahead of need, after a trial got its order: that must not wait for them."""
        if self._warm and not run.command.may_reuse:
            self._spawn_spares()

    def release(self, worker: WorkerHandle, *, keep: bool) -> None:
        super().release(worker, keep=keep)
        if len(self.idle) > self._options.max_idle:
            self._retire(self.idle[0])

    def watch_end(self, worker: WorkerHandle) -> None:
        """Have the kernel tell when a process has ended, a moment before its parent does (Linux).

        Its memory and its devices are free then. How it ended is not known: only for one that has said so.
        """
        if worker.end_fd >= 0:
            return
        try:
            worker.end_fd = os.pidfd_open(worker.pid)
        except (AttributeError, OSError):
            return  # not on this system, or it has ended: the fork server reports it
        self._by_end_fd[worker.end_fd] = worker
        self._poller.add_reader(worker.end_fd)

    def _on_ended(self, worker: WorkerHandle) -> None:
        """Let the next trial start; the pipes are closed when the fork server has reaped the process."""
        if is_readable(worker.end_fd):  # no, if another one had this number when the poll returned
            self._stop_watching(worker)
            self._on_gone(worker, None, "")

    def _stop_watching(self, worker: WorkerHandle) -> None:
        if self._by_end_fd.pop(worker.end_fd, None) is not None:
            self._poller.forget(worker.end_fd)
            worker.close_end_fd()

    def _retire(self, worker: WorkerHandle) -> None:
        for group in (self._spares, self.idle):
            if worker in group:
                group.remove(worker)
        worker.is_leaving = True
        self.send(worker, _QUIT)

    def kill(self, worker: WorkerHandle, number: signal.Signals) -> None:
        """Send SIGKILL to the whole process group, any other signal to the process."""
        if self._fork_server is not None:
            self._fork_server.signal(worker.token, number, whole_group=number == signal.SIGKILL)
            self._poll_fork_server_writes()

    def is_of_this_machine(self, worker: WorkerHandle) -> bool:
        return worker.pid != 0

    def check_fork_server(self, now: float) -> None:
        """Continue a fork server that a signal has stopped: no trial could start or end."""
        if self._fork_server is not None and now >= self._check_at:
            self._check_at = now + self._options.beat_s
            for pid in self._fork_server.continue_if_stopped(self._fork_server.forking_pid):
                _log.warning("the fork server (pid %d) was stopped by a signal; it has been continued", pid)

    # Making processes

    def _open_fork_server(self) -> ForkServerClient:
        options = self._options
        made = ForkServerClient(warm=self._warm, beat_s=options.beat_s, env=options.env, quiet=options.quiet)
        for name, blob in self._trainables.items():
            made.post(frame(FrameKind.TRAINABLE, pack((name, blob))))
        self._fork_server, self._is_writing = made, False
        self._imports = self._safe_imports = b""  # of trials; those that a spare has tried
        self._preloads = 0
        self._poller.add_reader(made.socket.fileno())
        self._poll_fork_server_writes()
        return made

    def _spawn(self, count: int) -> list[WorkerHandle]:
        fork_server = self._fork_server or self._open_fork_server()
        tokens = range(self._next_token, self._next_token + count)
        self._next_token += count
        pipes = fork_server.spawn(tokens)
        self._poll_fork_server_writes()
        now = self._clock.monotonic()
        made = []
        for token, (read_fd, write_fd) in zip(tokens, pipes, strict=True):
            worker = WorkerHandle(token, read_fd, write_fd, now=now)
            self._workers[token] = self._by_read_fd[read_fd] = worker
            self._poller.add_reader(read_fd)
            made.append(worker)
        return made

    def _spawn_spares(self) -> None:
        """Spawn as many spares as are always kept, and some more when trials follow each other quickly.

        Only one unless they are forks: an interpreter repeats all imports, and may never be needed.
        """
        forks = self._fork_server is not None and self._fork_server.forks
        if forks:
            self._preload()
        count = (self._options.spares if forks else 1) - len(self._spares)
        if count <= 0:
            return
        now = self._clock.monotonic()
        if forks and now < self._spawned_at + _QUICK_S:
            count = min(count + _MORE_SPARES, _MOST_AT_ONCE)
        self._spawned_at = now
        if self._has_room(count):
            self._spares += self._spawn(count)

    def _preload(self) -> None:
        """Have imports of earlier trials done before the next forks, now that another trial has started.

        A spare tries them first: they may crash, hang, or make forks unsafe. It serves the next trial.
        """
        if self._safe_imports and self._fork_server is not None:
            self._fork_server.post(frame(FrameKind.PRELOAD, self._safe_imports))
            self._safe_imports = b""
            for worker in list(self._spares):
                self._retire(worker)
        elif self._imports and self._spares and self._prober is None and self._preloads < _MOST_PRELOADS:
            self._preloads += 1
            self._prober = self._spares.pop(0)
            self.send(self._prober, frame(FrameKind.PRELOAD, self._imports))
            self._imports = b""

    def _on_imported(self, worker: WorkerHandle, imports: bytes) -> None:
        """Note what a trial has imported, or that a spare could import it too."""
        if worker is not self._prober:
            self._imports = imports
            return
        self._prober, self._safe_imports, self._imports = None, imports, b""
        if imports:
            self._spares.insert(0, worker)
        else:
            self._retire(worker)

    # Exchanging frames

    def send(self, worker: WorkerHandle, data: bytes) -> None:
        if not worker.write(data) and worker.write_fd not in self._by_write_fd:
            self._by_write_fd[worker.write_fd] = worker
            self._poller.add_writer(worker.write_fd)

    def wait(self, timeout_s: float, now: float) -> None:
        poll, fork_server = self._poller.poll, self._fork_server
        if fork_server is not None and fork_server.refusal is not None:
            self._warn_once(_REFUSED, fork_server.refusal)
            fork_server.flush()
            self._poll_fork_server_writes()
            timeout_s = min(timeout_s, _RETRY_S)
        ready = self._spinner.poll(poll) if timeout_s > 0 else None
        for fd, _ in ready or poll(timeout_s if timeout_s > 0 else 0):
            worker = self._by_read_fd.get(fd)
            if worker is not None:
                worker.last_seen_at = now  # the time before the wait: no call of the clock per frame
                self._read(worker)
            elif self._fork_server is not None and fd == self._fork_server.socket.fileno():
                self._read_fork_server(self._fork_server)
            elif fd in self._by_end_fd:
                self._on_ended(self._by_end_fd[fd])
            elif (worker := self._by_write_fd.get(fd)) is not None and worker.flush():
                del self._by_write_fd[fd]
                self._poller.forget(fd)

    def _read(self, worker: WorkerHandle) -> None:
        frames = worker.read()
        if frames is None:
            self._stop_reading(worker)  # the fork server reports its end, with the reason
            return
        self._handle(worker, frames)

    def _handle(self, worker: WorkerHandle, frames: Sequence[Frame]) -> None:
        for kind, payload in frames:
            if kind == FrameKind.BEAT:
                worker.beats = True
            elif kind == FrameKind.IMPORTED:
                self._on_imported(worker, payload)
            else:
                self._on_frame(worker, kind, payload)

    def _stop_reading(self, worker: WorkerHandle) -> None:
        if self._by_read_fd.pop(worker.read_fd, None) is not None:
            self._poller.forget(worker.read_fd)

    def _poll_fork_server_writes(self) -> None:
        fork_server = self._fork_server
        if fork_server is not None and fork_server.waits_to_write != self._is_writing:
            self._is_writing = fork_server.waits_to_write
            self._poller.set_writing(fork_server.socket.fileno(), writing=self._is_writing)

    def _read_fork_server(self, fork_server: ForkServerClient) -> None:
        try:
            messages = fork_server.take()
        except ChildGoneError:
            self._on_fork_server_lost(fork_server)
            return
        self._poll_fork_server_writes()
        for kind, payload in messages:
            if kind == FrameKind.FORKS:
                pid, reason = unpack(payload)
                fork_server.forks, fork_server.forking_pid = not reason, pid or fork_server.forking_pid
                if reason:
                    self._warn_once(_NOT_FORKING, reason)
                continue
            for token, *facts in unpack(payload):
                worker = self._workers.get(token)
                if worker is not None and kind == FrameKind.CHILD:
                    (worker.pid,) = facts
                elif worker is not None and kind == FrameKind.GONE:
                    self._drop(worker, *facts)

    def _warn_once(self, text: str, *values: object) -> None:
        if text not in self._has_warned:
            self._has_warned.add(text)
            _log.warning(text, *values)

    def _drop(self, worker: WorkerHandle, status: int | None, note: str) -> None:
        """Handle the last frames of an ended process, then closes its pipes."""
        while worker.read_fd in self._by_read_fd:
            frames = worker.read()
            if not frames:
                self._stop_reading(worker)
                break
            self._handle(worker, frames)
        self._forget(worker)
        self._on_gone(worker, status, note)

    def _forget(self, worker: WorkerHandle) -> None:
        self._stop_reading(worker)
        self._stop_watching(worker)
        if self._by_write_fd.pop(worker.write_fd, None) is not None:
            self._poller.forget(worker.write_fd)
        del self._workers[worker.token]
        if worker is self._prober:
            self._prober = None
        for group in (self._spares, self.idle):
            if worker in group:
                group.remove(worker)
        worker.close()

    def _on_fork_server_lost(self, fork_server: ForkServerClient) -> None:
        """End every process of a fork server that was killed; the next trial gets a new one."""
        self._poller.forget(fork_server.socket.fileno())
        self._fork_server = None
        fork_server.close()
        fork_server.end_leftovers()
        for worker in list(self._workers.values()):
            if worker.pid:
                kill_group(worker.pid)
            self._drop(worker, None, "")

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        orderly = self._fork_server is None or self._fork_server.close()
        self._fork_server = None
        for worker in list(self._workers.values()):
            if not orderly and worker.pid:
                kill_group(worker.pid)
            self._forget(worker)
        self._poller.close()
