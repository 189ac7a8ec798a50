"""The driver's end of the relay: trials that cannot reach us meet us at an actor of ours on the cluster.

Each of their connections becomes a pair of sockets here, so that RayStaff sees no difference. Two threads
carry the bytes, by actor calls that take all there is at once: slower than a connection, but it goes wherever
Ray goes (drivers outside of the cluster, Ray Client).
"""

from __future__ import annotations

import logging
import os
import select
import socket
import threading
from collections.abc import Callable
from typing import Any

from muster.engines.ray.cluster_watcher import ON_THE_HEAD
from muster.engines.ray.handshake import Address

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
