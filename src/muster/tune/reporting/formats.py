"""Format durations, times, numbers and names for all reporters."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any, TextIO

MAX_NAME = 20


def duration(seconds: float) -> str:
    """Return days to seconds, from the first part that is not zero.

    Example:
        >>> duration(65), duration(3605), duration(86400)
        ('1min 5s', '1hr 0min 5s', '1d 0hr 0min 0s')
    """
    minutes, left_s = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "hr"), (minutes, "min"), (left_s, "s")]
    while len(parts) > 1 and not parts[0][0]:
        parts.pop(0)
    return " ".join(f"{count}{unit}" for count, unit in parts)


def shortened(text: str, max_len: int = MAX_NAME) -> str:
    """Return the end of a name, which says more than its beginning.

    Example:
        >>> shortened("learning_rate/some_name", 5)
        '...me'
    """
    return text if len(text) <= max_len else f"...{text[3 - max_len :]}" if max_len > 3 else text[-max_len:]


def printable(text: str) -> str:
    """Return text without what moves a cursor or breaks a line: names, errors and values are the user's."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else " " if char in "\n\t" else "?" for char in text)


def wrapped(text: str, max_len: int = MAX_NAME) -> str:
    """Return text on at most two lines of this length, cut at the front when that is not enough."""
    kept = shortened(text, 2 * max_len)
    return kept if len(kept) <= max_len else f"{kept[:max_len]}\n{kept[max_len:]}"


def cell(value: Any) -> str:  # noqa: ANN401 - a user's value
    """Return a value for a table: numbers with five digits, anything else shortened."""
    if value is None:
        return ""
    if isinstance(value, bool | int | str):
        return shortened(printable(str(value)))
    if _is_float(value):
        return f"{float(value):.5g}"
    return shortened(printable(str(value)))


def detail(value: Any) -> str:  # noqa: ANN401 - a user's value
    """Return a value for a table of one result: five decimals, zeros at the end cut."""
    if not _is_float(value):
        return printable(str(value))
    number = float(value)
    if not math.isfinite(number) or 0 < abs(number) < 1e-4 or abs(number) >= 1e16:
        return f"{number:.5g}"
    text = f"{number:.5f}".rstrip("0")
    return f"{text}0" if text.endswith(".") else text


def assignments(values: Mapping[str, Any]) -> str:
    """Return `{'x': 3.32, 'k': 1}`, a form that is easy to read in a log."""
    return "{" + ", ".join(f"{key!r}: {brief(value)}" for key, value in values.items()) + "}"


def brief(value: Any) -> str:  # noqa: ANN401 - a user's value
    """Return a value for running text: like `repr`, floats with five digits, never long."""
    if _is_float(value):
        return f"{float(value):.5g}"
    text = printable(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def rate(per_second: float) -> str:
    """Return trials per second, minute or hour, whichever reads best.

    Example:
        >>> rate(1500.0), rate(1.26), rate(0.05), rate(0.0005)
        ('1,500 trials/s', '1.3 trials/s', '3 trials/min', '1.8 trials/h')
    """
    for count, unit in ((per_second, "s"), (per_second * 60, "min"), (per_second * 3600, "h")):
        if count >= 1 or unit == "h":
            digits = f"{count:,.0f}" if count >= 10 else f"{count:.1f}".removesuffix(".0")
            return f"{digits} trials/{unit}"
    raise AssertionError("unreachable: hours take everything")


def amount(value: float) -> str:
    """Return the count of a resource.

    Example:
        >>> amount(2.0), amount(0.5)
        ('2', '0.5')
    """
    return f"{value:.10g}" if value != int(value) else str(int(value))


def home_relative(path: str, home: str) -> str:
    """Return `~/...` for paths below the home directory."""
    return f"~{path[len(home) :]}" if home and home != "/" and path.startswith(f"{home}/") else path


def _is_float(value: object) -> bool:
    """Return whether a value is a float, or a scalar of numpy that is one."""
    if isinstance(value, float):
        return True
    return (
        not isinstance(value, int | str | bytes)
        and getattr(value, "ndim", 1) == 0
        and hasattr(value, "__float__")
        and not hasattr(value, "__index__")
    )


class SafeStream:
    """Writes to `stream`, or to the current standard output, until that fails."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream
        self._is_lost = False

    def print(self, text: str) -> None:
        stream = self._stream if self._stream is not None else sys.stdout
        if self._is_lost or stream is None:
            return
        try:
            try:
                stream.write(f"{text}\n")
            except UnicodeEncodeError:
                encoding = getattr(stream, "encoding", None) or "ascii"
                stream.write(f"{text}\n".encode(encoding, "replace").decode(encoding))
            stream.flush()
        except (OSError, ValueError):  # a pipe without a reader, a full disk, a stream that was closed
            self._is_lost = True
