"""Whether two saved states of a plug-in say the same: bytes inside bytes are opened and wall times left out.

For the crash matrix only: it unpickles what it is given, which must be the simulation's own.
"""

from __future__ import annotations

import pickle
from datetime import datetime
from typing import Any

import msgspec


def same_state(one: bytes, other: bytes) -> bool:
    """Equal objects may have unequal pickles, and Optuna notes by the real clock when it was asked."""
    return one == other or opened(one) == opened(other)


def opened(value: Any) -> Any:  # noqa: ANN401 - anything that was saved
    """As plain as it gets."""
    if isinstance(value, bytes):
        return _opened_bytes(value)
    if isinstance(value, dict):
        return [(opened(key), opened(item)) for key, item in value.items()]
    if isinstance(value, (list, tuple)):
        return [opened(item) for item in value]
    if isinstance(value, datetime):
        return "a moment"
    if isinstance(value, float) and value != value:  # noqa: PLR0124 - NaN
        return "nan"
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return _of_object(value)


def _opened_bytes(value: bytes) -> Any:  # noqa: ANN401
    if value[:1] == b"\x80":
        try:
            return opened(pickle.loads(value))
        except Exception:  # noqa: BLE001 - it only looked like a pickle
            pass
    try:
        found = msgspec.msgpack.decode(value)
    except msgspec.MsgspecError:
        return value
    return opened(found) if isinstance(found, (dict, list)) else value


def _of_object(value: object) -> Any:  # noqa: ANN401
    """A sampler, a random state: its class and what it is made of, or its pickle where that says more."""
    name = type(value).__qualname__
    try:
        attributes = vars(value)
    except TypeError:
        return name, pickle.dumps(pickle.loads(pickle.dumps(value)))
    return name, opened(attributes)
