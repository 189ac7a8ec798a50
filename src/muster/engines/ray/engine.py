"""RayEngine runs trials as Ray actors in placement groups; `open_ray_engine` builds it.

Trials are first come, first served, within what the cluster is or may become. Actors and placement groups are
kept for a moment after a trial, for the next one that wants the same.
"""

from __future__ import annotations

import logging
import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from muster.base.clock import Clock, ahead_s
from muster.base.forecast import Forecast
from muster.engines.process_engine import EngineTimeouts, ProcessEngine, order_of
from muster.engines.ray import failures as ray_failures
from muster.engines.ray.actor_handle import ActorHandle, ActorPlacement
from muster.engines.ray.actor_pool import ActorListener, ActorPool
from muster.engines.ray.actor_setup import ActorSetup
from muster.engines.ray.capacity import ClusterCapacity, Growth, why_unplaceable
from muster.engines.ray.cluster_watcher import ClusterView, ClusterWatcher, DrainingNodes
from muster.engines.ray.remote_storage import RemoteStorage
from muster.engines.ray.tls import TlsTunnel, uses_tls
from muster.engines.worker import failures
from muster.engines.worker.handle import TrialRun
from muster.engines.worker.protocol import write_order
from muster.host import machine
from muster.runtimes.ray.kv_board import ForecastWriter
from muster.session.session import PreemptionInfo
from muster.stores.checkpoints import CheckpointStore, delete_directory
from muster.stores.storage import Storage
from muster.trials.events import CapacityChanged, TrialFailure
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.ports import EngineTraits

_log = logging.getLogger(__name__)

_JUDGE_AFTER_S = 5.0  # so long a pending placement group is not judged: nodes may be on their way


class RayOptions(EngineTimeouts, frozen=True, kw_only=True):
    """Holds what few users need to change."""

    max_idle: int = 64  # actors kept for reuse
    linger_s: float = 5.0  # how long an idle actor or an empty placement group is kept
    env: Mapping[str, str] = {}  # added to the environment of trials
    storage: bytes | None = None  # of remote results, for `get_context().get_storage()`
    remote_storage: RemoteStorage | None = None  # for nodes that do not see the driver's directory
    price_per_hour: float | None = None  # $ of a node whose price nobody publishes; None: not known
    limits_trials: bool = False  # the user has set how many run at once
    idle_warning_s: tuple[float, float] = (60.0, 60.0)  # a trial waits so long; the second with an autoscaler


_DEFAULTS = RayOptions()


class Connection(NamedTuple):
    """What an engine needs to know of the Ray that this process is connected to."""

    ray: Any  # the module
    host: str | None  # the address of this machine that nodes reach; None: they do not reach it
    actor_class: Any  # `ray.remote(TrialActor)`
    read_cluster: Callable[[], ClusterView] | None = None  # reads the cluster; called in another thread
    on_close: Callable[[], None] | None = None
    forecasts: ForecastWriter | None = None  # None: the key-value store cannot be written from here
    driver: str = ""  # how the cluster calls this program


_MOST_REMOVALS = 16  # of placement groups, at once


