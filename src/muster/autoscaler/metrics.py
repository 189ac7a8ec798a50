"""Exports Prometheus metrics of the monitor: Ray's names under `autoscaler_`, muster's under `muster_`.

Every tick updates them. Without prometheus-client the monitor runs without metrics and logs that once.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from muster.autoscaler.monitor import Tick
from muster.base.resources import EMPTY, Resources
from muster.cluster.model import Instance, NodeKind, StatusChange
from muster.cluster.spend import price_per_hour, spend_so_far
from muster.cluster.states import PENDING, RUNNING, InstanceState

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


_S = InstanceState
Labels = tuple[str, ...]

# name, unit (appended to the name where it does not end so), labels besides SessionName, help text
_GAUGES = (
    ("pending_nodes", "nodes", ("NodeType",), "Nodes wanted, asked for or starting."),
    ("active_nodes", "nodes", ("NodeType",), "Nodes that run."),
    ("recently_failed_nodes", "nodes", ("NodeType",), "Nodes that are being terminated."),
    ("pending_resources", "resources", ("resource",), "Resources of the pending nodes."),
    ("cluster_resources", "resources", ("resource",), "Resources that the running nodes report."),
    ("updating_nodes", "nodes", (), "Nodes on which the runtime is being set up."),
    ("recovering_nodes", "nodes", (), "Nodes being recovered in place: never, they are replaced."),
    ("running_workers", "nodes", (), "Worker nodes that run."),
)
_COUNTERS = (
    ("started_nodes", "nodes", "Nodes that came to run."),
    ("stopped_nodes", "nodes", "Machines that are gone."),
    ("failed_create_nodes", "nodes", "Nodes that could not be launched."),
    ("failed_updates", "updates", "Nodes on which the runtime could not be set up."),
    ("successful_updates", "updates", "Nodes on which the runtime was set up."),
    ("failed_recoveries", "recoveries", "Failed recoveries: none is tried."),
    ("successful_recoveries", "recoveries", "Successful recoveries: none is tried."),
    ("update_loop_exceptions", "exceptions", "Ticks that could not be finished."),
    ("node_launch_exceptions", "exceptions", "Launch calls that were refused or broke."),
    ("reset_exceptions", "exceptions", "Configurations that could not be applied."),
    ("config_validation_exceptions", "exceptions", "Edits of the configuration that were not valid."),
    ("drain_node_exceptions", "exceptions", "Drains that were refused or could not be delivered."),
)
_UP_TO_AN_HOUR = (1, 2, 5, 10, 20, 30, 60, 120, 180, 300, 600, 1200, 1800, 3600)
_UP_TO_A_MINUTE = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 60)
_HISTOGRAMS = (
    ("worker_create_node_time", _UP_TO_AN_HOUR, "From the launch call to a running node."),
    ("worker_update_time", _UP_TO_AN_HOUR, "Setting the runtime up on one node."),
    ("update_time", _UP_TO_A_MINUTE, "One tick."),
)


class Metrics:
    """Metrics hold every metric of one cluster, in a registry of their own."""

    def __init__(self, session_name: str) -> None:
        """Raises ImportError when prometheus-client is not installed."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry: CollectorRegistry = CollectorRegistry()
        self._session = session_name
        self._seen: dict[str, set[Labels]] = {}
        of_ray: dict[str, Any] = {"namespace": "autoscaler", "registry": self.registry}
        ours: dict[str, Any] = {"namespace": "muster", "registry": self.registry}
        self._gauges: dict[str, Any] = {
            name: Gauge(name, text, ("SessionName", *labels), unit=unit, **of_ray)
            for name, unit, labels, text in _GAUGES
        }
        self._counters: dict[str, Any] = {
            name: Counter(name, text, ("SessionName",), unit=unit, **of_ray) for name, unit, text in _COUNTERS
        }
        self._histograms: dict[str, Any] = {
            name: Histogram(name, text, ("SessionName",), unit="seconds", buckets=buckets, **of_ray)
            for name, buckets, text in _HISTOGRAMS
        }
        for name, labels, text in _OURS:
            self._gauges[name] = Gauge(name, text, ("SessionName", *labels), **ours)
        for metric in (*self._counters.values(), *self._histograms.values()):
            metric.labels(session_name)  # shown as 0 before anything happens

    def on_tick(self, tick: Tick) -> None:
        """Updates every metric from a tick."""
        self._histograms["update_time"].labels(self._session).observe(tick.took_s)
        self._count("update_loop_exceptions", 0 if tick.is_decided else 1)
        self._count("node_launch_exceptions", tick.errors.launch)
        self._count("drain_node_exceptions", tick.errors.drain)
        for record in tick.plan.writes:
            self._follow(record, tick.plan.at)
        for name, values in gauges_of(tick).items():
            self._set(name, values)

    def on_failed_tick(self) -> None:
        """Counts a tick that ended in an exception."""
        self._count("update_loop_exceptions", 1)

    def on_config_problem(self) -> None:
        """Counts an edit of the cluster file that cannot be used."""
        self._count("config_validation_exceptions", 1)

    def _follow(self, record: Instance, at: float) -> None:
        """Counts the transitions of one record in this tick."""
        for index, change in enumerate(record.history):
            if change.at != at:
                continue
            before = record.history[:index]
            name = _COUNTED_STATES.get(change.state)
            if name is not None and (change.state is not _S.TERMINATED or record.cloud_id):
                self._count(name, 1)
            if change.state is _S.RAY_RUNNING and not _entered(before, _S.RAY_RUNNING):
                self._came_up(before, at)

    def _came_up(self, before: tuple[StatusChange, ...], at: float) -> None:
        self._count("started_nodes", 1)
        asked, installing = _entered(before, _S.REQUESTED), _entered(before, _S.RAY_INSTALLING)
        if asked:
            self._histograms["worker_create_node_time"].labels(self._session).observe(at - asked[-1])
        if installing:
            self._count("successful_updates", 1)
            self._histograms["worker_update_time"].labels(self._session).observe(at - installing[-1])

    def _count(self, name: str, more: int) -> None:
        if more:
            self._counters[name].labels(self._session).inc(more)

    def _set(self, name: str, values: Mapping[Labels, float]) -> None:
        """Labels that have no value any more are set to 0, so that they do not keep the last one."""
        gauge, seen = self._gauges[name], self._seen.setdefault(name, set())
        for labels in seen - values.keys():
            gauge.labels(self._session, *labels).set(0)
        for labels, value in values.items():
            gauge.labels(self._session, *labels).set(value)
        seen.update(values)


