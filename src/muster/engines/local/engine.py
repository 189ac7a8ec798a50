"""LocalEngine: trials as processes on this machine. Built by a composition root; driven by the controller."""

from __future__ import annotations

import os
import signal
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from muster.base.clock import Clock
from muster.base.framing import Frame, FrameKind, frame, unpack
from muster.engines.local.fork_server import ForkServerClient
from muster.engines.local.resources import ResourcePool
from muster.engines.process_engine import EngineTimeouts, ProcessEngine, order_of
from muster.engines.worker import failures
from muster.engines.worker.handle import Grant, TrialRun, WorkerHandle, WorkerState
from muster.engines.worker.poller import Poller, SpinThenWait
from muster.engines.worker.protocol import write_order
from muster.host import machine
from muster.host.machine import process_activity

if TYPE_CHECKING:
    from muster.trials.commands import StartTrial


_QUICK_S = 0.05  # trials that follow each other like this
_MORE_SPARES = 3  # are worth making so many more processes at once, which is cheaper than one by one
_MOST_AT_ONCE = 32  # one message carries the descriptors of no more than about a hundred
_QUIT = frame(FrameKind.QUIT)


class WorkerListener(Protocol):
    """Who is told what processes say."""

    def heard(self, desk: WorkerHandle, kind: int, payload: bytes) -> None: ...

    def gone(self, desk: WorkerHandle, status: int | None, note: str) -> None: ...


