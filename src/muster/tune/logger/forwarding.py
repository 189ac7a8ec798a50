"""Forwarder: what LogWriter's thread does once a process writes the files; goes back to the thread's own
scribe when that process cannot be started or ends suddenly.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence

from muster.base.clock import Clock
from muster.tune.logger.files.trial_log import Entry
from muster.tune.logger.files.write import Problems, Scribe
from muster.tune.logger.files.writer_process import RemoteScribe, ScribeGoneError, is_possible

logger = logging.getLogger(__name__)

_BOOT_S = 1.0  # rows wait so long for a process to come up, if nobody waits for them
_BOOT_LOOK_S = 0.01
_BOOT_MOST = 8000  # rows, likewise
_LISTEN_S = 0.05


class Forwarder:
    """Used by LogWriter's thread alone, but for `is_stuck`."""

    chunk = 256  # entries in a parcel: the control thread waits while one is packed

    def __init__(self, scribe: Scribe, problems: Problems, clock: Clock, open_limit: int) -> None:
        self._scribe, self._problems, self._clock = scribe, problems, clock
        self._hired_at = clock.monotonic()
        self._due: deque[tuple[int, threading.Event]] = deque()  # parcel after which a ticket is set
        self.is_in_use = False
        self._remote: RemoteScribe | None = None
        try:
            self._remote = RemoteScribe(problems, open_limit) if is_possible() else None
        except OSError as error:
            logger.info("log files are written by a thread: no process could be started: %s", error)

    @property
    def is_stuck(self) -> bool:
        remote = self._remote
        return remote is not None and remote.is_stuck

    def rest(self, wake: threading.Event) -> bool:
        """Wait for the process, if there is something to wait for."""
        if self._remote is None:
            return False
        if self._due and not wake.is_set():
            self._listen(_LISTEN_S)
        elif not self._remote.is_ready and self._is_early():
            wake.wait(_BOOT_LOOK_S)
        else:
            return False
        return True

    def look(self) -> bool:
        """Hear what the process has to say; whether it is, from now on, in use."""
        self._listen(0)
        can_be_used = self._remote is not None and self._remote.is_ready and not self._scribe.is_stuck
        if can_be_used and not self.is_in_use:
            self._scribe.close()
            self.is_in_use = True
        return self.is_in_use

    def is_worth_waiting_for(self, waiting: int) -> bool:
        is_coming = self._remote is not None and not self._remote.is_ready
        return is_coming and waiting < _BOOT_MOST and self._is_early()

    def _is_early(self) -> bool:
        return self._clock.monotonic() - self._hired_at < _BOOT_S

    def forward(self, entries: Sequence[Entry], tickets: Sequence[threading.Event]) -> None:
        remote = self._remote
        assert remote is not None  # is_in_use says so
        parcel = remote.sent + bool(entries)
        self._due.extend((parcel, ticket) for ticket in tickets)
        try:
            if entries:
                remote.send(entries)
        except ScribeGoneError:
            self._go_on_alone(is_sudden=True)
        self._answer()

    def finish(self) -> None:
        """Everything is written, or stuck in the thread's own hands, and the process gone."""
        remote = self._remote
        if remote is None:
            return
        try:
            if self.is_in_use:
                remote.finish()
        except ScribeGoneError:
            self._go_on_alone(is_sudden=True)
        else:
            self._go_on_alone(is_sudden=False)

    def _listen(self, timeout_s: float) -> None:
        if self._remote is None:
            return
        try:
            self._remote.listen(timeout_s)
        except ScribeGoneError:
            self._go_on_alone(is_sudden=True)
        self._answer()

    def _go_on_alone(self, *, is_sudden: bool) -> None:
        remote, self._remote = self._remote, None
        assert remote is not None
        self.is_in_use = False
        how = remote.dismissed()
        if is_sudden:
            what = f"the process that wrote them {how}; the driver goes on with that itself"
            self._problems.add("log files", RuntimeError(what))
        if remote.kept:
            self._scribe.take_back(remote.kept)
        self._answer()

    def _answer(self) -> None:
        done = self._remote.done if self._remote is not None else float("inf")
        while self._due and self._due[0][0] <= done:
            self._due.popleft()[1].set()
