"""The actors of RayEngine: their connections, who is idle, and how each ended. One poller for all of them."""

from __future__ import annotations

import contextlib
import itertools
import select
import signal
import socket
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from muster.base.clock import Clock
from muster.base.framing import FrameKind, frame, pack
from muster.engines.process_engine import EngineTimeouts
from muster.engines.ray import failures
from muster.engines.ray.actor_handle import ActorHandle, ActorPlacement
from muster.engines.ray.handshake import Hello, Listener, WakeupQueue
from muster.engines.worker.handle import TrialRun, WorkerHandle, WorkerState
from muster.engines.worker.poller import Poller, SpinThenWait
from muster.host import machine
from muster.trials.commands import StartTrial
from muster.trials.events import TrialFailure
from muster.trials.placement_group import PlacementGroupFactory

Told = Callable[[ActorPlacement, int, "BaseException | None"], None]


class PlacementGroups:
    """One per engine; `told` hears, in any thread, how the call that lasts as long as an actor ended."""

    def __init__(self, actor_class: Any, told: Told) -> None:  # noqa: ANN401 - Ray's types are not typed
        self.actor_class = actor_class
        self.constructor: tuple[Any, ...] = ()  # what the class is given
        self.runtime_env: dict[str, Any] = {}
        self._told = told
        self._numbers = itertools.count(1)

    def reserve(self, resources: PlacementGroupFactory) -> ActorPlacement:
        """A new placement group: the cluster sees it as pending at once."""
        from ray.util.placement_group import placement_group

        args, options = resources.options
        group = placement_group(resources.bundles, resources.strategy, *args, **selecting(resources, options))
        return ActorPlacement(0, resources, group)

    def staff(
        self, place: ActorPlacement, run: TrialRun, arguments: Callable[[int], tuple[Any, ...]]
    ) -> None:
        """A new actor for that trial, in this placement group; Ray starts it when the group is placed."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        place.number = number = next(self._numbers)
        place.run, place.desk, place.control = run, None, None
        place.outcome, place.is_over = None, False
        place.kill_at = place.ask_at = place.hang_up_at = None
        options: dict[str, Any] = {"runtime_env": self.runtime_env} if self.runtime_env else {}
        strategy = PlacementGroupSchedulingStrategy(
            place.group, placement_group_bundle_index=0, placement_group_capture_child_tasks=True
        )
        place.actor = self.actor_class.options(
            **_actor_resources(place.resources), scheduling_strategy=strategy, **options
        ).remote(*self.constructor)
        self._follow(place, place.actor.serve.remote(*arguments(number)))

    def ask(self, place: ActorPlacement) -> None:
        """Whether it lives, when Ray was not sure."""
        self._follow(place, place.actor.ping.remote())

    def _follow(self, place: ActorPlacement, ref: Any) -> None:  # noqa: ANN401
        number = place.number
        ref.future().add_done_callback(lambda done: self._told(place, number, done.exception()))

    def end(self, place: ActorPlacement) -> None:
        """End the actor by force."""
        import ray

        if place.actor is not None:
            ray.kill(place.actor, no_restart=True)
            place.kill_at = None

    def give_back(self, place: ActorPlacement) -> None:
        """The placement group goes, and with it whatever still runs in it."""
        from ray.util.placement_group import remove_placement_group

        remove_placement_group(place.group)


def selecting(resources: PlacementGroupFactory, options: Mapping[str, Any]) -> dict[str, Any]:
    """An empty first bundle is none to Ray: its label selector goes with it."""
    selectors, bundles = options.get("bundle_label_selector"), len(resources.bundles)
    if resources.head_bundle_is_empty and selectors and len(selectors) == bundles + 1:
        return {**options, "bundle_label_selector": list(selectors[1:])}
    return dict(options)


def _actor_resources(resources: PlacementGroupFactory) -> dict[str, Any]:
    """What the actor takes of the first bundle; nothing of it when that was for nobody."""
    head: Mapping[str, float] = {} if resources.head_bundle_is_empty else resources.bundles[0]
    custom = {name: amount for name, amount in head.items() if name not in ("CPU", "GPU", "memory")}
    options: dict[str, Any] = {"num_cpus": head.get("CPU", 0), "num_gpus": head.get("GPU", 0)}
    if head.get("memory"):
        options["memory"] = head["memory"]
    return {**options, "resources": custom} if custom else options


_QUIT = frame(FrameKind.QUIT)
_BLAME_S = 60.0  # Ray needs some time to find out that a node is gone
_WORDS_S = 5.0  # how long the last words of a dead process may be on their way
_CERTAIN_S = 5.0  # how long after its connection closed a process we killed may be thought alive
_ASK_EVERY_S = 1.0
_FORCE_AFTER_S = 1.0  # Ray ends what did not end itself
_CLOSE_S = 10.0


class ActorListener(Protocol):
    """Who is told what becomes of actors."""

    def heard(self, desk: WorkerHandle, kind: int, payload: bytes) -> None: ...

    def arrived(self, place: ActorPlacement, desk: ActorHandle, hello: Mapping[str, Any]) -> None: ...

    def gone(self, desk: ActorHandle, failure: TrialFailure | None) -> None: ...

    def never_came(self, place: ActorPlacement, outcome: BaseException | None) -> None: ...

    def due(self, when: float) -> None:
        """Have `look_around` called then, if not earlier."""


class ActorPool:
    """Every actor that was asked for and not seen to end."""

    def __init__(
        self,
        *,
        clock: Clock,
        patience: EngineTimeouts,
        owner: ActorListener,
        actor_class: Any,  # noqa: ANN401 - Ray's
        key: bytes,
    ) -> None:
        self._clock, self._patience, self._owner = clock, patience, owner
        self._watch, self._eagerness = Poller(), SpinThenWait()
        self._lines: dict[int, ActorHandle] = {}
        self._controls: dict[int, ActorHandle] = {}
        self.reception = Listener(self._watch, key, clock, self._receive)
        self.places: dict[int, ActorPlacement] = {}  # by the number of their actor
        self.idle: list[ActorHandle] = []
        self._ray = PlacementGroups(actor_class, self._told)
        self._hostname = machine.hostname()
        self._is_closed = False
        self.bell = WakeupQueue()
        self._watch.reading(self.bell.fileno())

    @property
    def ray(self) -> PlacementGroups:
        return self._ray

    # Connections

    def _receive(self, line: socket.socket, hello: Hello) -> None:
        place = self.places.get(hello.get("number", -1))
        if place is None or place.desk is not None:
            line.close()
        elif hello["is_control"]:
            place.control = line
        else:
            self._admit(place, line, hello)

    def _admit(self, place: ActorPlacement, line: socket.socket, hello: Hello) -> None:
        desk = place.desk = ActorHandle(place, line, hello, now=self._clock.monotonic())
        self._lines[desk.read_fd] = desk
        self._watch.reading(desk.read_fd)
        if desk.control is not None:
            self._controls[desk.control.fileno()] = desk
            self._watch.reading(desk.control.fileno())
        self._owner.arrived(place, desk, hello)

    # Actors for trials

    def hire(self, place: ActorPlacement, run: TrialRun, arguments: Callable[[int], tuple[Any, ...]]) -> None:
        """A new actor in this place."""
        self._ray.staff(place, run, arguments)
        self.places[place.number] = place

    def find_idle(self, command: StartTrial) -> ActorHandle | None:
        """One that served the same trainable with the same resources."""
        key = (command.trainable_name, command.resources, ())
        return next((desk for desk in self.idle if desk.key == key), None)

    def seat(self, run: TrialRun, desk: ActorHandle) -> None:
        if desk in self.idle:
            self.idle.remove(desk)
            run.reused = True
        desk.role, desk.run, run.desk = WorkerState.BUSY, run, desk
        desk.key = (run.command.trainable_name, run.command.resources, ())
        desk.heard_at, desk.cpu_s = self._clock.monotonic(), None

    def unseat(self, desk: WorkerHandle, *, keep: bool) -> None:
        if not isinstance(desk, ActorHandle) or not keep:
            desk.role = WorkerState.LEAVING
            return
        desk.role, desk.run = WorkerState.IDLE, None
        desk.place.free_since = self._clock.monotonic()
        self.idle.append(desk)

    def dismiss(self, desk: ActorHandle) -> None:
        """An idle one shall clean up and leave."""
        self.idle.remove(desk)
        desk.role = WorkerState.LEAVING
        self.send(desk, _QUIT)
        desk.place.kill_at = self._clock.monotonic() + self._patience.leave_within_s

    def discard(self, desk: ActorHandle) -> None:
        """Its actor is of no use; the place is."""
        self.places.pop(desk.token, None)
        self._forget(desk)
        self._ray.end(desk.place)

    def cancel(self, place: ActorPlacement) -> None:
        """It has not come, and need not."""
        self.places.pop(place.number, None)
        self._ray.end(place)
        place.actor = None
        if place.control is not None:
            place.control.close()
            place.control = None

    def kill(self, desk: WorkerHandle, number: signal.Signals) -> None:
        if isinstance(desk, ActorHandle):
            if desk.control is not None:
                with contextlib.suppress(OSError):  # it has ended, or reads no more: then Ray ends it
                    desk.control.send(frame(FrameKind.SIGNAL, pack(int(number))))
            if number == signal.SIGKILL:
                desk.place.kill_at = self._clock.monotonic() + _FORCE_AFTER_S
                self._owner.due(desk.place.kill_at)

    def is_silent(self, desk: WorkerHandle, now: float) -> bool:
        """Only where we can see for ourselves: deep in C code a trial does not beat, but works."""
        if not isinstance(desk, ActorHandle) or desk.hostname != self._hostname:
            return False
        if now - desk.heard_at < self._patience.beat_s:
            return False
        seen = machine.process_activity(desk.pid)
        if seen is None or seen.cpu_s != desk.cpu_s:
            desk.cpu_s, desk.heard_at = None if seen is None else seen.cpu_s, now
        return now - desk.heard_at >= self._patience.silent_after_s

    # Talking with them

    def send(self, desk: WorkerHandle, data: bytes) -> None:
        if not desk.write(data) and desk.write_fd in self._lines:
            self._watch.both(desk.write_fd, writing=True)

    def wait(self, timeout_s: float, now: float) -> None:
        """Handle everything that is ready, waiting up to `timeout_s` for the first."""
        look = self._watch.ready
        ready = self._eagerness.look(look) if timeout_s > 0 else None
        for fd, flags in ready or look(timeout_s if timeout_s > 0 else 0):
            desk = self._lines.get(fd)
            if desk is None:
                self._attend(fd)
                continue
            desk.heard_at = now
            if flags & select.POLLOUT and desk.flush():
                self._watch.both(fd, writing=False)
            if flags & ~select.POLLOUT:
                self._read(desk)

    def _attend(self, fd: int) -> None:
        """Whatever is not a trial's line."""
        desk = self._controls.get(fd)
        if desk is not None:
            desk.heard_at = self._clock.monotonic()
            if not desk.hear_control():
                del self._controls[fd]
                self._watch.forget(fd)
        elif fd == self.bell.fileno():
            self.bell.answer()
        else:
            self.reception.attend(fd)

    def _read(self, desk: ActorHandle) -> None:
        frames = desk.read()
        if frames is None:
            self._hang_up(desk)
            return
        for kind, payload in frames:
            self._owner.heard(desk, kind, payload)

    # How they end

    def _hang_up(self, desk: ActorHandle) -> None:
        del self._lines[desk.read_fd]
        self._watch.forget(desk.read_fd)
        desk.hung_up_at = self._clock.monotonic()
        self._owner.due(desk.hung_up_at + _ASK_EVERY_S)
        while desk.control is not None and desk.control.fileno() in self._controls and desk.words is None:
            before = desk.heard
            if not desk.hear_control() or desk.heard == before:
                break
        self._settle(desk)

    def _settle(self, desk: ActorHandle) -> None:
        """Once its line is closed: tell the owner why, as soon as that is known."""
        place, run = desk.place, desk.run
        if desk.hung_up_at is None:
            return
        if run is None or desk.words is not None or place.is_over or _has_said_all(run):
            outcome = failures.of_outcome(place.outcome) if place.is_over else None
            self._drop(desk, desk.words or outcome)

    def _told(self, place: ActorPlacement, number: int, outcome: BaseException | None) -> None:
        """Called by Ray in a thread of its own."""
        self.bell.ring(lambda: self._hear_outcome(place, number, outcome))

    def _hear_outcome(self, place: ActorPlacement, number: int, outcome: BaseException | None) -> None:
        if place.number != number or place.is_over or self.places.get(number) is not place:
            return
        desk = place.desk
        is_unsure = outcome is None or failures.is_unsure(outcome)
        if desk is not None and is_unsure and not self._is_overdue(desk):
            place.ask_at = self._clock.monotonic() + _ASK_EVERY_S
            self._owner.due(place.ask_at)
            return
        place.outcome, place.is_over = outcome, True
        if desk is None:
            del self.places[number]
            self._owner.never_came(place, outcome)
            return
        if desk.hung_up_at is None:
            # Its last words may be on their way, through a relay; a machine that broke closes nothing.
            place.hang_up_at = self._clock.monotonic() + _WORDS_S
            self._owner.due(place.hang_up_at)
        self._settle(desk)

    def _is_overdue(self, desk: ActorHandle) -> bool:
        since = desk.hung_up_at
        return since is not None and self._clock.monotonic() >= since + _BLAME_S

    def _drop(self, desk: ActorHandle, failure: TrialFailure | None) -> None:
        if self.places.get(desk.token) is not desk.place:
            return  # dropped before
        del self.places[desk.token]
        self._forget(desk)
        self._owner.gone(desk, failure)

    def _forget(self, desk: ActorHandle) -> None:
        if self._lines.pop(desk.read_fd, None) is not None:
            self._watch.forget(desk.read_fd)
        if desk.control is not None and self._controls.pop(desk.control.fileno(), None) is not None:
            self._watch.forget(desk.control.fileno())
        if desk in self.idle:
            self.idle.remove(desk)
        desk.close()

    def look_around(self, now: float) -> None:
        """What is due: kills, questions, lines that nobody closes, guests that say nothing."""
        for place in list(self.places.values()):
            self._look_after(place, now)
        self.reception.send_away(now)

    def _look_after(self, place: ActorPlacement, now: float) -> None:
        desk = place.desk
        if place.kill_at is not None and now >= place.kill_at:
            self._ray.end(place)
        if place.ask_at is not None and now >= place.ask_at:
            place.ask_at = None
            self._ray.ask(place)
        if desk is not None and desk.hung_up_at is None and _is_past(place.hang_up_at, now):
            self._hang_up(desk)
        if desk is not None and desk.hung_up_at is not None:
            run = desk.run
            was_ended_by_us = run is None or run.stopping or run.failure is not None
            if was_ended_by_us and now >= desk.hung_up_at + _CERTAIN_S:
                self._drop(desk, None)
            self._owner.due(now + _ASK_EVERY_S)
        for when in (place.kill_at, place.ask_at):
            if when is not None:
                self._owner.due(when)

    def _end_all(self) -> None:
        """Idle ones by themselves, or Ray would tell the user of processes that died for no reason."""
        for desk in list(self.idle):
            self.dismiss(desk)
        for place in list(self.places.values()):
            if place.desk is None:
                self._ray.end(place)
            elif place.desk.role is not WorkerState.LEAVING:
                self.kill(place.desk, signal.SIGKILL)
                self._ray.end(place)

    def close(self) -> None:
        """End every actor, and wait for that."""
        if self._is_closed:
            return
        self._is_closed = True
        self._owner = _Nobody()
        self._end_all()
        give_up = self._clock.monotonic() + _CLOSE_S
        while any(each.desk is not None for each in self.places.values()):
            now = self._clock.monotonic()
            if now >= give_up:
                break
            self.wait(0.1, now)
            self.look_around(now)
        self._close_all()

    def _close_all(self) -> None:
        for place in list(self.places.values()):
            if place.desk is not None:
                self._forget(place.desk)
            if place.control is not None:
                place.control.close()
        self.reception.close()
        self.bell.close()
        self._watch.close()


def _is_past(when: float | None, now: float) -> bool:
    return when is not None and now >= when


class _Nobody:
    """The owner while everything ends: nobody asks any more."""

    def heard(self, desk: WorkerHandle, kind: int, payload: bytes) -> None: ...

    def arrived(self, place: ActorPlacement, desk: ActorHandle, hello: Mapping[str, Any]) -> None: ...

    def gone(self, desk: ActorHandle, failure: TrialFailure | None) -> None: ...

    def never_came(self, place: ActorPlacement, outcome: BaseException | None) -> None: ...

    def due(self, when: float) -> None:
        """Have `look_around` called then, if not earlier."""


def _has_said_all(run: TrialRun) -> bool:
    """Its verdict explains its end: an error, done, or the stop it was told."""
    return run.verdict is not None and bool(run.verdict[2] or run.verdict[0] or run.stopping)