class WorkerPool:
    """Every process that the engine has made and not seen end."""

    def __init__(
        self,
        *,
        clock: Clock,
        options: LocalOptions,
        warm: bool,
        trainables: dict[str, bytes],
        owner: WorkerListener,
    ) -> None:
        self._clock = clock
        self._options = options
        self._warm = warm
        self._trainables = trainables
        self._owner = owner
        self._version = 0
        self._watch = Poller()
        self._eagerness = SpinThenWait()
        self._desks: dict[int, WorkerHandle] = {}  # by token
        self._by_read_fd: dict[int, WorkerHandle] = {}
        self._by_write_fd: dict[int, WorkerHandle] = {}  # only those with something left to send
        self._spares: list[WorkerHandle] = []
        self._idle: list[WorkerHandle] = []
        self._next_token = 0
        self._hatched_at = 0.0
        self._is_writing = False  # whether we wait until the zygote reads
        self._nursery: ForkServerClient | None = None
        self._is_closed = False
        self._open_nursery()
        if warm and trainables:
            self._spares = self._hatch(1)

    def register(self, name: str, blob: bytes) -> None:
        self._trainables[name] = blob
        self._version += 1
        if self._nursery is not None:
            self._nursery.register(name, blob)
        for desk in [*self._spares, *self._idle]:
            self._dismiss(desk)

    # Processes for trials

    def find_idle(self, command: StartTrial) -> WorkerHandle | None:
        """A kept process that served the same trainable with the same resources."""
        for desk in self._idle:
            if desk.key is not None and desk.key[:2] == (command.trainable_name, command.resources):
                return desk
        return None

    def seat(self, run: TrialRun, idle: WorkerHandle | None) -> WorkerHandle:
        """Bind a trial to that idle process, or to a fresh one."""
        gpu_ids = run.grant.gpu_ids if run.grant is not None else ()
        if idle is not None:
            self._idle.remove(idle)
            desk, run.reused = idle, True
        else:
            self._clear_gpus(gpu_ids)
            # The oldest: a younger one may not have been forked yet.
            desk = self._spares.pop(0) if self._spares else self._hatch(1)[0]
            if self._warm and not run.command.may_reuse and len(self._spares) < self._options.spares:
                self._hatch_spares()
        desk.role, desk.run, run.desk = WorkerState.BUSY, run, desk
        desk.key = (run.command.trainable_name, run.command.resources, gpu_ids)
        desk.heard_at, desk.cpu_s = self._clock.monotonic(), None
        return desk

    def unseat(self, desk: WorkerHandle, *, keep: bool) -> None:
        """The trial is over: keep the process for another, or let it leave by itself."""
        if not keep:
            desk.role = WorkerState.LEAVING
            return
        desk.role, desk.run = WorkerState.IDLE, None
        self._idle.append(desk)
        if len(self._idle) > self._options.max_idle:
            self._dismiss(self._idle[0])

    def _clear_gpus(self, gpu_ids: Sequence[str]) -> None:
        """Idle processes may hold memory of GPUs that somebody else is about to use."""
        for desk in [d for d in self._idle if d.key is not None and not set(gpu_ids).isdisjoint(d.key[2])]:
            self._dismiss(desk)

    def _dismiss(self, desk: WorkerHandle) -> None:
        for group in (self._spares, self._idle):
            if desk in group:
                group.remove(desk)
        desk.role = WorkerState.LEAVING
        self.send(desk, _QUIT)

    def kill(self, desk: WorkerHandle, number: signal.Signals) -> None:
        """SIGKILL means the whole process group, anything else the process."""
        if self._nursery is not None:
            self._nursery.signal(desk.token, number, whole_group=number == signal.SIGKILL)
            self._watch_nursery()

    def is_silent(self, desk: WorkerHandle, now: float) -> bool:
        """No sign of life for too long: frames, heartbeats, processor time; without heartbeat also just being
        able to run. (A trial deep in C code does not beat, but works.)
        """
        if not desk.pid or now - desk.heard_at < self._options.beat_s:
            return False
        seen = process_activity(desk.pid)
        if seen is not None and (seen.cpu_s != desk.cpu_s or (seen.can_run and not desk.beats)):
            desk.cpu_s, desk.heard_at = seen.cpu_s, now
        return now - desk.heard_at >= self._options.silent_after_s

    # Making them

    def _open_nursery(self) -> ForkServerClient:
        options = self._options
        made = ForkServerClient(warm=self._warm, beat_s=options.beat_s, env=options.env, quiet=options.quiet)
        for name, blob in self._trainables.items():
            made.register(name, blob)
        self._nursery, self._is_writing = made, False
        self._watch.reading(made.fileno())
        self._watch_nursery()
        return made

    def _hatch(self, count: int) -> list[WorkerHandle]:
        nursery = self._nursery or self._open_nursery()
        tokens = range(self._next_token, self._next_token + count)
        self._next_token += count
        pipes = nursery.hatch(tokens)
        self._watch_nursery()
        now = self._clock.monotonic()
        made = []
        for token, (read_fd, write_fd) in zip(tokens, pipes, strict=True):
            desk = WorkerHandle(token, read_fd, write_fd, version=self._version, now=now)
            self._desks[token] = self._by_read_fd[read_fd] = desk
            self._watch.reading(read_fd)
            made.append(desk)
        return made

    def _hatch_spares(self) -> None:
        """As many as are always there, and some more when trials follow each other quickly."""
        now = self._clock.monotonic()
        more = _MORE_SPARES if now < self._hatched_at + _QUICK_S else 0
        self._hatched_at = now
        count = self._options.spares - len(self._spares) + more
        self._spares += self._hatch(min(count, _MOST_AT_ONCE))

    # Talking with them

    def send(self, desk: WorkerHandle, data: bytes) -> None:
        if not desk.write(data) and desk.write_fd not in self._by_write_fd:
            self._by_write_fd[desk.write_fd] = desk
            self._watch.writing(desk.write_fd)

    def wait(self, timeout_s: float, now: float) -> None:
        """Handle everything that is ready, waiting up to `timeout_s` for the first."""
        look = self._watch.ready
        ready = self._eagerness.look(look) if timeout_s > 0 else None
        for fd, _ in ready or look(timeout_s if timeout_s > 0 else 0):
            desk = self._by_read_fd.get(fd)
            if desk is not None:
                desk.heard_at = now  # before the wait: early by at most one look, and no clock per frame
                self._read(desk)
            elif self._nursery is not None and fd == self._nursery.fileno():
                self._hear_nursery(self._nursery)
            else:
                self._flush(fd)

    def _read(self, desk: WorkerHandle) -> None:
        frames = desk.read()
        if frames is None:
            self._stop_reading(desk)  # its end comes from the zygote, with the reason
            return
        for kind, payload in frames:
            if kind == FrameKind.BEAT:
                desk.beats = True
            else:
                self._owner.heard(desk, kind, payload)

    def _stop_reading(self, desk: WorkerHandle) -> None:
        if self._by_read_fd.pop(desk.read_fd, None) is not None:
            self._watch.forget(desk.read_fd)

    def _flush(self, fd: int) -> None:
        desk = self._by_write_fd.get(fd)
        if desk is not None and desk.flush():
            del self._by_write_fd[fd]
            self._watch.forget(fd)

    def _watch_nursery(self) -> None:
        nursery = self._nursery
        if nursery is not None and nursery.has_more_to_send != self._is_writing:
            self._is_writing = nursery.has_more_to_send
            self._watch.both(nursery.fileno(), writing=self._is_writing)

    def _hear_nursery(self, nursery: ForkServerClient) -> None:
        nursery.flush()
        told = nursery.take()
        if told is None:
            self._lose_nursery(nursery)
            return
        self._watch_nursery()
        for message in told:
            self._hear_zygote(message)

    def _hear_zygote(self, message: Frame) -> None:
        kind, payload = message
        if kind == FrameKind.CHILD:
            for token, pid in unpack(payload):
                if token in self._desks:
                    self._desks[token].pid = pid
        elif kind == FrameKind.GONE:
            for token, status, note in unpack(payload):
                desk = self._desks.get(token)
                if desk is not None:
                    self._drop(desk, status, note)

    def _drop(self, desk: WorkerHandle, status: int | None, note: str) -> None:
        """A process has ended: hear its last words, then close."""
        while desk.read_fd in self._by_read_fd:
            frames = desk.read()
            if not frames:
                self._stop_reading(desk)
                break
            for kind, payload in frames:
                self._owner.heard(desk, kind, payload)
        self._forget(desk)
        self._owner.gone(desk, status, note)

    def _forget(self, desk: WorkerHandle) -> None:
        self._stop_reading(desk)
        if self._by_write_fd.pop(desk.write_fd, None) is not None:
            self._watch.forget(desk.write_fd)
        del self._desks[desk.token]
        for group in (self._spares, self._idle):
            if desk in group:
                group.remove(desk)
        desk.close()

    def _lose_nursery(self, nursery: ForkServerClient) -> None:
        """The zygote was killed: everything that came from it ends too. The next trial gets a new one."""
        self._watch.forget(nursery.fileno())
        self._nursery = None
        nursery.close()
        for desk in list(self._desks.values()):
            _kill_group(desk.pid)
            self._drop(desk, None, "")

    def close(self) -> None:
        """End every process, and wait for that."""
        if self._is_closed:
            return
        self._is_closed = True
        orderly = self._nursery is None or self._nursery.close()
        self._nursery = None
        for desk in list(self._desks.values()):
            if not orderly:
                _kill_group(desk.pid)
            self._forget(desk)
        self._watch.close()