class Placements:
    """The placement groups of one engine: those of trials, and the vacant ones."""

    def __init__(self, pool: ActorPool, capacity: ClusterCapacity, clock: Clock) -> None:
        self._pool, self._capacity, self._clock = pool, capacity, clock
        self.growth = Growth()
        self.of_trial: dict[str, ActorPlacement] = {}
        self.vacant: list[ActorPlacement] = []  # groups without an actor

    def unused(self) -> list[ActorPlacement]:
        """Return the groups that wait for another trial, with and without an actor."""
        return [*self.vacant, *(worker.placement for worker in self._pool.idle)]

    def find(self, wanted: PlacementGroupFactory, waiting: int, left_s: float) -> ActorPlacement | None:
        """Return a group for a trial, or None when it must wait.

        `waiting`: trials that wait, this one included; `left_s`: until the experiment ends.
        """
        placement = next((each for each in self.vacant if each.resources == wanted), None)
        if placement is not None:
            self.vacant.remove(placement)
        elif self._find_capacity(wanted, waiting, left_s):
            placement = self._pool.ray.reserve(wanted)
            placement.needs_node = not self._capacity.is_there(wanted)
            self._capacity.take(wanted)
        return placement

    def _find_capacity(self, wanted: PlacementGroupFactory, waiting: int, left_s: float) -> bool:
        """Return whether a new group may be requested; unused actors and groups end first."""
        if self._capacity.fits(wanted):
            return self._capacity.is_there(wanted) or self._is_worth_a_node(wanted, waiting, left_s)
        unused = self.unused()
        if not self._capacity.fits(wanted, without=[placement.resources for placement in unused]):
            return False
        for placement in unused:
            self.clear(placement)
            if self._capacity.fits(wanted):
                break
        return True

    def _is_worth_a_node(self, wanted: PlacementGroupFactory, waiting: int, left_s: float) -> bool:
        """Return whether the trial would still wait when a new machine could be up."""
        placements = self._pool.placements.values()
        shown = sum(each.worker is None and each.needs_node for each in placements)
        alike = [each for each in placements if each.resources == wanted and not each.needs_node]
        began = [each.began_at for each in alike if each.began_at is not None]
        return self.growth.wants_more(began, waiting + shown, shown, self._clock.monotonic(), left_s)

    def clear(self, placement: ActorPlacement) -> None:
        """End a group that no trial uses, and its actor."""
        if placement in self.vacant:
            self.vacant.remove(placement)
            self.remove(placement)
        elif placement.worker is not None:
            self.retire(placement.worker)

    def retire(self, worker: ActorHandle) -> None:
        """Free the room of an actor at once: Ray gives it to no other before the actor has left."""
        self._pool.retire(worker)
        self._capacity.free(worker.placement.resources)
        worker.placement.is_given_up = True

    def remove(self, placement: ActorPlacement) -> None:
        self._capacity.free(placement.resources)
        self._pool.ray.remove_group(placement)

    def clear_old(self, now: float, linger_s: float, max_idle: int) -> float:
        """End what has waited too long, and surplus idle actors; return when the next has."""
        due_at = float("inf")
        for placement in self.unused():
            if now >= placement.free_since + linger_s:
                self.clear(placement)
            else:
                due_at = min(due_at, placement.free_since + linger_s)
        for worker in self._pool.idle[: max(0, len(self._pool.idle) - max_idle)]:
            self.retire(worker)
        return due_at

    def close(self, groups: list[ActorPlacement]) -> None:
        """Remove all groups, after the pool has ended their actors."""
        with ThreadPoolExecutor(_MOST_REMOVALS) as threads:  # each waits for an answer of the cluster
            list(threads.map(self._pool.ray.remove_group, {id(each): each for each in groups}.values()))
        self.vacant.clear()
        self.of_trial.clear()


