"""Implement the Engine port on the nodes of a simulated cluster, in the time of its world.

A trial asks for room as a gang, as Ray Tune shows its trials to an autoscaler. Then its process runs at the
speed of its node, and is lost with it. Called by TrialController; decides nothing.

    StartTrial             the gang is placed        the process is up            a report is answered
        |                           |                        |                            |
    _request ----> waits ----> _place ----> starts ----> _started ----> iterates ----> _continue ----> ...
                                               |                           |
    the node drains (_drain):               leaves at once             reports; _continue saves, and leaves
    the machine is gone (_freeze):          does nothing more          does nothing more
    the node is dead (_lose):               exits                      exits; unsaved work is repeated
                                               |                           |
    every exit: _give_room_back ----> _release withdraws the gang, or keeps its place for another trial
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
from muster.sim.cluster.world import WorldQueue
from muster.sim.tune.engine import SimulatedEngine
from muster.sim.tune.trial import Costs, Curve, Report, SimulatedProcess
from muster.trials.events import (
    CapacityChanged,
    EngineEvent,
    StartTrial,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialPriced,
)
from muster.trials.model import CheckpointRef
from muster.trials.spend import HOUR_S, share_of

PREEMPTED = TrialFailure(
    kind=TrialFailureKind.PREEMPTED, message="its node was taken back (preempted) while the trial ran"
)
NODE_LOST = TrialFailure(kind=TrialFailureKind.NODE_LOST, message="its node went away, simulated")

SpeedOf = Callable[[str], float]  # node type -> steps per step of the reference


@dataclass(eq=False)
class TrialPlacement:
    """One start of a trial, from its request for room to the end of its process."""

    command: StartTrial
    curve: Curve
    gang: GangWork  # the room that it waits for or holds
    nodes: list[SimNode] = field(default_factory=list)  # empty while it waits
    share: float = 0.0  # of each of its nodes
    placed_at: float = 0.0
    has_begun: bool = False  # its process is up and has what it continues from
    saved_at: float = 0.0  # what was done since then would be repeated
    deadline_at: float = inf  # when its node may be ended

    @property
    def usd_per_hour(self) -> float:
        """Return what its place costs: its share of each of its nodes."""
        return sum(node.machine.price_per_hour for node in self.nodes) * self.share

    def settle(self, now: float) -> None:
        """Take the nodes that the gang got."""
        shape = self.gang.tasks[0].like.shape
        self.nodes = [task.node for task in self.gang.tasks if task.node is not None]
        self.share = max(share_of(shape, node.total) for node in self.nodes)
        self.placed_at = self.saved_at = now

    def held(self, now: float) -> tuple[float, float]:
        """Return the seconds that it has held its share of a node, and their price in $."""
        held_s = now - self.placed_at if self.nodes else 0.0
        return held_s * self.share, self.usd_per_hour * held_s / HOUR_S


@dataclass
class TrialWork:
    """Sums up what trials did on nodes, in seconds of their share of a node."""

    held_s: float = 0.0  # from a place on a node to its end
    held_usd: float = 0.0  # what these places cost, by what the cloud charges for the nodes
    machines: dict[CloudId, CloudMachine] = field(default_factory=dict)  # that ever held a trial
    repeated_s: float = 0.0  # work since the newest checkpoint, lost with a node
    restores: int = 0
    losses: int = 0  # processes that ended with their node, before they could leave it
    moves: dict[str, int] = field(default_factory=dict)  # trial -> how often its node was taken from it
    moved_at: dict[str, float] = field(default_factory=dict)  # when that last happened, by the wall clock

    def add_place(self, placement: TrialPlacement) -> None:
        self.machines.update({node.machine.cloud_id: node.machine for node in placement.nodes})
        self.restores += placement.command.checkpoint is not None

    def add_held(self, placement: TrialPlacement, now: float) -> None:
        held_s, held_usd = placement.held(now)
        self.held_s += held_s
        self.held_usd += held_usd

    def add_loss(self, placement: TrialPlacement, now: float) -> None:
        self.losses += 1
        self.repeated_s += (now - placement.saved_at) * placement.share

    def add_move(self, trial_id: str, wall_time: float) -> None:
        self.moves[trial_id] = self.moves.get(trial_id, 0) + 1
        self.moved_at[trial_id] = wall_time


class LingeringPlace:
    """A place that no trial has taken over yet; it goes with its node."""

    def __init__(self, end: Callable[[], None]) -> None:
        self.end = end

    def placed(self) -> None: ...

    def draining(self, deadline_at: float) -> None:
        self.end()

    def frozen(self) -> None: ...

    def lost(self, node: SimNode) -> None:
        self.end()


class JointEngine(SimulatedEngine):
    """Runs the trials of one experiment on the nodes of a cluster; several may share one.

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
    ) -> None:
        super().__init__(cluster.world, {}, curve, costs=costs)
        self.timeline = WorldQueue(cluster.world)
        self.work = TrialWork()
        self.is_priced = False  # whether trials know what their places cost, as from a monitor
        self._runtime, self._world, self._name = cluster.runtime, cluster.world, name
        self._speed_of, self._is_woken = speed_of, False
        self._limit: Resources | None = None  # what the cluster may become, where that is known
        self._placements: dict[str, TrialPlacement] = {}  # by trial, from the request to the end
        self._lingering: list[LingeringPlace] = []
        self._warm: set[NodeId] = set()  # nodes on which a trial has started
        self._gangs = 0
        self._known = Resources.of(self.capacity())
        self._report_capacity()

    # -- capacity: what the cluster has, or may become ---------------------------------------------

    def capacity(self) -> Mapping[str, float]:
        """Return what the nodes of now have in all, or where that is known, what they may become."""
        total = EMPTY
        for node in self._runtime.live_nodes():
            total = total.plus(node.total)
        most = {} if self._limit is None else self._limit.to_floats()
        return {name: max(most.get(name, 0.0), has) for name, has in {**most, **total.to_floats()}.items()}

    def bound(self, limit: Resources) -> None:
        """Set what the cluster may become: no more is asked for than that holds, as on Ray."""
        self._limit = limit
        self._report_capacity()

    def note_capacity(self) -> None:
        """Report what the nodes of now have, when that has changed; called after every tick."""
        now = Resources.of(self.capacity())
        if now != self._known:
            self._known = now
            self._report_capacity()

    def _report_capacity(self) -> None:
        at, is_bounded = self._clock.now(), self._limit is not None
        self._ready.append(CapacityChanged(at=at, capacity=self.capacity(), is_bounded=is_bounded))

    # -- the port, and what the tuner's half of a world asks -----------------------------------------

    def poll(self, timeout_s: float) -> Sequence[EngineEvent]:
        until = self._world.time + timeout_s
        while not self._ready and timeout_s > 0 and self._world.run_next(until):
            pass
        events, self._ready, self._is_woken = self._ready, [], False
        return events

    def wake(self) -> None:
        """Have the tuner look at its clock, although nothing has happened."""
        self._is_woken = True

    @property
    def has_news(self) -> bool:
        return bool(self._ready) or self._is_woken

    @property
    def is_idle(self) -> bool:
        """Return whether nothing waits for a node, runs or is to be handled."""
        return not (self._ready or self._placements)

    def worker_s(self, workers: int) -> float:
        now = self._world.time
        return self.work.held_s + sum(one.held(now)[0] for one in self._placements.values())

    def held_usd(self) -> float:
        """Return what the places of trials have cost so far, by the cloud's prices and the true time."""
        now = self._world.time
        return self.work.held_usd + sum(one.held(now)[1] for one in self._placements.values())

    def placements(self) -> Collection[TrialPlacement]:
        """Return every start of a trial that waits for a node or has one."""
        return self._placements.values()

    def node_of(self, trial_id: str) -> NodeId | None:
        """Return the node that holds a trial, the first one of several."""
        placement = self._placements.get(trial_id)
        return placement.nodes[0].node_id if placement is not None and placement.nodes else None

    def unsaved_s(self, trial_id: str) -> float:
        """Return the seconds of work since the trial's newest checkpoint."""
        placement = self._placements.get(trial_id)
        return self._world.time - placement.saved_at if placement is not None and placement.nodes else 0.0

    def close(self) -> None:
        # Those that wait first: they must not get the room that the others leave.
        for placement in sorted(self._placements.values(), key=lambda one: bool(one.nodes)):
            self._release(placement, keeps_place=False)
        self.end_lingering()
        self._processes.clear()
        super().close()

    # -- from a request to a process on a node -------------------------------------------------------

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
        """Ask for room. Bundles that differ are asked for as one, because nodes place equal ones only."""
        self._gangs += 1
        shapes = [Resources.of(bundle) for bundle in command.resources.bundles]
        if len(set(shapes)) > 1:
            shapes = [Resources.of(command.resources.required_resources)]
        tasks = [self._runtime.bundle(shape) for shape in shapes]
        gang_id = f"{self._name}-{command.trial_id}-{self._gangs}"
        gang = GangWork(gang_id, Strategy(command.resources.strategy), tasks, FOREVER)
        placement = self._placements[command.trial_id] = TrialPlacement(command, curve, gang)
        gang.listener = _PlacementListener(self, placement)
        self.end_lingering()
        self._runtime.submit_gang(gang)

    def _place(self, placement: TrialPlacement) -> None:
        """Start the process of a trial that has its place."""
        placement.settle(self._world.time)
        self.work.add_place(placement)
        if self.is_priced:
            at, trial_id = self._clock.now(), placement.command.trial_id
            self._ready.append(TrialPriced(trial_id=trial_id, at=at, usd_per_hour=placement.usd_per_hour))
        self._start(placement.command, placement.curve)

    def _take_room(self, command: StartTrial) -> None:
        """Do nothing: the gang holds it already."""

    def _start_s(self, process: SimulatedProcess, is_reused: bool) -> float:
        """The first trials on a node find nothing loaded."""
        nodes = {node.node_id for node in self._placements[process.trial_id].nodes}
        return super()._start_s(process, is_reused) + (0.0 if nodes <= self._warm else self._costs.first_s)

    def _started(self, process: SimulatedProcess, is_reused: bool) -> None:
        placement = self._placements[process.trial_id]
        placement.saved_at, placement.has_begun = self._world.time, True
        self._warm.update(node.node_id for node in placement.nodes)
        super()._started(process, is_reused)

    # -- on a node ---------------------------------------------------------------------------------

    def _seconds(self, process: SimulatedProcess) -> float:
        placement = self._placements[process.trial_id]
        speed = min(self._speed_of(node.machine.node_type) for node in placement.nodes)
        every = self._costs.checkpoint_every
        saves = bool(every) and (process.iteration + 1) % every == 0
        return process.seconds() / speed + (self._costs.save_s if saves else 0.0)

    def _checkpoint(self, process: SimulatedProcess) -> CheckpointRef | None:
        self._placements[process.trial_id].saved_at = self._world.time
        return super()._checkpoint(process)

    def _continue(self, process: SimulatedProcess) -> None:
        """Continue, unless its node will go: then a trial saves, if there is time for it, and leaves."""
        placement, now = self._placements[process.trial_id], self._world.time
        is_saved = placement.saved_at == now
        can_save = bool(process.iteration) and now + self._costs.save_s <= placement.deadline_at
        if placement.deadline_at == inf or not (is_saved or can_save):
            super()._continue(process)
            return
        process.is_waiting = False
        if is_saved:
            self._leave(process, PREEMPTED)
            return

        def save_and_leave() -> None:
            self._saved(process)
            self._leave(process, PREEMPTED)

        self.timeline.plan(self._costs.save_s, process, save_and_leave)

    # -- losing the node ---------------------------------------------------------------------------

    def _drain(self, placement: TrialPlacement, deadline_at: float) -> None:
        """Take a trial off a node that will go, where it has nothing to lose; others save first."""
        placement.deadline_at = deadline_at
        process = self._processes.get(placement.command.trial_id)
        if process is not None and not placement.has_begun:
            self._leave(process, PREEMPTED)

    def _freeze(self, placement: TrialPlacement) -> None:
        """Stop a process whose machine is gone; that is noticed later."""
        process = self._processes.get(placement.command.trial_id)
        if process is not None and not process.is_lost:
            process.is_lost = True
            process.turn += 1
            self.work.add_loss(placement, self._world.time)

    def _lose(self, placement: TrialPlacement, node: SimNode) -> None:
        """End the process of a trial whose node is dead."""
        process = self._processes.get(placement.command.trial_id)
        if process is None:
            return
        if not process.is_lost:
            self.work.add_loss(placement, self._world.time)
        self._leave(process, NODE_LOST if node.drain_deadline_at is None else PREEMPTED)

    def _leave(self, process: SimulatedProcess, failure: TrialFailure) -> None:
        self.work.add_move(process.trial_id, self._clock.now())
        self._exit(process, failure=failure)

    # -- giving the place back -----------------------------------------------------------------------

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
        """Give a place back at once where another trial waits for it, else after a while."""
        del self._placements[placement.command.trial_id]
        self.work.add_held(placement, self._world.time)
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
        """Release every place that no trial holds."""
        ended, self._lingering = self._lingering, []
        for place in ended:
            place.end()


class _PlacementListener:
    """Passes on to the engine what happens to the nodes of one placement."""

    def __init__(self, engine: JointEngine, placement: TrialPlacement) -> None:
        self.placed = partial(engine._place, placement)
        self.draining = partial(engine._drain, placement)
        self.frozen = partial(engine._freeze, placement)
        self.lost = partial(engine._lose, placement)
