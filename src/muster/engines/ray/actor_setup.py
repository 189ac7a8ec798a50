"""Hiring: what a new actor is given, and what is changed when actors cannot come: a relay, or our package.

RayEngine says which trial gets which place; this sees to it that an actor for it can start and reach us.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

import muster
from muster.engines.ray.actor import ActorSpec
from muster.engines.ray.actor_handle import ActorHandle, ActorPlacement
from muster.engines.ray.actor_pool import ActorPool
from muster.engines.ray.cluster_watcher import ON_THE_HEAD
from muster.engines.ray.handshake import Address, DriverUnreachable
from muster.engines.ray.package_upload import NEEDED, carried_class, is_foreign, missing_module
from muster.engines.ray.remote_storage import RemoteStorage
from muster.engines.worker.handle import TrialRun

_WAIT_S = 1.0
_CHUNK = 1 << 16


class Relay:
    """Starts at once; `ready` is called, in a thread, with the address for trials or with what went wrong."""

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - a module
        ready: Callable[[Address | None, str], object],
        came: Callable[[socket.socket], None],
    ) -> None:
        self._ray, self._ready, self._came = ray, ready, came
        self._ends: dict[int, socket.socket] = {}  # our halves, by connection
        self._by_fd: dict[int, int] = {}
        self._lock = threading.Lock()
        self._wake_read, self._wake_write = os.pipe()
        self._poller = select.poll()
        self._poller.register(self._wake_read, select.POLLIN)
        self._is_closed = False
        self._actor: Any = None
        self._threads = [
            threading.Thread(target=self._fetch, name="muster-relay-in", daemon=True),
            threading.Thread(target=self._bring, name="muster-relay-out", daemon=True),
        ]
        self._threads[0].start()

    def _fetch(self) -> None:
        """The thread from the cluster to us."""
        from muster.engines.ray import relay_actor

        try:
            self._ray.cloudpickle.register_pickle_by_value(relay_actor)  # the head may lack this package
            made = self._ray.remote(num_cpus=0, max_concurrency=4, resources=ON_THE_HEAD)(
                relay_actor.RelayActor
            )
            self._actor = made.remote()
            host, port = self._ray.get(self._actor.address.remote())
            self._threads[1].start()
            self._ready((host, port), "")
            while not self._is_closed:
                for number, data in self._ray.get(self._actor.pull.remote(_WAIT_S)):
                    self._deliver(number, data)
        except Exception as error:  # noqa: BLE001 - the actor or the cluster is gone; trials end with it
            if not self._is_closed:
                _log.warning("the relay to the cluster has ended: %s", str(error).partition("\n")[0])
                self._ready(None, str(error))
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
            self._came(theirs)
        elif (end := self._ends.get(number)) is not None:
            try:
                end.sendall(data)
            except OSError:
                self._hang_up(number)

    def _bring(self) -> None:
        """The thread from us to the cluster."""
        while not self._is_closed:
            parcels: list[tuple[int, bytes | None]] = []
            for fd, _ in self._poller.poll(_WAIT_S * 1000):
                if fd == self._wake_read:
                    os.read(fd, 4096)
                elif (number := self._by_fd.get(fd)) is not None:
                    parcels.append((number, self._take(number)))
            if parcels:
                try:
                    self._ray.get(self._actor.push.remote(parcels))
                except Exception:  # noqa: BLE001 - the other thread sees it too, and tells
                    return

    def _take(self, number: int) -> bytes | None:
        """What the engine wrote; None when it has closed its half."""
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
        """After all trials have ended."""
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
    """One per engine; used in its thread."""

    def __init__(self, ray: Any, staff: ActorPool, key: bytes, beat_s: float) -> None:  # noqa: ANN401 - a module
        self._ray, self._staff, self._key, self._beat_s = ray, staff, key, beat_s
        self._addresses: list[Address] = []
        self._relay: Relay | None = None
        self._waiting: list[tuple[ActorPlacement, TrialRun]] = []  # until the relay is there
        self._is_shipping = False
        self._lacks: set[str] = set()
        self._blobs: dict[str, Any] = {}  # refs to pickled trainables: sent once, fetched by each node
        self._witnesses: dict[str, str] = {}  # by directory
        self._reach: bytes | None = None
        self.why_no_reach = ""
        self.on_failure: Callable[[TrialRun, str], None] | None = None

    def reach_at(self, address: Address) -> None:
        self._addresses = [address]

    def tell_storage(self, reach: RemoteStorage) -> None:
        """New actors are told how they get at the remote storage of the experiment."""
        try:
            self._reach = reach.pickled()
        except Exception as error:  # noqa: BLE001 - pickling a file system of the user's own
            self.why_no_reach = f"storage_filesystem cannot be sent to it: {error}"

    def put(self, name: str, trainable: bytes) -> None:
        self._blobs[name] = self._ray.put(trainable)

    def hire(self, place: ActorPlacement, run: TrialRun) -> None:
        """An actor for that trial in this place, now or when the relay is there."""
        if not self._addresses:
            place.run = run
            self._waiting.append((place, run))
            self.use_relay("the one before has ended")
            return
        name, trial_dir = run.command.trainable_name, os.path.abspath(run.command.trial_dir)
        witness = self._witness(os.path.dirname(trial_dir))

        def arguments(number: int) -> tuple[Any, ...]:
            terms = ActorSpec(number, self._addresses, self._key, self._beat_s, witness, self._reach)
            return tuple(terms), name, self._blobs.get(name)

        self._staff.hire(place, run, arguments)

    def forget(self, run: TrialRun) -> None:
        self._waiting = [each for each in self._waiting if each[1] is not run]

    def remedy(self, place: ActorPlacement, run: TrialRun, outcome: BaseException | None) -> bool:
        """An actor could not come: whether something was done about that, and another was asked for."""
        lacking = missing_module(outcome)
        if isinstance(outcome, DriverUnreachable) or "DriverUnreachable" in str(outcome):
            if self._relay is not None and self._addresses:
                return False
            self.use_relay(str(outcome).strip().rpartition("\n")[2])
        elif lacking == "muster" and not self._is_shipping:
            self._ship("some node lacks the package")
        elif lacking in NEEDED and lacking not in self._lacks:
            self._lacks.add(lacking)
            self._staff.ray.runtime_env = {"pip": sorted(self._lacks)}
        elif is_foreign(outcome) and not self._is_shipping:
            self._ship(f"what is there could not start: {str(outcome).strip().rpartition(chr(10))[2]}")
        else:
            return False
        self.hire(place, run)
        return True

    def suits(self, hello: Mapping[str, Any]) -> bool:
        """Whether that actor has our version; else the package is shipped from now on."""
        if hello["muster"] == muster.__version__ or self._is_shipping:
            return True
        self._ship(f"a node has muster {hello['muster']}, this is {muster.__version__}")
        return False

    def again(self, desk: ActorHandle, run: TrialRun) -> None:
        """Another actor in the same place, in the place of this one."""
        self._staff.discard(desk)
        self.hire(desk.place, run)

    def _ship(self, why: str) -> None:
        _log.info("muster is sent to the nodes: %s", why)
        self._is_shipping = True
        self._staff.ray.actor_class, self._staff.ray.constructor = carried_class(self._ray)

    def use_relay(self, why: str) -> None:
        """From now on actors meet us at the relay."""
        if self._relay is None:
            _log.info("trials reach this driver through a relay actor: %s", why)
            self._addresses = []
            bell = self._staff.bell
            self._relay = Relay(
                self._ray,
                lambda address, why: bell.ring(lambda: self._hear_relay(address, why)),
                self._bring_in,
            )

    def _bring_in(self, line: socket.socket) -> None:
        """Called in the relay's thread."""
        if not self._staff.bell.ring(lambda: self._staff.reception.welcome(line)):
            line.close()

    def _hear_relay(self, address: Address | None, why: str) -> None:
        waiting, self._waiting = self._waiting, []
        if address is None:
            ended, self._relay, self._addresses = self._relay, None, []
            if ended is not None:
                ended.close()
            for _, run in waiting:
                if self.on_failure is not None:
                    self.on_failure(run, f"the relay to the cluster could not start: {why}")
            return
        self._addresses = [address]
        for place, run in waiting:
            self.hire(place, run)

    def _witness(self, folder: str) -> str:
        """A file in the experiment's directory: who does not see it works on another disk."""
        if folder not in self._witnesses:
            os.makedirs(folder, exist_ok=True)
            file = os.path.join(folder, f".muster_seen_by_all_{secrets.token_hex(4)}")
            with open(file, "wb"):
                self._witnesses[folder] = file
        return self._witnesses[folder]

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        for file in self._witnesses.values():
            if os.path.exists(file):
                os.unlink(file)
        self._witnesses.clear()
