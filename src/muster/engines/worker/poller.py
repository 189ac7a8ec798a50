"""Eagerness: looking a few times more before going to sleep, while that pays.

A sleeping process is woken through the kernel, which on a quiet machine costs more than all else about a
result. So whoever expects an answer within microseconds looks again some fifty times first; when the answer
does not come in time it does so more and more rarely: real training and busy machines pay nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

LOOKS = 60  # about 0.05 ms; 250 helped one trial by a tenth and cost sixteen on two cores as much
_MOST_MISSES = 8  # then one try in 255


class Eagerness:
    """One per place of waiting."""

    __slots__ = ("_misses", "_skip")

    def __init__(self) -> None:
        self._misses = 0
        # With one processor the other side cannot run while we look.
        self._skip = 0 if (os.cpu_count() or 1) > 1 else -1

    def look(self, look: Callable[[float], Any]) -> Any:  # noqa: ANN401 - what the poller gives
        """What `look(0)` found, or something false: then it is time to sleep."""
        if self._skip:
            if self._skip > 0:
                self._skip -= 1
            return None
        for _ in range(LOOKS):
            found = look(0)
            if found:
                self._misses = 0
                return found
        if self._misses < _MOST_MISSES:
            self._misses += 1
        self._skip = (1 << self._misses) - 1
        return None

    def skip_next(self) -> None:
        """Go to sleep at once the next time."""
        self._skip = self._skip or 1
