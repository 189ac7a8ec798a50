"""Shortens texts for plots: numbers, values and names that may be very long."""

from __future__ import annotations

import re

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def short_number(value: float) -> str:
    """Returns a number with three digits, without superfluous ones.

    Example:
        >>> short_number(0.00001), short_number(1234567.0), short_number(64), short_number(0.30000000004)
        ('1e-5', '1.23e6', '64', '0.3')
    """
    if value == int(value) and abs(value) < 100_000:
        return str(int(value))
    text = f"{value:.3g}"
    mantissa, mark, exponent = text.partition("e")
    return f"{mantissa}e{int(exponent)}" if mark else mantissa


def value_text(value: object) -> str:
    """Returns a config value as users would write it; objects by name, without their address in memory."""
    if isinstance(value, float):
        return short_number(value)
    if isinstance(value, str):
        return value
    name = getattr(value, "__name__", None)
    text = name if isinstance(name, str) else _ADDRESS.sub("", repr(value))
    return " ".join(text.split())
