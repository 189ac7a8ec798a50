"""RayEngine: trials as Ray actors in placement groups. Built by `open_ray_engine`; driven by the controller.

Trials are first come, first served, within what the cluster is or may become. Actors and placement groups are
kept for a moment after a trial, for the next one that wants the same.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from muster.base.clock import Clock
from muster.engines.process_engine import EngineTimeouts, ProcessEngine, order_of
from muster.engines.ray import failures as blame
from muster.engines.ray.actor_handle import ActorHandle, ActorPlacement
from muster.engines.ray.actor_pool import ActorPool
from muster.engines.ray.actor_setup import ActorSetup
from muster.engines.ray.cluster_watcher import (
    CapacityHistory,
    ClusterCapacity,
    ClusterView,
    ClusterWatcher,
    Growth,
    why_unplaceable,
)
from muster.engines.ray.handshake import mismatch
from muster.engines.ray.remote_storage import RemoteStorage
from muster.engines.worker import failures
from muster.engines.worker.handle import TrialRun
from muster.engines.worker.protocol import write_order
from muster.stores.checkpoints import CheckpointStore, delete_directory
from muster.stores.storage import Storage
from muster.trials.commands import StartTrial
from muster.trials.events import CapacityChanged, TrialFailure
from muster.trials.placement_group import PlacementGroupFactory

_log = logging.getLogger(__name__)

_HOPE_S = 5.0  # so long a pending placement group is not judged: nodes may be on their way
_WARN_S = 60.0


class RayOptions(EngineTimeouts, frozen=True, kw_only=True):
    """What few people need to change."""

    max_idle: int = 64  # actors kept for reuse
    linger_s: float = 5.0  # how long an idle actor or an empty placement group is kept
    env: Mapping[str, str] = {}  # added to the environment of trials
    reach: RemoteStorage | None = None  # of a remote storage: nodes that do not see our directory use it


_DEFAULTS = RayOptions()


class Connection(NamedTuple):
    """What an engine needs to know of the Ray that this process is connected to."""

    ray: Any  # the module
    host: str | None  # the address of this machine that the cluster's nodes reach; None: there is none
    actor_class: Any  # `ray.remote(TrialActor)`
    look: Callable[[], ClusterView] | None = None  # asks the cluster what it is; called in another thread
    on_close: Callable[[], None] | None = None


class RayEngine(ProcessEngine):
    """Runs trials on the Ray cluster that this process is connected to.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    _staff: ActorPool
    fetches_checkpoints = True  # actors get those that only the storage has

    def __init__(
        self,
        *,
        clock: Clock,
        connection: Connection,
        sight: ClusterView,
        capacity: Mapping[str, float] | None = None,
        trainables: Mapping[str, bytes] | None = None,
        options: RayOptions = _DEFAULTS,
    ) -> None:
        """`sight`: the first look; `capacity` overrides it; `trainables`: cloudpickled, by name."""
        super().__init__(clock, options)
        self._options = options
        self._on_close: Callable[[], None] | None = connection.on_close
        self._fixed = dict(capacity or {})
        self._ray_version = str(connection.ray.__version__)
        self._room = ClusterCapacity({})
        self._growth, self._memory = Growth(), CapacityHistory()
        self._sight = sight
        self._has_warned = False
        key = secrets.token_bytes(32)
        self._place_of: dict[str, ActorPlacement] = {}  # of trials that have one
        self._vacant: list[ActorPlacement] = []  # placement groups without an actor
        self._orders: dict[str, bytes] = {}  # of trials whose actor has not come yet
        self._staff = ActorPool(
            clock=clock, patience=options, owner=self, actor_class=connection.actor_class, key=key
        )
        self._hiring = ActorSetup(connection.ray, self._staff, key, options.beat_s)
        if options.reach is not None:
            self._hiring.tell_storage(options.reach)
        self._was_apart: set[str] = set()  # trials that ran where our directory is not seen
        self._hiring.on_failure = lambda run, why: self._finish(run, failure=blame.start(why))
        if connection.host is None:
            self._hiring.use_relay("the cluster does not see this machine")
        else:
            self._hiring.reach_at(self._staff.reception.listen(connection.host))
        for name, blob in (trainables or {}).items():
            self.register(name, blob)
        self._measure(sight)
        if not self._room.is_bounded:
            self._tell_capacity()
        self._lookout: ClusterWatcher | None = None
        if connection.look is not None:
            bell = self._staff.bell
            self._lookout = ClusterWatcher(connection.look, lambda seen: bell.ring(lambda: self._saw(seen)))

    def capacity(self) -> Mapping[str, float]:
        return self._room.limit.to_floats()

    def register(self, name: str, trainable: bytes) -> None:
        """Make a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._hiring.put(name, trainable)
        for desk in [each for each in self._staff.idle if each.key is not None and each.key[0] == name]:
            self._dismiss(desk)

    def close(self) -> None:
        if self._lookout is not None:
            self._lookout.close()
        groups = {id(place): place for place in (*self._staff.places.values(), *self._vacant)}
        super().close()
        for place in groups.values():
            self._staff.ray.give_back(place)
        self._vacant.clear()
        self._place_of.clear()
        self._orders.clear()
        self._hiring.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

    # Starting

    def _begin(self, run: TrialRun) -> None:
        why_not = self._room.why_never(run.command.resources)
        if why_not is not None:
            self._finish(run, failure=failures.impossible(why_not))
            return
        try:
            order = order_of(run.command, self._options.env)
            message = write_order(order._replace(has_remains=order.trial_id in self._was_apart))
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unsendable("the config cannot be pickled", error))
            return
        self._orders[run.command.trial_id] = message
        self._waiting.add(run)
        self._start_waiting()

    def _try_start(self, run: TrialRun) -> bool:
        """An idle actor, an empty placement group, or new ones; False when it must wait."""
        command = run.command
        why_not = self._room.why_never(command.resources)
        if why_not is not None:  # the cluster has shrunk for good
            self._waiting.remove(run)
            self._finish(run, failure=failures.impossible(why_not))
            return True
        idle = self._staff.find_idle(command) if command.may_reuse else None
        if idle is not None:
            self._place_of[command.trial_id] = idle.place
            self._seat(run, idle)
            return True
        place = next((each for each in self._vacant if each.resources == command.resources), None)
        if place is not None:
            self._vacant.remove(place)
        elif self._make_room(run):
            place = self._staff.ray.reserve(command.resources)
            place.needs_node = not self._room.is_there(command.resources)
            self._room.take(command.resources)
        else:
            return False
        self._place_of[command.trial_id] = place
        place.asked_at = self._clock.monotonic()
        self._hiring.hire(place, run)
        return True

    def _seat(self, run: TrialRun, desk: ActorHandle) -> None:
        self._staff.seat(run, desk)
        if not desk.sees_storage:
            self._was_apart.add(run.command.trial_id)
            _drop_remains(run.command)
        desk.place.seated_at = self._clock.monotonic()
        if run.command.time_limit_s is not None:
            run.limit_at = self._clock.monotonic() + run.command.time_limit_s
            self._look_at(run.limit_at)
        self._staff.send(desk, self._orders.pop(run.command.trial_id))

    def _make_room(self, run: TrialRun) -> bool:
        """Whether a new placement group may be asked for; what nobody uses goes first."""
        wanted = run.command.resources
        if self._room.fits(wanted):
            return self._room.is_there(wanted) or self._is_worth_a_node(wanted)
        unused = [*self._vacant, *(desk.place for desk in self._staff.idle)]
        if not self._room.fits(wanted, without=[place.resources for place in unused]):
            return False
        for place in unused:
            self._clear(place)
            if self._room.fits(wanted):
                break
        return True

    def _is_worth_a_node(self, wanted: PlacementGroupFactory) -> bool:
        """Whether it would still wait when a new machine could be there."""
        places = self._staff.places.values()
        shown = sum(each.desk is None and each.needs_node for each in places)
        alike = [each for each in places if each.resources == wanted and not each.needs_node]
        began = [each.began_at for each in alike if each.began_at is not None]
        now, wanting = self._clock.monotonic(), len(self._waiting) + shown
        return self._growth.wants_more(began, wanting, shown, now, self._left_s())

    def _clear(self, place: ActorPlacement) -> None:
        if place in self._vacant:
            self._vacant.remove(place)
            self._give_back(place)
        elif place.desk is not None:
            self._dismiss(place.desk)

    def _dismiss(self, desk: ActorHandle) -> None:
        """Its room counts as free at once: Ray sees to it that nobody else gets it before it has left."""
        self._staff.dismiss(desk)
        self._room.free(desk.place.resources)
        desk.place.is_given_up = True

    def _give_back(self, place: ActorPlacement) -> None:
        self._room.free(place.resources)
        self._staff.ray.give_back(place)

    # Ending

    def _withdraw(self, run: TrialRun) -> None:
        """Its actor, if one was asked for, is not needed; the placement group may serve another."""
        self._waiting.remove(run)
        place = self._place_of.get(run.command.trial_id)
        if place is not None:
            self._hiring.forget(run)
            self._staff.cancel(place)

    def _release(self, run: TrialRun) -> None:
        trial_id = run.command.trial_id
        self._orders.pop(trial_id, None)
        place = self._place_of.pop(trial_id, None)
        if place is not None and run.desk is not None:
            self._growth.ended(self._clock.monotonic() - place.seated_at)
        if place is None or (place.desk is not None and place.desk in self._staff.idle):
            return
        place.run, place.free_since = None, self._clock.monotonic()
        self._vacant.append(place)
        self._look_at(place.free_since + self._options.linger_s)

    def _look_around(self, now: float) -> None:
        self._staff.look_around(now)
        for place in [*self._vacant, *(desk.place for desk in self._staff.idle)]:
            if now >= place.free_since + self._options.linger_s:
                self._clear(place)
            else:
                self._look_at(place.free_since + self._options.linger_s)
        for desk in self._staff.idle[: max(0, len(self._staff.idle) - self._options.max_idle)]:
            self._dismiss(desk)

    # What the cluster is (seen by the lookout)

    def _measure(self, sight: ClusterView) -> bool:
        self._sight = sight
        self._memory.note(sight.nodes, self._clock.monotonic())
        present = {**sight.present, **self._fixed}
        hoped_for = sight.limit if sight.has_autoscaler else self._memory.most()
        limit = None if hoped_for is None else {**hoped_for, **self._fixed}
        is_bounded = limit is not None or bool(self._fixed)
        return self._room.update(present, limit, is_bounded=is_bounded)

    def _tell_capacity(self) -> None:
        bounded, at = self._room.is_bounded, self._clock.now()
        self._events.append(CapacityChanged(at=at, capacity=self.capacity(), is_bounded=bounded))

    def _saw(self, sight: ClusterView) -> None:
        if self._measure(sight):
            self._tell_capacity()
        now = self._clock.monotonic()
        for place in list(self._staff.places.values()):
            if place.run is not None and now >= place.asked_at + _HOPE_S:
                self._look_at_hope(place, place.run, now)
        self._start_waiting()

    def _look_at_hope(self, place: ActorPlacement, run: TrialRun, now: float) -> None:
        """A trial that can never be placed ends; one that nobody can judge is warned about."""
        why = self._sight.hopeless.get(place.group.id.hex())
        if why is None and not self._sight.has_autoscaler:
            why = why_unplaceable(place.resources, self._memory.nodes())
        if why is not None:
            self._withdraw(run)
            self._finish(run, failure=failures.impossible(why))
            if place in self._vacant:
                self._clear(place)
        elif now >= place.asked_at + _WARN_S and not self._has_warned:
            self._has_warned = True
            _log.warning(
                "trial %s has waited %d s for %s; `muster why` or `ray status` tells what the cluster lacks",
                *(run.command.trial_id, _WARN_S, place.resources),
            )

    # What becomes of actors (called by ActorPool)

    def arrived(self, place: ActorPlacement, desk: ActorHandle, hello: Mapping[str, Any]) -> None:
        run, place.run = place.run, None
        if run is None:
            return
        why = mismatch(hello, python=platform.python_version(), ray=self._ray_version)
        if why is not None:
            self._turn_away(run, desk, blame.start(why))
            return
        if not self._hiring.suits(hello):
            self._hiring.again(desk, run)
            return
        if place.needs_node:
            self._growth.booted(self._clock.monotonic() - place.asked_at)
            place.needs_node = False
        why_not = self._hiring.why_no_reach or hello["storage_problem"]
        if not desk.sees_storage and (self._options.reach is None or why_not):
            unseen = _unseen(run.command.trial_dir, desk.hostname, self._options.reach, why_not)
            self._turn_away(run, desk, unseen)
            return
        self._seat(run, desk)

    def _turn_away(self, run: TrialRun, desk: ActorHandle, failure: TrialFailure) -> None:
        """A node that will not do: the trial ends, and so does the actor."""
        run.failure = failure
        self._staff.seat(run, desk)
        self._kill(run, failure)

    def gone(self, desk: ActorHandle, failure: TrialFailure | None) -> None:
        place = desk.place
        place.desk = place.actor = None
        if place.is_given_up:
            self._staff.ray.give_back(place)
        elif desk.run is None:
            self._give_back(place)  # an idle one that ended by itself
        self._ended(desk, lambda: failure or blame.of_outcome(None))

    def due(self, when: float) -> None:
        self._look_at(when)

    def never_came(self, place: ActorPlacement, outcome: BaseException | None) -> None:
        run, place.run = place.run, None
        place.actor = None
        if run is not None and not self._hiring.remedy(place, run, outcome):
            self._finish(run, failure=blame.of_outcome(outcome))


def _unseen(trial_dir: str, hostname: str, reach: RemoteStorage | None, why_not: str) -> TrialFailure:
    seen = f"the node {hostname} does not see {os.path.dirname(trial_dir)}"
    if reach is None:
        return blame.start(f"{seen}; set RunConfig(storage_path=...) to a directory that every node mounts")
    return blame.start(
        f"{seen} and cannot use {reach.uri}: {why_not}. Give the node what that storage needs (package, "
        "credentials, network), or set RunConfig(storage_path=...) to a directory that every node mounts"
    )


def _drop_remains(command: StartTrial) -> None:
    """Checkpoints here of which nobody was told: the trial makes others of these names, elsewhere."""
    for index, path in CheckpointStore(Storage(os.path.dirname(command.trial_dir))).listed(
        os.path.basename(command.trial_dir)
    ):
        if index > command.checkpoint_index:
            delete_directory(Path(path))
