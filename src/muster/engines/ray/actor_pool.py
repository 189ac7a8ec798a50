"""ActorPool holds the actors of RayEngine: their connections, which are idle, and how each ended."""

from __future__ import annotations

import contextlib
import itertools
import math
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any

from muster.base.clock import Clock
from muster.base.framing import FrameKind, frame, pack
from muster.engines.connection_pool import ConnectionPool
from muster.engines.process_engine import EngineTimeouts
from muster.engines.ray import failures
from muster.engines.ray.actor_handle import ActorHandle, ActorPlacement
from muster.engines.worker.handle import TrialRun, WorkerHandle
from muster.engines.worker.handshake import Hello
from muster.trials.events import TrialFailure
from muster.trials.placement_group import PlacementGroupFactory

OnOutcome = Callable[[ActorPlacement, int, "BaseException | None"], None]


class PlacementGroups:
    """Makes placement groups and actors; one per engine.

    `on_outcome` is called, in any thread, with the outcome of the call that lasts as long as an actor.
    """

    def __init__(self, actor_class: Any, on_outcome: OnOutcome) -> None:  # noqa: ANN401 - Ray's types are not typed
        self.actor_class = actor_class
        self.constructor: tuple[Any, ...] = ()  # what the class is given
        self.runtime_env: dict[str, Any] = {}
        self._on_call_ended = on_outcome
        self._numbers = itertools.count(1)

    def reserve(self, resources: PlacementGroupFactory) -> ActorPlacement:
        """Return a new placement group, which the cluster sees as pending at once."""
        from ray.util.placement_group import placement_group

        args, options = resources.options
        group = placement_group(resources.bundles, resources.strategy, *args, **selecting(resources, options))
        return ActorPlacement(0, resources, group)

    def start_actor(
        self, placement: ActorPlacement, run: TrialRun, arguments: Callable[[int], tuple[Any, ...]]
    ) -> None:
        """Request an actor for that trial; Ray starts it when the placement group is placed."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        placement.number = number = next(self._numbers)
        placement.run, placement.worker, placement.control = run, None, None
        placement.outcome, placement.is_over = None, False
        placement.kill_at = placement.ask_at = placement.hang_up_at = math.inf
        options: dict[str, Any] = {"runtime_env": self.runtime_env} if self.runtime_env else {}
        strategy = PlacementGroupSchedulingStrategy(
            placement.group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        placement.actor = self.actor_class.options(
            **_actor_resources(placement.resources), scheduling_strategy=strategy, **options
        ).remote(*self.constructor)
        self._follow(placement, placement.actor.serve.remote(*arguments(number)))

    def ask(self, placement: ActorPlacement) -> None:
        """Ask the actor whether it lives, when Ray was not sure."""
        self._follow(placement, placement.actor.ping.remote())

    def _follow(self, placement: ActorPlacement, ref: Any) -> None:  # noqa: ANN401
        number = placement.number
        ref.future().add_done_callback(lambda done: self._on_call_ended(placement, number, done.exception()))

    def end(self, placement: ActorPlacement) -> None:
        """End the actor by force."""
        import ray

        if placement.actor is not None:
            ray.kill(placement.actor, no_restart=True)
            placement.kill_at = math.inf

    def remove_group(self, placement: ActorPlacement) -> None:
        """Remove the placement group, and with it whatever still runs in it."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(placement.group)


