"""Narrator: puts what the controller decided into words, from its records, actions and verdicts alone.

Called by the story once per tick. It invents nothing: every number comes from a plan, a record or a verdict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from muster.cluster.model import Instance, NodeKind, StopCause
from muster.cluster.plan import Drain, Plan, Reason, Subject
from muster.cluster.states import InstanceState
from muster.sim.cluster.build import Scene

_S = InstanceState
_REQUESTS = (Subject.DEMAND, Subject.GANG, Subject.CONSTRAINT)
_NO_WAY = (Reason.INFEASIBLE, Reason.BLOCKED_BY_TYPE_LIMIT, Reason.BLOCKED_BY_CLUSTER_LIMIT)


@dataclass
class Sentence:
    """One thing that happened. Machines are counted by type, so that equal things can be told together."""

    who: str  # "people", "cloud" or "muster"
    what: str
    machines: Counter[str] = field(default_factory=Counter)
    why: str = ""


class Narrator:
    """Remembers what it said, so that a state that lasts is told once."""

    def __init__(self) -> None:
        self._said: set[tuple[str, Reason]] = set()

    def listen(self, scene: Scene) -> Iterator[Sentence]:
        """What this tick learned and decided."""
        plan = scene.plan
        if plan is None:
            return
        before = {str(i): old for commit in scene.store.commits for i, old in commit.before.items()}
        yield from _refusals(plan)
        yield from _arrivals(plan, before)
        yield from _purchases(plan, before)
        yield from self._obstacles(plan)
        yield from _drains(scene, plan)
        yield from _ends(plan)

    def _obstacles(self, plan: Plan) -> Iterator[Sentence]:
        verdicts = [v for v in plan.verdicts if v.subject in _REQUESTS and v.reason in _NO_WAY]
        for verdict in verdicts:
            if (verdict.subject_id, verdict.reason) not in self._said:
                what = f"cannot place {verdict.count} of “{verdict.subject_id}”"
                yield Sentence("muster", what, why=f"{verdict.reason.value}: {verdict.detail}".rstrip(": "))
        self._said = {(v.subject_id, v.reason) for v in verdicts}


def _refusals(plan: Plan) -> Iterator[Sentence]:
    failed = [i for i in plan.writes if i.state is _S.ALLOCATION_FAILED]
    for details in dict.fromkeys(i.details for i in failed):
        yield Sentence("cloud", "refuses", _by_type(i for i in failed if i.details == details), details)


def _arrivals(plan: Plan, before: dict[str, Instance | None]) -> Iterator[Sentence]:
    up = [
        i
        for i in plan.writes
        if i.state is _S.RAY_RUNNING and i.kind is not NodeKind.HEAD and _was(before, i) is not _S.RAY_RUNNING
    ]
    if up:
        yield Sentence("muster", "ready:", _by_type(up))


def _purchases(plan: Plan, before: dict[str, Instance | None]) -> Iterator[Sentence]:
    wishes = [i for i in plan.writes if _was(before, i) is None and i.state in (_S.QUEUED, _S.REQUESTED)]
    if not wishes:
        return
    waiting: Counter[str] = Counter()
    for verdict in plan.verdicts:
        if verdict.subject in _REQUESTS and verdict.reason is Reason.WAITING_FOR_LAUNCH:
            waiting[verdict.subject_id] += verdict.count
    price = sum(i.price_per_hour or 0.0 for i in wishes)
    whom = ", ".join(f"{count} of “{name}”" for name, count in waiting.items())
    yield Sentence("muster", "buys", _by_type(wishes), f"{whom} waiting for it, +${price:.2f}/h")


def _drains(scene: Scene, plan: Plan) -> Iterator[Sentence]:
    drained = [a for a in plan.actions if isinstance(a, Drain)]
    report = scene.runtime.report_read
    idle = {node.node_id: node.idle_s for node in report.nodes} if report else {}
    for cause in dict.fromkeys(a.cause for a in drained):
        group = [a for a in drained if a.cause is cause]
        why = cause.name.lower().replace("_", " ")
        if cause is StopCause.IDLE:
            why = f"idle for {min(idle.get(a.node_id, 0.0) for a in group) / 60:.0f} min, nothing needs them"
        yield Sentence("muster", "drains", _by_type(scene.store.records[a.instance_id] for a in group), why)


def _ends(plan: Plan) -> Iterator[Sentence]:
    gone = [i for i in plan.writes if i.state is _S.TERMINATED and i.cloud_id]
    if gone:
        yield Sentence("muster", "gone:", _by_type(gone))


def _was(before: dict[str, Instance | None], instance: Instance) -> InstanceState | None:
    old = before.get(instance.instance_id)
    return old.state if old else None


def _by_type(instances: Iterable[Instance]) -> Counter[str]:
    return Counter(instance.node_type for instance in instances)
