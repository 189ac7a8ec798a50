"""ActorSetup starts actors for trials, and helps where they cannot start: with a relay, or by package upload.

RayEngine decides which trial gets which placement; ActorSetup makes an actor that can start there and reach
the driver.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import platform
import re
import secrets
import select
import socket
import sys
import threading
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import muster
from muster.engines.ray.actor import ActorSpec
from muster.engines.ray.actor_handle import ActorHandle, ActorPlacement
from muster.engines.ray.actor_pool import ActorPool
from muster.engines.ray.cluster_watcher import ON_THE_HEAD
from muster.engines.ray.remote_storage import RemoteStorage
from muster.engines.worker.handle import TrialRun
from muster.engines.worker.handshake import Address, DriverUnreachable, mismatch

NEEDED = ("msgspec", "cloudpickle", "fsspec", "typing_extensions")  # what every node needs beside the package
_MISSING = re.compile(r"No module named '([\w.]+)'")
_STAMP = (2020, 1, 1, 0, 0, 0)  # the same files make the same archive


def missing_module(outcome: BaseException | None) -> str | None:
    """Return the top-level name of the module whose lack kept an actor from starting."""
    found = _MISSING.search(str(outcome)) if outcome is not None else None
    return found[1].partition(".")[0] if found else None


def is_other_version(outcome: BaseException | None) -> bool:
    """Return whether the code of the actor itself failed, not its process: a muster of another version.

    This version must not fail so; another one may be given what it does not know.
    """
    is_own_error = type(outcome).__name__.startswith("RayTaskError")
    return is_own_error or bool(getattr(outcome, "_actor_init_failed", False))


def archive() -> bytes:
    """Return the package as a zip file."""
    root = Path(muster.__file__).parent
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as stored:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                entry = zipfile.ZipInfo(str(file.relative_to(root.parent)), _STAMP)
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                stored.writestr(entry, file.read_bytes())
    return made.getvalue()


class UploadingActor:
    """An UploadingActor, pickled by value, unpacks the package, then serves as a TrialActor."""

    def __init__(self, name: str, archive: bytes) -> None:
        import io
        import os
        import sys
        import tempfile
        import zipfile

        folder = os.path.join(tempfile.gettempdir(), f"muster-{os.getuid()}-{name}")
        if not os.path.isdir(folder):
            partial = tempfile.mkdtemp(prefix="muster-", dir=tempfile.gettempdir())
            with zipfile.ZipFile(io.BytesIO(archive)) as stored:
                stored.extractall(partial)
            try:
                os.rename(partial, folder)
            except OSError:
                folder = partial  # another actor was faster, or another user has that name
        found = os.lstat(folder)  # a link would lead to whatever its owner likes
        if found.st_uid != os.getuid() or found.st_mode & 0o170077 != 0o40000:
            raise RuntimeError(f"{folder} is not a directory that only this user can write to: remove it")
        for known in [each for each in sys.modules if each.partition(".")[0] == "muster"]:
            del sys.modules[known]
        sys.path.insert(0, folder)
        from muster.engines.ray.actor import TrialActor

        self._actor: Any = TrialActor()

    def serve(self, *arguments: Any) -> None:  # noqa: ANN401 - as TrialActor.serve
        self._actor.serve(*arguments)

    def ping(self) -> None:
        """Do what TrialActor.ping does."""


_WAIT_S = 1.0
_CHUNK = 1 << 16


class Relay:
    """Carries connections between the cluster and a driver that nodes cannot reach.

    It starts at once; `on_ready` is called, in a thread, with the address for trials or with what went wrong.
    """

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - a module
        on_ready: Callable[[Address | None, str], object],
        on_connection: Callable[[socket.socket], None],
    ) -> None:
        self._ray, self._on_ready, self._on_connection = ray, on_ready, on_connection
        self._ends: dict[int, socket.socket] = {}  # the driver's halves, by connection
        self._by_fd: dict[int, int] = {}
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._poller = select.poll()
        self._poller.register(self._wake_read, select.POLLIN)
        self._is_closed = False
        self._actor: Any = None
        self._threads = [
            threading.Thread(target=self._pull_all, name="muster-relay-in", daemon=True),
            threading.Thread(target=self._push_all, name="muster-relay-out", daemon=True),
        ]
        self._threads[0].start()

    def _pull_all(self) -> None:
        """Carry data from the cluster to the driver, in a separate thread."""
        from muster.engines.ray import relay_actor

        try:
            self._ray.cloudpickle.register_pickle_by_value(relay_actor)  # the head may lack this package
            made = self._ray.remote(num_cpus=0, max_concurrency=4, resources=ON_THE_HEAD)(
                relay_actor.RelayActor
            )
            self._actor = made.remote()
            host, port = self._ray.get(self._actor.address.remote())
            self._threads[1].start()
            self._on_ready((host, port), "")
            while not self._is_closed:
                for number, data in self._ray.get(self._actor.pull.remote(_WAIT_S)):
                    self._deliver(number, data)
        except Exception as error:  # noqa: BLE001 - the actor or the cluster is gone; trials end with it
            if not self._is_closed:
                _log.warning("the relay to the cluster has ended: %s", str(error).partition("\n")[0])
                self._on_ready(None, str(error))
        self._hang_up_all()

    def _deliver(self, number: int, data: bytes | None) -> None:
        if data is None:
            self._hang_up(number)
            return
        if data == b"":  # a new one
            ours, theirs = socket.socketpair()
            with self._lock:
                self._ends[number] = ours
                self._by_fd[ours.fileno()] = number
                self._poller.register(ours, select.POLLIN)
            os.write(self._wake_write, b"!")
            self._on_connection(theirs)
        elif (end := self._ends.get(number)) is not None:
            try:
                end.sendall(data)
            except OSError:
                self._hang_up(number)

    def _push_all(self) -> None:
        """Carry data from the driver to the cluster, in a separate thread."""
        while not self._is_closed:
            chunks: list[tuple[int, bytes | None]] = []
            for fd, _ in self._poller.poll(_WAIT_S * 1000):
                if fd == self._wake_read:
                    os.read(fd, 4096)
                elif (number := self._by_fd.get(fd)) is not None:
                    chunks.append((number, self._take(number)))
            if chunks:
                try:
                    self._ray.get(self._actor.push.remote(chunks))
                except Exception:  # noqa: BLE001 - the other thread sees it too, and reports it
                    return

    def _take(self, number: int) -> bytes | None:
        """Return what the engine wrote; None when it has closed its half."""
        try:
            data = self._ends[number].recv(_CHUNK)
        except (OSError, KeyError):
            data = b""
        if not data:
            self._hang_up(number)
        return data or None

    def _hang_up(self, number: int) -> None:
        with self._lock:
            end = self._ends.pop(number, None)
            if end is not None:
                self._by_fd.pop(end.fileno(), None)
                self._poller.unregister(end)
                end.close()

    def _hang_up_all(self) -> None:
        for number in list(self._ends):
            self._hang_up(number)

    def close(self) -> None:
        """End the relay, after all trials have ended."""
        self._is_closed = True
        if self._actor is not None:
            self._ray.kill(self._actor, no_restart=True)
        os.write(self._wake_write, b"!")
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(timeout=10.0)
        self._hang_up_all()
        os.close(self._wake_read)
        os.close(self._wake_write)


_log = logging.getLogger(__name__)


class ActorSetup:
    """Starts actors for one engine, in its thread."""

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - a module
        pool: ActorPool,
        key: bytes,
        beat_s: float,
        on_no_relay: Callable[[TrialRun, str], None],
        remote_storage: RemoteStorage | None = None,
    ) -> None:
        self._ray, self._pool, self._key, self._beat_s = ray, pool, key, beat_s
        self._on_no_relay = on_no_relay  # is called with each trial that waits for a relay which cannot start
        self.addresses: list[Address] = []  # of the driver, for actors
        self._relay: Relay | None = None
        self._waiting: list[tuple[ActorPlacement, TrialRun]] = []  # until the relay is ready
        self._uploads_package = False
        self._lacks: set[str] = set()
        self._blobs: dict[str, Any] = {}  # refs to pickled trainables: sent once, fetched by each node
        self._marker_files: dict[str, str] = {}  # by directory
        self.ray_version = str(ray.__version__)
        self._storage, self._storage_problem = remote_storage, ""
        self._pickled_storage: bytes | None = None  # lets new actors use the remote storage
        try:
            self._pickled_storage = None if remote_storage is None else remote_storage.pickled()
        except Exception as error:  # noqa: BLE001 - pickling a file system of the user's own
            self._storage_problem = f"storage_filesystem cannot be pickled for the node: {error}"

    def put(self, name: str, trainable: bytes) -> None:
        self._blobs[name] = self._ray.put(trainable)

    def start_actor(self, placement: ActorPlacement, run: TrialRun) -> None:
        """Request an actor for that trial in this placement, now or when the relay is ready."""
        if not self.addresses:
            placement.run = run
            self._waiting.append((placement, run))
            self.use_relay("the one before has ended")
            return
        name, trial_dir = run.command.trainable_name, os.path.abspath(run.command.trial_dir)
        marker = self._marker_file(os.path.dirname(trial_dir))

        def arguments(number: int) -> tuple[Any, ...]:
            storage, uses_tls = self._pickled_storage, self._pool.listener.tls is not None
            spec = ActorSpec(number, self.addresses, self._key, self._beat_s, marker, storage, uses_tls)
            return tuple(spec), name, self._blobs.get(name)

        self._pool.start_actor(placement, run, arguments)

    def forget(self, run: TrialRun) -> None:
        self._waiting = [each for each in self._waiting if each[1] is not run]

    def try_remedy(self, placement: ActorPlacement, run: TrialRun, outcome: BaseException | None) -> bool:
        """Return whether something was done about an actor that could not start, and another requested."""
        lacking = missing_module(outcome)
        if isinstance(outcome, DriverUnreachable) or "DriverUnreachable" in str(outcome):
            if self._relay is not None and self.addresses:
                return False
            self.use_relay(str(outcome).strip().rpartition("\n")[2])
        elif lacking == "muster" and not self._uploads_package:
            self._upload_package("some node lacks the package")
        elif lacking in NEEDED and lacking not in self._lacks:
            self._lacks.add(lacking)
            self._pool.ray.runtime_env = {"pip": sorted(self._lacks)}
        elif is_other_version(outcome) and not self._uploads_package:
            self._upload_package(
                f"the installed version could not start: {str(outcome).strip().rpartition(chr(10))[2]}"
            )
        else:
            return False
        self.start_actor(placement, run)
        return True

    def why_unsuitable(self, hello: Mapping[str, Any], trial_dir: str) -> str | None:
        """Return why the trial cannot run on the node of this actor; None when it can."""
        why = mismatch(hello, python=platform.python_version(), ray=self.ray_version)
        problem = self._storage_problem or hello["storage_problem"]
        if why is not None or hello["sees_storage"] or (self._storage is not None and not problem):
            return why
        unseen = f"the node {hello['hostname']} does not see {os.path.dirname(trial_dir)}"
        fix = "set RunConfig(storage_path=...) to a directory that every node mounts"
        if self._storage is None:
            return f"{unseen}; {fix}"
        return (
            f"{unseen} and cannot use {self._storage.uri}: {problem}. Give the node what that storage needs "
            f"(package, credentials, network), or {fix}"
        )

    def has_our_version(self, hello: Mapping[str, Any]) -> bool:
        """Return whether the actor runs this version; otherwise the package is uploaded from now on."""
        if hello["muster"] == muster.__version__ or self._uploads_package:
            return True
        self._upload_package(f"a node has muster {hello['muster']}, this is {muster.__version__}")
        return False

    def replace_actor(self, worker: ActorHandle, run: TrialRun) -> None:
        """Request another actor in the same placement, and end this one."""
        self._pool.discard(worker)
        self.start_actor(worker.placement, run)

    def _upload_package(self, why: str) -> None:
        _log.info("muster is sent to the nodes: %s", why)
        self._uploads_package = True
        ray, data = self._ray, archive()
        name = f"{muster.__version__}-{hashlib.sha256(data).hexdigest()[:16]}"
        ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._pool.ray.actor_class = ray.remote(max_restarts=0, max_task_retries=0)(UploadingActor)
        self._pool.ray.constructor = (name, ray.put(data))

    def use_relay(self, why: str) -> None:
        """Make actors connect through the relay from now on."""
        if self._relay is None:
            _log.info("trials reach this driver through a relay actor: %s", why)
            self.addresses = []
            wakeups = self._pool.wakeups
            self._relay = Relay(
                self._ray,
                lambda address, why: wakeups.put(lambda: self._on_relay(address, why)),
                self._on_relayed_connection,
            )

    def _on_relayed_connection(self, connection: socket.socket) -> None:
        """Pass a connection on to the engine's thread; the relay calls this in a separate thread."""
        if not self._pool.wakeups.put(lambda: self._pool.listener.accept(connection)):
            connection.close()

    def _on_relay(self, address: Address | None, why: str) -> None:
        waiting, self._waiting = self._waiting, []
        if address is None:
            ended, self._relay, self.addresses = self._relay, None, []
            if ended is not None:
                ended.close()
            for _, run in waiting:
                self._on_no_relay(run, f"the relay to the cluster could not start: {why}")
            return
        self.addresses = [address]
        for placement, run in waiting:
            self.start_actor(placement, run)

    def _marker_file(self, folder: str) -> str:
        """Return a file in the experiment's directory; a node that does not see it works on another disk."""
        if folder not in self._marker_files:
            os.makedirs(folder, exist_ok=True)
            file = os.path.join(folder, f".muster_seen_by_all_{secrets.token_hex(4)}")
            with open(file, "wb"):
                self._marker_files[folder] = file
        return self._marker_files[folder]

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        for file in self._marker_files.values():
            if os.path.exists(file):
                os.unlink(file)
        self._marker_files.clear()
