"""RequestRate spaces calls to AWS: a token bucket whose rate halves when AWS throttles, and recovers.

Used by `calls`. Times are given by the caller, so that the arithmetic can be tested without waiting.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

LEAST_PER_S = 0.2
STEP = 0.05  # of the full rate: what a call that is not throttled gives back


@dataclass(frozen=True)
class RateLimit:
    """A RateLimit is how many calls of one kind are made at once, and per second after that."""

    burst: float
    per_s: float


# Below the limits that EC2 documents for an account in one region, which others use, too.
LOOKING = RateLimit(burst=50.0, per_s=10.0)
CHANGING = RateLimit(burst=20.0, per_s=2.0)


class RequestRate:
    """A RequestRate holds the tokens of one kind of calls; threads share it."""

    def __init__(self, limit: RateLimit, now: float) -> None:
        self._limit = limit
        self._tokens, self._at = limit.burst, now
        self._per_s = limit.per_s
        self._lock = threading.Lock()

    @property
    def per_s(self) -> float:
        """Returns the calls per second that are allowed at present, once the burst is used up."""
        return self._per_s

    def reserve(self, now: float) -> float:
        """Takes a token and returns how long to wait before the call is made; 0: at once."""
        with self._lock:
            self._refill(now)
            self._tokens -= 1.0
            return max(0.0, -self._tokens / self._per_s)

    def throttled(self, now: float) -> None:
        """Halves the rate and takes away what was saved up."""
        with self._lock:
            self._refill(now)
            self._per_s = max(LEAST_PER_S, self._per_s / 2)
            self._tokens = min(self._tokens, 0.0)

    def accepted(self) -> None:
        """Raises the rate a little, up to the full one."""
        with self._lock:
            self._per_s = min(self._limit.per_s, self._per_s + STEP * self._limit.per_s)

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._tokens = min(self._limit.burst, self._tokens + passed * self._per_s)
        self._at = now
