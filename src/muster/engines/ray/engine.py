"""RayEngine runs trials as Ray actors in placement groups; `open_ray_engine` builds it.

Trials are first come, first served, within what the cluster is or may become. Actors and placement groups are
kept for a moment after a trial, for the next one that wants the same.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from msgspec.structs import replace

from muster.base.clock import Clock, ahead_s
from muster.base.forecast import Forecast, last_of
from muster.base.resources import Resources
from muster.engines.process_engine import EngineTimeouts, ProcessEngine, order_of
from muster.engines.ray import failures as ray_failures
from muster.engines.ray.actor_handle import ActorHandle, ActorPlacement
from muster.engines.ray.actor_pool import ActorListener, ActorPool
from muster.engines.ray.actor_setup import ActorSetup
from muster.engines.ray.cluster_watcher import (
    CapacityHistory,
    ClusterCapacity,
    ClusterView,
    ClusterWatcher,
    DrainingNodes,
    Growth,
    why_unplaceable,
)
from muster.engines.ray.handshake import mismatch
from muster.engines.ray.remote_storage import RemoteStorage
from muster.engines.ray.tls import TlsTunnel, uses_tls
from muster.engines.worker import failures
from muster.engines.worker.handle import TrialRun
from muster.engines.worker.protocol import write_order
from muster.errors import EngineError
from muster.host import machine
from muster.runtimes.ray.forecast_board import ForecastWriter
from muster.session.preemption import PreemptionInfo
from muster.stores.checkpoints import CheckpointStore, delete_directory
from muster.stores.storage import Storage
from muster.trials.commands import StartTrial
from muster.trials.events import CapacityChanged, TrialFailure
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.spend import share_of_bundles

_log = logging.getLogger(__name__)

_JUDGE_AFTER_S = 5.0  # so long a pending placement group is not judged: nodes may be on their way
_MOST_REMOVALS = 16  # of placement groups, at once


class RayOptions(EngineTimeouts, frozen=True, kw_only=True):
    """A RayOptions holds what few users need to change."""

    max_idle: int = 64  # actors kept for reuse
    linger_s: float = 5.0  # how long an idle actor or an empty placement group is kept
    env: Mapping[str, str] = {}  # added to the environment of trials
    storage: bytes | None = None  # of remote results, for `get_context().get_storage()`
    remote_storage: RemoteStorage | None = None  # for nodes that do not see the driver's directory
    price_per_hour: float | None = None  # $ of a node whose price nobody publishes; None: not known
    idle_warning_s: tuple[float, float] = (60.0, 60.0)  # a trial waits so long; the second with an autoscaler


_DEFAULTS = RayOptions()


class Connection(NamedTuple):
    """A Connection is what an engine needs to know of the Ray that this process is connected to."""

    ray: Any  # the module
    host: str | None  # the address of this machine that nodes reach; None: they do not reach it
    actor_class: Any  # `ray.remote(TrialActor)`
    read_cluster: Callable[[], ClusterView] | None = None  # reads the cluster; called in another thread
    on_close: Callable[[], None] | None = None
    forecasts: ForecastWriter | None = None  # None: the key-value store cannot be written from here
    driver: str = ""  # how the cluster calls this program


class RayEngine(ProcessEngine, ActorListener):
    """A RayEngine runs trials on the Ray cluster that this process is connected to.

    Not thread-safe: one thread submits and polls. Close it, or use it as a context manager.
    """

    _pool: ActorPool
    fetches_checkpoints = True  # actors get those that only the storage has

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
        """Takes the first view of the cluster, which `capacity` overrides, and pickled trainables by name."""
        super().__init__(clock, options)
        tls = TlsTunnel(machine.environment()) if uses_tls(machine.environment()) else None
        self._options = options
        self._on_close: Callable[[], None] | None = connection.on_close
        self._fixed = dict(capacity or {})
        self._ray_version = str(connection.ray.__version__)
        self._capacity = ClusterCapacity({})
        self._growth, self._history = Growth(), CapacityHistory()
        self._view, self._draining = view, DrainingNodes()
        self._warn_at, self._price_problem = 0.0, ""
        self._writer, self._driver = connection.forecasts, connection.driver
        self._forecast: Forecast | None = None
        key = secrets.token_bytes(32)
        self._placement_of: dict[str, ActorPlacement] = {}  # of trials that have one
        self._vacant: list[ActorPlacement] = []  # placement groups without an actor
        self._orders: dict[str, bytes] = {}  # of trials whose actor has not come yet
        self._pool = ActorPool(
            clock=clock, timeouts=options, owner=self, actor_class=connection.actor_class, key=key
        )
        self._pool.listener.tls = tls
        self._actor_setup = ActorSetup(connection.ray, self._pool, key, options.beat_s, self._on_no_relay)
        if options.remote_storage is not None:
            self._actor_setup.set_remote_storage(options.remote_storage)
        self._was_apart: set[str] = set()  # trials that ran where the driver's directory is not seen
        if connection.host is None:
            self._actor_setup.use_relay("the cluster does not see this machine")
        else:
            self._actor_setup.addresses = [self._pool.listener.listen(connection.host)]
        for name, blob in (trainables or {}).items():
            self.register(name, blob)
        self._measure(view)
        if not self._capacity.is_bounded:
            self._report_capacity()
        self._watcher: ClusterWatcher | None = None
        if connection.read_cluster is not None:
            wakeups = self._pool.wakeups
            self._watcher = ClusterWatcher(
                partial(self._watch, connection.read_cluster),
                lambda seen: wakeups.put(lambda: self._on_view(seen)),
            )

    def capacity(self) -> Mapping[str, float]:
        return self._capacity.limit.to_floats()

    def register(self, name: str, trainable: bytes) -> None:
        """Makes a cloudpickled trainable known; a later one of the same name replaces it for later trials."""
        self._actor_setup.put(name, trainable)
        for worker in [each for each in self._pool.idle if each.key is not None and each.key[0] == name]:
            self._retire(worker)

    def close(self) -> None:
        if self._watcher is not None:
            self._watcher.close()
        self._end_forecast()
        groups = {id(placement): placement for placement in (*self._pool.placements.values(), *self._vacant)}
        super().close()
        with ThreadPoolExecutor(_MOST_REMOVALS) as threads:  # each waits for an answer of the cluster
            list(threads.map(self._pool.ray.remove_group, groups.values()))
        self._vacant.clear()
        self._placement_of.clear()
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
            order = order_of(run.command, self._options.env, self._options.storage)
            message = write_order(order._replace(has_leftovers=order.trial_id in self._was_apart))
        except Exception as error:  # noqa: BLE001 - pickling a user's config runs user code
            self._finish(run, failure=failures.unpicklable_failure("the config cannot be pickled", error))
            return
        self._orders[run.command.trial_id] = message
        self._waiting.add(run)
        self._start_waiting()

    def _try_start(self, run: TrialRun) -> bool:
        """Takes an idle actor, an empty placement group, or new ones; returns False if it must wait."""
        command = run.command
        why_not = self._capacity.why_never(command.resources)
        if why_not is not None:  # the cluster has shrunk for good
            self._waiting.remove(run)
            self._finish(run, failure=failures.impossible_failure(why_not))
            return True
        idle = self._pool.find_idle(command) if command.may_reuse else None
        if idle is not None:
            self._placement_of[command.trial_id] = idle.placement
            self._assign(run, idle)
            return True
        placement = next((each for each in self._vacant if each.resources == command.resources), None)
        if placement is not None:
            self._vacant.remove(placement)
        elif self._find_capacity(run):
            placement = self._pool.ray.reserve(command.resources)
            placement.needs_node = not self._capacity.is_there(command.resources)
            self._capacity.take(command.resources)
        else:
            return False
        self._placement_of[command.trial_id] = placement
        placement.asked_at = self._clock.monotonic()
        self._actor_setup.start_actor(placement, run)
        return True

    def _assign(self, run: TrialRun, worker: ActorHandle, start_s: float = 0.0) -> None:
        self._pool.bind(run, worker)
        if not worker.sees_storage:
            self._was_apart.add(run.command.trial_id)
            _delete_leftovers(run.command)
        placement = worker.placement
        placement.assigned_at, placement.priced_at = self._clock.monotonic(), self._clock.now() - start_s
        placement.usd_per_hour = None
        self._price_trial(run, worker)
        self._send_order(run, worker, self._orders.pop(run.command.trial_id))
        self.notify(run, self._info_of(worker.placement))

    def _find_capacity(self, run: TrialRun) -> bool:
        """Returns whether a new placement group may be requested; unused actors and groups end first."""
        wanted = run.command.resources
        if self._capacity.fits(wanted):
            return self._capacity.is_there(wanted) or self._is_worth_a_node(wanted)
        unused = [*self._vacant, *(worker.placement for worker in self._pool.idle)]
        if not self._capacity.fits(wanted, without=[placement.resources for placement in unused]):
            return False
        for placement in unused:
            self._clear(placement)
            if self._capacity.fits(wanted):
                break
        return True

    def _is_worth_a_node(self, wanted: PlacementGroupFactory) -> bool:
        """Returns whether the trial would still wait when a new machine could be up."""
        placements = self._pool.placements.values()
        shown = sum(each.worker is None and each.needs_node for each in placements)
        alike = [each for each in placements if each.resources == wanted and not each.needs_node]
        began = [each.began_at for each in alike if each.began_at is not None]
        now, wanting = self._clock.monotonic(), len(self._waiting) + shown
        return self._growth.wants_more(began, wanting, shown, now, self._left_s())

    def _clear(self, placement: ActorPlacement) -> None:
        if placement in self._vacant:
            self._vacant.remove(placement)
            self._release_placement(placement)
        elif placement.worker is not None:
            self._retire(placement.worker)

    def _retire(self, worker: ActorHandle) -> None:
        """Frees the room of an actor at once: Ray gives it to no other before the actor has left."""
        self._pool.retire(worker)
        self._capacity.free(worker.placement.resources)
        worker.placement.is_given_up = True

    def _release_placement(self, placement: ActorPlacement) -> None:
        self._capacity.free(placement.resources)
        self._pool.ray.remove_group(placement)

    # Ending

    def _withdraw(self, run: TrialRun) -> None:
        """Cancels the actor, if one was requested; the placement group may serve another trial."""
        self._waiting.remove(run)
        placement = self._placement_of.get(run.command.trial_id)
        if placement is not None:
            self._actor_setup.forget(run)
            self._pool.cancel(placement)

    def _release(self, run: TrialRun) -> None:
        trial_id = run.command.trial_id
        self._orders.pop(trial_id, None)
        placement = self._placement_of.pop(trial_id, None)
        if placement is not None and run.worker is not None:
            self._growth.ended(self._clock.monotonic() - placement.assigned_at)
        is_leaving = placement is not None and self._info_of(placement) is not None
        if placement is None or (placement.worker is not None and placement.worker in self._pool.idle):
            if is_leaving and placement is not None:
                self._clear(placement)
            return
        placement.run, placement.free_since = None, self._clock.monotonic()
        if is_leaving:  # Ray starts nothing more on a node that is drained
            self._release_placement(placement)
            return
        self._vacant.append(placement)
        self.wake_at(placement.free_since + self._options.linger_s)

    def _check_more(self, now: float) -> None:
        self._pool.check_deadlines(now)
        for placement in [*self._vacant, *(worker.placement for worker in self._pool.idle)]:
            if now >= placement.free_since + self._options.linger_s:
                self._clear(placement)
            else:
                self.wake_at(placement.free_since + self._options.linger_s)
        for worker in self._pool.idle[: max(0, len(self._pool.idle) - self._options.max_idle)]:
            self._retire(worker)

    # What the cluster is (seen by the ClusterWatcher)

    def _measure(self, view: ClusterView) -> bool:
        self._view = view
        self._history.note(view.nodes, self._clock.monotonic())
        present = {**view.present, **self._fixed}
        expected = view.limit if view.has_autoscaler else self._history.most()
        limit = None if expected is None else {**expected, **self._fixed}
        is_bounded = limit is not None or bool(self._fixed)
        return self._capacity.update(present, limit, is_bounded=is_bounded)

    def _report_capacity(self) -> None:
        bounded, at = self._capacity.is_bounded, self._clock.now()
        self._events.append(CapacityChanged(at=at, capacity=self.capacity(), is_bounded=bounded))

    def _on_view(self, view: ClusterView) -> None:
        self._pool.draining |= view.draining.keys()
        self._on_draining(view)
        if self._measure(view):
            self._report_capacity()
        self._price_trials(view)
        now = self._clock.monotonic()
        for placement in list(self._pool.placements.values()):
            if placement.run is not None and now >= placement.asked_at + _JUDGE_AFTER_S:
                self._check_placeable(placement, placement.run, now)
        self._start_waiting()

    def _on_draining(self, view: ClusterView) -> None:
        """Tells the trials on nodes that are drained, and gives up what waits there for another trial."""
        for line in self._draining.update(view, self._clock.now() - ahead_s(self._clock)):
            _log.warning("%s", line)
        self._view = view
        for trial_id, placement in list(self._placement_of.items()):
            if trial_id in self._trials:
                self.notify(self._trials[trial_id], self._info_of(placement))
        for placement in [*self._vacant, *(worker.placement for worker in self._pool.idle)]:
            if self._info_of(placement) is not None:
                self._clear(placement)

    def _info_of(self, placement: ActorPlacement) -> PreemptionInfo | None:
        """Returns what is announced about the nodes that a trial uses; None: nothing."""
        node_ids = self._view.groups.get(placement.group.id.hex(), ())
        own = () if placement.worker is None else (placement.worker.node_id,)
        return self._draining.earliest((*own, *node_ids))

    # What trials cost, and what they expect

    @property
    def has_prices(self) -> bool:
        """Whether nodes have a price, or will have one."""
        return self._view.has_prices or self._options.price_per_hour is not None

    def _price_trials(self, view: ClusterView) -> None:
        """Prices come late: a monitor publishes that of a new node at its next tick."""
        if view.price_problem and view.price_problem != self._price_problem:
            _log.warning("%s", view.price_problem)
        self._price_problem = view.price_problem
        for run in self._trials.values() if self.has_prices else ():
            if isinstance(run.worker, ActorHandle):
                self._price_trial(run, run.worker)

    def _price_trial(self, run: TrialRun, worker: ActorHandle) -> None:
        placement, view = worker.placement, self._view
        price = view.prices.get(worker.node_id, self._options.price_per_hour)
        total = view.totals.get(worker.node_id)
        if price is None or total is None:
            return
        rate = price * share_of_bundles(run.command.resources.bundles, Resources.of(total))
        if rate != placement.usd_per_hour:
            at = placement.priced_at if placement.usd_per_hour is None else self._clock.now()
            placement.usd_per_hour = rate
            self._priced(run, at, rate)

    def _node_of(self, run: TrialRun) -> Mapping[str, str]:
        return {"node_id": run.worker.node_id} if isinstance(run.worker, ActorHandle) else {}

    def publish(self, forecast: Forecast) -> None:
        """Has the watcher's thread tell the cluster's autoscaler what the experiment expects.

        The first one is written at once: a monitor that sees trials without it buys room for all of them.
        """
        is_first, self._forecast = self._forecast is None, replace(forecast, driver=self._driver)
        if is_first and self._writer is not None:
            with suppress(EngineError):  # the watcher's thread tries again
                self._writer.write(self._forecast)

    def _watch(self, read: Callable[[], ClusterView]) -> ClusterView:
        """Reads the cluster, and writes the newest forecast, in the watcher's thread."""
        if self._writer is not None and self._forecast is not None:
            self._writer.write(self._forecast)
        return read()

    def _end_forecast(self) -> None:
        """Says that nothing more will come, so that idle nodes need not wait; it is stale in a minute."""
        if self._writer is not None and self._forecast is not None:
            with suppress(EngineError):  # the head is gone, and the entry with it
                self._writer.write(last_of(self._forecast, self._clock.now() - ahead_s(self._clock)))

    def _check_placeable(self, placement: ActorPlacement, run: TrialRun, now: float) -> None:
        """Ends a trial that can never be placed, and warns about one that has waited long."""
        why = self._view.unplaceable.get(placement.group.id.hex())
        if why is None and not self._view.has_autoscaler:
            why = why_unplaceable(placement.resources, self._history.nodes())
        if why is not None:
            self._withdraw(run)
            self._finish(run, failure=failures.impossible_failure(why))
            if placement in self._vacant:
                self._clear(placement)
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
        why = mismatch(hello, python=platform.python_version(), ray=self._ray_version)
        if why is not None:
            self._reject(run, worker, ray_failures.start_failure(why))
            return
        if not self._actor_setup.has_our_version(hello):
            self._actor_setup.replace_actor(worker, run)
            return
        if placement.needs_node:
            self._growth.booted(self._clock.monotonic() - placement.asked_at)
            placement.needs_node = False
        why_not = self._actor_setup.why_unsendable or hello["storage_problem"]
        if not worker.sees_storage and (self._options.remote_storage is None or why_not):
            unseen = _storage_unseen(
                run.command.trial_dir, worker.hostname, self._options.remote_storage, why_not
            )
            self._reject(run, worker, unseen)
            return
        self._assign(run, worker, min(hello["age_s"], self._clock.monotonic() - placement.asked_at))

    def _reject(self, run: TrialRun, worker: ActorHandle, failure: TrialFailure) -> None:
        """Ends a trial, and its actor, on a node that cannot run it."""
        run.failure = failure
        self._pool.bind(run, worker)
        self._kill(run, failure)

    def on_worker_gone(self, worker: ActorHandle, failure: TrialFailure | None) -> None:
        placement = worker.placement
        placement.worker = placement.actor = None
        if placement.is_given_up:
            self._pool.ray.remove_group(placement)
        elif worker.run is None:
            self._release_placement(placement)  # an idle one that ended by itself
        self._ended(worker, lambda: failure or ray_failures.outcome_failure(None))

    def _on_no_relay(self, run: TrialRun, why: str) -> None:
        self._finish(run, failure=ray_failures.start_failure(why))

    def on_actor_missing(self, placement: ActorPlacement, outcome: BaseException | None) -> None:
        run, placement.run = placement.run, None
        placement.actor = None
        if run is not None and not self._actor_setup.try_remedy(placement, run, outcome):
            self._finish(run, failure=ray_failures.outcome_failure(outcome))


def _storage_unseen(
    trial_dir: str, hostname: str, remote_storage: RemoteStorage | None, why_not: str
) -> TrialFailure:
    seen = f"the node {hostname} does not see {os.path.dirname(trial_dir)}"
    if remote_storage is None:
        return ray_failures.start_failure(
            f"{seen}; set RunConfig(storage_path=...) to a directory that every node mounts"
        )
    return ray_failures.start_failure(
        f"{seen} and cannot use {remote_storage.uri}: {why_not}. Give the node what that storage needs "
        "(package, credentials, network), or set RunConfig(storage_path=...) to a directory that every node "
        "mounts"
    )


def _delete_leftovers(command: StartTrial) -> None:
    """Deletes checkpoints of an unfinished attempt: the trial makes others of these names, elsewhere."""
    for index, path in CheckpointStore(Storage(os.path.dirname(command.trial_dir))).listed(
        os.path.basename(command.trial_dir)
    ):
        if index > command.checkpoint_index:
            delete_directory(Path(path))
