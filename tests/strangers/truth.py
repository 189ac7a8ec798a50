"""Hold what is really there: machines, nodes, work and time. Ports show parts of it, invariants all."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from muster.base.clock import ManualClock
from muster.base.resources import Resources
from muster.base.rng import Seed, Stream
from muster.cluster.cost import billed_s
from muster.cluster.model import ClusterSpec, Demand, NodeType, Offer, StopCause, Strategy

START = 1_700_000_000.0  # wall-clock time at which every world begins


@dataclass(eq=False)
class Machine:
    """A machine of the cloud, from its purchase until long after its end."""

    cloud_id: str
    node_type: str
    made_at: float
    ip: str
    total: Resources
    request_id: str | None = None
    offer: Offer | None = None
    price: float = 0.0
    is_head: bool = False
    quirks: frozenset[str] = frozenset()
    shown_type: str = ""  # the type tag, as it is listed
    shown_request: str | None = None
    borrowed_id: str = ""  # the cloud id in a cloned image
    listed_from: float = 0.0
    listed_for_s: float = 0.0  # after its end
    hidden_until: float = 0.0
    was_listed: bool = False
    boots_at: float | None = None  # when its node joins; None: never by itself
    ordered_at: float | None = None  # when a decision to terminate it was stored
    asked_at: float | None = None  # the first terminate call that reached the cloud or got lost on its way
    ends_at: float | None = None
    gone_at: float | None = None
    drain_asked_at: float | None = None  # the last drain of its node that was not for idleness
    idle_drain_at: float | None = None  # the last one that was
    unpaid_at: float | None = None  # the first drain of its node because of the budget
    taken_at: float | None = None  # an interruption notice: when the cloud takes it

    @property
    def exists(self) -> bool:
        return self.gone_at is None

    def cost(self, now: float) -> float:
        end = now if self.gone_at is None else self.gone_at
        return self.price * billed_s(self.offer, end - self.made_at) / 3600.0


@dataclass(eq=False)
class Work:
    """A task, or a gang: bundles that run at the same time or not at all."""

    name: str
    bundles: tuple[Resources, ...]
    duration_s: float
    arrived_at: float
    strategy: Strategy | None = None  # None: a task
    places: list[Node] = field(default_factory=list)
    ends_at: float = 0.0
    started_at: float | None = None
    is_done: bool = False

    @property
    def waits(self) -> bool:
        return not self.places and not self.is_done


@dataclass(eq=False)
class Node:
    """A process of the runtime on a machine."""

    node_id: str
    machine: Machine
    joined_at: float
    idle_since: float
    free: Resources
    is_head: bool = False
    work: list[Work] = field(default_factory=list)
    cause: StopCause | None = None  # of the drain that the node accepted
    drained_until: float | None = None
    died_at: float | None = None
    shown_alive_until: float = 0.0  # the runtime notices a death late
    dies_at: float | None = None

    @property
    def lives(self) -> bool:
        return self.died_at is None

    @property
    def is_draining(self) -> bool:
        return self.drained_until is not None


class World:
    """Machines, nodes and work in virtual time. `t` is the true time; the wall clock may be anything."""

    def __init__(self, seed: int, spec: ClusterSpec, faults: dict[str, float]) -> None:
        self.seed, self.spec, self.faults = Seed(seed), spec, faults
        self.clock = ManualClock(START)
        self.is_calm = False
        self.machines: list[Machine] = []
        self.nodes: list[Node] = []
        self.works: list[Work] = []
        self.retired: list[NodeType] = []  # types that an edit removed
        self.constraint: tuple[Demand, ...] = ()
        self.needed_at = 0.0  # when something was last wanted
        self.hits: defaultdict[str, int] = defaultdict(int)
        self._streams: dict[str, Stream] = {}
        self._count = 0

    @property
    def t(self) -> float:
        return self.clock.monotonic()

    def stream(self, name: str) -> Stream:
        if name not in self._streams:
            self._streams[name] = self.seed.derive(name)
        return self._streams[name]

    def hit(self, fault: str) -> bool:
        """Return whether a fault strikes now; each has its own stream, so that one can be switched off."""
        rate = 0.0 if self.is_calm else self.faults.get(fault, 0.0)
        struck = bool(rate) and self.stream(fault).random() < rate
        if struck:
            self.hits[fault] += 1
        return struck

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count:04x}"

    def fresh_ip(self) -> str:
        """Clouds give the address of a machine that is gone to the next one."""
        taken = {m.ip for m in self.machines if m.exists}
        numbers = iter(range(1, 10_000)) if "ip-reused" in self.faults else iter((len(self.machines) + 1,))
        return next(ip for ip in (f"10.0.{n // 250}.{n % 250}" for n in numbers) if ip not in taken)

    def machine(self, cloud_id: str) -> Machine | None:
        """Ids of this cloud are equal in any case."""
        return next((m for m in self.machines if m.cloud_id.lower() == cloud_id.lower()), None)

    def node_on(self, machine: Machine) -> Node | None:
        return next((n for n in self.nodes if n.machine is machine and n.lives), None)

    def kept_for_unknown(self) -> list[Machine]:
        """Return the machines on which a node that nothing identifies may be: none of them is given up.

        That is documented; one node cannot be on all of them, but nothing shows on which it is.
        """
        unknown = [m for m in self.alive() if "node-stays-unknown" in m.quirks and self.node_on(m)]
        types = {machine.node_type for machine in unknown}
        bare = (m for m in self.alive() if m.node_type in types and self.node_on(m) is None)
        return [*unknown, *bare]

    def alive(self) -> Iterator[Machine]:
        return (m for m in self.machines if m.exists)

    def join(self, machine: Machine, *, is_head: bool = False) -> Node:
        node = Node(self.fresh("n"), machine, self.t, self.t, machine.total, is_head=is_head)
        self.nodes.append(node)
        return node

    def kill_node(self, node: Node, noticed_after_s: float = 0.0) -> None:
        node.died_at, node.shown_alive_until = self.t, self.t + noticed_after_s
        while node.work:
            self._take_back(node.work[0])

    def end_machine(self, machine: Machine, noticed_after_s: float = 0.0) -> None:
        if machine.gone_at is None:
            machine.gone_at = self.t
            for node in self.nodes:
                if node.machine is machine and node.lives:
                    self.kill_node(node, noticed_after_s)

    def _take_back(self, work: Work) -> None:
        """Work whose node is gone waits again, from its beginning."""
        for place, bundle in zip(work.places, work.bundles, strict=True):
            place.work.remove(work)
            place.free = place.free.plus(bundle)
            place.idle_since = self.t
        work.places = []

    def spend(self) -> float:
        return sum(m.cost(self.t) for m in self.machines)

    # What happens by itself as time passes.

    def advance(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self._finish_work()
        for machine in self.machines:
            self._age(machine)
        for node in self.nodes:
            is_empty = node.is_draining and (not node.work or self.t >= (node.drained_until or 0.0))
            if node.lives and (is_empty or (node.dies_at is not None and self.t >= node.dies_at)):
                self.kill_node(node)
        self._place_work()
        is_moving = any(n.is_draining and n.work for n in self.nodes if n.lives)
        if self.constraint or is_moving or any(w.waits for w in self.works):
            self.needed_at = self.t

    def _finish_work(self) -> None:
        for work in self.works:
            if work.places and self.t >= work.ends_at:
                self._take_back(work)
                work.is_done = True
        if len(self.works) > 60:
            self.works = [w for w in self.works if not w.is_done]

    def _age(self, machine: Machine) -> None:
        if machine.gone_at is not None:
            return
        for due in (machine.ends_at, machine.taken_at):
            if due is not None and self.t >= due:
                self.end_machine(machine, 15.0)
                return
        if machine.boots_at is not None and self.t >= machine.boots_at:
            machine.boots_at = None
            self._boot(machine)

    def _boot(self, machine: Machine) -> None:
        """A second node of one machine takes the place of the first, which may live on for a while."""
        earlier = self.node_on(machine)
        self.join(machine)
        if earlier is not None:
            earlier.dies_at = self.t + self.stream("twice").choice((0.0, 40.0))
        elif "node-twice" in machine.quirks:
            machine.boots_at = self.t + self.stream("twice").uniform(10, 90)
            machine.quirks -= {"node-twice"}

    def _place_work(self) -> None:
        usable = [n for n in self.nodes if n.lives and not n.is_draining]
        for work in self.works:
            if work.waits:
                places = fit(work, usable)
                if places is not None:
                    self._start(work, places)

    def _start(self, work: Work, places: list[Node]) -> None:
        work.places = places
        work.ends_at = self.t + work.duration_s
        work.started_at = self.t if work.started_at is None else work.started_at
        for node, bundle in zip(places, work.bundles, strict=True):
            node.work.append(work)
            node.free = node.free.minus(bundle)


def fit(work: Work, nodes: list[Node]) -> list[Node] | None:
    """Return a node for each bundle, fullest nodes first; None when there is not room for all."""
    ranked = sorted(nodes, key=lambda n: (sum(n.free.values()), n.node_id))
    free = {id(n): n.free for n in ranked}
    chosen: list[Node] = []
    for bundle in work.bundles:
        for node in ranked:
            is_new = node not in chosen
            if work.strategy is Strategy.STRICT_SPREAD and not is_new:
                continue
            if work.strategy is Strategy.STRICT_PACK and chosen and is_new:
                continue
            if free[id(node)].holds(bundle):
                free[id(node)] = free[id(node)].minus(bundle)
                chosen.append(node)
                break
        else:
            return _packed(work, ranked) if work.strategy is Strategy.STRICT_PACK else None
    return chosen


def _packed(work: Work, nodes: list[Node]) -> list[Node] | None:
    """The first node that holds the first bundle need not hold the others."""
    whole = Resources()
    for bundle in work.bundles:
        whole = whole.plus(bundle)
    return next(([n] * len(work.bundles) for n in nodes if n.free.holds(whole)), None)
