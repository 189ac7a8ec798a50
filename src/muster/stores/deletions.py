"""DeletionQueue: checkpoints that retention gave up, deleted off the control thread once that is safe."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Collection, Iterable

from muster.base.clock import Clock
from muster.errors import MusterError
from muster.trials.checkpoints import Doomed, deletable
from muster.trials.model import CheckpointRef


class DeletionQueue:
    """One thread calls it; its own thread deletes. Failures are logged, never raised.

    Args:
        delete: Deletes one checkpoint: `CheckpointStore.delete`, or `Uploader.discard` besides it.
        sync: Called before each round: `SqliteTrialStore.sync`, so that not even a power cut can bring back
            a state that refers to what was deleted.
    """

    def __init__(
        self, delete: Callable[[CheckpointRef], None], sync: Callable[[], None], *, clock: Clock
    ) -> None:
        self._delete, self._sync, self._clock = delete, sync, clock
        self._doomed: tuple[Doomed, ...] = ()
        self._ready: deque[CheckpointRef] = deque()
        self._wake = threading.Condition()
        self._is_closing = False
        self._is_busy = False
        self._thread: threading.Thread | None = None  # most experiments delete nothing

    def discard(self, refs: Iterable[CheckpointRef], after: int) -> None:
        """Delete these once `after` facts, counted over the experiment's life, are durable."""
        self._doomed += tuple(Doomed(ref=ref, after=after) for ref in refs)

    def discard_now(self, refs: Iterable[CheckpointRef]) -> None:
        """Delete these, which are known to be safe to delete. Never blocks."""
        self.discard(refs, after=0)
        self.settle(0)

    def settle(self, durable: int, in_use: Collection[str] = ()) -> int:
        """So many facts are durable: hand over what may go, except paths in use; how many. Never blocks."""
        if not self._doomed:
            return 0
        ready, self._doomed = deletable(self._doomed, durable, in_use)
        if ready:
            with self._wake:
                self._ready.extend(ready)
                self._wake.notify_all()
            self._start()
        return len(ready)

    def drain(self, timeout_s: float) -> bool:
        """Wait for what was handed over; False when the time was not enough."""
        deadline = self._clock.monotonic() + timeout_s
        with self._wake:
            while self._ready or self._is_busy:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return False
                self._wake.wait(left)
        return True

    def close(self, timeout_s: float = 10.0) -> bool:
        """Drain, then end. What still waits for its fact stays: a restore decides again."""
        is_done = self.drain(timeout_s)
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
        if self._thread is not None:
            self._thread.join(1.0)
        return is_done

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="muster-deletions", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._ready and not self._is_closing:
                    self._wake.wait()
                if self._is_closing:
                    return
                round_, self._is_busy = list(self._ready), True
                self._ready.clear()
            self._delete_all(round_)
            with self._wake:
                self._is_busy = False
                self._wake.notify_all()

    def _delete_all(self, refs: list[CheckpointRef]) -> None:
        try:
            self._sync()
        except (OSError, MusterError) as error:
            _log.warning(
                "checkpoints are kept, the store cannot be flushed count=%d why=%s", len(refs), error
            )
            return
        for ref in refs:
            try:
                self._delete(ref)
            except Exception as error:  # noqa: BLE001 - a thread's body
                _log.warning("checkpoint could not be deleted path=%s why=%s", ref.path, error)