_COUNTED_STATES = {
    _S.TERMINATED: "stopped_nodes",
    _S.ALLOCATION_FAILED: "failed_create_nodes",
    _S.RAY_INSTALL_FAILED: "failed_updates",
}
_OURS = (
    ("spend", (), "What the cluster has cost so far, in the currency of the prices."),
    ("price_per_hour", (), "What its machines cost per hour now."),
    ("verdicts", ("subject", "reason"), "Requests, nodes and node types by the reason for their state."),
    ("quarantined", (), "Inputs that were set aside in the newest tick."),
    ("terminate_exceptions", (), "Terminate calls refused or broken in the newest tick."),
)


def gauges_of(tick: Tick) -> dict[str, dict[Labels, float]]:
    """Returns every gauge's values after a tick; pure. A metric that is unknown this time is left out."""
    records = tuple(tick.ledger.instances.values())
    names = [(kind.name,) for kind in tick.spec.node_types]
    verdicts: Counter[Labels] = Counter()
    for verdict in tick.plan.verdicts:
        verdicts[verdict.subject.value, verdict.reason.value] += verdict.count
    found: dict[str, dict[Labels, float]] = {
        "pending_nodes": {**dict.fromkeys(names, 0.0), **_by_type(records, PENDING)},
        "active_nodes": {**dict.fromkeys(names, 0.0), **_by_type(records, RUNNING)},
        "recently_failed_nodes": {
            **dict.fromkeys(names, 0.0),
            **_by_type(records, frozenset({_S.TERMINATING})),
        },
        "pending_resources": _amounts(_pending_sizes(tick, records)),
        "updating_nodes": {(): _number(records, frozenset({_S.RAY_INSTALLING}))},
        "recovering_nodes": {(): 0.0},
        "running_workers": {(): _number((r for r in records if r.kind is NodeKind.WORKER), RUNNING)},
        "spend": {(): spend_so_far(records, tick.ledger.memory, tick.plan.at)},
        "price_per_hour": {(): price_per_hour(records)},
        "verdicts": {key: float(count) for key, count in verdicts.items()},
        "quarantined": {(): float(len(tick.plan.quarantined))},
        "terminate_exceptions": {(): float(tick.errors.terminate)},
    }
    if tick.runtime is not None:
        totals = {node.node_id: node.total for node in tick.runtime.nodes}
        running = [totals.get(r.node_id, EMPTY) for r in records if r.state in RUNNING and r.node_id]
        found["cluster_resources"] = _amounts(running)
    return found


def _pending_sizes(tick: Tick, records: Iterable[Instance]) -> list[Resources]:
    """Machines that do not run yet have the size their type promises."""
    types = {kind.name: kind.resources for kind in tick.spec.node_types}
    return [types.get(record.node_type, EMPTY) for record in records if record.state in PENDING]


def _by_type(records: Iterable[Instance], states: frozenset[InstanceState]) -> dict[Labels, float]:
    return dict(Counter((record.node_type,) for record in records if record.state in states))


def _number(records: Iterable[Instance], states: frozenset[InstanceState]) -> float:
    return float(sum(record.state in states for record in records))


def _amounts(sizes: Iterable[Resources]) -> dict[Labels, float]:
    total = EMPTY
    for size in sizes:
        total = total.plus(size)
    return {(name,): value for name, value in total.to_floats().items()}


def _entered(history: Iterable[StatusChange], state: InstanceState) -> list[float]:
    return [change.at for change in history if change.state is state]


logger = logging.getLogger(__name__)

DEFAULT_PORT = 44217  # Ray's
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")


class MetricsServer:
    """A MetricsServer serves one registry over HTTP until `close`."""

    def __init__(self, metrics: Metrics, host: str, port: int) -> None:
        """Starts to serve; `port` 0 takes any free one."""
        from prometheus_client import start_http_server

        self._metrics, self._host = metrics, host
        try:
            self._server, self._thread = start_http_server(port, host, metrics.registry)
        except OSError as error:
            if port == 0:
                raise
            self._server, self._thread = start_http_server(0, host, metrics.registry)
            taken: Any = error.strerror or error
            logger.warning(
                "metrics: port %d cannot be used (%s); they are on port %d instead. Choose one with "
                "--metrics-port or AUTOSCALER_METRIC_PORT",
                port,
                str(taken).lower(),
                self.port,
            )

    @property
    def port(self) -> int:
        return int(self._server.server_port)

    def move(self, port: int) -> None:
        """Serves on another port from now on. Raises OSError, and changes nothing, when it cannot be used."""
        from prometheus_client import start_http_server

        if port in (0, self.port):  # 0 is any, so this one as well
            return
        fresh = start_http_server(port, self._host, self._metrics.registry)
        self.close()
        self._server, self._thread = fresh

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def host_for(address: str) -> str:
    """Returns the address to listen on: loopback for a cluster on loopback, else every interface."""
    return "127.0.0.1" if address.startswith(_LOOPBACK) else "0.0.0.0"
