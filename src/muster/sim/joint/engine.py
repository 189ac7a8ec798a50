"""Implements the Engine port on the nodes of a simulated cluster, in the time of its world.

Each trial is a pending gang until a node has room for it, as Ray Tune shows its trials to an autoscaler; then
its process runs at the speed of that node, and is lost with it. Called by TrialController; decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf

from msgspec.structs import replace

from muster.base.ids import CloudId, NodeId
from muster.base.resources import EMPTY, Resources
from muster.cluster.model import Strategy
from muster.sim.cluster.build import SimulatedCluster
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.tasks import FOREVER, GangWork, SimNode
from muster.sim.cluster.world import World
from muster.sim.event_queue import ANY_TURN, GONE, Action, EventQueue, HasTurns
from muster.sim.tune.costs import Costs
from muster.sim.tune.curve import Curve, Report
from muster.sim.tune.engine import SimulatedEngine, SimulatedProcess
from muster.sim.tune.faults import FaultPlan
from muster.trials.events import (
    CapacityChanged,
    EngineEvent,
    StartTrial,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialPriced,
)
from muster.trials.spend import HOUR_S

PREEMPTED = TrialFailure(
    kind=TrialFailureKind.PREEMPTED, message="its node was taken back (preempted) while the trial ran"
)
NODE_LOST = TrialFailure(kind=TrialFailureKind.NODE_LOST, message="its node went away, simulated")


class WorldQueue(EventQueue):
    """A WorldQueue has its plans among the events of a world, beside those of everything else in it."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._world = world
        self._is_closed = False

    def _push(self, delay_s: float, who: HasTurns, turn: int, action: Action) -> None:
        def happen() -> None:
            is_due = turn == who.turn or (turn == ANY_TURN and who.turn != GONE)
            if is_due and not self._is_closed:
                action()

        self._world.after(delay_s, happen)

    def clear(self) -> None:
        self._is_closed = True


@dataclass
class TrialWork:
    """A TrialWork sums up what trials did on nodes, in seconds of their share of a node."""

    held_s: float = 0.0  # from a place on a node to its end
    held_usd: float = 0.0  # what these places cost, by what the cloud charges for the nodes
    machines: dict[CloudId, CloudMachine] = field(default_factory=dict)  # that ever held a trial
    repeated_s: float = 0.0  # work since the newest checkpoint, lost with a node
    restores: int = 0
    moves: dict[str, int] = field(default_factory=dict)  # trial -> how often its node was taken from it
    moved_at: dict[str, float] = field(
        default_factory=dict
    )  # trial -> when it last happened, by the wall clock
    losses: int = 0  # processes that ended with their node, before they could leave it


class TrialPlacement:
    """A TrialPlacement is one start of a trial: its gang, and what happens to the nodes of it."""

    def __init__(self, engine: JointEngine, command: StartTrial, curve: Curve, gang: GangWork) -> None:
        self.command, self.curve, self.gang = command, curve, gang
        self.deadline_at = inf  # when its node may be ended
        self.nodes: list[SimNode] = []
        self.share = 0.0
        self.placed_at = 0.0
        self.has_begun = False  # its process is up and has what it continues from
        self.saved_at = 0.0  # what was done since then would be repeated
        self._engine = engine

    @property
    def usd_per_hour(self) -> float:
        """Returns what its place costs: its share of each of its nodes."""
        return sum(node.machine.price_per_hour for node in self.nodes) * self.share

    def placed(self) -> None:
        self.nodes = [task.node for task in self.gang.tasks if task.node is not None]
        self.share = max(_share_of(self.gang.tasks[0].like.shape, node) for node in self.nodes)
        self._engine.begin(self)

    def draining(self, deadline_at: float) -> None:
        self.deadline_at = deadline_at
        self._engine.leave_unless_at_work(self)

    def frozen(self) -> None:
        self._engine.freeze(self)

    def lost(self, node: SimNode) -> None:
        self._engine.lose(self, was_draining=node.drain_deadline_at is not None)


