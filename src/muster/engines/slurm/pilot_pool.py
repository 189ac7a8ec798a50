"""PilotPool holds the pilots of SlurmEngine and the processes in them: connections, and how each ended."""

from __future__ import annotations

import contextlib
import itertools
import signal
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from muster.base.clock import Clock
from muster.base.framing import FrameKind, frame, pack, unpack
from muster.engines.connection_pool import ConnectionPool
from muster.engines.local.engine import ResourcePool
from muster.engines.process_engine import EngineTimeouts
from muster.engines.slurm.pilot import FORKED, PILOT
from muster.engines.worker import failures
from muster.engines.worker.handle import TrialRun, WorkerHandle
from muster.engines.worker.handshake import Hello
from muster.session.session import PreemptionInfo
from muster.trials.events import TrialFailure

_QUIT = frame(FrameKind.QUIT)
_LAST_FRAMES_S = 5.0  # how long the last frames of an ended process may take to arrive
_CLOSE_S = 5.0
_CLOSE_LOOK_S = 0.02
_STAYS = -1  # a process that was not reported as ended


class PilotHandle(WorkerHandle):
    """One pilot as the driver sees it; its connection carries requests and outcomes, no results."""

    def __init__(self, connection: socket.socket, hello: Mapping[str, Any], *, now: float) -> None:
        super().__init__(0, connection.fileno(), connection.fileno(), now=now)
        self.connection = connection
        self.job_id: str = hello["job"]
        self.pid: int = hello["pid"]
        self.hostname: str = hello["hostname"]
        self.node: str = hello["node"]
        self.gpu_variable, gpu_ids = hello["gpus"]
        self.resources = ResourcePool(hello["capacity"], gpu_ids)
        self.workers: dict[int, PilotWorker] = {}  # by token
        self.coming: dict[int, TrialRun | None] = {}  # processes that were requested, with their trial
        self.spares: list[PilotWorker] = []
        self.runs: dict[str, TrialRun] = {}  # trials that hold resources here, by id
        self.oom_kills: int = hello["oom_kills"]  # of its machine, with those before the job
        self.exits = failures.ExitReader(lambda: self.oom_kills)
        self.ends_at: float | None = None  # monotonic, by its time limit
        self.info: PreemptionInfo | None = None  # what is announced about it
        self.idle_since = now
        self.is_ordered_to_leave = False

    @property
    def takes_trials(self) -> bool:
        return self.info is None and not self.is_ordered_to_leave

    def close(self) -> None:
        self.connection.close()


class PilotWorker(WorkerHandle):
    """One process in a pilot, which has a connection to the driver as its channel."""

    def __init__(self, pilot: PilotHandle, token: int, connection: socket.socket, *, now: float) -> None:
        super().__init__(token, connection.fileno(), connection.fileno(), now=now)
        self.pilot, self.connection = pilot, connection
        self.status: int | None = _STAYS
        self.note = ""
        self.has_hung_up = False
        self.drop_at = float("inf")  # when its end counts although its last frames have not come

    def close(self) -> None:
        self.connection.close()


class PilotListener(Protocol):
    """Called with what becomes of pilots and their processes."""

    def on_frame(self, worker: WorkerHandle, kind: int, payload: bytes) -> None:
        """Handle one frame of a trial's process."""

    def on_pilot(self, pilot: PilotHandle, hello: Hello) -> None:
        """Handle a pilot that has connected."""

    def on_pilot_gone(self, pilot: PilotHandle, coming: Sequence[TrialRun]) -> None:
        """Handle a pilot whose connection is closed; its processes follow."""

    def on_signal(self, pilot: PilotHandle, number: int) -> None:
        """Handle a signal that Slurm has sent to a pilot."""

    def on_worker(self, worker: PilotWorker, run: TrialRun | None) -> None:
        """Handle a process that has connected, with the trial that waits for it."""

    def on_worker_gone(self, worker: PilotWorker, failure: TrialFailure | None) -> None:
        """Handle the end of a process; no failure: its pilot has gone."""

    def wake_at(self, when: float) -> None:
        """Have `check_deadlines` called at this time, if not earlier."""


