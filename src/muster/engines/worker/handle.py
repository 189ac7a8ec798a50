"""Hold what the engine knows about one process and about one trial, and the pipes to it."""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from muster.base.framing import Frame, FrameKind, FrameReader, frame, pack
from muster.engines.worker.protocol import ExitReport
from muster.host.machine import cpu_count, process_activity
from muster.session.progress import Signature
from muster.session.session import PreemptionInfo

if TYPE_CHECKING:  # a worker's channel imports this module too, and a fork must not carry the rest
    from muster.trials.events import StartTrial, TrialFailure
    from muster.trials.placement_group import PlacementGroupFactory

    ProcessKey = tuple[str, PlacementGroupFactory, tuple[str, ...]]

_CONTINUE = frame(FrameKind.CONTINUE)
_CHUNK = 1 << 16  # what a pipe holds; more would be mapped and unmapped for every read
STOPPED_S = 2.0  # a driver that did not look for so long was stopped, by a signal or with its machine


class WorkerHandle:
    """One worker process as the driver sees it."""

    def __init__(self, token: int, read_fd: int, write_fd: int, *, now: float) -> None:
        self.token = token
        self.read_fd = read_fd
        self.write_fd = write_fd
        self.frames = FrameReader()
        self.outbox: bytes | memoryview = b""
        self.pid = 0
        self.is_leaving = False  # it has reported its exit, or was ordered to quit, and its end was not seen
        self.run: TrialRun | None = None
        self.key: ProcessKey | None = None
        self.last_seen_at = now
        self.cpu_s: float | None = None
        self.beats = False  # whether it sends heartbeats: only trials that last do
        self.is_stopped = False  # by a signal, when it was last looked at
        self.end_fd = -1  # a descriptor that is readable when the process has ended

    def look(self, now: float) -> None:
        """Note what the process does, besides sending frames, that counts as activity.

        That is processor time, and in a process without heartbeats also being able to run: a trial deep in C
        code sends none, but works. What a debugger has stopped is a user's to continue.
        """
        seen = process_activity(self.pid)
        if seen is None or seen.is_traced or seen.cpu_s != self.cpu_s or (seen.can_run and not self.beats):
            self.cpu_s, self.last_seen_at = None if seen is None else seen.cpu_s, now
        self.is_stopped = seen is not None and seen.is_stopped

    def read(self) -> Sequence[Frame] | None:
        """Return frames that have arrived; None at the end of the stream, or when the connection broke."""
        try:
            data = os.read(self.read_fd, _CHUNK)
        except BlockingIOError:
            return ()
        except OSError:
            return None
        return self.frames.feed(data) if data else None

    def write(self, data: bytes | memoryview) -> bool:
        """Send without waiting; return False when a part has to wait for `flush`."""
        if self.outbox:
            self.outbox = bytes(self.outbox) + data
            return False
        try:
            sent = os.write(self.write_fd, data)
        except BlockingIOError:
            sent = 0
        except OSError:
            return True  # it has ended; the fork server reports how
        if sent == len(data):
            return True
        self.outbox = memoryview(data)[sent:]  # a view: a pipe takes 64 kB at a time, and this may be much
        return False

    def flush(self) -> bool:
        waiting, self.outbox = self.outbox, b""
        return not waiting or self.write(waiting)

    def close(self) -> None:
        os.close(self.read_fd)
        os.close(self.write_fd)
        self.close_end_fd()

    def close_end_fd(self) -> None:
        if self.end_fd >= 0:
            os.close(self.end_fd)
            self.end_fd = -1


class Grant(NamedTuple):
    """What one trial was given; it goes back to `ResourcePool.free` exactly once."""

    units: Mapping[str, int]
    gpu_units: Mapping[str, int]  # GPU id -> units of it

    @property
    def gpu_ids(self) -> tuple[str, ...]:
        return tuple(self.gpu_units)


class TrialRun:
    """One StartTrial that no TrialExited has answered yet."""

    def __init__(self, command: StartTrial) -> None:
        self.command = command
        self.worker: WorkerHandle | None = None  # None: waits for resources
        self.grant: Grant | None = None
        self.who = Signature(trial_id=command.trial_id, config=dict(command.config))
        self.reused = False
        self.stopping = False
        self.unanswered = 0  # reports
        self.usual_answer = _CONTINUE if command.buffering[0] <= 1 else b""
        self.exit_report: ExitReport | None = None
        self.failure: TrialFailure | None = None  # why the engine itself ended it
        self.last_result: dict[str, Any] = {}
        self.grace_s = float("inf")  # of a stop: the shortest
        self.due_at: float | None = None  # when the grace period of a stop ends
        self.kill_at: float | None = None
        self.limit_at: float | None = None
        self.received_at = 0.0  # when its process got the order, as far as known
        self.ended_at: float | None = None  # of one that ended while this process was stopped
        self.info: PreemptionInfo | None = None  # what was announced to it about its machine
        self.has_warned = False  # that its process is stopped

    def answer(self, running: int) -> bytes:
        """Return what lets a trial continue: how long its results may wait, longer the more trials run."""
        _, least_s, most_s, _ = self.command.buffering
        return frame(FrameKind.CONTINUE, pack(max(least_s, min(most_s, running // 10))))


SPINS = 60  # about 0.05 ms; 250 helped one trial by a tenth and cost sixteen on two cores as much
_MOST_MISSES = 8  # then one try in 255


class SpinThenWait:
    """Decides whether one waiting place spins before it sleeps."""

    __slots__ = ("_misses", "_skip")

    def __init__(self) -> None:
        self._misses = 0
        # With one processor the other side cannot run while this one spins.
        self._skip = 0 if cpu_count() > 1 else -1

    def poll(self, poll: Callable[[float], Any]) -> Any:  # noqa: ANN401 - what the poller gives
        """Return what `poll(0)` found, or something false: then it is time to sleep."""
        if self._skip:
            if self._skip > 0:
                self._skip -= 1
            return None
        for _ in range(SPINS):
            found = poll(0)
            if found:
                self._misses = 0
                return found
        if self._misses < _MOST_MISSES:
            self._misses += 1
        self._skip = (1 << self._misses) - 1
        return None

    def skip_next(self) -> None:
        """Sleep at once the next time."""
        self._skip = self._skip or 1


def is_readable(fd: int) -> bool:
    """Return whether a descriptor is readable now; any number of it will do, unlike for `select`."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    return bool(poller.poll(0))


class Poller:
    """Reports which descriptors are ready."""

    def __init__(self) -> None:
        self._is_epoll = hasattr(select, "epoll")
        self._poller = select.epoll() if self._is_epoll else select.poll()
        self._tick = 1.0 if self._is_epoll else 1000.0  # epoll takes seconds, poll milliseconds

    def add_reader(self, fd: int) -> None:
        self._poller.register(fd, select.POLLIN)

    def add_writer(self, fd: int) -> None:
        self._poller.register(fd, select.POLLOUT)

    def set_writing(self, fd: int, *, writing: bool) -> None:
        """Watch one descriptor for reading always, and for writing when something waits to be written."""
        self._poller.modify(fd, select.POLLIN | (select.POLLOUT if writing else 0))

    def forget(self, fd: int) -> None:
        try:
            self._poller.unregister(fd)
        except (KeyError, FileNotFoundError):
            return  # was not watched

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        return self._poller.poll(timeout_s * self._tick)

    def close(self) -> None:
        if self._is_epoll:
            self._poller.close()  # type: ignore[union-attr]
