"""Defines the entries of a cluster's history, as data: each says what has changed since the one before.

Written by `recorder`, folded by `past`. Names stay as they are: old files are read by newer versions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct, field

from muster.base import codec
from muster.cluster.model import ClusterSpec, Demand, NodeType

FORMAT = 1
NOT_KNOWN = "not-known"  # the verdict of a request that no tick has judged


class SpecChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A SpecChange is another configuration, without the types that stay as they were.

    `prices` has the new prices of offers, by type and position, where nothing else of the type changed.
    """

    rest: ClusterSpec | None = None  # without its types; None: as before
    order: tuple[str, ...] | None = None  # the names of all types; None: as before
    types: tuple[NodeType, ...] = ()
    prices: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


class WaitingGang(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A WaitingGang is a gang that waits: bundles as shape and count, of its first option."""

    strategy: str
    bundles: tuple[tuple[str, int], ...]
    reason: str = NOT_KNOWN


class MachineEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A MachineEntry is a record that is new, or has a price now; `key` stands for it from then on."""

    key: str
    machine: str  # the id of its record, else of its node
    node_type: str = ""
    kind: int = 2
    price: float | None = None
    zone: str = ""
    market: str = ""  # "": its type has no offers
    billing: tuple[float, float] = (0.0, 0.0)  # minimum and granularity


class StateEntry(Struct, frozen=True, array_like=True):
    """A StateEntry is one change of one machine's state; `cause` is that of a removal."""

    key: str
    state: str
    at: float
    details: str = ""
    cause: str = ""


class VerdictEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A VerdictEntry is a reason that began to hold; one that held lately is not repeated."""

    subject: str
    subject_id: str
    reason: str
    count: int = 1
    detail: str = ""
    target: str = ""


class ActionEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An ActionEntry is one effect that was asked for."""

    type: str
    shape: Mapping[str, int] = field(default_factory=dict)
    offer: str = ""
    price: float | None = None
    machines: tuple[str, ...] = ()  # keys
    cause: str = ""


class ForecastEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A ForecastEntry is what a tuner expected, in brief."""

    running: int = 0
    movable: int = 0
    coming: tuple[tuple[Mapping[str, float], int, float], ...] = ()  # shape, count, probability
    is_complete: bool = False
    deadline: float | None = None
    budget_left: float | None = None


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A HistoryEntry is what changed; after one that `is_whole`, what it does not name is not there."""

    seq: int
    at: float
    is_whole: bool = False
    is_last: bool = False  # the monitor ended in an orderly way
    cluster: str = ""  # its name, in whole entries
    spec: SpecChange | None = None
    shapes: Mapping[str, Demand] = field(default_factory=dict)  # new ones, by the key used below
    demand: Mapping[str, Mapping[str, int]] = field(default_factory=dict)  # shape -> verdict -> count
    constraints: Mapping[str, int] | None = None  # shape -> count; None: as before
    gangs: Mapping[str, WaitingGang | None] = field(default_factory=dict)  # None: it waits no longer
    placed: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # gang -> nodes; (): it has ended
    machines: tuple[MachineEntry, ...] = ()
    states: tuple[StateEntry, ...] = ()
    used: Mapping[str, Mapping[str, float] | None] = field(default_factory=dict)  # None: the node is gone
    spent: float | None = None
    verdicts: tuple[VerdictEntry, ...] = ()
    actions: tuple[ActionEntry, ...] = ()
    forecasts: Mapping[str, ForecastEntry | None] = field(default_factory=dict)  # by experiment
    problems: tuple[str, ...] = ()
    left_out: int = 0  # verdicts and actions that there was no room for


def _encoded(value: object) -> object:
    return codec.to_builtins(value)


def _decoded(kind: type, value: Any) -> object:  # noqa: ANN401 - msgspec's signature
    return codec.convert(value, kind)


_ENCODER = msgspec.json.Encoder(enc_hook=_encoded)
_DECODER = msgspec.json.Decoder(HistoryEntry, dec_hook=_decoded)


def to_line(entry: HistoryEntry) -> bytes:
    """Returns one line of JSON."""
    try:
        return _ENCODER.encode(entry) + b"\n"
    except UnicodeEncodeError:  # half of a surrogate pair, from a provider's garbled message
        plain = codec.to_builtins(entry)
        return _ENCODER.encode(_cleaned(plain)) + b"\n"


def from_line(line: bytes) -> HistoryEntry:
    """Reads back what `to_line` wrote; ValueError says what does not fit."""
    return _DECODER.decode(line)


def _cleaned(value: Any) -> Any:  # noqa: ANN401 - plain JSON data
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(item) for key, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value