class RayEngine(ProcessEngine, ActorListener):
    """Runs trials on the Ray cluster that this process is connected to.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    _pool: ActorPool

    def __init__(
        self,
        *,
        clock: Clock,
        connection: Connection,
        view: ClusterView,
        capacity: Mapping[str, float] | None = None,
        trainables: Mapping[str, bytes] | None = None,
        options: RayOptions = _DEFAULTS,
    ) -> None:
        """Take the first view of the cluster, which `capacity` overrides, and pickled trainables by name."""
        super().__init__(clock, options)
        tls = TlsTunnel(machine.environment()) if uses_tls(machine.environment()) else None
        self._options = options
        self._on_close: Callable[[], None] | None = connection.on_close
        self._capacity = ClusterCapacity({}, fixed=capacity)
        self._view, self._draining = view, DrainingNodes()
        self._warn_at, self._price_problem = 0.0, ""
        self._driver = connection.driver
        key = secrets.token_bytes(32)
        self._orders: dict[str, bytes] = {}  # of trials whose actor has not come yet
        self._pool = ActorPool(
            clock=clock, timeouts=options, owner=self, actor_class=connection.actor_class, key=key
        )
        self._pool.listener.tls = tls
        self._placements = Placements(self._pool, self._capacity, clock)
        self._actor_setup = ActorSetup(
            connection.ray, self._pool, key, options.beat_s, self._on_no_relay, options.remote_storage
        )
        self._was_apart: set[str] = set()  # trials that ran where the driver's directory is not seen
        if connection.host is None:
            self._actor_setup.use_relay("the cluster does not see this machine")
        else:
            self._actor_setup.addresses = [self._pool.listener.listen(connection.host)]
        for name, blob in (trainables or {}).items():
            self.register(name, blob)
        self._capacity.see(view.nodes, view.limit, clock.monotonic(), grows=view.has_autoscaler)
        if not self._capacity.is_bounded:
            self._report_capacity()
        self._watcher: ClusterWatcher | None = None
        if connection.read_cluster is not None:
            wakeups = self._pool.wakeups
            self._watcher = ClusterWatcher(
                connection.read_cluster,
                lambda seen: wakeups.put(lambda: self._on_view(seen)),
                writer=connection.forecasts,
            )

    def capacity(self) -> Mapping[str, float]:
        return self._capacity.limit.to_floats()

    def register(self, name: str, trainable: bytes) -> None:
        """Make a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._actor_setup.put(name, trainable)
        for worker in [each for each in self._pool.idle if each.key is not None and each.key[0] == name]:
            self._placements.retire(worker)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close(self._clock.now() - ahead_s(self._clock))
        groups = [*self._pool.placements.values(), *self._placements.vacant]
        super().close()
        self._placements.close(groups)
        self._orders.clear()
        self._actor_setup.close()
        if self._on_close is not None:
            on_close, self._on_close = self._on_close, None
            on_close()

    # Starting

    def _begin(self, run: TrialRun) -> None:
        why_not = self._capacity.why_never(run.command.resources)
        if why_not is not None:
            self._finish(run, failure=failures.impossible_failure(why_not))
            return
        try:
            order = order_of(run.command, self._env(), self._options.storage)
            message = write_order(order._replace(has_leftovers=order.trial_id in self._was_apart))
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unpicklable_failure("the config cannot be pickled", error))
            return
        self._orders[run.command.trial_id] = message
        self._waiting.add(run)
        self._start_waiting()

    def _env(self) -> Mapping[str, str]:
        """Return the environment of trials; TrialGroupCallback reads whether workers may wait for room."""
        may_wait = self._options.limits_trials or self._view.has_autoscaler
        return {**self._options.env, "MUSTER_WORKERS_MAY_WAIT": "1" if may_wait else ""}

    def _try_start(self, run: TrialRun) -> bool:
        """Take an idle actor, an empty placement group, or new ones; return False if it must wait."""
        command = run.command
        why_not = self._capacity.why_never(command.resources)
        if why_not is not None:  # the cluster has shrunk for good
            self._waiting.remove(run)
            self._finish(run, failure=failures.impossible_failure(why_not))
            return True
        idle = self._pool.find_idle(command) if command.may_reuse else None
        if idle is not None:
            self._placements.of_trial[command.trial_id] = idle.placement
            self._assign(run, idle)
            return True
        placement = self._placements.find(command.resources, len(self._waiting), self._left_s())
        if placement is None:
            return False
        self._placements.of_trial[command.trial_id] = placement
        placement.asked_at = self._clock.monotonic()
        self._actor_setup.start_actor(placement, run)
        return True

    def _assign(self, run: TrialRun, worker: ActorHandle, start_s: float = 0.0) -> None:
        self._pool.bind(run, worker)
        if not worker.sees_storage:
            self._was_apart.add(run.command.trial_id)
            # Deletes checkpoints of an unfinished attempt: the trial makes others of these names, elsewhere.
            for index, path in CheckpointStore(Storage(os.path.dirname(run.command.trial_dir))).listed(
                os.path.basename(run.command.trial_dir)
            ):
                if index > run.command.checkpoint_index:
                    delete_directory(Path(path))
        placement = worker.placement
        placement.assigned_at, placement.priced_at = self._clock.monotonic(), self._clock.now() - start_s
        placement.usd_per_hour = None
        self._price_trial(run, worker)
        self._send_order(run, worker, self._orders.pop(run.command.trial_id))
        self.notify(run, self._info_of(worker.placement))

    # Ending

    def _withdraw(self, run: TrialRun) -> None:
        """Cancel the actor, if one was requested; the placement group may serve another trial."""
        self._waiting.remove(run)
        placement = self._placements.of_trial.get(run.command.trial_id)
        if placement is not None:
            self._actor_setup.forget(run)
            self._pool.cancel(placement)

    def _release(self, run: TrialRun) -> None:
        trial_id = run.command.trial_id
        self._orders.pop(trial_id, None)
        placement = self._placements.of_trial.pop(trial_id, None)
        if placement is not None and run.worker is not None:
            self._placements.growth.ended(self._clock.monotonic() - placement.assigned_at)
        is_leaving = placement is not None and self._info_of(placement) is not None
        if placement is None or (placement.worker is not None and placement.worker in self._pool.idle):
            if is_leaving and placement is not None:
                self._placements.clear(placement)
            return
        placement.run, placement.free_since = None, self._clock.monotonic()
        if is_leaving:  # Ray starts nothing more on a node that is drained
            self._placements.remove(placement)
            return
        self._placements.vacant.append(placement)
        self.wake_at(placement.free_since + self._options.linger_s)

    def _check_more(self, now: float) -> None:
        self._pool.check_deadlines(now)
        self.wake_at(self._placements.clear_old(now, self._options.linger_s, self._options.max_idle))

    # What the cluster is (seen by the ClusterWatcher)

    def _report_capacity(self) -> None:
        bounded, at = self._capacity.is_bounded, self._clock.now()
        self._events.append(CapacityChanged(at=at, capacity=self.capacity(), is_bounded=bounded))

    def _on_view(self, view: ClusterView) -> None:
        self._pool.draining |= view.draining.keys()
        self._view, now = view, self._clock.monotonic()
        self._on_draining(view)
        if self._capacity.see(view.nodes, view.limit, now, grows=view.has_autoscaler):
            self._report_capacity()
        self._price_trials(view)
        for placement in list(self._pool.placements.values()):
            if placement.run is not None and now >= placement.asked_at + _JUDGE_AFTER_S:
                self._check_placeable(placement, placement.run, now)
        self._start_waiting()

    def _on_draining(self, view: ClusterView) -> None:
        """Tell the trials on nodes that are drained, and gives up what waits there for another trial."""
        for line in self._draining.update(view, self._clock.now() - ahead_s(self._clock)):
            _log.warning("%s", line)
        for trial_id, placement in list(self._placements.of_trial.items()):
            if trial_id in self._trials:
                self.notify(self._trials[trial_id], self._info_of(placement))
        for placement in self._placements.unused():
            if self._info_of(placement) is not None:
                self._placements.clear(placement)

    def _info_of(self, placement: ActorPlacement) -> PreemptionInfo | None:
        """Return what is announced about the nodes that a trial uses; None: nothing."""
        node_ids = self._view.groups.get(placement.group.id.hex(), ())
        own = () if placement.worker is None else (placement.worker.node_id,)
        return self._draining.earliest((*own, *node_ids))

    # What trials cost, and what they expect

    def traits(self) -> EngineTraits:
        has_prices = self._view.has_prices or self._options.price_per_hour is not None
        return EngineTraits(has_prices=has_prices, fetches_checkpoints=True, is_shared=True)

    def _price_trials(self, view: ClusterView) -> None:
        """Prices come late: a monitor publishes that of a new node at its next tick."""
        if view.price_problem and view.price_problem != self._price_problem:
            _log.warning("%s", view.price_problem)
        self._price_problem = view.price_problem
        for run in self._trials.values() if self.traits().has_prices else ():
            if isinstance(run.worker, ActorHandle):
                self._price_trial(run, run.worker)

    def _price_trial(self, run: TrialRun, worker: ActorHandle) -> None:
        placement, bundles = worker.placement, run.command.resources.bundles
        rate = self._view.rate_of(worker.node_id, bundles, self._options.price_per_hour)
        if rate is not None and rate != placement.usd_per_hour:
            at = placement.priced_at if placement.usd_per_hour is None else self._clock.now()
            placement.usd_per_hour = rate
            self._priced(run, at, rate)

    def _node_of(self, run: TrialRun) -> Mapping[str, str]:
        return {"node_id": run.worker.node_id} if isinstance(run.worker, ActorHandle) else {}

    def publish(self, forecast: Forecast) -> None:
        if self._watcher is not None:
            self._watcher.publish(replace(forecast, driver=self._driver))

    def _check_placeable(self, placement: ActorPlacement, run: TrialRun, now: float) -> None:
        """End a trial that can never be placed, and warns about one that has waited long."""
        why = self._view.unplaceable.get(placement.group.id.hex())
        if why is None and not self._view.has_autoscaler:
            why = why_unplaceable(placement.resources, self._capacity.history.nodes())
        if why is not None:
            self._withdraw(run)
            self._finish(run, failure=failures.impossible_failure(why))
            if placement in self._placements.vacant:
                self._placements.clear(placement)
            return
        waited_s = now - placement.asked_at
        if now >= self._warn_at and waited_s >= self._options.idle_warning_s[self._view.has_autoscaler]:
            self._warn_at = now + waited_s  # the next time when it has doubled
            _log.warning(
                "trial %s has waited %d s for %s; `muster why` or `ray status` shows what the cluster lacks",
                *(run.command.trial_id, waited_s, placement.resources),
            )

    # What becomes of actors (called by ActorPool)

    def on_actor_arrived(
        self, placement: ActorPlacement, worker: ActorHandle, hello: Mapping[str, Any]
    ) -> None:
        run, placement.run = placement.run, None
        if run is None:
            return
        took_s = self._clock.monotonic() - placement.asked_at
        rejection = self._actor_setup.why_unsuitable(hello, run.command.trial_dir)
        if rejection is None and not self._actor_setup.has_our_version(hello):
            self._actor_setup.replace_actor(worker, run)
            return
        if placement.needs_node:
            self._placements.growth.booted(took_s)
            placement.needs_node = False
        if rejection is None:
            self._assign(run, worker, min(hello["age_s"], took_s))
            return
        run.failure = failure = ray_failures.start_failure(rejection)
        self._pool.bind(run, worker)
        self._kill(run, failure)

    def on_worker_gone(self, worker: ActorHandle, failure: TrialFailure | None) -> None:
        placement = worker.placement
        placement.worker = placement.actor = None
        if placement.is_given_up:
            self._pool.ray.remove_group(placement)
        elif worker.run is None:
            self._placements.remove(placement)  # an idle one that ended by itself
        self._ended(worker, lambda: failure or ray_failures.outcome_failure(None))

    def _on_no_relay(self, run: TrialRun, why: str) -> None:
        self._finish(run, failure=ray_failures.start_failure(why))

    def on_actor_missing(self, placement: ActorPlacement, outcome: BaseException | None) -> None:
        run, placement.run = placement.run, None
        placement.actor = None
        if run is not None and not self._actor_setup.try_remedy(placement, run, outcome):
            self._finish(run, failure=ray_failures.outcome_failure(outcome))
