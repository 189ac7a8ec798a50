"""Unsaved: trials that could not be saved when they were to be changed, and when to try again. A plain value.

Used by ResourceChangingScheduler.
"""

from __future__ import annotations

from muster.tune.execution.plugin_state import Plain

_LONGEST = 64  # reports


class Unsaved:
    """Each further try waits for twice as many reports; one that brings a checkpoint is always used."""

    def __init__(self) -> None:
        self._waits: dict[str, tuple[int, int]] = {}  # reports to let pass; how many those were at first
        self._is_known = False  # that this happens

    def note(self, trial_id: str) -> bool:
        """A try was in vain; True for the first one of all."""
        _, last = self._waits.get(trial_id, (0, 0))
        wait = min(_LONGEST, max(1, 2 * last))
        self._waits[trial_id] = (wait, wait)
        is_first, self._is_known = not self._is_known, True
        return is_first

    def may_try(self, trial_id: str, has_checkpoint: bool) -> bool:
        """Asked at each report at which there is something to change."""
        left, last = self._waits.get(trial_id, (0, 0))
        if has_checkpoint or left == 0:
            return True
        self._waits[trial_id] = (left - 1, last)
        return False

    def forget(self, trial_id: str) -> None:
        self._waits.pop(trial_id, None)

    def to_plain(self) -> Plain:
        return {"waits": self._waits, "is_known": self._is_known}

    @staticmethod
    def from_plain(state: Plain) -> Unsaved:
        unsaved = Unsaved()
        unsaved._waits = {one: (left, last) for one, (left, last) in state["waits"].items()}
        unsaved._is_known = state["is_known"]
        return unsaved
