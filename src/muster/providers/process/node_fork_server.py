"""NodeForkServer is the thread-safe client of the process that starts nodes, `node_fork_server_main.py`.

The process is made with the first `warm` or `start`, again when it died, and ends with `close` or with this
process.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from muster.base.framing import pack, unpack
from muster.errors import ProviderError
from muster.host.framed_child import ChildGoneError, FramedChild
from muster.providers.process.node_fork_server_main import GO, ORDER, VOID

logger = logging.getLogger(__name__)

REPLY_TIMEOUT_S = 120.0  # the import of Ray comes first, and the computer may be busy
_SCRIPT = Path(__file__).with_name("node_fork_server_main.py")


class ForkOrder(Struct, frozen=True, kw_only=True):
    """One command to run in a separate session."""

    argv: Sequence[str]
    env: Mapping[str, str]
    log: str
    cwd: str


class NodeForkServerBroken(ProviderError):
    """The process which starts nodes ended or did not answer."""

    retryable = True


class NodeForkServer:
    """Starts commands that outlive this process."""

    def __init__(self, preload: str, environment: Mapping[str, str], log: Path) -> None:
        # Numerical libraries would start threads with the import, and only one thread survives a fork.
        self._environment = {**environment, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        self._preload, self._log = preload, log
        self._child: FramedChild | None = None
        self._lock = threading.Lock()

    def warm(self) -> None:
        """Let the process import what nodes need, before the first is requested; returns at once."""
        with self._lock:
            self._living()

    def start(self, order: ForkOrder, admit: Callable[[int], bool]) -> bool:
        """Make the process and passes its id to `admit`, which decides whether it begins; returns that."""
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
        child = self._living()
        try:
            child.send(ORDER, pack((list(order.argv), dict(order.env), order.log, order.cwd)))
            ((_, pid),) = child.receive(REPLY_TIMEOUT_S)
            admitted = False
            try:
                admitted = admit(unpack(pid))
            finally:
                child.send(GO if admitted else VOID)
                child.receive(REPLY_TIMEOUT_S)
        except ChildGoneError as error:
            raise NodeForkServerBroken(f"the process that starts nodes: {error}; see {self._log}") from error
        return admitted

    def _living(self) -> FramedChild:
        if self._child is not None and self._child.process.poll() is None:
            return self._child
        self._end()
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with open(self._log, "ab") as log:
            self._child = FramedChild(
                [str(_SCRIPT)], self._preload, env=self._environment, output=log, cwd=self._log.parent
            )
        return self._child

    def _end(self) -> None:
        child, self._child = self._child, None
        if child is not None:
            child.process.kill()  # a node that has not begun ends with it
            child.end(REPLY_TIMEOUT_S)
