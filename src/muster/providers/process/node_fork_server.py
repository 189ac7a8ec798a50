"""NodeForkServer is the thread-safe client of the process that starts nodes, `node_fork_server_main.py`.

The process is made with the first `warm` or `start`, again when it died, and ends with `close` or with this
process.
"""

from __future__ import annotations

import contextlib
import logging
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from muster.errors import ProviderError
from muster.providers.process.node_fork_server_main import GO

logger = logging.getLogger(__name__)

REPLY_TIMEOUT_S = 120.0  # the import of Ray comes first, and the computer may be busy
_SCRIPT = Path(__file__).with_name("node_fork_server_main.py")


class ForkOrder(Struct, frozen=True, kw_only=True):
    """A ForkOrder is one command to run in a session of its own."""

    argv: Sequence[str]
    env: Mapping[str, str]
    log: str
    cwd: str


class NodeForkServerBroken(ProviderError):
    """A NodeForkServerBroken means that the process which starts nodes ended or did not answer."""

    retryable = True


class NodeForkServer:
    """A NodeForkServer starts commands that outlive this process."""

    def __init__(self, preload: str, environment: Mapping[str, str], log: Path) -> None:
        # Numerical libraries would start threads with the import, and only one thread survives a fork.
        self._environment = {**environment, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._preload, self._log = preload, log
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Lets the process import what nodes need, before the first is requested; returns at once."""
        with self._lock:
            self._living()

    def start(self, order: ForkOrder, admit: Callable[[int], bool]) -> bool:
        """Makes the process and passes its id to `admit`, which decides whether it begins; returns that."""
        with self._lock:
            try:
                return self._ordered(order, admit)
            except NodeForkServerBroken as error:
                logger.warning("%s; trying once more", error)
                self._end()
                return self._ordered(order, admit)

    def close(self) -> None:
        with self._lock:
            self._end()

    def _ordered(self, order: ForkOrder, admit: Callable[[int], bool]) -> bool:
        process = self._living()
        self._send(process, msgspec.json.encode(order) + b"\n")
        pid = int(self._reply(process)["pid"])
        admitted = False
        try:
            admitted = admit(pid)
        finally:
            self._send(process, GO if admitted else b"no\n")
            self._reply(process)
        return admitted

    def _send(self, process: subprocess.Popen[bytes], line: bytes) -> None:
        assert process.stdin is not None
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except OSError as error:
            raise NodeForkServerBroken(
                f"the process that starts nodes is gone ({error}); see {self._log}"
            ) from error

    def _reply(self, process: subprocess.Popen[bytes]) -> dict[str, int]:
        assert process.stdout is not None
        ready, _, _ = select.select([process.stdout], [], [], REPLY_TIMEOUT_S)
        line = process.stdout.readline() if ready else b""
        if not line:
            raise NodeForkServerBroken(f"the process that starts nodes did not answer; see {self._log}")
        return msgspec.json.decode(line, type=dict[str, int])

    def _living(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._end()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(_SCRIPT), self._preload],
                env=self._environment,
                cwd=self._log.parent,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C on the monitor's terminal must not reach it
            )
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                stream.close()  # type: ignore[union-attr]
        process.kill()  # a node that has not begun ends with it
        process.wait()
