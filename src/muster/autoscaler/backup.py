"""Copy the ledger of a running monitor to the place of `muster.backup`, and restore it on a new head.

A separate thread copies: a slow or absent place never holds up a tick. Changes are copied at once, one copy
at a time; what changes meanwhile is in the next one.
"""

from __future__ import annotations

import logging
import shlex
import threading
from pathlib import Path

from muster.autoscaler.home import ClusterHome
from muster.base.clock import Clock
from muster.base.ids import IdSource
from muster.base.log import OnChange
from muster.base.untrusted import error_text
from muster.cluster.ports import TickResult
from muster.config.schema import ClusterConfig
from muster.errors import StoreError
from muster.stores.ledger.backup import LedgerBackups, RestoredLedger

logger = logging.getLogger(__name__)

LAST_COPY_S = 10.0  # a monitor that ends waits so long for its last copy


def backups_of(config: ClusterConfig) -> LedgerBackups | None:
    """Return where copies of this cluster's ledger are; None when the file names no place."""
    wanted = config.muster.backup
    return None if not wanted.to else LedgerBackups(wanted.to, config.cluster_name, keep=wanted.keep)


def restore_if_lost(
    config: ClusterConfig, home: ClusterHome, clock: Clock, ids: IdSource
) -> RestoredLedger | None:
    """Start a head without a ledger from the newest copy: of `muster.backup`, or what the launcher has sent.

    Called before the monitor opens its ledger. Raises StoreError when there are copies and none can be used:
    without them machines would still be adopted by their tags, but the money spent would be forgotten.
    """
    if home.ledger.exists():
        return None
    places = [backups_of(config), LedgerBackups(home.backups, config.cluster_name)]
    problem: StoreError | None = None
    # Machines that muster does not set up have started Ray once, for the head that is lost.
    sets_up = not config.provider.disable_node_updaters
    for place in places:
        try:
            restored = (
                None if place is None else place.restore(home.ledger, clock, ids, is_set_up_again=sets_up)
            )
        except StoreError as error:
            problem = problem or error
            continue
        if restored is not None:
            for sentence in (*([] if problem is None else [str(problem)]), *restored.refused):
                logger.warning("%s", sentence)
            logger.info("this head starts from a copy of the ledger: %s", restored.copy.name)
            return restored
    if problem is not None:
        raise problem
    return None


def forget_line(config: ClusterConfig, python: str) -> str:
    """Return the line by which the head deletes its copies at `muster down`; "" when it has none."""
    place = config.muster.backup.to
    if not place:
        return ""
    words = (python, "-m", "muster.stores.ledger.backup", "forget", place, config.cluster_name)
    return " ".join(map(shlex.quote, words))


class LedgerBackup:
    """A TickListener that keeps a copy of the ledger; `close` makes the last one."""

    def __init__(self, backups: LedgerBackups, ledger: Path, interval_s: float, clock: Clock) -> None:
        self._backups, self._ledger, self._interval_s, self._clock = backups, ledger, interval_s, clock
        self._changes = OnChange(logger)
        self._version: int | None = None  # the newest that a copy was asked for
        self._asked_at = clock.monotonic()
        self._wanted = threading.Event()
        self._ends = False
        self._thread = threading.Thread(target=self._run, name="ledger-backup", daemon=True)
        self._thread.start()

    def on_tick(self, tick: TickResult) -> None:
        now, version = self._clock.monotonic(), tick.ledger.version
        if version != self._version or now - self._asked_at >= self._interval_s:
            self._version, self._asked_at = version, now
            self._wanted.set()

    def close(self) -> None:
        """Wait a bounded time for the last copy; a place that hangs is given up with its thread."""
        self._ends = True
        self._wanted.set()
        self._thread.join(LAST_COPY_S)

    def _run(self) -> None:
        while not self._ends:
            self._wanted.wait()
            self._wanted.clear()
            self._copy()

    def _copy(self) -> None:
        try:
            self._backups.write(self._ledger)
        except Exception as error:  # noqa: BLE001 - logged once; the next change is copied again
            self._changes.log(
                logging.WARNING,
                "backup",
                "the ledger was not copied, so a new head would start from an older copy: "
                f"{error_text(error)}",
            )
        else:
            self._changes.forget("backup")