class LingeringPlace:
    """A LingeringPlace is a place that no trial has taken over yet; it goes with its node."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end

    def placed(self) -> None: ...

    def draining(self, deadline_at: float) -> None:
        self.end()

    def frozen(self) -> None: ...

    def lost(self, node: SimNode) -> None:
        self.end()


def _share_of(shape: Resources, node: SimNode) -> float:
    """Returns the largest part of any resource of the node that the shape takes."""
    parts = (units / node.total.units(name) for name, units in shape.items() if node.total.units(name))
    return max(parts, default=0.0)


def _usd(placement: TrialPlacement, now: float) -> float:
    return placement.usd_per_hour * (now - placement.placed_at) / HOUR_S


SpeedOf = Callable[[str], float]  # node type -> steps per step of the reference


class JointEngine(SimulatedEngine):
    """A JointEngine runs the trials of one experiment on the nodes of a cluster; several may share one.

    Args:
        cluster: Where the trials run.
        name: Of the experiment: gangs carry it.
        curve: What trials do: a Curve, a function, or one Curve per trainable name.
        costs: What starting, saving and stopping take.
        speed_of: How fast a node type is.

    `poll` with a timeout runs the world event by event until something is ready; without one it returns what
    is ready now, so that several experiments of one world are handled in the order of their events.
    """

    def __init__(
        self,
        cluster: SimulatedCluster,
        name: str,
        curve: Curve | Report | Mapping[str, Curve],
        *,
        costs: Costs | None = None,
        speed_of: SpeedOf = lambda node_type: 1.0,
        faults: FaultPlan | None = None,
    ) -> None:
        super().__init__(cluster.world, {}, curve, costs=costs, faults=faults)
        self.timeline: EventQueue = WorldQueue(cluster.world)
        self.work = TrialWork()
        self._runtime, self._world, self._name = cluster.runtime, cluster.world, name
        self.is_priced = False  # whether trials are told what their places cost, as a monitor tells them
        self._speed_of, self._is_woken = speed_of, False
        self._limit: Resources | None = None  # what the cluster may become, where that is known
        self._placements: dict[str, TrialPlacement] = {}  # by trial, from the request to the end
        self._lingering: list[LingeringPlace] = []
        self._warm: set[NodeId] = set()  # nodes on which a trial has started
        self._gangs = 0
        self._known = Resources.of(self.capacity())
        self._ready.append(self._capacity_now())

    # -- the port ---------------------------------------------------------------------------------

    def capacity(self) -> Mapping[str, float]:
        """Returns what the nodes of now have in all, or where that is known, what they may become."""
        total = EMPTY
        for node in self._runtime.live_nodes():
            total = total.plus(node.total)
        most = {} if self._limit is None else self._limit.to_floats()
        return {name: max(most.get(name, 0.0), has) for name, has in {**most, **total.to_floats()}.items()}

    def bound(self, limit: Resources) -> None:
        """Sets what the cluster may become: no more is asked for than that holds, as on Ray."""
        self._limit = limit
        self._ready.append(self._capacity_now())

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        until = self._world.time + timeout_s
        while not self._ready and timeout_s > 0 and self._world.run_next(until):
            pass
        events, self._ready, self._is_woken = self._ready, [], False
        return events

    @property
    def has_news(self) -> bool:
        return bool(self._ready) or self._is_woken

    @property
    def is_idle(self) -> bool:
        """Returns whether nothing waits for a node, runs or is to be handled."""
        return not (self._ready or self._placements)

    def worker_s(self, workers: int) -> float:
        running = sum(
            (self._world.time - one.placed_at) * one.share for one in self._placements.values() if one.nodes
        )
        return self.work.held_s + running

    def held_usd(self) -> float:
        """Returns what the places of trials have cost so far, by the cloud's prices and the true time."""
        now, running = self._world.time, (one for one in self._placements.values() if one.nodes)
        return self.work.held_usd + sum(_usd(one, now) for one in running)

    def wake(self) -> None:
        """Has the tuner look at its clock, although nothing has happened."""
        self._is_woken = True

    def node_of(self, trial_id: str) -> NodeId | None:
        """Returns the node that holds a trial, the first one of several."""
        placement = self._placements.get(trial_id)
        return placement.nodes[0].node_id if placement is not None and placement.nodes else None

    def unsaved_s(self, trial_id: str) -> float:
        """Returns the seconds of work since the trial's newest checkpoint."""
        placement = self._placements.get(trial_id)
        return self._world.time - placement.saved_at if placement is not None and placement.nodes else 0.0

    def placements(self) -> Collection[TrialPlacement]:
        """Returns every start of a trial that waits for a node or has one."""
        return self._placements.values()

    def moves(self, trial_id: str) -> int:
        return self.work.moves.get(trial_id, 0)

    def moved_at(self, trial_id: str) -> float | None:
        return self.work.moved_at.get(trial_id)

    def close(self) -> None:
        # Those that wait first: they must not get the room that the others leave.
        for placement in sorted(self._placements.values(), key=lambda one: bool(one.nodes)):
            self._release(placement, keeps_place=False)
        self.end_lingering()
        self._processes.clear()
        super().close()

    # -- from a request to a node -----------------------------------------------------------------

    def _start_those_that_fit(self) -> None:
        while self._queue:
            command = self._queue[0]
            curve = self._curve_of(command)
            if curve is None:
                self._refuse(f"has the trainable {command.trainable_name!r}, for which there is no curve")
                continue
            self._queue.popleft()
            self._request(replace(command, may_reuse=False), curve)

    def _request(self, command: StartTrial, curve: Curve) -> None:
        """Asks for room. Bundles that differ are asked for as one, because nodes place equal ones only."""
        self._gangs += 1
        shapes = [Resources.of(bundle) for bundle in command.resources.bundles]
        if len(set(shapes)) > 1:
            shapes = [Resources.of(command.resources.required_resources)]
        tasks = [self._runtime.bundle(shape) for shape in shapes]
        gang_id = f"{self._name}-{command.trial_id}-{self._gangs}"
        gang = GangWork(gang_id, Strategy(command.resources.strategy), tasks, FOREVER)
        placement = TrialPlacement(self, command, curve, gang)
        gang.listener = placement
        self._placements[command.trial_id] = placement
        self.end_lingering()
        self._runtime.submit_gang(gang)

    def begin(self, placement: TrialPlacement) -> None:
        """Starts the process of a trial that has its place."""
        placement.placed_at = placement.saved_at = self._world.time
        self.work.machines.update({node.machine.cloud_id: node.machine for node in placement.nodes})
        if placement.command.checkpoint is not None:
            self.work.restores += 1
        if self.is_priced:
            at, trial_id = self._clock.now(), placement.command.trial_id
            self._ready.append(TrialPriced(trial_id=trial_id, at=at, usd_per_hour=placement.usd_per_hour))
        self._start(placement.command, placement.curve)

    def _start_s(self, command: StartTrial) -> float:
        """The first trials on a node find nothing loaded."""
        nodes = {node.node_id for node in self._placements[command.trial_id].nodes}
        is_new = not nodes <= self._warm
        return self._costs.start_s + (self._costs.first_s if is_new else 0.0)

    def _take_room(self, command: StartTrial) -> None:
        """Does nothing: the gang holds it already."""

    def _give_room_back(self, command: StartTrial) -> None:
        placement = self._placements.get(command.trial_id)
        if placement is not None:
            self._release(placement)

    def _withdraw(self, trial_id: str) -> None:
        placement = self._placements.get(trial_id)
        if placement is not None:
            self._release(placement)
            self._ready.append(TrialExited(trial_id=trial_id, at=self._clock.now()))

    def _release(self, placement: TrialPlacement, *, keeps_place: bool = True) -> None:
        """Gives a place back at once where another trial waits for it, else after a while."""
        del self._placements[placement.command.trial_id]
        if placement.nodes:
            self.work.held_s += (self._world.time - placement.placed_at) * placement.share
            self.work.held_usd += _usd(placement, self._world.time)
        gang, linger_s = placement.gang, self._costs.linger_s
        is_good = bool(placement.nodes) and all(node.serves for node in placement.nodes)
        is_wanted = any(not one.nodes for one in self._placements.values())
        if linger_s <= 0 or not keeps_place or not is_good or is_wanted:
            self._runtime.withdraw_gang(gang)
            return
        place = LingeringPlace(partial(self._runtime.withdraw_gang, gang))
        gang.listener = place
        self._lingering.append(place)
        self._world.after(linger_s, place.end)

    def end_lingering(self) -> None:
        """Gives back every place that no trial holds."""
        ended, self._lingering = self._lingering, []
        for place in ended:
            place.end()

    # -- on a node --------------------------------------------------------------------------------

    def _started(self, process: SimulatedProcess, is_reused: bool) -> None:
        placement = self._placements[process.trial_id]
        placement.saved_at, placement.has_begun = self._world.time, True
        self._warm.update(node.node_id for node in placement.nodes)
        super()._started(process, is_reused)

    def _seconds(self, process: SimulatedProcess) -> float:
        placement = self._placements[process.trial_id]
        speed = min(self._speed_of(node.machine.node_type) for node in placement.nodes)
        every = self._costs.checkpoint_every
        saves = bool(every) and (process.iteration + 1) % every == 0
        return process.seconds() / speed + (self._costs.save_s if saves else 0.0)

    def _reported(self, process: SimulatedProcess, seconds: float) -> None:
        before = process.checkpoint_index
        super()._reported(process, seconds)
        self._note_saved(process, before)

    def _saved(self, process: SimulatedProcess) -> None:
        before = process.checkpoint_index
        super()._saved(process)
        self._note_saved(process, before)

    def _note_saved(self, process: SimulatedProcess, before: int) -> None:
        placement = self._placements.get(process.trial_id)
        if placement is not None and process.checkpoint_index > before:
            placement.saved_at = self._world.time

    def _continue(self, process: SimulatedProcess) -> None:
        """Continues, unless its node will go: then a trial saves, if there is time for it, and leaves."""
        placement = self._placements[process.trial_id]
        if placement.deadline_at == inf:
            super()._continue(process)
        elif placement.saved_at == self._world.time:
            process.is_waiting = False
            self._preempt(process)
        elif self._world.time + self._costs.save_s <= placement.deadline_at and process.iteration:
            process.is_waiting = False
            self.timeline.plan(self._costs.save_s, process, lambda: self._save_and_leave(process))
        else:
            super()._continue(process)

    def _save_and_leave(self, process: SimulatedProcess) -> None:
        self._saved(process)
        self._preempt(process)

    # -- losing the node --------------------------------------------------------------------------

    def leave_unless_at_work(self, placement: TrialPlacement) -> None:
        """Takes a trial off a node that will go, where it has nothing to lose; others save first."""
        process = self._processes.get(placement.command.trial_id)
        if process is not None and not placement.has_begun:
            self._preempt(process)

    def _preempt(self, process: SimulatedProcess) -> None:
        self._count_move(process.trial_id)
        self._exit(process, failure=PREEMPTED)

    def freeze(self, placement: TrialPlacement) -> None:
        """Stops a process whose machine is gone; that is noticed later."""
        process = self._processes.get(placement.command.trial_id)
        if process is not None and not process.is_lost:
            process.is_lost = True
            process.turn += 1
            self._count_loss(placement)

    def lose(self, placement: TrialPlacement, *, was_draining: bool) -> None:
        """Ends the process of a trial whose node is dead."""
        process = self._processes.get(placement.command.trial_id)
        if process is None:
            return
        if not process.is_lost:
            self._count_loss(placement)
        self._count_move(process.trial_id)
        self._exit(process, failure=PREEMPTED if was_draining else NODE_LOST)

    def _count_loss(self, placement: TrialPlacement) -> None:
        self.work.losses += 1
        self.work.repeated_s += (self._world.time - placement.saved_at) * placement.share

    def _count_move(self, trial_id: str) -> None:
        self.work.moves[trial_id] = self.work.moves.get(trial_id, 0) + 1
        self.work.moved_at[trial_id] = self._clock.now()

    def _capacity_now(self) -> CapacityChanged:
        is_bounded = self._limit is not None
        return CapacityChanged(at=self._clock.now(), capacity=self.capacity(), is_bounded=is_bounded)

    def note_capacity(self) -> None:
        """Reports what the nodes of now have, when that has changed; called after every tick."""
        now = Resources.of(self.capacity())
        if now != self._known:
            self._known = now
            self._ready.append(self._capacity_now())
