"""Says what a cluster was and is, for the cluster and why bands: from its ledger, live or long gone.

`ClusterSource` is all that the page knows of a cluster; a longer history can stand behind it too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from muster.autoscaler.known_clusters import KnownCluster
from muster.autoscaler.status_files import PublishedStatus
from muster.base import codec
from muster.base.clock import Clock
from muster.cluster.model import Instance
from muster.cluster.plan import Subject
from muster.cluster.spend import cost_of
from muster.cluster.states import ON_CLOUD, InstanceState
from muster.errors import MusterError
from muster.stores.ledger.history import Decision, SqliteHistory, open_history

MAX_MACHINES = 2000  # the newest
MAX_DECISIONS = 500  # the newest
MAX_VERDICTS = 60  # of one decision
_DEMAND = (Subject.DEMAND.value, Subject.GANG.value, Subject.CONSTRAINT.value)
Why = Callable[[str, str], object]  # cluster, subject -> the report that `muster why` prints


class MachineLine(Struct, frozen=True, kw_only=True):
    """A MachineLine is one machine over time."""

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
    """A DecisionLine is what one tick decided."""

    version: int
    at: float
    tick: str
    moved: Mapping[str, str]
    actions: Sequence[Mapping[str, Any]]
    verdicts: Sequence[Mapping[str, Any]]
    more_verdicts: int


class ClusterBands(Struct, frozen=True, kw_only=True):
    """ClusterBands are everything that the bands show."""

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
    decisions: tuple[DecisionLine, ...]  # newest first


class ClusterSource(Protocol):
    """A ClusterSource is one cluster; `mark` changes when `view` would."""

    @property
    def name(self) -> str: ...

    def mark(self) -> str: ...

    def view(self) -> ClusterBands: ...

    def why(self, subject: str) -> object: ...


class LedgerSource:
    """A LedgerSource reads the ledger and the published status of a cluster that has files here."""

    def __init__(self, cluster: KnownCluster, *, clock: Clock, why: Why) -> None:
        self._cluster, self._clock, self._why = cluster, clock, why

    @property
    def name(self) -> str:
        return self._cluster.name

    def mark(self) -> str:
        files = (
            self._cluster.home.ledger,
            Path(f"{self._cluster.home.ledger}-wal"),
            self._cluster.home.status,
        )
        return "-".join(_stamp(file) for file in files)

    def view(self) -> ClusterBands:
        now, published, problem = self._clock.now(), None, ""
        try:
            published = self._cluster.status()
            problem = "" if published is None else self._cluster.problem(published, now)
        except MusterError as error:
            problem = str(error)
        if not self._cluster.home.ledger.is_file():
            records = () if published is None else published.instances
            return self._made(now, published, problem, records, ())
        try:
            with open_history(self._cluster.home.ledger) as history:
                return self._read(history, now, published, problem)
        except MusterError as error:
            return self._made(now, published, str(error), (), ())

    def why(self, subject: str) -> object:
        return codec.to_builtins(self._why(self.name, subject))

    def _read(
        self, history: SqliteHistory, now: float, published: PublishedStatus | None, problem: str
    ) -> ClusterBands:
        records, decisions = history.find(), history.decisions(limit=MAX_DECISIONS)
        gone = history.spend(now).gone
        recorded = sum(cost_of(one, now) for one in records if one.state is InstanceState.TERMINATED)
        return self._made(now, published, problem, records, decisions, max(0.0, gone - recorded))

    def _made(
        self,
        now: float,
        published: PublishedStatus | None,
        problem: str,
        records: Sequence[Instance],
        decisions: Sequence[Decision],
        spent_before: float = 0.0,
    ) -> ClusterBands:
        lines = sorted((machine_line(one, now) for one in records), key=_began)[-MAX_MACHINES:]
        times = [line.changes[0][0] for line in lines if line.changes]
        times += [decisions[-1].at] if decisions else []
        return ClusterBands(
            name=self.name,
            now=now,
            known_since=min(times, default=None),
            is_up=self._cluster.record is not None,
            problem=problem,
            spent_before=spent_before,
            spent=spent_before + sum(line.cost for line in lines),
            per_hour=sum(one.price_per_hour or 0.0 for one in records if one.state in ON_CLOUD),
            machines=tuple(lines),
            demand=tuple((one.at, waiting(one.verdicts)) for one in reversed(decisions)),
            failures=refused(records),
            nodes=tuple(_usage(published)),
            decisions=tuple(map(decision_line, decisions)),
        )


def machine_line(record: Instance, now: float) -> MachineLine:
    """Returns one machine with the time for which it was paid."""
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
    """Returns how many requests had each verdict."""
    found: Counter[str] = Counter()
    for verdict in verdicts:
        if verdict.get("subject") in _DEMAND:
            found[str(verdict.get("reason"))] += int(verdict.get("count", 1))
    return dict(found)


def refused(records: Iterable[Instance]) -> dict[str, int]:
    """Returns how many launches failed, by the beginning of the recorded reason."""
    failed = (one for one in records if one.state is InstanceState.ALLOCATION_FAILED)
    return dict(Counter(one.details.partition(":")[0][:60] or "unknown" for one in failed))


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


def _usage(published: PublishedStatus | None) -> Iterable[Mapping[str, Any]]:
    runtime = None if published is None else published.runtime
    for node in runtime.nodes if runtime is not None else ():
        total, free = node.total.to_floats(), node.available.to_floats()
        yield {"node": node.node_id, "node_type": node.node_type, "total": total, "free": free}


def _began(line: MachineLine) -> float:
    return line.changes[0][0] if line.changes else 0.0


def _stamp(file: Path) -> str:
    try:
        found = file.stat()
    except OSError:
        return "none"
    return f"{found.st_mtime_ns:x}.{found.st_size:x}"
