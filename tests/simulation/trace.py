"""Write one fixed-column line per tick, and hashes all of them.

Two runs of one seed give the same hash, on any machine and under any PYTHONHASHSEED.
"""

from __future__ import annotations

import hashlib
from collections import Counter

from tests.simulation.cluster import FaultyCluster

from muster.cluster.plan import Drain, Install, Launch, Plan, Terminate
from muster.cluster.states import PENDING, RUNNING

HEADER = (
    f"{'tick':>5} {'time':>7} {'phase':<6} {'life':>4} {'ledger':>6}  {'coming':>6} {'runs':>4} {'going':>5}"
    f"  {'machines':>8} {'tasks':>5}  {'spent $':>9}  what happened"
)


class Trace:
    """Collects lines; two runs are compared by their `digest`."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._injected: dict[str, int] = {}
        self._edits = 0

    def line(self, cluster: FaultyCluster, tick: int, phase: str) -> tuple[str, bool]:
        """Return this tick's line, and whether anything happened in it."""
        what = self._happened(cluster)
        columns = (
            f"{tick:>5} {cluster.world.time:>7.0f} {phase:<6} {cluster.lives:>4} {cluster.store.version:>6}"
            f"  {_counts(cluster)}  {len(cluster.cloud.alive()):>8} {cluster.runtime.pending_tasks():>5}"
            f"  {cluster.spent():>9.4f}"
        )
        text = f"{columns}  {what}".rstrip()
        self._hash.update(text.encode())
        return text, bool(what)

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()[:16]

    def _happened(self, cluster: FaultyCluster) -> str:
        faults = cluster.faults.injected
        new = [kind for kind, count in faults.items() if count > self._injected.get(kind, 0)]
        self._injected = dict(faults)
        edits = cluster.spec.edits[self._edits :]
        self._edits = len(cluster.spec.edits)
        parts = [*_acts(cluster.plan), *(f"edit: {text}" for text in edits)]
        if new:
            parts.append(f"({', '.join(new)})")
        return " ".join(parts)


def _acts(plan: Plan | None) -> list[str]:
    if plan is None:
        return ["(controller down)"]
    states = Counter(instance.state.name for instance in plan.writes)
    parts = [f"{name}={count}" for name, count in states.items()]
    for action in plan.actions:
        match action:
            case Launch():
                launched = ",".join(f"{count}x{name}" for name, count in action.shape.items())
                parts.append(f"+{launched}" + (f"@{action.offer.name}" if action.offer else ""))
            case Terminate():
                parts.append("-" + ",".join(action.cloud_ids))
            case Drain():
                parts.append(f"drain:{action.node_id}")
            case Install():
                parts.append(f"install:{action.cloud_id}")
            case _:
                parts.append("resize")
    return parts


def _counts(cluster: FaultyCluster) -> str:
    states = Counter(instance.state for instance in cluster.store.live.values())
    coming = sum(states[state] for state in PENDING)
    runs = sum(states[state] for state in RUNNING)
    return f"{coming:>6} {runs:>4} {sum(states.values()) - coming - runs:>5}"