def _kill_group(pid: int) -> None:
    if pid:
        try:
            os.killpg(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            return


class LocalOptions(EngineTimeouts, frozen=True, kw_only=True):
    """What few people need to change."""

    max_idle: int = 64  # processes kept for reuse
    spares: int = 2  # processes made ahead of need
    quiet: bool = False  # output of trials without log_to_file: dropped, else it goes where the driver's goes
    env: Mapping[str, str] = {}  # added to the environment of trials; of OMP_NUM_THREADS see `_env_of`


_DEFAULTS = LocalOptions()
_THREADS = "OMP_NUM_THREADS"


class LocalEngine(ProcessEngine):
    """Runs trials in processes of this machine.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    _staff: WorkerPool

    def __init__(
        self,
        *,
        clock: Clock,
        trainables: Mapping[str, bytes] | None = None,
        capacity: Mapping[str, float] | None = None,
        warm: bool = True,
        options: LocalOptions = _DEFAULTS,
    ) -> None:
        """`trainables`: cloudpickled functions or classes by name; `capacity` overrides what is found."""
        super().__init__(clock, options)
        found = {**machine.detected_capacity(), **(capacity or {})}
        self._budget = ResourcePool(found, machine.gpu_ids())
        self._has_gpus = found.get("GPU", 0) > 0
        self._limits_threads = _THREADS in options.env
        self._exits = failures.ExitReader(machine.oom_kills)
        self._staff = WorkerPool(
            clock=clock, options=options, warm=warm, trainables=dict(trainables or {}), owner=self
        )

    def capacity(self) -> Mapping[str, float]:
        return self._budget.capacity.to_floats()

    def register(self, name: str, trainable: bytes) -> None:
        """Make a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._staff.register(name, trainable)

    # Starting

    def _begin(self, run: TrialRun) -> None:
        why_not = self._budget.why_never(run.command.resources)
        if why_not is not None:
            self._finish(run, failure=failures.impossible(why_not))
            return
        if len(self._waiting) or not self._try_start(run):
            self._waiting.add(run)
            self._start_waiting()

    def _try_start(self, run: TrialRun) -> bool:
        """Give it resources and a process; False when it must wait."""
        command = run.command
        idle = self._staff.find_idle(command) if command.may_reuse else None
        prefer = idle.key[2] if idle is not None and idle.key is not None else ()
        grant = self._budget.take(command.resources, prefer)
        if grant is None:
            return False
        run.grant = grant
        try:
            order = write_order(order_of(command, self._env_of(run, grant)))
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unsendable("the config cannot be pickled", error))
            return True
        desk = self._staff.seat(run, idle if set(prefer) == set(grant.gpu_ids) else None)
        if command.time_limit_s is not None:
            run.limit_at = self._clock.monotonic() + command.time_limit_s
            self._look_at(run.limit_at)
        self._staff.send(desk, order)
        return True

    def _env_of(self, run: TrialRun, grant: Grant) -> dict[str, str]:
        """What differs between trials. A limit on threads follows the CPUs of the trial, which may change."""
        env = {"CUDA_VISIBLE_DEVICES": ",".join(grant.gpu_ids)} if self._has_gpus else {}
        if self._limits_threads:
            env[_THREADS] = str(max(1, int(run.command.resources.head_cpus)))
        return env

    def _withdraw(self, run: TrialRun) -> None:
        self._waiting.remove(run)

    def _release(self, run: TrialRun) -> None:
        if run.grant is not None:
            self._budget.free(run.grant)

    def gone(self, desk: WorkerHandle, status: int | None, note: str) -> None:
        """A worker process has ended; `status` is None when nobody saw how (called by Staff)."""
        self._ended(desk, lambda: self._exits.of_status(status, note))
