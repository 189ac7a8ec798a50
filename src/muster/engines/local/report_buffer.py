"""Reports that may wait in a trial's process for others, to be sent together: fewer waits for the driver.

Off unless asked for (TUNE_RESULT_BUFFER_LENGTH), because decisions then come late. Used by TrialSession.
"""

from __future__ import annotations

from typing import NamedTuple


class Buffering(NamedTuple):
    """How many reports are sent together at most, how old the first may become, and at which iterations."""

    length: int = 1
    age_s: float = 100.0
    every: int = 0  # a checkpoint is due at multiples of this: the trial must not be ahead of it


class ReportBuffer:
    """Frames that wait; at most `length` of them."""

    def __init__(self, rules: Buffering) -> None:
        self._rules = rules
        self._frames: list[bytes] = []
        self._since = 0.0

    def add(self, report: bytes, *, iteration: int, now: float, is_urgent: bool) -> bytes:
        """All that has to be sent now, in order; nothing when the report may wait."""
        rules = self._rules
        if not self._frames:
            self._since = now
        self._frames.append(report)
        is_due = rules.every > 0 and iteration % rules.every == 0
        is_full = len(self._frames) >= rules.length or now - self._since >= rules.age_s
        return self.take() if is_urgent or is_due or is_full else b""

    def take(self) -> bytes:
        frames, self._frames = self._frames, []
        return b"".join(frames)
