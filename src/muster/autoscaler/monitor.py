"""Monitor: the loop that runs a cluster: tick, tell, wait. Composed in `build`, started by the CLI.

No exception of a tick or of an outlet ends it; only a refused token, another monitor, or being asked to.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from muster.autoscaler.lease import AlreadyMonitored
from muster.autoscaler.metrics import Metrics
from muster.autoscaler.recording_ports import Sightings, sound
from muster.autoscaler.tick import Tick
from muster.autoscaler.tick_interval import TickInterval, wishes
from muster.base.clock import Clock
from muster.base.log import OnChange
from muster.cluster.controller import ClusterController
from muster.cluster.model import RuntimeReport
from muster.cluster.ports import InstanceStore
from muster.errors import EngineDenied, EngineMissing, StoreError

logger = logging.getLogger(__name__)

LOOK_S = 0.2  # between ticks: a cheap look whether something must not wait
_TICK_DUTY = 10.0  # news is acted on at once, but ticks take at most a tenth of the time
_LOOK_DUTY = 50.0  # and looks, which grow with the cluster, a fiftieth
_FATAL = (EngineDenied, EngineMissing, AlreadyMonitored)


class StopSignal(Protocol):
    """How the loop is asked to end, and how it waits; `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class TickListener(Protocol):
    """Somebody who is told of every tick."""

    def hear(self, tick: Tick) -> None: ...


@dataclass(frozen=True)
class Loop:
    """What the monitor drives: a controller over watched ports."""

    controller: ClusterController
    store: InstanceStore
    seen: Sightings
    look: Callable[[], RuntimeReport] | None = None  # the runtime, past the watched port; None: no looks
    stamp: Callable[[], object] = lambda: None  # of the config's file: a cheap look whether it was written
    adopt: Callable[[], None] = lambda: None  # take on what the config, as read, says of the monitor itself


class Monitor:
    """One cluster's loop."""

    def __init__(
        self,
        loop: Loop,
        pace: TickInterval,
        *,
        clock: Clock,
        outlets: Sequence[TickListener] = (),
        metrics: Metrics | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._loop, self._pace, self._clock = loop, pace, clock
        self._outlets, self._metrics, self._close = tuple(outlets), metrics, close
        self._changes = OnChange(logger)
        self._newest: Tick | None = None
        self._wishes: object = None
        self._stamp: object = None
        self._look_took_s = 0.0
        self._ended_at = clock.monotonic()
        self._problem = ""
        self._is_away = False

    def run(self, stop: StopSignal, *, once: bool = False) -> None:
        """Until asked to stop; the tick under way is finished, and everything is closed."""
        try:
            while not stop.is_set():
                interval_s = self.round()
                if once:
                    break
                self._wait(stop, interval_s)
        finally:
            if self._close is not None:
                self._close()

    def round(self) -> float:
        """One tick, told to everybody; seconds until the next."""
        self._stamp = self._loop.stamp()
        tick = self._tick()
        self._ended_at = self._clock.monotonic()
        self._newest = tick
        self._wishes = None if tick is None or tick.runtime is None else wishes(tick.runtime)
        if tick is None:
            return self._pace.max_s
        self._adopt()
        tick = replace(tick, config_stamp=self._stamp)
        tick = replace(tick, interval_s=self._pace.after(tick))
        self._note_runtime(tick)
        self._note_config(tick)
        for outlet in self._outlets:
            self._tell(outlet, tick)
        return tick.interval_s

    def _tick(self) -> Tick | None:
        """None when it ended in an exception: it is counted and said, and the next one tries again."""
        seen, started = self._loop.seen, self._clock.monotonic()
        seen.clear()
        try:
            plan = self._loop.controller.tick()
            if isinstance(seen.runtime_error, _FATAL):
                raise seen.runtime_error
            ledger = self._loop.store.load()
        except _FATAL:
            raise
        except Exception as error:
            if not isinstance(error, StoreError):  # of the ledger, the loop has spoken
                self._changes.log(logging.ERROR, "tick", f"a tick failed: {type(error).__name__}: {error}")
                logger.debug("a tick failed", exc_info=True)
            if self._metrics is not None:
                self._metrics.hear_exception()
            return None
        self._changes.forget("tick")
        return Tick.of(plan, ledger, seen, self._clock.monotonic() - started)

    def _adopt(self) -> None:
        try:
            self._loop.adopt()
        except Exception as error:  # noqa: BLE001 - said; the monitor goes on as it was
            logger.warning("an edit is not taken on: %s: %s", type(error).__name__, error)

    def _tell(self, outlet: TickListener, tick: Tick) -> None:
        """One that cannot be reached does not keep the others from hearing."""
        name = type(outlet).__name__
        try:
            outlet.hear(tick)
        except _FATAL:
            raise
        except Exception as error:  # noqa: BLE001 - said once, tried again after the next tick
            self._changes.log(logging.WARNING, name, f"{name}: {type(error).__name__}: {error}")
        else:
            self._changes.forget(name)

    def _note_runtime(self, tick: Tick) -> None:
        """That it went away has been said by the loop."""
        if self._is_away and tick.runtime is not None:
            logger.info("the runtime answers again")
        self._is_away = tick.runtime is None

    def _note_config(self, tick: Tick) -> None:
        if tick.config_problem and tick.config_problem != self._problem and self._metrics is not None:
            self._metrics.hear_config_problem()
        if self._problem and not tick.config_problem:
            logger.info("the configuration is valid again and in force")
        self._problem = tick.config_problem

    # -- between ticks ---------------------------------------------------------------------------------

    def _wait(self, stop: StopSignal, interval_s: float) -> None:
        """Until the next tick is due, there is news, or the loop is to end."""
        due = self._ended_at + interval_s
        while (left_s := due - self._clock.monotonic()) > 0:
            if stop.wait(min(left_s, self._look_pause_s())):
                return
            if self._has_news():
                due = min(due, self._ended_at + self._least_pause_s())

    def _look_pause_s(self) -> float:
        return min(max(LOOK_S, _LOOK_DUTY * self._look_took_s), self._pace.max_s)

    def _least_pause_s(self) -> float:
        took_s = self._newest.took_s if self._newest is not None else 0.0
        return min(max(LOOK_S, _TICK_DUTY * took_s), self._pace.max_s)

    def _has_news(self) -> bool:
        """Whether the config, demand or nodes differ from what the last tick saw."""
        look = self._loop.look
        if self._loop.stamp() != self._stamp:
            return True
        if look is None or self._wishes is None:
            return False
        began = self._clock.monotonic()
        try:
            seen = sound(look())
            self._look_took_s = self._clock.monotonic() - began
            return seen is not None and wishes(seen) != self._wishes
        except _FATAL:
            raise
        except Exception:  # noqa: BLE001 - the next tick finds out and says so
            return True
