"""Run muster's reconcile, alone and as a whole tick with a SQLite ledger, where nothing is to be done."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path

from msgspec.structs import replace

from bench.fleet import HEAD_TYPE, IDLE_TIMEOUT_S, MAX_WORKERS, TYPES, Machine, steady
from bench.measure import Timed, timed
from muster.base.clock import ManualClock
from muster.base.ids import CloudId, InstanceId, NodeId, RequestId
from muster.base.resources import Resources
from muster.cluster.model import (
    CloudInstance,
    ClusterSpec,
    Instance,
    NodeKind,
    NodeReport,
    NodeType,
    RuntimeReport,
    StatusChange,
)
from muster.cluster.plan import Plan
from muster.cluster.reconcile import reconcile
from muster.cluster.snapshot import Snapshot
from muster.cluster.states import InstanceState
from muster.stores.ledger.state import Retention
from muster.stores.ledger.store import SqliteInstanceStore

STARTED_AT = 1_000_000.0
TICK_S = 5.0
KEEP_ALL = Retention(max_age_s=1e12, max_ended=10**9, max_decisions=10**9)
BATCH = 5_000
HEAD_MARK = {"node:__internal_head__": 1.0}
RUNNING_HISTORY = (
    InstanceState.QUEUED,
    InstanceState.REQUESTED,
    InstanceState.ALLOCATED,
    InstanceState.RAY_RUNNING,
)


class SteadyCluster:
    """Has a ledger with `count` running and `ended` terminated instances, and its world."""

    def __init__(self, path: Path, count: int, ended: int = 0) -> None:
        self.clock = ManualClock(STARTED_AT)
        self.machines = steady(count)
        self.spec = spec()
        self._path = path
        self.store = self._open(None)
        write_all(self.store, (ended_record(index) for index in range(ended)))
        write_all(self.store, (record_of(machine) for machine in self.machines))
        self._ticks = 0
        for _ in range(2):  # the first ticks write down what planning remembers from now on
            self.tick()

    def tick(self) -> Timed:
        """Load, reconcile, commit; the value is whether the tick left everything as it was."""
        before = self.store.load().version
        result = timed(self.observe, self._decide)
        version, plan = result.value
        return Timed(version == before and is_quiet(plan), result.cpu_s)

    def tick_with_a_change(self) -> Timed:
        """Do the same and write one record: what a tick that does something costs in addition."""
        result = timed(self.observe, self._decide_and_write)
        return Timed(True, result.cpu_s)

    def reconcile_only(self) -> Timed:
        """Run the pure function alone."""
        result = timed(lambda: self._snapshot(self.observe()), reconcile)
        return Timed(is_quiet(result.value), result.cpu_s)

    def restart(self) -> Timed:
        """Measure what a restarted controller needs to open the ledger and read it."""
        result = timed(self.close, self._open)
        self.store = result.value
        return Timed(len(self.store.load().instances) == len(self.machines), result.cpu_s)

    def _open(self, _: None) -> SqliteInstanceStore:
        return SqliteInstanceStore(self._path, clock=self.clock, retention=KEEP_ALL)

    def observe(self) -> Snapshot:
        """Return what the ports would report, made again (no cached sums or keys of an earlier tick)."""
        self._ticks += 1
        self.clock.advance(TICK_S)
        return Snapshot(
            tick_id=f"t-{self._ticks}",
            now=self.clock.now(),
            version=0,
            spec=self.spec,
            cloud=cloud_of(self.machines),
            runtime=RuntimeReport(version=self._ticks, nodes=tuple(node_of(m) for m in self.machines)),
        )

    def _snapshot(self, observed: Snapshot) -> Snapshot:
        ledger = self.store.load()
        return replace(
            observed,
            version=ledger.version,
            instances=ledger.instances,
            memory=ledger.memory,
            recent_failures=ledger.recent_failures,
        )

    def _decide(self, observed: Snapshot) -> tuple[int, Plan]:
        snapshot = self._snapshot(observed)
        plan = reconcile(snapshot)
        return self.store.commit(snapshot.version, plan), plan

    def _decide_and_write(self, observed: Snapshot) -> int:
        snapshot = self._snapshot(observed)
        plan = reconcile(snapshot)
        record = next(reversed(snapshot.instances.values()))
        changed = replace(record, internal_ip=f"10.0.{self._ticks % 250}.1")
        return self.store.commit(snapshot.version, replace(plan, writes=(*plan.writes, changed)))

    def close(self) -> None:
        self.store.close()


def is_quiet(plan: Plan) -> bool:
    """Return whether nothing was decided and nothing set aside."""
    return not (plan.writes or plan.actions or plan.quarantined)


def write_all(store: SqliteInstanceStore, records: Iterable[Instance]) -> None:
    """Write records in batches, as ticks would have."""
    waiting = iter(records)
    while batch := tuple(islice(waiting, BATCH)):
        ledger = store.load()
        store.commit(
            ledger.version,
            Plan(tick_id=f"seed-{ledger.version}", at=STARTED_AT, writes=batch, memory=ledger.memory),
        )


def spec() -> ClusterSpec:
    types = tuple(
        NodeType(
            name=name,
            resources=Resources.of(bag),
            max_nodes=1 if name == HEAD_TYPE else MAX_WORKERS,
            price_per_hour=None if name == HEAD_TYPE else 1.0,
        )
        for name, bag in TYPES.items()
    )
    return ClusterSpec(
        cluster_name="bench",
        head_node_type=HEAD_TYPE,
        node_types=types,
        max_nodes=MAX_WORKERS + 1,
        idle_timeout_s=IDLE_TIMEOUT_S,
    )


def kind_of(machine: Machine) -> NodeKind:
    return NodeKind.HEAD if machine.is_head else NodeKind.WORKER


def cloud_of(machines: Iterable[Machine]) -> Mapping[CloudId, CloudInstance]:
    return {
        CloudId(machine.cloud_id): CloudInstance(
            cloud_id=CloudId(machine.cloud_id), node_type=machine.node_type, kind=kind_of(machine)
        )
        for machine in machines
    }


def node_of(machine: Machine) -> NodeReport:
    mark = HEAD_MARK if machine.is_head else {}
    return NodeReport(
        node_id=NodeId(machine.node_id),
        cloud_id=CloudId(machine.cloud_id),
        node_type=machine.node_type,
        is_head=machine.is_head,
        total=Resources.of({**machine.total, **mark}),
        available=Resources.of({**machine.available, **mark}),
    )


def record_of(machine: Machine) -> Instance:
    return Instance(
        instance_id=InstanceId(machine.instance_id),
        node_type=machine.node_type,
        state=InstanceState.RAY_RUNNING,
        kind=kind_of(machine),
        cloud_id=CloudId(machine.cloud_id),
        node_id=NodeId(machine.node_id),
        launch_request_id=RequestId("launch-1"),
        price_per_hour=None if machine.is_head else 1.0,
        history=history(RUNNING_HISTORY),
    )


def ended_record(index: int) -> Instance:
    """Return the record of a machine that ended some days ago."""
    workers = [name for name in TYPES if name != HEAD_TYPE]
    return Instance(
        instance_id=InstanceId(f"gone-{index:06d}"),
        node_type=workers[index % len(workers)],
        state=InstanceState.TERMINATED,
        cloud_id=CloudId(f"cloud-gone-{index:06d}"),
        node_id=NodeId(f"{10**9 + index:056x}"),
        launch_request_id=RequestId(f"launch-gone-{index // 10}"),
        history=history(
            (*RUNNING_HISTORY, InstanceState.RAY_STOPPED, InstanceState.TERMINATING, InstanceState.TERMINATED)
        ),
    )


def history(states: Iterable[InstanceState]) -> tuple[StatusChange, ...]:
    return tuple(StatusChange(state, STARTED_AT - 3600.0 + step) for step, state in enumerate(states))
