"""Turn ticks into entries of the history: only what has changed, and not more often than there is room for.

Called after a tick with what it saw and decided; reads nothing else and writes no file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from msgspec import UNSET
from msgspec.structs import replace

from muster.base.forecast import Forecast
from muster.base.ids import NodeId
from muster.base.resources import SCALE, Resources
from muster.base.text import is_internal
from muster.cluster.cost import spend_so_far
from muster.cluster.model import ClusterSpec, Demand, Gang, Instance, NodeReport, NodeStatus, RuntimeReport
from muster.cluster.plan import Action, Drain, EndCluster, Launch, Plan, Reason, Subject, Terminate, Verdict
from muster.cluster.ports import Ledger, TickResult
from muster.cluster.states import TERMINAL
from muster.stores.history.entries import (
    NOT_KNOWN,
    ActionEntry,
    ForecastEntry,
    HistoryEntry,
    MachineEntry,
    StateEntry,
    VerdictEntry,
    WaitingGang,
    spec_change,
)

HEARTBEAT_S = 600.0  # an entry that says that nothing has changed
MAX_TEXT = 160
_LABEL = "_PG_"
_NOISE = frozenset({"object_store_memory"})  # moves by itself, and nobody asks for it
REPEAT_S = 600.0  # a reason that comes back sooner is not written again
MAX_LINES = 400  # of verdicts, and of actions, until they are written
MAX_REMEMBERED = 4000
_NUMBERS = re.compile(r"\d+(\.\d+)?")
# These follow from the states of machines and from the counts of demand, and change all the time.
_SHOWN_ELSEWHERE = frozenset(
    {
        Reason.PLACED,
        Reason.KEPT_BUSY,
        Reason.KEPT_HEAD,
        Reason.KEPT_NEEDED,
        Reason.KEPT_NOT_IDLE_LONG_ENOUGH,
        Reason.KEPT_PENDING,
        Reason.LEAVING,
    }
)
_Key = tuple[str, str, str]  # subject, its id, reason
T = TypeVar("T")


@dataclass
class _State:
    """What an entry compares: the cluster at one moment."""

    spec: ClusterSpec | None = None
    demand: dict[str, dict[str, int]] = field(default_factory=dict)
    constraints: dict[str, int] = field(default_factory=dict)
    gangs: dict[str, WaitingGang] = field(default_factory=dict)
    placed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    used: dict[str, dict[str, float]] = field(default_factory=dict)
    forecasts: dict[str, ForecastEntry] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


class DecisionNotes:
    """What is not written yet, and what was reported lately."""

    def __init__(self) -> None:
        # When each last held, and its text without numbers.
        self._last_reported: dict[_Key, tuple[float, str]] = {}
        self._verdicts: dict[_Key, VerdictEntry] = {}
        self._actions: list[ActionEntry] = []
        self._left_out = 0

    def __bool__(self) -> bool:
        return bool(self._verdicts or self._actions)

    def add(self, plan: Plan, keys: Mapping[str, str]) -> None:
        """Note the verdicts and the effects of one tick; `keys` stand for machines."""
        for verdict in plan.verdicts:
            if verdict.reason not in _SHOWN_ELSEWHERE:
                self._add_verdict(verdict, plan.at)
        for action in plan.actions:
            if len(self._actions) < MAX_LINES:
                self._actions.append(_entry(action, keys))
            else:
                self._left_out += 1
        if len(self._last_reported) > MAX_REMEMBERED:
            self._last_reported = {
                key: last for key, last in self._last_reported.items() if plan.at - last[0] < REPEAT_S
            }

    def take(self) -> tuple[tuple[VerdictEntry, ...], tuple[ActionEntry, ...], int]:
        """Return what is not written yet, and how many lines were left out."""
        taken = tuple(self._verdicts.values()), tuple(self._actions), self._left_out
        self._verdicts, self._actions, self._left_out = {}, [], 0
        return taken

    def _add_verdict(self, verdict: Verdict, at: float) -> None:
        key = (verdict.subject.value, verdict.subject_id, verdict.reason.value)
        text = _NUMBERS.sub("", verdict.detail)[:MAX_TEXT]
        before = self._last_reported.get(key)
        self._last_reported[key] = (at, text)
        if before is not None and before[1] == text and at - before[0] < REPEAT_S:
            return
        if len(self._verdicts) >= MAX_LINES:
            self._left_out += 1
            return
        self._verdicts[key] = VerdictEntry(
            subject=key[0],
            subject_id=key[1],
            reason=key[2],
            count=verdict.count,
            detail=verdict.detail[:MAX_TEXT],
            target=verdict.target,
        )


class HistoryRecorder:
    """Follows one cluster; an entry that it returns counts as written."""

    def __init__(self) -> None:
        self._numbers = 0  # of machines and shapes: no key is used twice
        self._notes = DecisionNotes()
        self.start_over()

    def start_over(self) -> None:
        """Make the next entry a whole one, as at the start of a file."""
        self._state, self._is_new, self._at = _State(), True, -math.inf
        self._shapes: dict[Demand, str] = {}
        self._keys: dict[str, str] = {}  # id of a record, else of a node -> key
        self._met: dict[str, MachineEntry] = {}  # of live records
        self._seen: dict[NodeId, tuple[Resources, Resources, str, dict[str, float]]] = {}
        self._new_shapes: dict[str, Demand] = {}
        self._machines: list[MachineEntry] = []
        self._states: list[StateEntry] = []

    def entry(self, tick: TickResult, seq: int, pace_s: float = 0.0) -> HistoryEntry | None:
        """Return the entry of a tick; None when nothing has changed, or the last one is not so long ago."""
        at, is_new = tick.plan.at, self._is_new
        self._follow(tick, at)
        self._notes.add(tick.plan, self._keys)
        if at - self._at < pace_s:
            return None
        now = self._look(tick)
        changes = _changes(self._state, now)
        is_event = bool(self._machines or self._states or self._notes)
        if not changes and not is_event and not is_new and at - self._at < HEARTBEAT_S:
            return None
        self._state, self._is_new, self._at = now, False, at
        verdicts, actions, left_out = self._notes.take()
        made = HistoryEntry(
            seq=seq,
            at=round(at, 2),
            is_whole=is_new,
            cluster=tick.snapshot.spec.cluster_name if is_new else "",
            shapes=self._new_shapes,
            machines=tuple(self._machines),
            states=tuple(self._states),
            verdicts=verdicts,
            actions=actions,
            left_out=left_out,
            spent=round(spend_so_far(tick.ledger.instances.values(), tick.plan.memory, at), 4),
            **changes,
        )
        self._new_shapes, self._machines, self._states = {}, [], []
        return made

    def last(self, seq: int, at: float) -> HistoryEntry:
        """Return the entry of a monitor that ends; the cluster may live on."""
        return HistoryEntry(seq=seq, at=round(at, 2), is_last=True)

    # -- machines ----------------------------------------------------------------------------------

    def _follow(self, tick: TickResult, at: float) -> None:
        """Note new records and their changes; of a cluster that is met first, all of every live machine."""
        for record in tick.plan.writes:
            self._meet(record)
            if not self._is_new:
                self._states += _states(self._keys[record.instance_id], record, since=at)
        if self._is_new:
            self._states = []
            ended = (one for one in tick.plan.writes if one.instance_id not in tick.ledger.instances)
            for record in (*tick.ledger.instances.values(), *ended):
                self._meet(record)
                self._states += _states(self._keys[record.instance_id], record, since=-math.inf)

    def _meet(self, record: Instance) -> None:
        """Name a record, and again when its price or offer is known: at first it is only wanted."""
        name, offer = record.instance_id, record.offer
        key = self._keys.get(name) or self._next_key()
        entry = MachineEntry(
            key=key,
            machine=name,
            node_type=record.node_type,
            kind=record.kind.value,
            price=record.price_per_hour,
            zone=offer.zone if offer else "",
            market=offer.market if offer else "",
            billing=(offer.billing_minimum_s, offer.billing_granularity_s) if offer else (0.0, 0.0),
        )
        if self._met.get(name) != entry:
            self._machines.append(entry)
        self._keys[name] = key
        if record.state in TERMINAL:
            self._met.pop(name, None)
        else:
            self._met[name] = entry

    def _next_key(self) -> str:
        self._numbers += 1
        return str(self._numbers)

    # -- the state ---------------------------------------------------------------------------------

    def _look(self, tick: TickResult) -> _State:
        snapshot, runtime, old = tick.snapshot, tick.snapshot.runtime, self._state
        problems = tuple(f"{each.source}: {each.message}"[:MAX_TEXT] for each in tick.plan.quarantined[:20])
        now = _State(spec=snapshot.spec, problems=problems)
        now.forecasts = {each.experiment: _brief(each) for each in snapshot.forecasts}
        if runtime is None:  # not known, which is not "empty"
            now.demand, now.constraints, now.gangs = old.demand, old.constraints, old.gangs
            now.placed, now.used = old.placed, old.used
            return now
        reasons = _reasons(tick.plan)
        now.demand = self._demand(runtime, reasons)
        for constraint in runtime.constraints:
            for demand in constraint.demands:
                key = self._shape(demand)
                now.constraints[key] = now.constraints.get(key, 0) + demand.count
        for gang in runtime.gangs:
            now.gangs[gang.gang_id] = self._gang(gang, reasons)
        self._nodes(runtime, tick.ledger, now)
        return now

    def _shape(self, demand: Demand) -> str:
        one = replace(demand, count=1, name="")
        key = self._shapes.get(one)
        if key is None:
            key = self._shapes[one] = f"s{self._next_key()}"
            self._new_shapes[key] = one
        return key

    def _demand(
        self, runtime: RuntimeReport, reasons: Mapping[tuple[Subject, str], Mapping[str, int]]
    ) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {}
        sane = [demand for demand in runtime.demands if demand.count > 0]
        for position, demand in enumerate(sane):
            counts = found.setdefault(self._shape(demand), {})
            judged = reasons.get((Subject.DEMAND, demand.name or str(position)), {})
            left = demand.count
            for reason, count in judged.items():
                taken = min(count, left)
                left -= taken
                if taken:
                    counts[reason] = counts.get(reason, 0) + taken
            if left:
                counts[NOT_KNOWN] = counts.get(NOT_KNOWN, 0) + left
        return found

    def _gang(self, gang: Gang, reasons: Mapping[tuple[Subject, str], Mapping[str, int]]) -> WaitingGang:
        bundles: dict[str, int] = {}
        for demand in gang.options[0] if gang.options else ():
            key = self._shape(demand)
            bundles[key] = bundles.get(key, 0) + demand.count
        judged = reasons.get((Subject.GANG, gang.gang_id), {})
        return WaitingGang(
            strategy=gang.strategy.value, bundles=tuple(bundles.items()), reason=next(iter(judged), NOT_KNOWN)
        )

    def _nodes(self, runtime: RuntimeReport, ledger: Ledger, now: _State) -> None:
        owners = {
            record.node_id: record.instance_id for record in ledger.instances.values() if record.node_id
        }
        seen: dict[NodeId, tuple[Resources, Resources, str, dict[str, float]]] = {}
        for node in runtime.nodes:
            if node.status is NodeStatus.DEAD:
                continue
            key = self._node_key(node, owners.get(node.node_id))
            before = self._seen.get(node.node_id)
            if before is not None and before[:3] == (node.total, node.available, key):
                used = before[3]
            else:
                used = _used(node)
            seen[node.node_id] = (node.total, node.available, key, used)
            now.used[key] = used
            for label in node.labels:
                if label.startswith(_LABEL):
                    gang = label[len(_LABEL) :]
                    now.placed[gang] = (*now.placed.get(gang, ()), key)
        self._seen = seen

    def _node_key(self, node: NodeReport, owner: str | None) -> str:
        name = owner or f"node {node.node_id}"
        if name not in self._keys:
            key = self._keys[name] = self._next_key()
            self._machines.append(MachineEntry(key=key, machine=name, node_type=node.node_type, kind=0))
        return self._keys[name]


def _states(key: str, record: Instance, since: float) -> list[StateEntry]:
    cause = record.stop_cause.name if record.stop_cause is not None else ""
    return [
        StateEntry(key, change.state.name, round(change.at, 2), change.details[:MAX_TEXT], cause)
        for change in record.history
        if change.at >= since
    ]


def _reasons(plan: Plan) -> dict[tuple[Subject, str], dict[str, int]]:
    found: dict[tuple[Subject, str], dict[str, int]] = {}
    for verdict in plan.verdicts:
        if verdict.subject is Subject.DEMAND or verdict.subject is Subject.GANG:
            counts = found.setdefault((verdict.subject, verdict.subject_id), {})
            counts[verdict.reason.value] = counts.get(verdict.reason.value, 0) + verdict.count
    return found


def _used(node: NodeReport) -> dict[str, float]:
    free = node.available
    used = {
        name: units - free.get(name, 0)
        for name, units in node.total.items()
        if name not in _NOISE and not is_internal(name)
    }
    return {name: units / SCALE for name, units in used.items() if units > 0}


def _brief(forecast: Forecast) -> ForecastEntry:
    left = forecast.budget_left
    return ForecastEntry(
        running=len(forecast.trials),
        movable=sum(trial.is_movable for trial in forecast.trials),
        coming=tuple(
            (one.shape.to_floats(), one.count, round(one.probability, 2)) for one in forecast.coming
        ),
        is_complete=forecast.is_complete,
        deadline=forecast.deadline,
        budget_left=None if left is None else float(f"{left:.2g}"),
    )


def _changes(old: _State, now: _State) -> dict[str, Any]:
    """Return the fields of an entry that differ."""
    found: dict[str, Any] = {
        "spec": spec_change(old.spec, now.spec) if now.spec is not None else None,
        "demand": _delta(old.demand, now.demand, {}),
        "constraints": now.constraints if now.constraints != old.constraints else None,
        "gangs": _delta(old.gangs, now.gangs, None),
        "placed": _delta(old.placed, now.placed, ()),
        "used": _delta(old.used, now.used, None),
        "forecasts": _delta(old.forecasts, now.forecasts, None),
        "problems": now.problems if now.problems != old.problems else (),
    }
    empty = {"constraints": None, "spec": None}
    return {name: value for name, value in found.items() if value or value is not empty.get(name, value)}


def _delta(old: Mapping[str, T], now: Mapping[str, T], gone: Any) -> dict[str, Any]:  # noqa: ANN401 - of T's kind
    changed: dict[str, Any] = {
        key: value
        for key, value in now.items()
        if (old.get(key, UNSET) is not value and old.get(key) != value)
    }
    changed.update({key: gone for key in old if key not in now})
    return changed


def _entry(action: Action, keys: Mapping[str, str]) -> ActionEntry:
    kind = _NAMES.get(type(action), type(action).__name__.lower())
    if isinstance(action, Launch):
        offer = action.offer
        return ActionEntry(
            type=kind,
            shape=action.shape,
            offer=offer.name if offer else "",
            price=offer.price_per_hour if offer else None,
            machines=_known(action.instance_ids, keys),
        )
    if isinstance(action, Terminate):
        return ActionEntry(type=kind, machines=_known(action.instance_ids, keys))
    if isinstance(action, EndCluster):
        return ActionEntry(type=kind, cause=action.policy.value)
    cause = action.cause.name.lower() if isinstance(action, Drain) else ""
    return ActionEntry(type=kind, machines=_known((action.instance_id,), keys), cause=cause)


_NAMES: dict[type, str] = {EndCluster: "end-cluster"}


def _known(ids: Iterable[str], keys: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(keys[one] for one in ids if one in keys)
