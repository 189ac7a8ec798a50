"""TrialActor is a Ray actor, in a process of a Ray node, that runs one trial after the other.

The code of a trial runs in the actor's main thread: what trials do with Ray (tasks, GPUs, their placement
group) works as usual. Ray starts the actor and reports its end. Everything else goes over two TCP connections
to the driver, because an actor call per result would cost ten times as much: the channel (orders, reports)
and the control (signals, heartbeats, the exit code).
"""

from __future__ import annotations

import atexit
import contextlib
import os
import platform
import select
import signal
import socket
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import muster
from muster.base.clock import SystemClock
from muster.base.framing import FrameKind, FrameReader, frame, unpack
from muster.engines.ray.failures import LAST_BYTES_S, report_death_through
from muster.engines.ray.tls import TlsTunnel
from muster.engines.worker.channel import WorkerChannel, end_group
from muster.engines.worker.handshake import Address, call
from muster.engines.worker.main import Worker, leave, stop_on_sigterm
from muster.engines.worker.output import flush
from muster.engines.worker.trainable_cache import TrainableCache
from muster.host import machine
from muster.host.die_with_parent import adopt_orphans, end_children
from muster.session.session import TrialStopped

if TYPE_CHECKING:
    from muster.engines.ray.remote_storage import StorageTransfer

_BEAT = frame(FrameKind.BEAT)
_TRAIN_CALLBACKS = "RAY_TRAIN_CALLBACKS"  # classes that Ray Train makes when a trial calls `fit()`
_PLACES_WORKERS = "muster.tune.integration.ray_train.TrialGroupCallback"
_SEE_WITHIN_S = 5.0  # a new file on a network file system is not seen everywhere at once


class ActorSpec(NamedTuple):
    """What an actor must know before it can receive orders."""

    number: int  # the driver's number of this actor
    addresses: Sequence[Address]
    key: bytes
    beat_s: float
    marker: str  # a file that shows whether this node sees the driver's directory
    remote_storage: bytes | None = None  # a pickled RemoteStorage, if there is one
    uses_tls: bool = False  # the driver wants encrypted connections


class TrialActor:
    """Serves one process; `serve` is its only call, and lasts as long as the process."""

    def serve(self, spec: ActorSpec, name: str, trainable: bytes | None) -> None:
        """Handle orders until there is nothing more to do, then ends the process."""
        import ray

        adopt_orphans()
        spec = ActorSpec(*spec)
        access = open_storage(spec.marker, spec.remote_storage)
        hello = _hello(spec, access)
        tls = TlsTunnel(machine.environment()) if spec.uses_tls else None
        control_socket = call(spec.addresses, spec.key, {**hello, "is_control": True}, tls)
        control = Control(control_socket, spec.beat_s, tls)
        line_socket = call(spec.addresses, spec.key, {**hello, "is_control": False}, tls)
        line = WorkerChannel(beat_s=spec.beat_s, has_reaper=False)
        line.connect(line_socket.fileno(), line_socket.fileno(), os.getppid())
        line.is_watched = True  # by the control's thread
        trainables = TrainableCache()
        if trainable is not None:
            trainables.put(name, trainable)
        control.watch()
        variables = machine.environment()
        others = [variables[_TRAIN_CALLBACKS]] if variables.get(_TRAIN_CALLBACKS) else []
        variables[_TRAIN_CALLBACKS] = ",".join([*others, _PLACES_WORKERS])
        stop_on_sigterm()
        machine.note_working_directory()
        address = (hello["hostname"], ray.util.get_node_ip_address())
        with contextlib.suppress(TrialStopped):
            Worker(line, trainables, SystemClock(), address, access.transfer).serve()
        control.is_leaving = True
        if access.transfer is not None:
            access.transfer.close()
        flush()
        end_children()
        line_socket.close()  # the driver need not wait for what Ray still has to do
        if tls is not None:
            tls.flush(LAST_BYTES_S)
        atexit.register(end_process)
        ray.actor.exit_actor()

    def ping(self) -> None:
        """Do nothing; a call makes Ray find out whether the actor lives."""


def _hello(spec: ActorSpec, access: Access) -> dict[str, Any]:
    import ray

    return {
        "number": spec.number,
        "pid": os.getpid(),
        "age_s": machine.process_age_s(),
        "hostname": socket.gethostname(),
        "node_id": ray.get_runtime_context().get_node_id(),
        "ray": ray.__version__,
        "python": platform.python_version(),
        "muster": muster.__version__,
        "sees_storage": access.sees,
        "storage_problem": access.problem,
    }


class Access(NamedTuple):
    """Describes how this node reaches the experiment's files."""

    sees: bool  # the driver's directory is mounted here
    transfer: StorageTransfer | None = None  # of a remote storage
    problem: str = ""  # why the remote storage cannot be used from here


def open_storage(marker: str, remote_storage: bytes | None) -> Access:
    """Return the access of this node; without the driver's directory, a remote storage is tried at once."""
    if remote_storage is None:
        return Access(_sees(marker, _SEE_WITHIN_S))
    from muster.engines.ray.remote_storage import RemoteStorage, StorageTransfer

    sees = _sees(marker, _SEE_WITHIN_S if os.path.isdir(os.path.dirname(marker)) else 0.0)
    try:
        opened = RemoteStorage.unpickled(remote_storage)
    except Exception as error:  # noqa: BLE001 - a file system of the user's own, whose module may not be here
        return Access(sees, problem=f"its file system cannot be made here: {error}")
    problem = "" if sees else opened.problem()
    return Access(sees, None if problem else StorageTransfer(opened, sees=sees, clock=SystemClock()), problem)


def _sees(marker: str, within_s: float) -> bool:
    clock = SystemClock()
    give_up = clock.monotonic() + within_s
    while not os.path.exists(marker):
        if not marker or clock.monotonic() >= give_up:
            return not marker
        clock.sleep(0.2)
    return True


class Control:
    """The second connection: its thread handles signals at once, and sends heartbeats."""

    def __init__(self, line: socket.socket, beat_s: float, tls: TlsTunnel | None) -> None:
        self._connection = line
        self._beat_s = beat_s
        self._main = threading.main_thread().ident or 0
        self.is_leaving = False
        report_death_through(line, tls)

    def watch(self) -> None:
        threading.Thread(target=self._watch, name="muster-control", daemon=True).start()

    def _watch(self) -> None:
        reader, poller = FrameReader(), select.poll()
        poller.register(self._connection, select.POLLIN)
        try:
            while True:
                if not poller.poll(self._beat_s * 1000):
                    self._connection.sendall(_BEAT)
                    continue
                data = self._connection.recv(4096)
                if not data:
                    break
                for kind, payload in reader.feed(data):
                    if kind == FrameKind.SIGNAL:
                        self._deliver_signal(unpack(payload))
        except OSError:
            pass
        if not self.is_leaving:
            _end_now()  # the driver is gone

    def _deliver_signal(self, number: int) -> None:
        if number == signal.SIGKILL:
            _end_now()
        # To the main thread itself: Ray's threads would take the signal while the main thread sleeps.
        signal.pthread_kill(self._main, number)


def _end_now() -> NoReturn:
    """End this process and everything that its trials have started."""
    end_children(most=1000)  # the trial, which still runs, may start more all the time
    end_group()


def end_process() -> None:
    """Run all other exit functions, Ray's too, and end the process, which has left the cluster by then.

    To take the interpreter apart would cost as much again as half of the actor's start.
    """
    atexit.unregister(end_process)
    leave(0)
