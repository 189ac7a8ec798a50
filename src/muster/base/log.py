"""Format log lines as constant text plus key=value fields, and logs on change only."""

from __future__ import annotations

import logging
from collections.abc import Mapping


def fields(values: Mapping[str, object]) -> str:
    """Return `{"a": 1, "b": "x y"}` as `a=1 b='x y'`."""
    parts = []
    for key, value in values.items():
        text = f"{value:g}" if isinstance(value, float) else str(value)
        parts.append(f"{key}={repr(text) if ' ' in text or not text else text}")
    return " ".join(parts)


class OnChange:
    """Logs a keyed message when its text differs from the last one under that key."""

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._last: dict[str, str] = {}

    def log(self, level: int, key: str, text: str) -> None:
        if self._last.get(key) != text:
            self._last[key] = text
            self._logger.log(level, "%s", text)

    def forget(self, key: str) -> None:
        """Let the next message under this key through, even an equal one."""
        self._last.pop(key, None)
