"""Place values between the ends of an axis, for parameters and for the metric, and write them short.

All plots draw what is computed here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from muster.base.text import encodable

MISSING = -0.09  # below the axis: the parameter is not set in this trial
MAX_CATEGORIES = 24
MOST_TICKS = 6
_ROOM_FOR_OUTLIERS = 3.0  # times the range of the middle 90 %: beyond that the axis is cut
Tick = tuple[float, str]
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def short_number(value: float) -> str:
    """Return a number with three digits, without superfluous ones.

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
    """Return a config value as users would write it; objects by name, without their address in memory."""
    if isinstance(value, float):
        return short_number(value)
    if isinstance(value, str):
        return encodable(value)
    name = getattr(value, "__name__", None)
    text = name if isinstance(name, str) else _ADDRESS.sub("", repr(value))
    return " ".join(text.split())


@dataclass(frozen=True)
class Axis:
    """Has `positions` in 0..1, one per trial; NaN: nothing to show, MISSING: not set."""

    name: str
    positions: np.ndarray
    ticks: tuple[Tick, ...]
    is_category: bool = False
    is_log: bool = False
    codes: np.ndarray = field(default_factory=lambda: np.empty(0))  # numbers to compute with; NaN: not set


def parameter_axis(name: str, values: Sequence[Any], absent: object) -> Axis | None:
    """Return an axis; None for a parameter with one value only, or with very many that are not numbers."""
    numbers = [_number(value) for value in values]
    is_set = [value is not absent and value is not None for value in values]
    if all(number is not None for number, there in zip(numbers, is_set, strict=True) if there):
        return _number_axis(name, numbers)
    return _category_axis(name, [value_text(value) if value is not absent else None for value in values])


def metric_axis(name: str, values: np.ndarray, mode: str) -> Axis:
    """Return the axis of the metric, whose outliers may lie beyond the ends."""
    finite = values[np.isfinite(values)]
    if not finite.size:
        return Axis(name, np.full(values.shape, np.nan), ())
    low, high, is_log = metric_range(finite, mode)
    positions = np.clip(scaled(values, low, high, is_log), 0.0, 1.0)
    positions[~np.isfinite(values)] = np.nan
    ticks = number_ticks(low, high, is_log)
    if finite.max() > high:
        ticks = (*(tick for tick in ticks if tick[0] < 0.94), (1.0, f"≥ {short_number(high)}"))
    if finite.min() < low:
        ticks = ((0.0, f"≤ {short_number(low)}"), *(tick for tick in ticks if tick[0] > 0.06))
    return Axis(name, positions, ticks, is_log=is_log, codes=values)


def looks_logarithmic(values: np.ndarray) -> bool:
    """Return whether values are positive, span almost a decade and are spread by orders of magnitude."""
    low, high = float(values.min()), float(values.max())
    if low <= 0 or high / low < 8:
        return False
    middle = float(np.median(values))
    by_value = (middle - low) / (high - low)
    by_order = math.log(middle / low) / math.log(high / low)
    return abs(by_order - 0.5) < abs(by_value - 0.5)


def metric_range(values: np.ndarray, mode: str) -> tuple[float, float, bool]:
    """Return both ends, without outliers that squeeze the rest, and whether the scale is logarithmic."""
    low, high = _without_outliers(values)
    inner = values[(values >= low) & (values <= high)]
    if mode == "max" or not looks_logarithmic(inner):  # it would stretch the bad values of an accuracy
        return low, high, False
    low, high = _without_outliers(np.log(values[values > 0]))
    return math.exp(low), math.exp(high), True


def _without_outliers(values: np.ndarray) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    inner_low, inner_high = (float(each) for each in np.percentile(values, (5, 95)))
    width = inner_high - inner_low
    if width > 0 and high - low > _ROOM_FOR_OUTLIERS * width:
        low, high = max(low, inner_low - width / 2), min(high, inner_high + width / 2)
    return low, high


