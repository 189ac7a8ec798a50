"""BackgroundQueue: a thread that talks to a tracker, so that the control thread never waits for one.

Results of a trial that wait together are sent together. A tracker that does not answer is asked again while
the experiment goes on; what cannot be sent is counted, told once, and never fails anything.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from muster.base.clock import Clock, SystemClock

logger = logging.getLogger(__name__)

Row = tuple[dict[str, Any], float]  # a result, and when it was logged
Write = Callable[[str, list[Row]], None]
Order = Callable[[], None]
Step = tuple[str, "list[Row] | Order"]  # for a trial: rows, or something else to do
_CHUNK = 4096  # entries taken at a time


class BackgroundQueue:
    """Make one per tracker. The thread begins with the first entry; `close` ends it, also after an error."""

    def __init__(  # noqa: PLR0913 - three facts about the tracker, and limits
        self,
        name: str,
        write: Write,
        *,
        is_passing: Callable[[BaseException], bool] = lambda error: isinstance(error, OSError),
        advice: str = "",
        limit: int = 20_000,
        retry_first_s: float = 0.5,
        retry_most_s: float = 30.0,
        grace_s: float = 10.0,
        clock: Clock | None = None,
    ) -> None:
        """`is_passing(error)`: worth another try. `grace_s`: how long `close` waits for one that is down."""
        self._name, self._write, self._is_passing, self._advice = name, write, is_passing, advice
        self._limit = limit
        self._retry_first_s, self._retry_most_s, self._grace_s = retry_first_s, retry_most_s, grace_s
        self._clock = clock or SystemClock()
        self._queue: deque[tuple[str, dict[str, Any] | Order, float]] = deque()
        self._wake, self._closing, self._abandoned = threading.Event(), threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._is_down = False
        self._told: set[str] = set()
        self._left_out = 0  # counted by the control thread
        self._unsent = 0  # counted by ours

    @property
    def lost(self) -> int:
        """Results that never reached the tracker."""
        return self._left_out + self._unsent

    # for the control thread: none of these waits, but `close`

    def row(self, trial_id: str, result: dict[str, Any]) -> None:
        """A result of a trial; left out when too many wait already."""
        if len(self._queue) >= self._limit:
            self._left_out += 1
            self._tell("full", f"{self._limit} results wait and newer ones are left out: it cannot keep up")
            return
        self._add(trial_id, result.copy())

    def order(self, trial_id: str, order: Order) -> None:
        """Something else to do, after the rows of this trial that came before; never left out."""
        self._add(trial_id, order)

    def close(self, timeout_s: float) -> bool:
        """Send what waits, then end the thread; False when something was not sent. Safe to call twice."""
        thread, began = self._thread, self._clock.monotonic()
        atexit.unregister(self.close)
        self._closing.set()
        self._wake.set()
        while thread is not None and thread.is_alive():
            thread.join(0.1)
            waited_s = self._clock.monotonic() - began
            if waited_s >= (min(self._grace_s, timeout_s) if self._is_down else timeout_s):
                self._abandoned.set()
                self._wake.set()
                thread.join(0.5)
                break
            if waited_s > 3.0:
                self._tell("wait", f"still sending results, for at most {timeout_s:g} s", advise=False)
        is_stuck = thread is not None and thread.is_alive()
        self._left_out += sum(1 for _, what, _ in self._queue if isinstance(what, dict))
        self._queue.clear()
        if self.lost or is_stuck:
            said = f"{self.lost} results" if self.lost else "the last results"
            self._tell("lost", f"{said} were not sent; all of them are in the trials' result.json")
        return not self.lost and not is_stuck

    def _add(self, trial_id: str, what: dict[str, Any] | Order) -> None:
        self._queue.append((trial_id, what, self._clock.now()))
        self._wake.set()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=f"muster-{self._name}", daemon=True)
            self._thread.start()
            atexit.register(self.close, self._grace_s)  # when the experiment breaks off, nobody else does

    # for the thread

    def _run(self) -> None:
        while not self._abandoned.is_set():
            self._wake.wait(1.0)
            self._wake.clear()
            is_last = self._closing.is_set()
            while self._queue and not self._abandoned.is_set():
                for step in self._take():
                    self._carry_out(step)
            if is_last:
                return

    def _take(self) -> list[Step]:
        """A chunk of the queue; each trial's rows joined until an order of that trial stands between them."""
        steps: list[Step] = []
        open_rows: dict[str, list[Row]] = {}
        for _ in range(min(len(self._queue), _CHUNK)):
            trial_id, what, at = self._queue.popleft()
            if not isinstance(what, dict):
                open_rows.pop(trial_id, None)
                steps.append((trial_id, what))
            elif trial_id in open_rows:
                open_rows[trial_id].append((what, at))
            else:
                open_rows[trial_id] = [(what, at)]
                steps.append((trial_id, open_rows[trial_id]))
        return steps

    def _carry_out(self, step: Step) -> None:
        trial_id, what = step
        delay_s = self._retry_first_s
        while not self._abandoned.is_set():
            try:
                if isinstance(what, list):
                    self._write(trial_id, what)
                else:
                    what()
            except Exception as error:  # noqa: BLE001 - the thread must live on
                self._tell(type(error).__name__, f"{type(error).__name__}: {error}")
                if not self._is_passing(error):
                    break
                self._is_down = True
                delay_s = self._pause(delay_s)
            else:
                self._is_down = False
                return
        self._unsent += len(what) if isinstance(what, list) else 0

    def _pause(self, delay_s: float) -> float:
        """Wait before another try; the end of the experiment is a reason to try at once. The next delay."""
        if self._closing.is_set():
            self._abandoned.wait(self._retry_first_s)
        elif self._closing.wait(delay_s):
            return self._retry_first_s
        return min(self._retry_most_s, 2 * delay_s)

    def _tell(self, cause: str, text: str, *, advise: bool = True) -> None:
        """Say it once."""
        if cause not in self._told:
            self._told.add(cause)
            end = f". {self._advice}" if advise and self._advice else ""
            logger.warning("%s: %s%s", self._name, text.strip().rstrip("."), end)
