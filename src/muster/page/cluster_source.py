"""Say what a cluster was and is, for the cluster and why bands: from its ledger and history, live or gone.

`ClusterSource` is all that the page knows of a cluster. The ledger has every detail of the last day, the
history has the rest in brief.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from muster.autoscaler.known_clusters import KnownCluster
from muster.autoscaler.status_files import PublishedStatus
from muster.base import codec
from muster.base.clock import Clock
from muster.cluster.backoff import failures_among
from muster.cluster.cost import cost_of
from muster.cluster.model import Instance, StatusChange
from muster.cluster.plan import Subject
from muster.cluster.states import ON_CLOUD, TERMINAL, InstanceState
from muster.errors import MusterError
from muster.stores.history.entries import ActionEntry
from muster.stores.history.past import HistoryFollower, PastReader, file_stamp
from muster.stores.ledger.history import Decision, open_history

MAX_MACHINES = 2000  # the newest
MAX_DECISIONS = 500  # the newest
MAX_VERDICTS = 60  # of one decision
MAX_POINTS = 2000  # of demand over time
_DEMAND = (Subject.DEMAND.value, Subject.GANG.value, Subject.CONSTRAINT.value)
Why = Callable[[str, str], object]  # cluster, subject -> the report that `muster why` prints


class MachineLine(Struct, frozen=True, kw_only=True):
    """One machine over time."""

    machine: str
    node_type: str
    market: str
    zone: str
    ip: str
    price_per_hour: float | None
    cost: float
    paid_from: float | None
    paid_until: float | None  # None: still
    changes: tuple[tuple[float, str, str], ...]  # at, state, details


class DecisionLine(Struct, frozen=True, kw_only=True):
    """What one tick decided."""

    version: int
    at: float
    tick: str
    moved: Mapping[str, str]
    actions: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Mapping[str, Any]]
    more_verdicts: int


class ForecastLine(Struct, frozen=True, kw_only=True):
    """What one tuner expects of the cluster."""

    experiment: str
    running: int  # trials
    movable: int  # of those, trials that could continue elsewhere
    coming: tuple[tuple[Mapping[str, float], int, float], ...]  # shape, count, probability
    is_complete: bool
    deadline: float | None
    budget_left: float | None


class ClusterBands(Struct, frozen=True, kw_only=True):
    """Everything that the bands show."""

    name: str
    now: float
    known_since: float | None  # before that something may have been forgotten
    is_up: bool
    problem: str
    spent_before: float  # by machines that are no longer recorded one by one
    spent: float
    per_hour: float
    machines: tuple[MachineLine, ...]
    demand: tuple[tuple[float, Mapping[str, int]], ...]  # waiting requests by verdict
    failures: Mapping[str, int]  # launches that were refused, by reason
    nodes: tuple[Mapping[str, Any], ...]  # used and free now
    budget: str  # what is spent, reserved and left of it, in words; "" without one
    forecasts: tuple[ForecastLine, ...]  # of tuners that run now
    decisions: tuple[DecisionLine, ...]  # newest first


class ClusterSource(Protocol):
    """One cluster; `mark` changes when `view` would."""

    @property
    def name(self) -> str: ...

    def mark(self) -> str: ...

    def view(self) -> ClusterBands: ...

    def why(self, subject: str) -> object: ...


class LedgerSource:
    """Reads ledger, history and published status of a cluster that has files here.

    `follower` keeps what was read of the history; without one, it is read as a whole each time.
    """

    def __init__(
        self, cluster: KnownCluster, *, clock: Clock, why: Why, follower: HistoryFollower | None = None
    ) -> None:
        self._cluster, self._clock, self._why = cluster, clock, why
        self._follower = follower or HistoryFollower(cluster.home.history)

    @property
    def name(self) -> str:
        return self._cluster.name

    def mark(self) -> str:
        home = self._cluster.home
        files = (home.ledger, Path(f"{home.ledger}-wal"), home.status)
        return "-".join((*(file_stamp(file) for file in files), self._follower.mark()))

    def view(self) -> ClusterBands:
        now, published, problem = self._clock.now(), None, ""
        try:
            published = self._cluster.status()
            problem = "" if published is None else self._cluster.problem(published, now)
        except MusterError as error:
            problem = str(error)
        with self._follower.lock:
            return self._view(now, published, problem)

    def _view(self, now: float, published: PublishedStatus | None, problem: str) -> ClusterBands:
        past = self._follower.refresh()
        spent = past.spent[-1][1] if past.spent else 0.0
        problem = problem or self._follower.problem
        found = ClusterFiles(published=published, problem=problem, past=past, spent=spent)
        if not self._cluster.home.ledger.is_file():
            records = () if published is None else published.instances
            return self._made(now, replace(found, records=records))
        try:
            with open_history(self._cluster.home.ledger) as history:
                records = tuple(history.find())
                decisions = tuple(history.decisions(limit=MAX_DECISIONS))
                spent = history.spend(now).total
            return self._made(now, replace(found, records=records, decisions=decisions, spent=spent))
        except MusterError as error:
            return self._made(now, replace(found, problem=str(error)))

    def why(self, subject: str) -> object:
        return codec.to_builtins(self._why(self.name, subject))

    def _made(self, now: float, found: ClusterFiles) -> ClusterBands:
        past, decisions = found.past, found.decisions
        seen = map(partial(_ended, past), past.machines.values())
        known = {one.instance_id: one for one in seen if one.history}
        known.update({one.instance_id: one for one in found.records})
        lines = sorted((machine_line(one, now) for one in known.values()), key=_began)[-MAX_MACHINES:]
        times = [line.changes[0][0] for line in lines if line.changes]
        times += [decisions[-1].at] if decisions else []
        times += [past.since] if past.since is not None else []
        cost = sum(line.cost for line in lines)
        before = max(0.0, found.spent - cost)
        runtime = None if found.published is None else found.published.runtime
        return ClusterBands(
            name=self.name,
            now=now,
            known_since=min(times, default=None),
            is_up=self._cluster.record is not None,
            problem=found.problem,
            spent_before=before,
            spent=before + cost,
            per_hour=sum(one.price_per_hour or 0.0 for one in found.records if one.state in ON_CLOUD),
            machines=tuple(lines),
            demand=tuple(demand_points(past, decisions)),
            failures=refused(known.values()),
            nodes=tuple(
                {
                    "node": node.node_id,
                    "node_type": node.node_type,
                    "total": node.total.to_floats(),
                    "free": node.available.to_floats(),
                }
                for node in (() if runtime is None else runtime.nodes)
            ),
            budget="" if found.published is None else found.published.status.budget,
            forecasts=tuple(forecast_lines(past)) if self._cluster.record is not None else (),
            decisions=(*map(decision_line, decisions), *older_decisions(past, decisions)),
        )


class ClusterFiles(Struct, frozen=True, kw_only=True):
    """What the files of a cluster have."""

    published: PublishedStatus | None
    problem: str
    past: PastReader
    records: tuple[Instance, ...] = ()
    decisions: tuple[Decision, ...] = ()  # newest first
    spent: float = 0.0  # $ since the ledger was begun


def _ended(past: PastReader, machine: Instance) -> Instance:
    """Return a machine of the history as it is when no ledger has it: over when it was last seen."""
    if machine.state in TERMINAL or past.until is None:
        return machine
    end = StatusChange(InstanceState.TERMINATED, past.until, "last seen")
    return replace(machine, state=InstanceState.TERMINATED, history=(*machine.history, end))


def demand_points(
    past: PastReader, decisions: Sequence[Decision]
) -> Iterator[tuple[float, Mapping[str, int]]]:
    """Yield waiting requests by verdict over time: of the history, else of the decisions in the ledger."""
    points: Sequence[tuple[float, Mapping[str, int]]] = past.demand
    own = [(one.at, waiting(one.verdicts)) for one in reversed(decisions)]
    until = past.until if past.until is not None else -math.inf
    since = past.since if past.since is not None else math.inf
    step = 1 + len(points) // MAX_POINTS
    yield from (point for point in own if point[0] < since)
    yield from (points[at] for at in range(0, len(points), step))
    if step > 1:
        yield points[-1]
    yield from (point for point in own if since <= until < point[0])


def older_decisions(past: PastReader, decisions: Sequence[Decision]) -> Iterator[DecisionLine]:
    """Yield the decisions of the history from before those of the ledger, newest first, in brief."""
    oldest = decisions[-1].at if decisions else math.inf
    older = (one for one in reversed(past.decisions) if one.at < oldest)
    for one in islice(older, MAX_DECISIONS):
        shown = one.verdicts[:MAX_VERDICTS]
        yield DecisionLine(
            version=-one.seq,  # those of the ledger are above 0
            at=one.at,
            tick="",
            moved=one.moved,
            actions=[_action(each) for each in one.actions],
            verdicts=[codec.to_builtins(each) for each in shown],
            more_verdicts=len(one.verdicts) - len(shown) + one.left_out,
        )


def _action(entry: ActionEntry) -> Mapping[str, Any]:
    shown: dict[str, Any] = {"type": entry.type, "shape": entry.shape, "instance_ids": entry.machines}
    if entry.offer:
        zone, _, market = entry.offer.rpartition("/")
        shown["offer"] = {"zone": zone, "market": market, "price_per_hour": entry.price}
    return shown


def machine_line(record: Instance, now: float) -> MachineLine:
    """Return one machine with the time for which it was paid."""
    started = next((change.at for change in record.history if change.state in ON_CLOUD), None)
    is_over = record.state is InstanceState.TERMINATED
    return MachineLine(
        machine=record.instance_id,
        node_type=record.node_type,
        market=record.offer.market if record.offer else "",
        zone=record.offer.zone if record.offer else "",
        ip=record.internal_ip,
        price_per_hour=record.price_per_hour,
        cost=cost_of(record, now),
        paid_from=started,
        paid_until=record.since if is_over and started is not None else None,
        changes=tuple((change.at, change.state.name, change.details[:300]) for change in record.history),
    )


def waiting(verdicts: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many requests had each verdict."""
    found: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.get("subject") in _DEMAND:
            found[str(verdict.get("reason"))] += int(verdict.get("count", 1))
    return dict(found)


def forecast_lines(past: PastReader) -> Iterator[ForecastLine]:
    """Yield what tuners said last, without those that expect nothing any more."""
    for experiment, brief in sorted(past.forecasts.items()):
        if brief.running or brief.coming:
            yield ForecastLine(
                experiment=experiment,
                running=brief.running,
                movable=brief.movable,
                coming=brief.coming,
                is_complete=brief.is_complete,
                deadline=brief.deadline,
                budget_left=brief.budget_left,
            )


def refused(records: Iterable[Instance]) -> dict[str, int]:
    """Return how many launches and set-ups failed, by the beginning of the recorded reason."""
    reasons = (failure.reason.partition(":")[0][:60] for failure in failures_among(records))
    return dict(Counter(reason or "unknown" for reason in reasons))


def decision_line(decision: Decision) -> DecisionLine:
    shown = decision.verdicts[:MAX_VERDICTS]
    return DecisionLine(
        version=decision.version,
        at=decision.at,
        tick=decision.tick_id,
        moved=decision.moved,
        actions=decision.actions,
        verdicts=shown,
        more_verdicts=len(decision.verdicts) - len(shown),
    )


def _began(line: MachineLine) -> float:
    return line.changes[0][0] if line.changes else 0.0