def _number(value: object) -> float | None:
    if isinstance(value, bool | np.bool_ | str | bytes) or not hasattr(value, "__float__"):
        return None
    if getattr(value, "ndim", 0) != 0:
        return None
    number = float(value)
    return number if math.isfinite(number) else None


def _number_axis(name: str, numbers: Sequence[float | None]) -> Axis | None:
    codes = np.array([math.nan if number is None else number for number in numbers])
    known = codes[np.isfinite(codes)]
    if not known.size or (np.ptp(known) == 0 and known.size == codes.size):
        return None
    low, high = float(known.min()), float(known.max())
    distinct = np.unique(known)
    is_log = looks_logarithmic(distinct)  # by what could be chosen, not by what was chosen often
    positions = scaled(codes, low, high, is_log)
    missing = np.isnan(codes)
    positions[missing] = MISSING
    if distinct.size <= MOST_TICKS:  # a choice among numbers: each is worth a tick
        places = scaled(distinct, low, high, is_log)
        ticks = tuple(
            (float(at), short_number(float(value))) for at, value in zip(places, distinct, strict=True)
        )
        ticks = _apart(ticks)
    else:
        ticks = number_ticks(low, high, is_log)
    return Axis(name, positions, _with_missing(ticks, missing.any()), is_log=is_log, codes=codes)


def _category_axis(name: str, texts: Sequence[str | None]) -> Axis | None:
    known = sorted({text for text in texts if text is not None}, key=_natural)
    if len(known) > MAX_CATEGORIES or (len(known) < 2 and None not in texts):
        return None
    place = {text: (n / (len(known) - 1) if len(known) > 1 else 0.5) for n, text in enumerate(known)}
    positions = np.array([MISSING if text is None else place[text] for text in texts])
    codes = np.array([math.nan if text is None else known.index(text) for text in texts])
    ticks = tuple((at, text) for text, at in place.items())
    ticks = _with_missing(ticks, None in texts)
    return Axis(name, positions, ticks, is_category=True, codes=codes)


def _natural(text: str) -> tuple[int, float, str]:
    try:
        return (0, float(text), text)
    except ValueError:
        return (1, 0.0, text)


def _with_missing(ticks: tuple[Tick, ...], is_needed: bool | np.bool_) -> tuple[Tick, ...]:
    return ((MISSING, "not set"), *ticks) if is_needed else ticks


def scaled(values: np.ndarray, low: float, high: float, is_log: bool) -> np.ndarray:
    """Return where values lie between both ends, in 0..1."""
    if high == low:
        return np.full(values.shape, 0.5)
    if not is_log:
        return np.asarray((values - low) / (high - low))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.log(values / low) / math.log(high / low))


def number_ticks(low: float, high: float, is_log: bool) -> tuple[Tick, ...]:
    """Return round numbers between both ends, far enough apart to be read."""
    if is_log:
        first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
        step = max(1, math.ceil((last - first + 1) / MOST_TICKS))
        inner = [10.0**power for power in range(first, last + 1, step)]
    else:
        inner = _round_steps(low, high)
    if len(inner) < 2:  # the ends say more than one round number
        inner = [low, high]
    places = scaled(np.array(inner), low, high, is_log)
    ticks = [(float(at), short_number(value)) for at, value in zip(places, inner, strict=True)]
    return _apart(tuple(ticks))


def _round_steps(low: float, high: float) -> list[float]:
    """Return multiples of 1, 2 or 5 times a power of ten."""
    if high == low:
        return [low]
    raw = (high - low) / (MOST_TICKS + 1)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [number * step for number in range(first, last + 1)]


def _apart(ticks: tuple[Tick, ...]) -> tuple[Tick, ...]:
    """Return the ticks without those whose labels would touch."""
    kept: list[Tick] = []
    for tick in ticks:
        if not kept or tick[0] - kept[-1][0] >= 0.055:
            kept.append(tick)
    return tuple(kept)
