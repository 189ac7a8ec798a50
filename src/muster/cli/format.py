"""Money, spans of time, moments and resources as people read them. Pure text."""

from __future__ import annotations

import time  # only to format a given moment
from collections.abc import Mapping

_IN_BYTES = frozenset({"memory", "object_store_memory"})


def decimal(number: float) -> str:
    """Up to four decimals, none of them idle."""
    return f"{number:,.4f}".rstrip("0").rstrip(".")


def money(amount: float) -> str:
    """Two decimals, more when cents would hide the price."""
    short, exact = f"{amount:,.2f}", decimal(amount)
    return f"${max(short, exact, key=len)}"


def span(seconds: float | None) -> str:
    """`4 s`, `3 min`, `2.5 h`, `4 d`: one number, as much as the eye takes in."""
    if seconds is None:
        return ""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.0f} d"


def clock_time(at: float) -> str:
    """The time of day."""
    return time.strftime("%H:%M:%S", time.localtime(at))


def used_of(used: Mapping[str, float], total: Mapping[str, float], names: tuple[str, ...]) -> str:
    """`CPU 1/2, memory 0.5/2 GB`."""
    return ", ".join(_share(name, used.get(name, 0.0), total[name]) for name in names if name in total)


def _share(name: str, used: float, total: float) -> str:
    if name in _IN_BYTES and total >= 1e6:
        return f"{name} {used / 1e9:.3g}/{total / 1e9:.3g} GB"
    return f"{name} {used:g}/{total:g}"
