"""Encode a trial's config for TensorBoard's HPARAMS tab: one record at the end of its event file.

It comes last because TensorBoard keeps the first it finds, and a config may change while a trial runs. The
experiment is not described: TensorBoard then gathers that from all trials, with every scalar as a metric.
"""

from __future__ import annotations

import logging
import math
import struct
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from muster.tune.logger.files.json_rows import is_number
from muster.tune.logger.tensorboard.crc32c import MOST_KNOWN, KnownRecord, crc32c, masked
from muster.tune.logger.tensorboard.events import delimited, varint

logger = logging.getLogger(__name__)

SUCCESS, FAILURE = 1, 2  # TensorBoard's codes
_NULL_TENSOR = b"\x08\x01\x12\x02\x12\x00"  # no numbers at all: what counts is in the metadata
_MOST_LAYOUTS = 256
_MOST_ITEMS = 32  # of a list that is shown
_MOST_LEVELS = 20  # of a config; some never end
_PLAIN = frozenset({str, int, float, bool, type(None)})
Pieces = list[bytes | None]  # of a message; None: a double that differs from trial to trial
Hparams = dict[str, bool | float | str]


class HparamsEncoder:
    """Encodes configs as records of an event file; it remembers all layouts."""

    def __init__(self) -> None:
        self._layouts: dict[tuple[Any, ...], _Layout] = {}

    def record(self, hparams: Hparams, started_at: float, ended_at: float, failed: bool) -> bytes:
        """Return one record with the start and the end of the session; b"" when there is nothing to show."""
        if not hparams:
            return b""
        status = FAILURE if failed else SUCCESS
        numbers = [value for value in hparams.values() if type(value) is float]
        constants = tuple([None if type(value) is float else value for value in hparams.values()])
        key = (tuple(hparams), constants, status)
        layout = self._layouts.get(key)
        if layout is None:
            if len(self._layouts) >= _MOST_LAYOUTS:
                self._layouts.clear()
            layout = self._layouts[key] = _Layout(_event(hparams, status))
        return layout.record([ended_at, *numbers, started_at, ended_at])


def hparams_of(config: object) -> Hparams:
    """Return what can be shown of a config: text, flags and floats, nested keys joined by `/`. Idempotent.

    The rest is named in the log, each name once; None is left out silently.
    """
    found: Hparams = {}
    for name, value in _leaves(config, "", 0):
        try:
            supported = _hparam(value)
        except Exception:  # noqa: BLE001 - a user's object may do anything when it is looked at
            supported = None
        if supported is not None:
            found[name] = supported
        elif value is not None:
            _warn(name, type(value).__name__)
    return found


@lru_cache(maxsize=1024)
def _warn(name: str, kind: str) -> None:
    logger.info("TensorBoard's HPARAMS tab cannot show %r of the config: it is a %s", name, kind)


def _leaves(config: object, prefix: str, level: int) -> list[tuple[str, Any]]:
    if not isinstance(config, Mapping):
        return []
    found: list[tuple[str, Any]] = []
    for key, value in config.items():
        name = f"{prefix}{key}"
        if type(value) not in _PLAIN and isinstance(value, Mapping) and level < _MOST_LEVELS:
            found += _leaves(value, name + "/", level + 1)
        else:
            found.append((name, value))
    return found


def _hparam(value: Any) -> bool | float | str | None:  # noqa: ANN401 - anything
    """Return a value as TensorBoard takes it; None when it does not."""
    kind = type(value)
    if kind is float:
        return value if math.isfinite(value) else str(value)  # JSON, and so the tab, cannot express it
    if kind is bool or kind is str:
        return value  # type: ignore[no-any-return]
    if isinstance(value, str):
        return str.__str__(value)
    if kind is list or kind is tuple:
        is_short = len(value) <= _MOST_ITEMS and _PLAIN.issuperset(map(type, value))
        return str(value) if is_short else None  # as TensorBoard's own hparams do
    return _number(value) if is_number(value) else None


def _number(value: Any) -> bool | float | str | None:  # noqa: ANN401 - Python's or numpy's
    if hasattr(value, "item"):
        return _hparam(value.item())
    try:
        return _hparam(float(value))
    except OverflowError:
        return str(value)


def _event(hparams: Hparams, status: int) -> Pieces:
    start: Pieces = []
    for name, value in hparams.items():
        start += _nested(1, [delimited(1, name.encode("utf-8", "replace")), *_value(value)])
    start += [b"\x29", None]
    end: Pieces = [b"\x08", varint(status), b"\x11", None]
    summary = [
        *_session("_hparams_/session_start_info", _nested(3, start)),
        *_session("_hparams_/session_end_info", _nested(4, end)),
    ]
    return [b"\x09", None, *_nested(5, summary)]


def _session(tag: str, content: Pieces) -> Pieces:
    plugin = [delimited(1, b"hparams"), *_nested(2, content)]
    known = delimited(1, tag.encode()) + delimited(8, _NULL_TENSOR)
    return _nested(1, [known, *_nested(9, _nested(1, plugin))])


def _value(value: bool | float | str) -> Pieces:
    if isinstance(value, bool):
        return [delimited(2, b"\x20" + varint(value))]
    if isinstance(value, str):
        return [delimited(2, delimited(3, value.encode("utf-8", "replace")))]
    return _nested(2, [b"\x11", None])


def _nested(field: int, pieces: Pieces) -> Pieces:
    size = sum(8 if piece is None else len(piece) for piece in pieces)
    return [bytes([field << 3 | 2]) + varint(size), *pieces]


class _Layout:
    """Describes records that differ in their doubles only; the last piece is such a double."""

    __slots__ = ("_arguments", "_head", "_known", "_pack")

    def __init__(self, pieces: Pieces) -> None:
        heads, places, end = [b""], list[int](), 0  # the pieces before each double, joined; where doubles are
        for piece in pieces:
            end += 8 if piece is None else len(piece)
            if piece is None:
                places += range(end - 8, end)
                heads.append(b"")
            else:
                heads[-1] += piece
        heads.pop()
        self._pack = struct.Struct("<" + "".join(f"{len(head)}sd" for head in heads)).pack
        self._arguments: list[Any] = [part for head in heads for part in (head, 0.0)]
        zeroed = self._pack(*self._arguments)
        length = len(zeroed).to_bytes(8, "little")
        self._head = length + masked(crc32c(length)).to_bytes(4, "little")
        self._known = KnownRecord(zeroed, places) if len(zeroed) <= MOST_KNOWN else None

    def record(self, doubles: Sequence[float]) -> bytes:
        self._arguments[1::2] = doubles
        payload = self._pack(*self._arguments)
        crc = masked(crc32c(payload)) if self._known is None else self._known.masked_crcs([payload])[0]
        return self._head + payload + crc.to_bytes(4, "little")
