"""Run the real controller over a drawn world, tick by tick in virtual time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import TypeVar

from msgspec.structs import replace
from tests.strangers.cloud import Cloud
from tests.strangers.draw import (
    FAULTS,
    draw_constraint,
    draw_faults,
    draw_spec,
    draw_work,
    edit_limits,
    edit_types,
    room_of,
)
from tests.strangers.process import Process
from tests.strangers.runtime import Runtime
from tests.strangers.truth import Work, World
from tests.strangers.watch import Violation, Watch

from muster.cluster.model import ClusterSpec, Strategy
from muster.cluster.ports import InstanceStore, TickResult
from muster.stores.ledger.backup import settle_restored
from muster.stores.ledger.memory import MemoryInstanceStore
from muster.stores.ledger.store import SqliteInstanceStore

T = TypeVar("T")
CHAOS_S = 1200.0
PATIENCE_S = 400.0  # after which a user withdraws what was never started
SERVED_WITHIN_S = 1500.0  # longer than any timeout of these clusters
MOST_WAITING = 8
SETTLED_WITHIN_S = 2400.0


@dataclass
class Outcome:
    """What became of one world."""

    seed: int
    violations: tuple[Violation, ...]
    waits_s: tuple[float, ...]  # from the end of the faults to the start of each work that waited
    ticks: int
    hits: dict[str, int] = field(default_factory=dict)

    @property
    def median_wait_s(self) -> float:
        return median(self.waits_s) if self.waits_s else 0.0


class Story:
    """One world from its first tick to its last; without a spec, as the seed draws it."""

    def __init__(
        self,
        seed: int,
        without: Sequence[str] = (),
        folder: Path | None = None,
        *,
        spec: ClusterSpec | None = None,
        only: Sequence[str] = (),
    ) -> None:
        self.seed = seed
        drawn = draw_faults(seed) if spec is None else {}
        faults = {name: rate for name, rate in drawn.items() if name not in without}
        if only:
            faults = {name: FAULTS[name] for name in only}
        self.world = World(seed, spec or draw_spec(seed, faults), faults)
        draw = self.world.stream("story")
        self.cloud = Cloud(self.world, installs_runtime=not self.world.spec.install_runtime)
        self.runtime = Runtime(self.world)
        self.watch = Watch(self.world)
        self.cloud.on_made = self.watch.made
        self.buys_offers, self.takes_next = draw.random() < 0.8, draw.random() < 0.5
        self._file = folder / f"{seed}.sqlite" if folder is not None and draw.random() < 0.15 else None
        self.store: InstanceStore = MemoryInstanceStore()
        self._open_ledger()
        self._copies: list[MemoryInstanceStore] = []
        self.epoch = self.ticks = 0
        self.log: Callable[[Story, TickResult | None], None] = lambda story, result: None
        self.head = self.cloud.start_head()
        self.process = Process(self, 0)

    def _open_ledger(self) -> None:
        if self._file is not None:
            if isinstance(self.store, SqliteInstanceStore):
                self.store.close()
            self.store = SqliteInstanceStore(self._file, clock=self.world.clock)

    def run(self) -> Outcome:
        while self.world.t < CHAOS_S:
            self.step(self.world.stream("pace").choice((3.0, 6.0, 10.0, 15.0)))
            self._users()
            self._accidents()
        waits = self._calm()
        self._settle()
        if isinstance(self.store, SqliteInstanceStore):
            if self.store.integrity() != "ok":
                self.watch.report("ledger", self.store.integrity())
            self.store.close()
        found = tuple(self.watch.found.values())
        return Outcome(self.seed, found, waits, self.ticks, dict(self.world.hits))

    def step(self, seconds: float) -> None:
        world = self.world
        world.advance(seconds)
        result = self.process.tick()
        self.ticks += 1
        is_blind = result is None or result.snapshot.cloud is None or result.runtime is None
        self.watch.tick(seconds, is_blind=is_blind or not (result and result.is_decided))
        self.log(self, result)
        if world.is_calm and result is not None:
            self._tag_unusable(result)
        if self.process.is_dead:
            self.restart(world.stream("downtime").uniform(1, 60))

    def _tag_unusable(self, result: TickResult) -> None:
        """Somebody gives a machine its type tag back where the log says that nobody else can know it."""
        named = {note.source for note in result.plan.quarantined}
        for machine in self.world.alive():
            is_used = any(one.cloud_id == machine.cloud_id for one in result.records)
            if not machine.shown_type and not is_used and f"machine {machine.cloud_id}" in named:
                machine.shown_type = machine.node_type

    def restart(self, downtime_s: float) -> None:
        """Start the next process; meanwhile somebody may have set the clock."""
        world = self.world
        world.advance(downtime_s)
        self.watch.tick(downtime_s, is_blind=True)
        if world.hit("clock-ahead"):
            world.clock.jump(30 * 86_400.0)
        elif world.hit("clock-back"):
            world.clock.jump(-3600.0)
        self.epoch += 1
        self._open_ledger()
        self.process = Process(self, self.epoch)

    def _users(self) -> None:
        world, draw = self.world, self.world.stream("users")
        world.works = [
            work for work in world.works if not work.waits or world.t - work.arrived_at < PATIENCE_S
        ]
        if draw.random() < 0.07:
            world.works += draw_work(world, draw)
        if draw.random() < 0.015:
            world.constraint = () if world.constraint else draw_constraint(world, draw)
        if world.hit("types-edited"):
            edit_types(world, world.stream("edits"))
        if world.hit("limits-edited"):
            edit_limits(world, world.stream("edits"))
        if world.hit("outsider"):
            types = [known.name for known in world.spec.node_types if known.name != "head"]
            self.cloud.start_by_hand(world.stream("outsiders").choice(types))

    def _accidents(self) -> None:
        world = self.world
        for machine in tuple(world.alive()):
            node = world.node_on(machine)
            if machine.is_head:
                continue
            if world.hit("machine-dies"):
                world.end_machine(machine, world.stream("deaths").uniform(0, 20))
            elif node is not None and world.hit("node-dies"):
                world.kill_node(node, world.stream("deaths").uniform(0, 20))
            elif node is not None and world.hit("node-restarts"):
                world.kill_node(node)
                machine.boots_at = world.t + world.stream("deaths").uniform(0, 20)
        if isinstance(self.store, MemoryInstanceStore) and self.ticks % 20 == 0:
            self._copies.append(self.store.copy())
        if world.hit("head-replaced"):
            self.replace_head()

    def replace_head(self) -> None:
        """A new head takes over; the machine of the old one is still listed for a while.

        Where the runtime keeps its state elsewhere, nodes live on; otherwise they go with the old head.
        """
        world, draw = self.world, self.world.stream("heads")
        old = world.node_on(self.head)
        keeps_state = draw.random() < 0.5
        self.head.listed_for_s = draw.uniform(0, 600)
        world.end_machine(self.head, draw.uniform(0, 30))
        if not keeps_state:
            for node in world.nodes:
                if node.lives:
                    world.kill_node(node)
            self.runtime.restart({node.node_id for node in world.nodes})
        elif old is not None and draw.random() < 0.3:
            self.runtime.forgotten.add(old.node_id)
        self.head = self.cloud.start_head()
        if "ledger-older" in world.faults and self._copies:
            self.store = draw.choice(self._copies[-4:]).copy()
            settle_restored(
                self.store,
                f"t-restored-{self.epoch}",
                world.clock.now(),
                is_set_up_again=world.spec.install_runtime,
            )
            self.watch.excused += world.spend()  # what the copy does not know
        self.restart(draw.uniform(100, 200))

    def _calm(self) -> tuple[float, ...]:
        """End all faults and the budget; what fits must be served within a time. Returns the waits."""
        world, draw = self.world, self.world.stream("calm")
        world.is_calm, world.constraint = True, ()
        world.spec = replace(world.spec, budget=None)
        self.process.make_immortal()
        for machine in world.machines:
            if "node-stays-unknown" not in machine.quirks:  # somebody has started it again as the log says
                machine.quirks -= {"node-without-both"}
            machine.hidden_until = 0.0
        world.works = [work for work in world.works if not work.waits or fits(world, work)]
        for _ in range(draw.randint(1, 3)):
            world.works += [work for work in draw_work(world, draw, that_fits=True) if fits(world, work)]
        waiting, began = [work for work in world.works if work.waits][-MOST_WAITING:], world.t
        world.works = [work for work in world.works if not work.waits or work in waiting]
        within_s = SERVED_WITHIN_S + sum(work.duration_s for work in world.works)  # one after the other
        for work in waiting:
            work.started_at = None
        while any(work.started_at is None for work in waiting) and world.t - began < within_s:
            self.step(8.0 if world.t - began < 300 else 20.0)
        for work in waiting:
            if work.started_at is None:
                self.watch.report("unserved", f"{work.name} {work.strategy} {work.bundles}")
        return tuple(work.started_at - began for work in waiting if work.started_at is not None)

    def _settle(self) -> None:
        """With nothing left to do, the cluster shrinks to its minimums and stays there."""
        world, began = self.world, self.world.t
        world.works = [work for work in world.works if not work.waits]
        quiet = 0
        while quiet < 5 and world.t - began < SETTLED_WITHIN_S:
            self.step(60.0 if quiet else 20.0)
            is_quiet = not self.watch.leftovers() and not any(work.places for work in world.works)
            quiet = quiet + 1 if is_quiet else 0
        wrong = self.watch.leftovers()
        if wrong:
            self.watch.report("leftovers", "; ".join(wrong))


def fits(world: World, work: Work) -> bool:
    """Return whether there is a type with room for all of the work, next to machines of unknown nodes."""
    spec = world.spec
    kept = world.kept_for_unknown()
    types = {spec.head_node_type, *(machine.node_type for machine in kept)}
    for known in spec.node_types:
        room = room_of(spec, known) - len(kept) if known.name not in types else 0
        count = len(work.bundles)
        needed, nodes = work.bundles[0], count
        if work.strategy is Strategy.STRICT_PACK:
            needed, nodes = needed.times(count), 1
        if known.resources.holds(needed) and room >= nodes:
            return True
    return False
