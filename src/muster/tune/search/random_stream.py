"""Draw from a numpy generator whose position can be saved as plain data; it is made when first needed."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from muster.tune.search.sample import RandomState, Rng


State = dict[str, Any]


class RandomStream:
    """The one source of random values of a variant generator."""

    def __init__(self, random_state: RandomState = None) -> None:
        self._given = random_state
        self._rng: Rng | None = None

    @property
    def rng(self) -> Rng:
        if self._rng is None:
            self._rng = self._make()
        return self._rng

    def _make(self) -> Rng:
        import numpy as np

        from muster.tune.search.sample import as_rng

        if self._given is not None:
            return as_rng(self._given)
        # An own stream, because one that others draw from cannot be resumed; seeded from numpy's global
        # state, because scripts that call np.random.seed() expect to get the same trials again.
        words = np.random.randint(0, 2**32, size=4, dtype=np.uint32)
        return np.random.default_rng([int(word) for word in words])

    def state(self) -> State:
        """Return the position of the stream, in numpy's form; `as_plain` makes it fit for JSON."""
        import numpy as np

        if isinstance(self.rng, np.random.RandomState):
            return {"legacy": True, **dict(self.rng.get_state(legacy=False))}
        return {"legacy": False, **dict(self.rng.bit_generator.state)}

    def saved(self) -> State:
        """Return the position as JSON for a state file; it is fixed from now on even if nothing was drawn.

        Does not load numpy: a process without it has no global state that a user could have seeded.
        """
        if self._rng is None and self._given is None and "numpy" not in sys.modules:
            self._given = int.from_bytes(os.urandom(16), "big")
        if self._rng is None and isinstance(self._given, int):
            return {"seed": self._given}
        return as_plain(self.state())  # type: ignore[no-any-return]

    def restore(self, state: State) -> None:
        """Goes to a position, as `state` or `saved` returned it."""
        if "seed" in state:
            self._given, self._rng = state["seed"], None
        else:
            self._rng = _rng_at(state)


def as_plain(value: Any) -> Any:  # noqa: ANN401 - numpy's own nested state
    if isinstance(value, dict):
        return {key: as_plain(inner) for key, inner in value.items()}
    if hasattr(value, "tolist"):  # arrays and numpy scalars
        inner = value.tolist()
        return {"array": inner, "dtype": str(value.dtype)} if isinstance(inner, list) else inner
    return value


def _unplain(value: Any) -> Any:  # noqa: ANN401
    import numpy as np

    if isinstance(value, dict):
        if set(value) == {"array", "dtype"}:
            return np.array(value["array"], dtype=value["dtype"])
        return {key: _unplain(inner) for key, inner in value.items()}
    return value


def _rng_at(state: State) -> Rng:
    import numpy as np

    rest = dict(_unplain(state))
    is_legacy = rest.pop("legacy")
    kind = getattr(np.random, rest["bit_generator"], None)
    if kind is None:
        raise ValueError(
            f"the saved random stream is a {rest['bit_generator']}, which this numpy does not have: "
            "pass a random_state of one of numpy's own kinds, e.g. numpy.random.default_rng(0)"
        )
    if is_legacy:
        legacy = np.random.RandomState(kind())
        legacy.set_state(rest)
        return legacy
    generator = kind()
    generator.state = rest
    return np.random.Generator(generator)


class IsolatedRandom:
    """Replaces numpy's global stream while a library runs inside `active`.

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
    def active(self) -> Iterator[None]:
        import numpy as np

        users = np.random.get_state()
        np.random.set_state(self._state)
        try:
            yield
        finally:
            self._state = np.random.get_state()
            np.random.set_state(users)
