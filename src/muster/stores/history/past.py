"""Fold the entries of a history into what a cluster was: machines, demand, spend, decisions, configurations.

Read by `muster backtest` (entries come from `files.read_history`), and by the page, whose HistoryFollower
reads only what has been written since the last time.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from msgspec.structs import replace

from muster.base.ids import InstanceId
from muster.base.resources import Resources
from muster.cluster.cost import billed_s
from muster.cluster.model import ClusterSpec, Demand, Instance, NodeKind, Offer, StatusChange, StopCause
from muster.cluster.states import ON_CLOUD, TERMINAL, InstanceState
from muster.errors import StoreError
from muster.stores.history.entries import (
    ActionEntry,
    ForecastEntry,
    HistoryEntry,
    MachineEntry,
    VerdictEntry,
    changed_spec,
)
from muster.stores.history.files import TAIL, read_segment, read_tail, segments
from muster.stores.history.recorder import HEARTBEAT_S

K = TypeVar("K")
V = TypeVar("V")
GAP_S = 1.5 * HEARTBEAT_S  # without an entry for so long, nobody watched


@dataclass(frozen=True)
class PastDecision:
    """What began to hold, and what was asked for, at one moment."""

    at: float
    seq: int
    verdicts: tuple[VerdictEntry, ...]
    actions: tuple[ActionEntry, ...]
    moved: Mapping[str, str]  # machine -> state
    left_out: int = 0


@dataclass
class PastMoment:
    """The cluster after one entry. `used` is by machine; the dicts are the folder's own."""

    at: float
    waiting: dict[Demand, int] = field(default_factory=dict)
    gangs: dict[str, PastGang] = field(default_factory=dict)  # that wait
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)  # gang -> machines
    used: dict[str, Resources] = field(default_factory=dict)
    constraints: dict[Demand, int] = field(default_factory=dict)
    is_after_gap: bool = False  # what happened before was not watched


@dataclass(frozen=True)
class PastGang:
    """A gang as it waited: bundles with their counts."""

    strategy: str
    bundles: tuple[tuple[Demand, int], ...]


class PastReader:
    """Folds one entry after the other; what it has found can be read at any time."""

    def __init__(self) -> None:
        self.cluster = ""
        self.since: float | None = None
        self.until: float | None = None
        self.specs: list[tuple[float, ClusterSpec]] = []
        self.machines: dict[str, Instance] = {}  # by the id of their record, in the order in which they came
        self.demand: list[tuple[float, dict[str, int]]] = []  # requests by verdict, after each change
        self.spent: list[tuple[float, float]] = []
        self.decisions: list[PastDecision] = []
        self.forecasts: dict[str, ForecastEntry] = {}
        self.gaps: list[tuple[float, float]] = []
        self.moment = PastMoment(0.0)
        self.seq = 0
        self._shapes: dict[str, Demand] = {}
        self._counts: dict[str, Mapping[str, int]] = {}
        self._reasons: dict[str, str] = {}
        self._keys: dict[str, str] = {}

    def add(self, entry: HistoryEntry) -> PastMoment:
        """Take one entry and returns the moment after it, which the next entry changes."""
        before, self.until, self.seq = self.until, entry.at, entry.seq
        self.since = entry.at if self.since is None else self.since
        self.moment.is_after_gap = False
        if entry.is_whole:
            self._begin(entry, before)
        self.moment.at = entry.at
        self._shapes.update(entry.shapes)
        if entry.spec is not None:
            last = self.specs[-1][1] if self.specs else None
            self.specs.append((entry.at, changed_spec(last, entry.spec)))
        if entry.spent is not None:
            self.spent.append((entry.at, entry.spent))
        self._add_machines(entry, before)
        self._add_work(entry)
        self._add_decision(entry)
        for experiment, brief in entry.forecasts.items():
            _put(self.forecasts, experiment, brief)
        return self.moment

    def _begin(self, entry: HistoryEntry, before: float | None) -> None:
        self.cluster = entry.cluster or self.cluster
        is_gap = before is not None and entry.at - before > GAP_S
        if before is not None and is_gap:
            self.gaps.append((before, entry.at))
        self.moment = PastMoment(entry.at, is_after_gap=is_gap)
        self._shapes, self._counts, self._reasons, self._keys = {}, {}, {}, {}
        self.forecasts.clear()

    def _add_machines(self, entry: HistoryEntry, before: float | None) -> None:
        for met in entry.machines:
            self._keys[met.key] = met.machine
            self.machines[met.machine] = _machine(met, self.machines.get(met.machine))
        for change in entry.states:
            name = self._keys[change.key]
            known = self.machines[name]
            step = StatusChange(InstanceState[change.state], change.at, change.details)
            if step in known.history:
                after = known
            else:
                cause = StopCause[change.cause] if change.cause in StopCause.__members__ else known.stop_cause
                after = replace(known, state=step.state, stop_cause=cause, history=(*known.history, step))
            self.machines[name] = after
        if entry.is_whole and before is not None:
            self._close_forgotten(entry, before)

    def _close_forgotten(self, entry: HistoryEntry, before: float) -> None:
        """A machine that ended while nobody watched is not in a whole entry; it was last seen `before`."""
        named = {met.machine for met in entry.machines}
        for name, known in self.machines.items():
            if name not in named and known.state not in TERMINAL and known.history:
                end = StatusChange(InstanceState.TERMINATED, before, "ended while no monitor ran")
                self.machines[name] = replace(
                    known, state=InstanceState.TERMINATED, history=(*known.history, end)
                )

    def _add_work(self, entry: HistoryEntry) -> None:
        moment = self.moment
        for key, counts in entry.demand.items():
            _put(self._counts, key, counts or None)
            _put(moment.waiting, self._shapes[key], sum(counts.values()) or None)
        for gang_id, gang in entry.gangs.items():
            _put(self._reasons, gang_id, None if gang is None else gang.reason)
            if gang is None:
                moment.gangs.pop(gang_id, None)
            else:
                bundles = tuple((self._shapes[key], copies) for key, copies in gang.bundles)
                moment.gangs[gang_id] = PastGang(gang.strategy, bundles)
        for gang_id, keys in entry.placed.items():
            _put(moment.placed, gang_id, tuple(self._keys[key] for key in keys) or None)
        for key, used in entry.used.items():
            _put(moment.used, self._keys[key], None if used is None else Resources.of(used))
        if entry.constraints is not None:
            moment.constraints = {self._shapes[key]: count for key, count in entry.constraints.items()}
        if entry.demand or entry.gangs or entry.is_whole:
            self.demand.append((entry.at, self._by_verdict()))

    def _by_verdict(self) -> dict[str, int]:
        found: dict[str, int] = {}
        for counts in self._counts.values():
            for reason, count in counts.items():
                found[reason] = found.get(reason, 0) + count
        for reason in self._reasons.values():
            found[reason] = found.get(reason, 0) + 1
        return found

    def _add_decision(self, entry: HistoryEntry) -> None:
        if not (entry.verdicts or entry.actions) or entry.is_whole:
            return
        actions = (
            replace(action, machines=tuple(self._keys[key] for key in action.machines))
            for action in entry.actions
        )
        moved = {self._keys[change.key]: change.state for change in entry.states}
        decision = PastDecision(entry.at, entry.seq, entry.verdicts, tuple(actions), moved, entry.left_out)
        self.decisions.append(decision)