def selecting(resources: PlacementGroupFactory, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options without the label selector of an empty first bundle, which Ray does not get."""
    selectors, bundles = options.get("bundle_label_selector"), len(resources.bundles)
    if resources.head_bundle_is_empty and selectors and len(selectors) == bundles + 1:
        return {**options, "bundle_label_selector": list(selectors[1:])}
    return dict(options)


def _actor_resources(resources: PlacementGroupFactory) -> dict[str, Any]:
    """Return what the actor takes of the first bundle; nothing when the head bundle is empty."""
    head: Mapping[str, float] = {} if resources.head_bundle_is_empty else resources.bundles[0]
    custom = {name: amount for name, amount in head.items() if name not in ("CPU", "GPU", "memory")}
    options: dict[str, Any] = {"num_cpus": head.get("CPU", 0), "num_gpus": head.get("GPU", 0)}
    if head.get("memory"):
        options["memory"] = head["memory"]
    return {**options, "resources": custom} if custom else options


_QUIT = frame(FrameKind.QUIT)
_OUTCOME_TIMEOUT_S = 60.0  # Ray needs some time to find out that a node is gone
_LAST_FRAMES_S = 5.0  # how long the last frames of a dead process may take to arrive
_CERTAIN_S = 5.0  # how long a killed process may count as alive after its connection closed
_ASK_EVERY_S = 1.0
_FORCE_AFTER_S = 1.0  # Ray ends what did not end itself
_CLOSE_S = 10.0


class ActorListener:
    """Called with what becomes of actors; this one ignores it."""

    def on_frame(self, worker: WorkerHandle, kind: int, payload: bytes) -> None:
        """Handle one frame of a worker."""

    def on_actor_arrived(
        self, placement: ActorPlacement, worker: ActorHandle, hello: Mapping[str, Any]
    ) -> None:
        """Handle an actor that has connected."""

    def on_worker_gone(self, worker: ActorHandle, failure: TrialFailure | None) -> None:
        """Handle the end of an actor; no failure: its own report explains the end."""

    def on_actor_missing(self, placement: ActorPlacement, outcome: BaseException | None) -> None:
        """Handle an actor that has ended before it connected."""

    def wake_at(self, when: float) -> None:
        """Have `check_deadlines` called at this time, if not earlier."""


class ActorPool(ConnectionPool[ActorHandle]):
    """Holds every actor that was requested and not seen to end."""

    def __init__(
        self,
        *,
        clock: Clock,
        timeouts: EngineTimeouts,
        owner: ActorListener,
        actor_class: Any,  # noqa: ANN401 - Ray's
        key: bytes,
    ) -> None:
        super().__init__(clock, timeouts, key)
        self._owner = owner
        self._controls: dict[int, ActorHandle] = {}
        self.placements: dict[int, ActorPlacement] = {}  # by the number of their actor
        self.draining: set[str] = set()  # hex ids of all nodes that were ever seen draining, dead ones too
        self.ray = PlacementGroups(actor_class, self._on_call_ended)

    # Connections

    def _receive(self, connection: socket.socket, hello: Hello) -> None:
        placement = self.placements.get(hello.get("number", -1))
        if placement is None or placement.worker is not None:
            connection.close()
        elif hello["is_control"]:
            placement.control = connection
        else:
            self._admit(placement, connection, hello)

    def _admit(self, placement: ActorPlacement, connection: socket.socket, hello: Hello) -> None:
        worker = placement.worker = ActorHandle(placement, connection, hello, now=self._clock.monotonic())
        self._add(worker)
        if worker.control is not None:
            self._controls[worker.control.fileno()] = worker
            self._poller.add_reader(worker.control.fileno())
        self._owner.on_actor_arrived(placement, worker, hello)

    # Actors for trials

    def start_actor(
        self, placement: ActorPlacement, run: TrialRun, arguments: Callable[[int], tuple[Any, ...]]
    ) -> None:
        """Request a new actor in this placement."""
        self.ray.start_actor(placement, run, arguments)
        self.placements[placement.number] = placement

    def release(self, worker: ActorHandle, *, keep: bool) -> None:
        super().release(worker, keep=keep)
        if keep:
            worker.placement.free_since = self._clock.monotonic()

    def retire(self, worker: ActorHandle) -> None:
        """Make an idle actor clean up and leave."""
        self.idle.remove(worker)
        worker.is_leaving = True
        self.send(worker, _QUIT)
        worker.placement.kill_at = self._clock.monotonic() + self._timeouts.leave_within_s

    def discard(self, worker: ActorHandle) -> None:
        """End the actor, and keep its placement."""
        self.placements.pop(worker.token, None)
        self._forget(worker)
        self.ray.end(worker.placement)

    def cancel(self, placement: ActorPlacement) -> None:
        """End an actor that has not arrived yet."""
        self.placements.pop(placement.number, None)
        self.ray.end(placement)
        placement.actor = None
        if placement.control is not None:
            placement.control.close()
            placement.control = None

    def kill(self, worker: ActorHandle, number: signal.Signals) -> None:
        if worker.control is not None:
            with contextlib.suppress(OSError):  # it has ended, or reads no more: then Ray ends it
                worker.control.send(frame(FrameKind.SIGNAL, pack(int(number))))
        if number == signal.SIGKILL:
            worker.placement.kill_at = self._clock.monotonic() + _FORCE_AFTER_S
            self._owner.wake_at(worker.placement.kill_at)

    def is_of_this_machine(self, worker: ActorHandle) -> bool:
        return worker.hostname == self._hostname

    # Exchanging frames

    def _on_ready(self, fd: int) -> None:
        worker = self._controls.get(fd)
        if worker is not None:
            worker.last_seen_at = self._clock.monotonic()
            if not worker.read_control():
                del self._controls[fd]
                self._poller.forget(fd)
        else:
            super()._on_ready(fd)

    def _read(self, worker: ActorHandle) -> None:
        frames = worker.read()
        if frames is None:
            self._hang_up(worker)
            return
        for kind, payload in frames:
            self._owner.on_frame(worker, kind, payload)

    # Ends

    def _hang_up(self, worker: ActorHandle) -> None:
        self._forget_connection(worker)
        worker.hung_up_at = self._clock.monotonic()
        self._owner.wake_at(worker.hung_up_at + _ASK_EVERY_S)
        while (
            worker.control is not None
            and worker.control.fileno() in self._controls
            and worker.reported_failure is None
        ):
            before = worker.control_data
            if not worker.read_control() or worker.control_data == before:
                break
        self._drop_if_explained(worker)

    def _drop_if_explained(self, worker: ActorHandle) -> None:
        """Report the end of an actor whose channel is closed, as soon as the reason is known."""
        placement, run = worker.placement, worker.run
        if worker.hung_up_at is None:
            return
        if run is None or worker.reported_failure is not None or placement.is_over or _has_reported_exit(run):
            failure = worker.reported_failure
            if failure is None and placement.is_over:
                was_draining, uses_tls = worker.node_id in self.draining, self.listener.tls is not None
                failure = failures.outcome_failure(
                    placement.outcome, was_draining=was_draining, uses_tls=uses_tls
                )
            self._drop(worker, failure)

    def _on_call_ended(self, placement: ActorPlacement, number: int, outcome: BaseException | None) -> None:
        """Pass the outcome of a call on to the engine's thread; Ray calls this in a separate thread."""
        self.wakeups.put(lambda: self._on_outcome(placement, number, outcome))

    def _on_outcome(self, placement: ActorPlacement, number: int, outcome: BaseException | None) -> None:
        if placement.number != number or placement.is_over or self.placements.get(number) is not placement:
            return
        worker, now = placement.worker, self._clock.monotonic()
        is_actor_unavailable = outcome is None or failures.is_actor_unavailable(outcome)
        hung_up_at = None if worker is None else worker.hung_up_at
        is_overdue = hung_up_at is not None and now >= hung_up_at + _OUTCOME_TIMEOUT_S
        if worker is not None and is_actor_unavailable and not is_overdue:
            placement.ask_at = now + _ASK_EVERY_S
            self._owner.wake_at(placement.ask_at)
            return
        placement.outcome, placement.is_over = outcome, True
        if worker is None:
            del self.placements[number]
            self._owner.on_actor_missing(placement, outcome)
            return
        if worker.hung_up_at is None:
            # Its last frames may be under way, through a relay; a machine that broke closes nothing.
            placement.hang_up_at = self._clock.monotonic() + _LAST_FRAMES_S
            self._owner.wake_at(placement.hang_up_at)
        self._drop_if_explained(worker)

    def _drop(self, worker: ActorHandle, failure: TrialFailure | None) -> None:
        if self.placements.get(worker.token) is not worker.placement:
            return  # dropped before
        del self.placements[worker.token]
        self._forget(worker)
        self._owner.on_worker_gone(worker, failure)

    def _forget(self, worker: ActorHandle) -> None:
        self._forget_connection(worker)
        if worker.control is not None and self._controls.pop(worker.control.fileno(), None) is not None:
            self._poller.forget(worker.control.fileno())
        if worker in self.idle:
            self.idle.remove(worker)
        worker.close()

    def check_deadlines(self, now: float) -> None:
        """Do what is due: kills, pings, channels that nothing closes, connections without a handshake."""
        for placement in list(self.placements.values()):
            self._check_placement(placement, now)
        self.listener.close_expired(now)

    def _check_placement(self, placement: ActorPlacement, now: float) -> None:
        worker = placement.worker
        if now >= placement.kill_at:
            self.ray.end(placement)
        if now >= placement.ask_at:
            placement.ask_at = math.inf
            self.ray.ask(placement)
        if worker is not None and worker.hung_up_at is None and now >= placement.hang_up_at:
            self._hang_up(worker)
        if worker is not None and worker.hung_up_at is not None:
            run = worker.run
            was_ended_by_us = run is None or run.stopping or run.failure is not None
            if was_ended_by_us and now >= worker.hung_up_at + _CERTAIN_S:
                self._drop(worker, None)
            self._owner.wake_at(now + _ASK_EVERY_S)
        self._owner.wake_at(min(placement.kill_at, placement.ask_at))

    def _end_all(self) -> None:
        """End all actors; idle ones by themselves, or Ray would report processes that died for no reason."""
        for worker in list(self.idle):
            self.retire(worker)
        for placement in list(self.placements.values()):
            if placement.worker is None:
                self.ray.end(placement)
            elif not placement.worker.is_leaving:
                self.kill(placement.worker, signal.SIGKILL)
                self.ray.end(placement)

    def close(self) -> None:
        if self._is_closed:
            return
        self._is_closed = True
        self._owner = ActorListener()
        self._end_all()
        give_up = self._clock.monotonic() + _CLOSE_S
        while any(each.worker is not None for each in self.placements.values()):
            now = self._clock.monotonic()
            if now >= give_up:
                break
            self.wait(0.1, now)
            self.check_deadlines(now)
        for placement in list(self.placements.values()):
            if placement.worker is not None:
                self._forget(placement.worker)
            if placement.control is not None:
                placement.control.close()
        self._close_poller()


def _has_reported_exit(run: TrialRun) -> bool:
    """Return whether the trial's report explains its end: an error, done, or the stop that was ordered."""
    report = run.exit_report
    return report is not None and (report.kind is not None or report.is_done or run.stopping)
