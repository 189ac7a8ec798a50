"""Model work on simulated nodes: tasks and gangs, and where a node has room for them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from muster.base.ids import NodeId
from muster.base.resources import Resources
from muster.cluster.model import LabelOperator, NodeStatus, Selector, Strategy
from muster.sim.cluster.machines import CloudMachine

FOREVER = float("inf")


class TaskClass(NamedTuple):
    """What makes two tasks equal to a scheduler."""

    shape: Resources
    selectors: tuple[Selector, ...] = ()
    name: str = ""


@dataclass
class Task:
    """One task, or one bundle of a gang; it starts again from nothing when its node goes."""

    task_id: int
    like: TaskClass
    duration_s: float
    submitted_at: float = 0.0
    gang: GangWork | None = None
    attempt: int = 0
    node: SimNode | None = None


class GangListener(Protocol):
    """Who submitted a gang and runs something in its bundles."""

    def placed(self) -> None:
        """Every bundle has a node; called while work is being placed, so it must not change that."""
        ...

    def draining(self, deadline_at: float) -> None:
        """One of its nodes takes nothing new and may be ended at `deadline_at`."""
        ...

    def frozen(self) -> None:
        """One of its machines ended, which the runtime has not noticed yet."""
        ...

    def lost(self, node: SimNode) -> None:
        """A node of it is dead; the gang is withdrawn."""
        ...


@dataclass
class GangWork:
    """Has bundles that start together and end together."""

    gang_id: str
    strategy: Strategy
    tasks: list[Task]
    duration_s: float
    listener: GangListener | None = None  # None: it is placed again when a node of it is lost

    @property
    def placed(self) -> bool:
        return self.tasks[0].node is not None


@dataclass
class SimNode:
    """A node of the runtime on one machine."""

    node_id: NodeId
    machine: CloudMachine
    total: Resources
    labels: dict[str, str]
    is_head: bool = False
    free: dict[str, int] = field(default_factory=dict)
    running: dict[int, Task] = field(default_factory=dict)
    joined_at: float = 0.0
    idle_since: float = 0.0
    status: NodeStatus = NodeStatus.RUNNING  # RUNNING, DRAINING or DEAD; idleness is worked out
    died_at: float | None = None
    drain_deadline_at: float | None = None  # when work running here may be ended
    hides_id: bool = False  # reports no cloud id
    ip: str = ""

    def __post_init__(self) -> None:
        self.free = dict(self.total)

    @property
    def serves(self) -> bool:
        return self.status is NodeStatus.RUNNING

    @property
    def alive(self) -> bool:
        return self.status is not NodeStatus.DEAD

    def has_room(self, like: TaskClass) -> bool:
        free = self.free
        for name, units in like.shape.items():
            if units > free.get(name, 0):
                return False
        return not like.selectors or any(matches(selector, self.labels) for selector in like.selectors)

    def take(self, task: Task) -> None:
        for name, units in task.like.shape.items():
            self.free[name] = self.free.get(name, 0) - units
        self.running[task.task_id] = task
        task.node = self
        if task.gang is not None:
            self.labels[f"_PG_{task.gang.gang_id}"] = ""

    def release(self, task: Task, now: float) -> None:
        for name, units in task.like.shape.items():
            self.free[name] += units
        del self.running[task.task_id]
        task.node = None
        if task.gang is not None:
            self.labels.pop(f"_PG_{task.gang.gang_id}", None)
        if not self.running:
            self.idle_since = now


def matches(selector: Selector, labels: Mapping[str, str]) -> bool:
    """Return whether a node with these labels satisfies every condition."""
    for condition in selector:
        found = labels.get(condition.key) in condition.values
        if found is not (condition.operator is LabelOperator.IN):
            return False
    return True


def spots_for(gang: GangWork, nodes: list[SimNode]) -> list[SimNode] | None:
    """Return a node for each bundle, all or none: first fit under the gang's strategy."""
    like, count = gang.tasks[0].like, len(gang.tasks)
    if any(task.like != like for task in gang.tasks):
        return _spots_for_mixed(gang, nodes)
    room = [(node, _how_many(node, like, count)) for node in nodes]
    if gang.strategy is Strategy.STRICT_PACK:
        return next(([node] * count for node, fits in room if fits >= count), None)
    if gang.strategy is Strategy.STRICT_SPREAD:
        spread = [node for node, fits in room if fits]
        return spread[:count] if len(spread) >= count else None
    spots = [node for node, fits in room for _ in range(fits)]
    return spots[:count] if len(spots) >= count else None


def _spots_for_mixed(gang: GangWork, nodes: list[SimNode]) -> list[SimNode] | None:
    """Return a node for each of unequal bundles, in their order: first fit in what earlier ones leave."""
    candidates = [[node] for node in nodes] if gang.strategy is Strategy.STRICT_PACK else [nodes]
    for allowed in candidates:
        spots = _first_fit(gang, allowed)
        if spots is not None:
            return spots
    return None


def _first_fit(gang: GangWork, nodes: list[SimNode]) -> list[SimNode] | None:
    taken: dict[NodeId, Resources] = {}
    spots: list[SimNode] = []
    for task in gang.tasks:
        for node in nodes:
            before = taken.get(node.node_id)
            if before is not None and gang.strategy is Strategy.STRICT_SPREAD:
                continue
            both = task.like.shape if before is None else before.plus(task.like.shape)
            if node.has_room(task.like._replace(shape=both)):
                taken[node.node_id] = both
                spots.append(node)
                break
        else:
            return None
    return spots


def _how_many(node: SimNode, like: TaskClass, at_most: int) -> int:
    if not node.has_room(like):
        return 0
    return min([at_most, *(node.free[name] // units for name, units in like.shape.items() if units)])


def listeners_on(node: SimNode) -> Iterator[GangListener]:
    """Yield who runs something in the gangs of a node, each once."""
    gangs = {task.gang.gang_id: task.gang for task in node.running.values() if task.gang is not None}
    for gang in gangs.values():
        if gang.listener is not None:
            yield gang.listener
