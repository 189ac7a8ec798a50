"""Define the entries of a cluster's history, as data: each says what has changed since the one before.

Written by `recorder`, folded by `past`. A changed configuration is stored as its difference, so that a price
that moves does not repeat the rest. Names stay as they are: old files are read by newer versions.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from muster.base import codec
from muster.cluster.model import ClusterSpec, Demand, NodeType

FORMAT = 1
NOT_KNOWN = "not-known"  # the verdict of a request that no tick has judged


class SpecChange(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Another configuration, without the types that stay as they were.

    `prices` has the new prices of offers, by type and position, where nothing else of the type changed.
    """

    rest: ClusterSpec | None = None  # without its types; None: as before
    order: tuple[str, ...] | None = None  # the names of all types; None: as before
    types: tuple[NodeType, ...] = ()
    prices: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)


class WaitingGang(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A gang that waits: bundles as shape and count, of its first option."""

    strategy: str
    bundles: tuple[tuple[str, int], ...]
    reason: str = NOT_KNOWN


class MachineEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A record that is new, or has a price now; `key` stands for it from then on."""

    key: str
    machine: str  # the id of its record, else of its node
    node_type: str = ""
    kind: int = 2
    price: float | None = None
    zone: str = ""
    market: str = ""  # "": its type has no offers
    billing: tuple[float, float] = (0.0, 0.0)  # minimum and granularity


class StateEntry(Struct, frozen=True, array_like=True):
    """One change of one machine's state; `cause` is that of a removal."""

    key: str
    state: str
    at: float
    details: str = ""
    cause: str = ""


class VerdictEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A reason that began to hold; one that held lately is not repeated."""

    subject: str
    subject_id: str
    reason: str
    count: int = 1
    detail: str = ""
    target: str = ""


class ActionEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One effect that was asked for."""

    type: str
    shape: Mapping[str, int] = field(default_factory=dict)
    offer: str = ""
    price: float | None = None
    machines: tuple[str, ...] = ()  # keys
    cause: str = ""


class ForecastEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a tuner expected, in brief."""

    running: int = 0
    movable: int = 0
    coming: tuple[tuple[Mapping[str, float], int, float], ...] = ()  # shape, count, probability
    is_complete: bool = False
    deadline: float | None = None
    budget_left: float | None = None


class HistoryEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What changed; after one that `is_whole`, what it does not name is not there."""

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


_DECODER = msgspec.json.Decoder(HistoryEntry, dec_hook=lambda kind, value: codec.convert(value, kind))


def to_line(entry: HistoryEntry) -> bytes:
    """Return one line of JSON."""
    return codec.encode_plain(entry) + b"\n"


def from_line(line: bytes) -> HistoryEntry:
    """Read back what `to_line` wrote; ValueError says what does not fit."""
    return _DECODER.decode(line)


def spec_change(old: ClusterSpec | None, new: ClusterSpec) -> SpecChange | None:
    """Return what is different in the new configuration; None when nothing is."""
    if old is new or old == new:
        return None
    before = {known.name: known for known in old.node_types} if old is not None else {}
    order = tuple(known.name for known in new.node_types)
    types: list[NodeType] = []
    prices: dict[str, dict[str, float | None]] = {}
    for known in new.node_types:
        was = before.get(known.name)
        if was == known:
            continue
        if was is not None and _without_prices(was) == _without_prices(known):
            pairs = zip(was.offers, known.offers, strict=True)
            prices[known.name] = {
                str(position): offer.price_per_hour
                for position, (other, offer) in enumerate(pairs)
                if other != offer
            }
        else:
            types.append(known)
    rest = replace(new, node_types=())
    return SpecChange(
        rest=None if old is not None and replace(old, node_types=()) == rest else rest,
        order=None if order == tuple(before) else order,
        types=tuple(types),
        prices=prices,
    )


def changed_spec(old: ClusterSpec | None, change: SpecChange) -> ClusterSpec:
    """Return the configuration after a change."""
    base = change.rest or old or ClusterSpec()
    types = {known.name: known for known in old.node_types} if old is not None else {}
    types.update({known.name: known for known in change.types})
    for name, prices in change.prices.items():
        known = types[name]
        offers = [
            replace(offer, price_per_hour=prices[str(at)]) if str(at) in prices else offer
            for at, offer in enumerate(known.offers)
        ]
        types[name] = replace(known, offers=tuple(offers))
    order = tuple(types) if change.order is None else change.order
    return replace(base, node_types=tuple(types[name] for name in order))


def _without_prices(known: NodeType) -> NodeType:
    return replace(known, offers=tuple(replace(offer, price_per_hour=None) for offer in known.offers))