def moments(past: PastReader, entries: Iterable[HistoryEntry]) -> Iterator[PastMoment]:
    """Yield the cluster after each entry, while `past` folds it."""
    for entry in entries:
        yield past.add(entry)


def cost_until(machine: Instance, at: float) -> float:
    """Return what a machine had cost at this time, whatever came later."""
    started = next((change.at for change in machine.history if change.state in ON_CLOUD), None)
    if started is None or started >= at or not machine.price_per_hour:
        return 0.0
    ended = min(at, machine.since) if machine.state is InstanceState.TERMINATED else at
    return machine.price_per_hour * billed_s(machine.offer, ended - started) / 3600.0


def _machine(met: MachineEntry, known: Instance | None) -> Instance:
    offer: Offer | None = None
    if met.market:
        least, step = met.billing
        offer = Offer(
            zone=met.zone,
            market=met.market,
            price_per_hour=met.price,
            billing_minimum_s=least,
            billing_granularity_s=step,
        )
    if known is not None:
        return replace(known, price_per_hour=met.price, offer=offer)
    return Instance(
        instance_id=InstanceId(met.machine),
        node_type=met.node_type,
        state=InstanceState.UNKNOWN,
        kind=NodeKind(met.kind),
        price_per_hour=met.price,
        offer=offer,
    )


def _put(into: dict[K, V], key: K, value: V | None) -> None:
    """Set a value; None removes it."""
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


MAX_BYTES = 6_000_000  # of segments, the newest: about a week of a busy cluster


class HistoryFollower:
    """Holds the past of one history; `refresh` reads what is new.

    Several threads may share one: each holds `lock` from `refresh` until it has used the past.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lock = threading.Lock()
        self.past = PastReader()
        self.problem = ""
        self._read_to: dict[Path, int] = {}  # bytes of each segment

    def mark(self) -> str:
        """Return a text that changes when there is something new."""
        return "-".join(file_stamp(path) for path in (self._folder / TAIL, *segments(self._folder)[-1:]))

    def refresh(self) -> PastReader:
        """Return the past until now; what cannot be read is named in `problem`, and the rest is there."""
        try:
            tail = list(read_tail(self._folder / TAIL))  # first: what is packed meanwhile is then there twice
        except FileNotFoundError:
            tail = []
        except StoreError as error:
            tail, self.problem = [], str(error)
        for path in self._wanted():
            self._follow(path)
        for entry in tail:
            if entry.seq > self.past.seq and (entry.is_whole or self.past.since is not None):
                self.past.add(entry)
        return self.past

    def _wanted(self) -> list[Path]:
        """Return the newest segments within the limit, oldest first."""
        left = MAX_BYTES
        chosen: list[Path] = []
        for path in reversed(segments(self._folder)):
            with contextlib.suppress(FileNotFoundError):
                left -= path.stat().st_size
                if left >= 0 or not chosen:
                    chosen.append(path)
        return chosen[::-1]

    def _follow(self, path: Path) -> None:
        start = self._read_to.get(path, 0)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size <= start:
                return
            try:
                for entry, end in read_segment(path, start, is_newest=True):
                    if entry.seq > self.past.seq and (entry.is_whole or self.past.since is not None):
                        self.past.add(entry)
                    self._read_to[path] = end
            except StoreError as error:
                self.problem, self._read_to[path] = str(error), path.stat().st_size


def file_stamp(path: Path) -> str:
    """Return a text that changes when the file does."""
    try:
        found = path.stat()
    except OSError:
        return "none"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"
