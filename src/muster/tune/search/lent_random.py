"""LentRandom: a stream of its own for a library that draws from numpy's global one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np


class LentRandom:
    """While a library runs inside `lent`, numpy's global stream is this one; afterwards the user's again.

    So a searcher can be saved with its place in the stream, and does not disturb others who draw from it.

    Args:
        seed: None: from numpy's global stream, because scripts that seed it expect to get the same again.
    """

    def __init__(self, seed: int | np.random.RandomState | None) -> None:
        import numpy as np

        if not isinstance(seed, np.random.RandomState):
            seed = np.random.RandomState(np.random.randint(0, 2**31 - 1) if seed is None else seed)
        self._state: Any = seed.get_state()

    @contextmanager
    def lent(self) -> Iterator[None]:
        import numpy as np

        users = np.random.get_state()
        np.random.set_state(self._state)
        try:
            yield
        finally:
            self._state = np.random.get_state()
            np.random.set_state(users)
