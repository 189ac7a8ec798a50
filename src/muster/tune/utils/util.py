"""Ray's other import path of the same names."""

from __future__ import annotations

import copy
import logging
from collections import deque
from collections.abc import Collection, Mapping
from types import TracebackType
from typing import Any

from muster.base.clock import SystemClock
from muster.tune.execution.paths import dated
from muster.tune.utils.diagnose_serialization import (
    diagnose_serialization,
    validate_save_restore,
)
from muster.tune.utils.gpu import wait_for_gpu

Nested = dict[str, Any]
_RAISE: Any = object()


def flatten_dict(
    dt: Mapping[str, Any], delimiter: str = "/", prevent_delimiter: bool = False, flatten_list: bool = False
) -> Nested:
    """Inner dicts joined into one, `a/b`; what lies deeper comes later. ValueError when a key may not hold
    the delimiter and does.

    Example:
        >>> flatten_dict({"a": {"b": 1}, "c": 2})
        {'c': 2, 'a/b': 1}
    """
    kinds: tuple[type, ...] = (Mapping, list) if flatten_list else (Mapping,)
    flat: Nested = {}
    ahead: deque[tuple[str, Any]] = deque([("", dt)])
    while ahead:
        prefix, container = ahead.popleft()
        for key, value in _items(container):
            if prevent_delimiter and delimiter in key:
                raise ValueError(
                    f"the key {key!r} contains {delimiter!r}, which separates the levels: rename it"
                )
            if isinstance(value, kinds):
                ahead.append((f"{prefix}{key}{delimiter}", value))
            else:
                flat[prefix + key] = value
    return flat


def _items(container: Any) -> list[tuple[str, Any]]:  # noqa: ANN401 - dict or list
    pairs = container.items() if isinstance(container, Mapping) else enumerate(container)
    return [(str(key), value) for key, value in pairs]


def unflattened_lookup(flat_key: str, lookup: Any, delimiter: str = "/", **kwargs: Any) -> Any:  # noqa: ANN401
    """The value at a flat key of nested dicts and lists; `default=...` instead of an error."""
    default = kwargs.pop("default", _RAISE)
    if kwargs:
        raise TypeError(f"unflattened_lookup takes no {', '.join(kwargs)}")
    if isinstance(lookup, Mapping) and flat_key in lookup:
        return lookup[flat_key]
    key, _, rest = flat_key.partition(delimiter)
    try:
        inner = lookup[key] if isinstance(lookup, Mapping) else lookup[int(key)]
    except (KeyError, IndexError, ValueError, TypeError):
        if default is _RAISE:
            raise
        return default
    more = {} if default is _RAISE else {"default": default}
    return unflattened_lookup(rest, inner, delimiter, **more) if rest else inner


def merge_dicts(d1: Nested, d2: Nested) -> Nested:
    """A deep copy of the first with the values of the second put over it, level by level.

    Example:
        >>> merge_dicts({"a": {"b": 1}}, {"a": {"c": 2}})
        {'a': {'b': 1, 'c': 2}}
    """
    return deep_update(copy.deepcopy(d1), d2, new_keys_allowed=True)


def deep_update(
    original: Nested,
    new_dict: Nested,
    new_keys_allowed: bool = False,
    allow_new_subkey_list: Collection[str] | None = None,
    override_all_if_type_changes: Collection[str] | None = None,
    override_all_key_list: Collection[str] | None = None,
) -> Nested:
    """Put the values of `new_dict` over those of `original`, in place, level by level.

    Args:
        new_keys_allowed: Otherwise a key that `original` lacks is a KeyError.
        allow_new_subkey_list: Below these top-level keys, new keys are allowed.
        override_all_if_type_changes: These are replaced as a whole when their "type" is another one.
        override_all_key_list: These are replaced as a whole.
    """
    for key, value in new_dict.items():
        if key not in original and not new_keys_allowed:
            known = ", ".join(map(str, original)) or "none"
            raise KeyError(f"unknown key {key!r}; known: {known}")
        old: Any = original.get(key)
        if not isinstance(old, dict) or not isinstance(value, dict):
            is_whole = True
        else:
            has_other_type = old.get("type") != value.get("type", old.get("type"))
            is_whole = key in (override_all_key_list or ()) or (
                key in (override_all_if_type_changes or ()) and has_other_type
            )
        if is_whole:
            original[key] = value
        else:
            deep_update(old, value, new_keys_allowed or key in (allow_new_subkey_list or ()))
    return original


logger = logging.getLogger(__name__)


def date_str() -> str:
    """Now, as it stands in the names of experiments: `2026-11-16_02-10-00`."""
    return dated(SystemClock().now())


class warn_if_slow:
    """Logs a warning when the block takes longer than `threshold` seconds (0.5).

    Example:
        >>> with warn_if_slow("loading"):
        ...     pass
    """

    DEFAULT_THRESHOLD = 0.5
    DEFAULT_MESSAGE = "{name} took {duration:.3f} s; that may slow down the experiment"

    def __init__(
        self, name: str, threshold: float | None = None, message: str | None = None, disable: bool = False
    ) -> None:
        """`message` may use {name} and {duration}."""
        self.name, self.disable = name, disable
        self.threshold = self.DEFAULT_THRESHOLD if threshold is None else threshold
        self.message = message or self.DEFAULT_MESSAGE
        self._clock = SystemClock()
        self._began_at = 0.0

    def __enter__(self) -> warn_if_slow:
        self._began_at = self._clock.monotonic()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        took_s = self._clock.monotonic() - self._began_at
        if took_s > self.threshold and not self.disable:
            logger.warning("%s", self.message.format(name=self.name, duration=took_s))


__all__ = ["date_str", "diagnose_serialization", "validate_save_restore", "wait_for_gpu", "warn_if_slow"]
