"""Keep the remote storage of an experiment up to date from a thread; never blocks its caller.

The controller marks what changed and polls for problems; failures are retried with back-off and never raised.
"""

from __future__ import annotations

import logging
import threading

from muster.stores.mirror import Mirror

_log = logging.getLogger(__name__)
_IDLE_S = 60.0


class Uploader:
    """Copies files in the background, for one experiment with remote storage."""

    def __init__(self, mirror: Mirror) -> None:
        self._mirror, self._clock = mirror, mirror.clock
        self._wake = threading.Condition()
        self._is_asked = False  # something changed since the last pass
        self._flushes: list[object] = []  # those that are waited for
        self._is_closing = False
        # Started by the first change or flush: the store may be about to be made.
        self._thread = threading.Thread(target=self._run, name="muster-uploads", daemon=True)

    def changed(self, name: str = "") -> None:
        """Mark this directory or file of the experiment as changed."""
        self._mirror.changed(name)
        self._ask()

    def discard(self, name: str) -> bool:
        """Delete a directory on the storage; True: the caller deletes it here, see `Mirror.discard`."""
        is_free = self._mirror.discard(name)
        self._ask()
        return is_free

    def poll_problems(self) -> tuple[str, ...]:
        """Return what failed since the last call, as text for users; it is being tried again."""
        return self._mirror.poll_problems()

    def missing(self) -> tuple[str, ...]:
        """Return the files that the storage lacks in their current state."""
        return self._mirror.missing()

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything here is on the storage too; False when the time was not enough."""
        deadline = self._clock.monotonic() + timeout_s
        with self._wake:
            flush = object()
            self._flushes.append(flush)
            self._start()
            self._wake.notify_all()
            while flush in self._flushes:
                left = deadline - self._clock.monotonic()
                if left <= 0 or not self._thread.is_alive():
                    self._flushes.remove(flush)  # back to the usual interval: no caller waits any more
                    return False
                self._wake.wait(left)
        return True

    def close(self, timeout_s: float = 0.0) -> bool:
        """Flush, then end; True when all was copied, else `poll_problems` returns what was not."""
        is_done = self.flush(timeout_s) if timeout_s > 0 and not self._is_closing else False
        with self._wake:
            self._is_closing = True
            self._wake.notify_all()
            if self._thread.ident is None:
                return is_done
        self._thread.join(1.0)  # a transfer that hangs must not hold the program: the thread is a daemon
        return is_done

    def _ask(self) -> None:
        with self._wake:
            self._is_asked = True
            self._start()
            self._wake.notify_all()

    def _start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def _run(self) -> None:
        while True:
            flushes = self._awaited()
            if flushes is None:
                return
            try:
                is_clean = self._mirror.step(everything=bool(flushes))
            except Exception:  # noqa: BLE001 - a thread's body
                _log.exception("upload pass failed storage=%s", self._mirror.storage.uri)
                is_clean = False
            with self._wake:
                if is_clean:
                    self._flushes = [flush for flush in self._flushes if flush not in flushes]
                    self._wake.notify_all()
                elif flushes and not self._is_closing:
                    self._wake.wait(0.1)  # flushing does not wait for the back-off, but neither does it spin

    def _awaited(self) -> list[object] | None:
        """Wait until there is something to do; returns the flushes that wait for it, None to end."""
        with self._wake:
            while not self._is_closing:
                if self._is_asked or self._flushes:
                    self._is_asked = False
                    return list(self._flushes)
                due_at = self._mirror.next_due()
                wait = _IDLE_S if due_at is None else due_at - self._clock.monotonic()
                if wait <= 0:
                    return []
                self._wake.wait(min(wait, _IDLE_S))
        return None