class PilotPool(ConnectionPool[PilotWorker]):
    """Holds every pilot that is connected, and every process in them."""

    def __init__(self, *, clock: Clock, timeouts: EngineTimeouts, owner: PilotListener, key: bytes) -> None:
        super().__init__(clock, timeouts, key)
        self._owner = owner
        self.pilots: dict[str, PilotHandle] = {}  # by job
        self._tokens = itertools.count(1)
        self._checked_at = clock.monotonic()

    # Connections

    def _receive(self, connection: socket.socket, hello: Hello) -> None:
        now, pilot = self._clock.monotonic(), self.pilots.get(hello.get("job", ""))
        if hello.get("role") == PILOT:
            if pilot is not None:
                self._lose(pilot)  # Slurm has started the job again before the old connection broke
            pilot = PilotHandle(connection, hello, now=now)
            self.pilots[pilot.job_id] = pilot
            self._add(pilot)
            self._owner.on_pilot(pilot, hello)
        elif hello.get("role") == FORKED and pilot is not None and hello["token"] in pilot.coming:
            worker = PilotWorker(pilot, hello["token"], connection, now=now)
            pilot.workers[worker.token] = worker
            self._add(worker)
            self._owner.on_worker(worker, pilot.coming.pop(worker.token))
        else:
            connection.close()

    # Processes for trials

    def fork(self, pilot: PilotHandle, runs: Sequence[TrialRun | None]) -> None:
        """Request processes: one for each of these trials, a spare for each None."""
        tokens = list(itertools.islice(self._tokens, len(runs)))
        pilot.coming.update(zip(tokens, runs, strict=True))
        self.send(pilot, frame(FrameKind.FORK, pack(tokens)))

    def idle_in(self, pilot: PilotHandle) -> list[PilotWorker]:
        return [worker for worker in self.idle if worker.pilot is pilot]

    def retire_unused(self, pilot: PilotHandle) -> None:
        for worker in [*pilot.spares, *self.idle_in(pilot)]:
            self.retire(worker)

    def retire(self, worker: PilotWorker) -> None:
        """Make an unused process clean up and leave."""
        self._drop_unused(worker)
        worker.is_leaving = True
        self.send(worker, _QUIT)

    def order_to_leave(self, pilot: PilotHandle) -> None:
        """End a pilot, and with it its job."""
        pilot.is_ordered_to_leave = True
        self.send(pilot, _QUIT)

    def kill(self, worker: PilotWorker, number: signal.Signals) -> None:
        message = (worker.token, int(number), number == signal.SIGKILL)
        self.send(worker.pilot, frame(FrameKind.KILL, pack(message)))

    def is_of_this_machine(self, worker: PilotWorker) -> bool:
        return worker.pid != 0 and worker.pilot.hostname == self._hostname

    # Exchanging frames

    def _read(self, handle: Any) -> None:  # noqa: ANN401 - a pilot, or a process in one
        frames = handle.read()
        if frames is None:
            self._hang_up(handle)
            return
        on_frame = self._on_pilot_frame if isinstance(handle, PilotHandle) else self._on_worker_frame
        for kind, payload in frames:
            on_frame(handle, kind, payload)

    def _hang_up(self, handle: PilotHandle | PilotWorker) -> None:
        if isinstance(handle, PilotHandle):
            self._lose(handle)
            return
        self._forget_connection(handle)
        handle.has_hung_up = True
        self._drop_if_ended(handle)

    def _on_worker_frame(self, worker: PilotWorker, kind: int, payload: bytes) -> None:
        if kind == FrameKind.BEAT:
            worker.beats = True
        elif kind != FrameKind.IMPORTED:
            self._owner.on_frame(worker, kind, payload)

    def _on_pilot_frame(self, pilot: PilotHandle, kind: int, payload: bytes) -> None:
        if kind == FrameKind.NOTICE:
            self._owner.on_signal(pilot, unpack(payload))
        elif kind == FrameKind.CHILD:
            for token, pid in unpack(payload):
                if (worker := pilot.workers.get(token)) is not None:
                    worker.pid = pid
        elif kind == FrameKind.GONE:
            pilot.oom_kills, gone = unpack(payload)
            for token, status, note in gone:
                if (worker := pilot.workers.get(token)) is not None:
                    worker.status, worker.note = status, note
                    worker.drop_at = self._clock.monotonic() + _LAST_FRAMES_S
                    self._owner.wake_at(worker.drop_at)
                    self._drop_if_ended(worker)

    # Ends

    def _drop_if_ended(self, worker: PilotWorker) -> None:
        """Report the end of a process once its pilot has seen it and its last frames have come."""
        if worker.status == _STAYS or not (worker.has_hung_up or self._clock.monotonic() >= worker.drop_at):
            return
        self._forget(worker)
        self._owner.on_worker_gone(worker, worker.pilot.exits.failure_of_status(worker.status, worker.note))

    def _lose(self, pilot: PilotHandle) -> None:
        """Handle a broken connection to a pilot: everything in it ends."""
        if self.pilots.get(pilot.job_id) is not pilot:
            return
        del self.pilots[pilot.job_id]
        self._forget_connection(pilot)
        coming = [run for run in pilot.coming.values() if run is not None]
        pilot.coming.clear()
        for worker in list(pilot.workers.values()):
            self._read_rest(worker)
        workers = list(pilot.workers.values())
        self._owner.on_pilot_gone(pilot, coming)
        for worker in workers:
            self._forget(worker)
            self._owner.on_worker_gone(worker, None)
        pilot.close()

    def _read_rest(self, worker: PilotWorker) -> None:
        """Handle what a process has sent before its pilot went."""
        while worker.read_fd in self._connections and (frames := worker.read()):
            for kind, payload in frames:
                self._on_worker_frame(worker, kind, payload)

    def _forget(self, worker: PilotWorker) -> None:
        self._forget_connection(worker)
        worker.pilot.workers.pop(worker.token, None)
        self._drop_unused(worker)
        worker.close()

    def _drop_unused(self, worker: PilotWorker) -> None:
        for group in (self.idle, worker.pilot.spares):
            if worker in group:
                group.remove(worker)

    def check_deadlines(self, now: float) -> None:
        """Do what is due: processes whose last frames did not come, pilots that are silent."""
        missed_s = max(0.0, now - self._checked_at - 2 * self._timeouts.beat_s)
        self._checked_at = now
        for pilot in list(self.pilots.values()):
            # The time in which this process was stopped, or busy, is left out.
            pilot.last_seen_at = min(now, pilot.last_seen_at + missed_s)
            for worker in list(pilot.workers.values()):
                if now >= worker.drop_at:
                    self._drop_if_ended(worker)
            if now - pilot.last_seen_at >= self._timeouts.silent_after_s:
                self._lose(pilot)
        self.listener.close_expired(now)

    def close(self, *, hands_over: bool = False) -> None:
        """End every pilot, or, for another driver to come, only the connections to them."""
        if self._is_closed:
            return
        self._is_closed = True
        leaving = [] if hands_over else list(self.pilots.values())
        for pilot in leaving:
            self.order_to_leave(pilot)
        give_up = self._clock.monotonic() + _CLOSE_S
        while leaving and self._clock.monotonic() < give_up:
            self._clock.sleep(_CLOSE_LOOK_S)
            leaving = [pilot for pilot in leaving if not pilot.flush() or pilot.read() is not None]
        for handle in list(self._connections.values()):
            with contextlib.suppress(OSError):
                handle.close()
        self._close_poller()
