"""Runs in another process: a pilot hosts trials in a Slurm job, and connects back to the driver.

It passes requests of the driver on to a fork server, and gives each new process a connection to the driver:
results do not pass through the pilot. It leaves when the driver orders it, or has been away for too long.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import select
import signal
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import muster
from muster.base.clock import SystemClock
from muster.base.framing import FrameKind, FrameReader, frame, pack, unpack
from muster.engines.local.fork_server import ForkServerClient
from muster.engines.worker.handshake import DriverUnreachable, call
from muster.host import machine
from muster.host.framed_child import ChildGoneError
from muster.slurm.jobs import job_of, memory_of

_log = logging.getLogger("pilot")
DRIVER_FILE = "driver.json"
FORKED = "forked"  # role of a connection that a trial's process uses
PILOT = "pilot"
_AGAIN_S = (0.1, 2.0)  # between two tries: at first, and later
_UNKNOWN_S = 60.0  # how long a driver whose file cannot be read is waited for
_BEAT = frame(FrameKind.BEAT)
_BUSY_S = 0.05  # while something waits until the fork server reads
_GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


class DriverGone(Exception):
    """The connection to the driver is broken."""


def allocation(environment: Mapping[str, str]) -> dict[str, float]:
    """Return the resources that Slurm has given this job on this node.

    Example:
        >>> allocation({"SLURM_CPUS_ON_NODE": "4", "SLURM_MEM_PER_NODE": "1", "CUDA_VISIBLE_DEVICES": "2,3"})
        {'CPU': 4.0, 'memory': 1048576.0, 'GPU': 2.0}
    """
    cpus = environment.get("SLURM_CPUS_ON_NODE", "")
    given = {"CPU": float(cpus) if cpus.isdigit() else float(machine.cpu_count())}
    if memory := memory_of(environment):
        given["memory"] = float(memory)
    if gpus := visible_gpus(environment)[1]:
        given["GPU"] = float(len(gpus))
    return given


def visible_gpus(environment: Mapping[str, str]) -> tuple[str, list[str]]:
    """Return the variable that names the GPUs of this job, and the names."""
    for name in _GPU_VARIABLES:
        if environment.get(name):
            parts = map(str.strip, environment[name].split(","))
            return name, [part for part in parts if part not in ("", "-1")]
    return _GPU_VARIABLES[0], []


class Pilot:
    """Serves one driver after another until it is ordered to leave."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._clock = folder, SystemClock()
        self._driver: dict[str, Any] = {}  # what its file says
        self._environment = dict(machine.environment())
        self._server: ForkServerClient | None = None
        self._trainables: dict[str, bytes] = {}
        self._setup: tuple[Any, ...] = ()  # of the fork server, from the driver
        self._tokens: set[int] = set()  # of processes whose end was not reported
        self._got: list[int] = []  # signals
        self._wake_read, wake_write = os.pipe()
        for fd in (self._wake_read, wake_write):
            os.set_blocking(fd, False)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGUSR2):
            signal.signal(number, lambda number, where: self._got.append(number))

    def run(self) -> int:
        """Return the exit code of the job."""
        while True:
            connection = self._connect()
            if connection is None:
                return 3 if not self._driver.get("is_over") else 0
            try:
                self._serve(connection)
                return 0
            except (DriverGone, DriverUnreachable, OSError) as error:
                _log.warning("the driver is gone (%s); waiting for it to come back", error)
            finally:
                connection.close()
                self._end_trials()

    def _connect(self) -> socket.socket | None:
        """Return a connection to the driver; None when there is none to be waited for any longer."""
        began, problem, wait_s = self._clock.monotonic(), "", _AGAIN_S[0]
        while signal.SIGTERM not in self._got:
            try:
                self._driver = json.loads((self._folder / DRIVER_FILE).read_bytes())
                if self._driver["is_over"]:
                    _log.warning("the experiment is over")
                    return None
                self._key = bytes.fromhex(self._driver["key"])
                return self._call(self._hello())
            except DriverUnreachable as error:
                problem = f"the driver cannot be reached from {machine.hostname()}: {error}"
            except (OSError, ValueError, KeyError) as error:
                problem = f"{machine.hostname()} cannot read {self._folder / DRIVER_FILE}: {error}"
            if self._clock.monotonic() >= began + float(self._driver.get("reconnect_s", _UNKNOWN_S)):
                break
            self._clock.sleep(wait_s)
            wait_s = min(1.5 * wait_s, _AGAIN_S[1])
        _log.error("%s", problem or "the job was cancelled")
        return None

    def _call(self, hello: dict[str, Any]) -> socket.socket:
        addresses = [(str(host), int(port)) for host, port in self._driver["addresses"]]
        return call(addresses, self._key, hello)

    def _hello(self) -> dict[str, Any]:
        return {
            "role": PILOT,
            "job": job_of(self._environment),
            "pid": os.getpid(),
            "age_s": machine.process_age_s(),
            "hostname": machine.hostname(),
            "node": self._environment.get("SLURMD_NODENAME", machine.hostname()),
            "python": platform.python_version(),
            "muster": muster.__version__,
            "now": self._clock.now(),
            "capacity": allocation(self._environment),
            "gpus": visible_gpus(self._environment),
            "oom_kills": machine.oom_kills(),
        }

    # Serving

    def _serve(self, connection: socket.socket) -> None:
        """Carry requests and outcomes until the driver orders this pilot to leave; DriverGone without it."""
        frames, poller = FrameReader(), select.poll()
        poller.register(connection, select.POLLIN)
        poller.register(self._wake_read, select.POLLIN)
        beat_at = 0.0
        self._announce(connection)
        while True:
            now = self._clock.monotonic()
            if now >= beat_at:
                connection.sendall(_BEAT)
                beat_at = now + self._beat_s
            server, wait_s = self._server, beat_at - now
            if server is not None:
                poller.register(server.socket, select.POLLIN)
                if server.waits_to_write or server.refusal is not None:
                    server.flush()
                    wait_s = _BUSY_S
            for fd, _ in poller.poll(max(0.0, wait_s) * 1000):
                if fd == self._wake_read:
                    os.read(fd, 4096)
                    self._announce(connection)
                elif server is not None and fd == server.socket.fileno():
                    self._pass_on(connection, server, poller)
                elif not self._take(connection, frames):
                    return

    @property
    def _beat_s(self) -> float:
        return float(self._setup[2]) if self._setup else 5.0

    def _announce(self, connection: socket.socket) -> None:
        """Report the signals of Slurm: USR2 some time before the limit, TERM shortly before the end."""
        while self._got:
            connection.sendall(frame(FrameKind.NOTICE, pack(int(self._got.pop(0)))))

    def _take(self, connection: socket.socket, frames: FrameReader) -> bool:
        data = connection.recv(1 << 16)
        if not data:
            raise DriverGone("it closed the connection")
        for kind, payload in frames.feed(data):
            if kind == FrameKind.QUIT:
                return False
            self._handle(kind, payload)
        return True

    def _handle(self, kind: int, payload: bytes) -> None:
        if kind == FrameKind.INIT:
            self._setup = unpack(payload)
        elif kind == FrameKind.TRAINABLE:
            name, blob = unpack(payload)
            self._trainables[name] = blob
            if self._server is not None:
                self._server.post(frame(kind, payload))
        elif kind == FrameKind.FORK:
            self._fork(unpack(payload))
        elif kind == FrameKind.KILL and self._server is not None:
            self._server.post(frame(kind, payload))

    def _fork(self, tokens: list[int]) -> None:
        """Have processes made that are connected to the driver already."""
        server = self._server or self._open_server()
        descriptors: list[int] = []
        for token in tokens:
            fd = self._call({"role": FORKED, "job": job_of(self._environment), "token": token}).detach()
            descriptors += (fd, os.dup(fd))
        self._tokens.update(tokens)
        server.post(frame(FrameKind.FORK, pack(tokens)), descriptors)

    def _open_server(self) -> ForkServerClient:
        argv, path, beat_s, env, working_directory = self._setup
        sys.argv[:], sys.path[:] = argv, path
        if os.path.isdir(working_directory):
            os.chdir(working_directory)
        server = self._server = ForkServerClient(warm=True, beat_s=beat_s, env=env, quiet=False)
        for name, blob in self._trainables.items():
            server.post(frame(FrameKind.TRAINABLE, pack((name, blob))))
        return server

    def _pass_on(self, connection: socket.socket, server: ForkServerClient, poller: select.poll) -> None:
        """Report what became of processes, with the kernel's count of kills for lack of memory."""
        try:
            messages = server.take()
        except ChildGoneError:
            poller.unregister(server.socket)
            self._server = None
            server.close()
            server.end_leftovers()
            lost = [(token, None, "") for token in sorted(self._tokens)]
            self._tokens.clear()
            connection.sendall(frame(FrameKind.GONE, pack((machine.oom_kills(), lost))))
            return
        for kind, payload in messages:
            if kind == FrameKind.GONE:
                gone = unpack(payload)
                self._tokens.difference_update(token for token, *_ in gone)
                connection.sendall(frame(kind, pack((machine.oom_kills(), gone))))
            elif kind == FrameKind.CHILD:
                connection.sendall(frame(kind, payload))
            elif kind == FrameKind.FORKS:
                pid, _ = unpack(payload)
                server.forking_pid = pid or server.forking_pid

    def _end_trials(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        self._tokens.clear()
        self._trainables.clear()


def main() -> None:
    """Run a pilot: the only argument is the directory of the driver's files."""
    logging.basicConfig(format="%(asctime)s %(name)s: %(message)s")
    sys.exit(Pilot(Path(sys.argv[1])).run())


if __name__ == "__main__":
    main()
