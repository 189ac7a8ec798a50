"""A Ray head whose GCS keeps its state in a Redis, so that it may be killed and started again alone."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.ray_cluster import RayCluster, RayNode, free_ports

from muster.host.processes import table
from muster.providers.process.ray_command import NodeIdentity

START_S = 30.0
STORE = "RAY_REDIS_ADDRESS"


class Redis:
    """A server on loopback that writes nothing to the disk; ended by its process id."""

    def __init__(self, folder: Path) -> None:
        unpacked = Path(sys.prefix) / "redis" / "usr"  # by tools/setup.sh
        program = shutil.which("redis-server") or shutil.which(unpacked / "bin" / "redis-server")
        if program is None:
            pytest.skip(
                "there is no redis-server (apt or brew install it, or: make setup): not tested is a GCS that"
                " restarts and keeps its state"
            )
        libraries = os.pathsep.join(map(str, (unpacked / "lib").glob("*")))
        (port,) = free_ports(1)
        self.address = f"127.0.0.1:{port}"
        command = [program, "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--dir", str(folder)]
        with open(folder / "redis.log", "wb") as log:
            self._process = subprocess.Popen(
                command,
                env={**os.environ, **({"LD_LIBRARY_PATH": libraries} if libraries else {})},
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._wait(port)

    def _wait(self, port: int) -> None:
        give_up = time.monotonic() + START_S
        while self._process.poll() is None and time.monotonic() < give_up:
            with socket.socket() as line:
                if line.connect_ex(("127.0.0.1", port)) == 0:
                    return
            time.sleep(0.05)
        raise AssertionError("redis-server did not start")

    def __enter__(self) -> Redis:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()


class KeptCluster(RayCluster):
    """Only a head, started without `--block`: with it, `ray start` ends the whole node when the GCS dies."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._command: list[str] = []  # of the GCS
        self._environment: dict[str, str] = {}
        super().__init__(resources={"CPU": 0})

    def _start(self, command: list[str], identity: NodeIdentity) -> RayNode:
        before = os.environ.pop(STORE, None)
        os.environ[STORE] = self._store
        try:
            return super()._start([part for part in command if part != "--block"], identity)
        finally:
            del os.environ[STORE]
            if before is not None:
                os.environ[STORE] = before

    def _head_has_started(self, patience_s: float = START_S) -> bool:
        return self.nodes["head-0"].process.wait() == 0

    def kill_gcs(self) -> None:
        """-9 to it alone."""
        session = self.nodes["head-0"].process.pid
        (gcs,) = [one for one in table() if one.session == session and one.name == "gcs_server"]
        self._command = _words(Path(f"/proc/{gcs.pid}/cmdline"))
        pairs = (entry.partition("=") for entry in _words(Path(f"/proc/{gcs.pid}/environ")))
        self._environment = {name: value for name, _, value in pairs}
        os.kill(gcs.pid, signal.SIGKILL)

    def start_gcs(self) -> None:
        """The same again, as whoever looks after the process would."""
        with open(self.temp_dir / "gcs-again.log", "wb") as log:
            process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.nodes["gcs-0"] = RayNode(process, "gcs-0")


def _words(file: Path) -> list[str]:
    return file.read_bytes().decode().split("\0")[:-1]
