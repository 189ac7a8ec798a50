"""Run a cluster's loop: one tick, its report to every listener, and a wait for the next tick.

No exception of a tick or of a listener ends the loop; only a refused token, another monitor, or a stop does.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec.structs import replace

from muster.autoscaler.lease import AlreadyMonitored
from muster.base.clock import Clock
from muster.base.log import OnChange
from muster.base.untrusted import call_safely, error_text
from muster.cluster.controller import ClusterController
from muster.cluster.model import Instance, NodeStatus, RuntimeReport
from muster.cluster.ports import TickResult
from muster.cluster.states import InstanceState
from muster.cluster.validate import usable_report
from muster.errors import EngineDenied, EngineMissing

logger = logging.getLogger(__name__)

POLL_S = 0.2  # between ticks: how often the runtime and the config are checked for urgent changes
_TICK_DUTY = 10.0  # urgent changes are acted on at once, but ticks take at most a tenth of the time
_POLL_DUTY = 50.0  # and polls, which grow with the cluster, a fiftieth
_NEWEST = 5  # of which the shortest stands for the cost of a tick or a poll
_FATAL = (EngineDenied, EngineMissing, AlreadyMonitored)
_SETTLED = frozenset({InstanceState.RAY_RUNNING})
PROBE_LIMITS_S = {"/healthz": 300.0, "/readyz": 60.0}  # after the tick that was due
_AFTER_S = 0.1  # a limit must be passed, not only reached
_GONE = frozenset({NodeStatus.DEAD, NodeStatus.DRAINING})


class StopSignal(Protocol):
    """Ends the loop and is what the loop waits on; `threading.Event` is one."""

    def is_set(self) -> bool: ...

    def wait(self, timeout: float) -> bool: ...


class TickListener(Protocol):
    """Called after every tick."""

    def on_tick(self, tick: TickResult) -> None: ...


class ProblemCounter(Protocol):
    """Counts what a tick listener does not see; the metrics are one."""

    def on_failed_tick(self) -> None: ...

    def on_config_problem(self) -> None: ...


@dataclass(frozen=True)
class Loop:
    """What the monitor drives: a controller, and the checks between two ticks."""

    controller: ClusterController
    poll: Callable[[], RuntimeReport] | None = None  # reads the runtime between ticks; None: no polls
    config_version: Callable[[], object] = lambda: None  # changes when the cluster file is written
    notices_version: Callable[[], object] = lambda: None  # changes with the clouds' notices
    reload: Callable[[], None] = lambda: None  # applies the monitor's part of the config, as read


class Monitor:
    """Runs one cluster's loop."""

    def __init__(
        self,
        loop: Loop,
        interval: TickInterval,
        *,
        clock: Clock,
        listeners: Sequence[TickListener] = (),
        problems: ProblemCounter | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        self._loop, self._interval, self._clock = loop, interval, clock
        self._listeners, self._problems, self._close = tuple(listeners), problems, close
        self._changes = OnChange(logger)
        self._urgent: object = None
        self._versions: tuple[object, object] = (None, None)  # of the config and of the notices
        # The shortest of the newest counts: a busy computer makes single ones slow, a large cluster all.
        self._ticks_took_s: deque[float] = deque(maxlen=_NEWEST)
        self._polls_took_s: deque[float] = deque(maxlen=_NEWEST)
        self._ended_at = clock.monotonic()
        self._config_problem = ""
        self._is_away = False

    def run(self, stop: StopSignal, *, once: bool = False) -> None:
        """Ticks until `stop` is set; the tick under way is finished, and everything is closed."""
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
        """Run one tick, passes it to every listener, and returns the seconds until the next."""
        self._versions = self._read_versions()
        self._urgent = None
        started = self._clock.monotonic()
        tick = self._tick(started)
        self._ended_at = self._clock.monotonic()
        if tick is None:
            if self._problems is not None:
                self._problems.on_failed_tick()
            return self._interval.max_s
        self._ticks_took_s.append(tick.took_s)
        if tick.runtime is not None:
            self._urgent = urgent_state(tick.runtime)
        try:
            self._loop.reload()
        except Exception as error:  # noqa: BLE001 - logged; the monitor continues with its old settings
            logger.warning("an edit of the config is not applied: %s: %s", type(error).__name__, error)
        tick = replace(tick, interval_s=self._interval.after(tick))
        # The controller has logged that the runtime went away.
        if self._is_away and tick.runtime is not None:
            logger.info("the runtime answers again")
        self._is_away = tick.runtime is None
        problem, self._config_problem = self._config_problem, tick.port_errors.config
        if tick.port_errors.config and tick.port_errors.config != problem and self._problems is not None:
            self._problems.on_config_problem()
        if problem and not tick.port_errors.config:
            logger.info("the configuration is valid again and in force")
        for listener in self._listeners:
            self._notify(listener, tick)
        return tick.interval_s

    def _tick(self, started: float) -> TickResult | None:
        """Return None when the tick failed: that is logged, and the next one tries again."""
        try:
            result = self._loop.controller.tick()
            if isinstance(result.port_errors.runtime, _FATAL):
                raise result.port_errors.runtime
        except _FATAL:
            raise
        except Exception as error:
            self._changes.log(logging.ERROR, "tick", f"a tick failed: {error_text(error)}")
            logger.debug("a tick failed", exc_info=True)
            return None
        if not result.is_observed:  # the controller has logged why
            return None
        self._changes.forget("tick")
        took_s = self._clock.monotonic() - started
        return replace(result, took_s=took_s, config_version=self._versions[0])

    def _notify(self, listener: TickListener, tick: TickResult) -> None:
        """A listener that fails does not keep the others from being called."""
        name = type(listener).__name__
        try:
            call_safely(lambda: listener.on_tick(tick))
        except _FATAL:
            raise
        except Exception as error:  # noqa: BLE001 - logged once, tried again after the next tick
            self._changes.log(logging.WARNING, name, f"{name}: {error_text(error)}")
        else:
            self._changes.forget(name)

    # -- between ticks ---------------------------------------------------------------------------------

    def _wait(self, stop: StopSignal, interval_s: float) -> None:
        """Wait until the next tick is due, something urgent has changed, or the loop is to end."""
        due = self._ended_at + interval_s
        while (left_s := due - self._clock.monotonic()) > 0:
            if stop.wait(min(left_s, self._pause_s(_POLL_DUTY, self._polls_took_s))):
                return
            if self._has_changed():
                due = min(due, self._ended_at + self._pause_s(_TICK_DUTY, self._ticks_took_s))

    def _pause_s(self, duty: float, took_s: Collection[float]) -> float:
        return min(max(POLL_S, duty * min(took_s, default=0.0)), self._interval.max_s)

    def _read_versions(self) -> tuple[object, object]:
        return self._loop.config_version(), self._loop.notices_version()

    def _has_changed(self) -> bool:
        """Return whether the config, notices, demand or nodes differ from what the last tick saw."""
        if self._read_versions() != self._versions:
            return True
        if self._loop.poll is None or self._urgent is None:
            return False
        began = self._clock.monotonic()
        try:
            report: object = call_safely(self._loop.poll)
            if not isinstance(report, RuntimeReport):
                return False
            state = urgent_state(usable_report(report, lambda source, message: None))
        except _FATAL:
            raise
        except Exception:  # noqa: BLE001 - the next tick meets the same error and reports it
            return True
        self._polls_took_s.append(self._clock.monotonic() - began)
        return state != self._urgent


class MonitorHealth:
    """Answers probes: `/healthz` while ticks come, `/readyz` while they decide."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at = {"/healthz": clock.monotonic(), "/readyz": -math.inf}  # when each held last

    def on_tick(self, tick: TickResult) -> None:
        now = self._clock.monotonic() + tick.interval_s
        is_ready = tick.is_decided and tick.runtime is not None
        self._at |= {"/healthz": now, **({"/readyz": now} if is_ready else {})}

    def beside(self, app: Any) -> Any:  # noqa: ANN401 - WSGI applications
        """Return the application with the two paths; they need no token and tell nothing else."""

        def answer(environ: dict[str, Any], start_response: Any) -> Any:  # noqa: ANN401 - WSGI's
            path = environ.get("PATH_INFO", "")
            if path not in self._at:
                return app(environ, start_response)
            late_s = self._clock.monotonic() - self._at[path]
            is_good = late_s <= PROBE_LIMITS_S[path]
            status = "200 OK" if is_good else "503 Service Unavailable"
            start_response(status, [("Content-Type", "text/plain")])
            return [b"ok\n" if is_good else f"the last good tick is {late_s:.0f} s late\n".encode()]

        return answer


class TickInterval:
    """Doubles the pause from `base_s` to `max_s` while the cluster stays the same."""

    def __init__(self, base_s: float, max_s: float) -> None:
        self.base_s, self.max_s = base_s, max(base_s, max_s)
        self._interval_s = base_s
        self._state: object = None

    def change(self, base_s: float, max_s: float) -> None:
        """Set other bounds, from the next tick on; the pauses begin at the shortest again."""
        self.base_s, self.max_s = base_s, max(base_s, max_s)
        self._interval_s = base_s

    def after(self, tick: TickResult) -> float:
        """Return the seconds to the next tick."""
        state = state_of(tick)
        # A machine starts, stops or grows, or an effect is still to be handed over.
        is_moving = bool(tick.ledger.outbox) or any(map(_is_changing, tick.ledger.instances.values()))
        if state != self._state or is_moving:
            self._state, self._interval_s = state, self.base_s
        else:
            self._interval_s = min(2.0 * self._interval_s, self.max_s)
        # Something may become due by time alone: an idle node, a type or a notice to be acted on.
        due_in_s = min((due for due in _dues(tick) if due > 0), default=math.inf)
        return min(self._interval_s, max(self.base_s, due_in_s))


def urgent_state(report: RuntimeReport) -> object:
    """Return what cannot wait for the next tick, as a value to compare: demand, and which nodes live.

    The order of a report means nothing: a GCS lists its nodes in any order.
    """
    nodes = frozenset((node.node_id, node.status in _GONE) for node in report.nodes)
    return nodes, frozenset(report.demands), frozenset(report.gangs), frozenset(report.constraints)


def state_of(tick: TickResult) -> object:
    """Return everything that counts as a change, as a value to compare.

    Times, versions and spend change by themselves and are left out.
    """
    runtime = tick.runtime
    seen = None
    if runtime is not None:
        nodes = frozenset((node.node_id, node.status, node.available) for node in runtime.nodes)
        seen = (urgent_state(runtime), nodes)
    records = tuple((record.instance_id, record.state) for record in tick.ledger.instances.values())
    config = (tick.spec, tick.config_version, tick.port_errors.config)
    return seen, records, config, tick.plan.quarantined


def _is_changing(record: Instance) -> bool:
    is_resized = record.resize is not None and record.resize.since is not None
    return record.state not in _SETTLED or is_resized


def _dues(tick: TickResult) -> Iterator[float]:
    limits = {kind.name: kind.idle_timeout_s for kind in tick.spec.node_types}
    for node in tick.runtime.nodes if tick.runtime is not None else ():
        own = limits.get(node.node_type)
        limit = tick.spec.idle_timeout_s if own is None else own
        if node.status is NodeStatus.IDLE and limit is not None and not node.is_head:
            yield limit - node.idle_s + _AFTER_S
    for health in tick.ledger.memory.health.values():
        yield health.blocked_until - tick.plan.at
    for notice in tick.snapshot.notices or ():
        if notice.deadline is not None and not notice.is_cancelled:
            yield notice.deadline - tick.spec.notices.ahead_s - tick.plan.at + _AFTER_S
    unused, wanted = tick.ledger.memory.without_drivers.since, tick.spec.idle_cluster
    if unused is not None and wanted is not None:
        yield unused + wanted.timeout_s - tick.plan.at + _AFTER_S
