"""Export Prometheus metrics of the monitor: Ray's names under `autoscaler_`, muster's under `muster_`.

Every tick updates them. Without prometheus-client the monitor runs without metrics and logs that once.
"""

from __future__ import annotations

import errno
import hmac
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from msgspec import structs

from muster.autoscaler.events import fresh_notices, losses_of, requests_by_id
from muster.base.resources import EMPTY, Resources
from muster.base.text import is_internal
from muster.cluster.cost import price_per_hour, spend_so_far
from muster.cluster.model import Demand, FailureKind, Gang, Instance, NodeKind, StatusChange
from muster.cluster.plan import Reason, Subject, Verdict, base_id
from muster.cluster.ports import TickResult
from muster.cluster.states import PENDING, RUNNING, InstanceState
from muster.cluster.status import budget_of, offer_statuses
from muster.errors import ClusterError

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


_S = InstanceState
Labels = tuple[str, ...]

# name, unit (appended to the name where it does not end so), labels besides those of all, help text
_GAUGES = (
    ("pending_nodes", "nodes", ("NodeType",), "Nodes wanted, asked for or starting."),
    ("active_nodes", "nodes", ("NodeType",), "Nodes that run."),
    ("recently_failed_nodes", "nodes", ("NodeType",), "Nodes that are being terminated."),
    ("pending_resources", "resources", ("resource",), "Configured resources of the pending nodes."),
    ("cluster_resources", "resources", ("resource",), "Configured resources that running nodes report."),
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
_OFFER = ("NodeType", "Zone", "Market")
_OUR_GAUGES = (
    ("last_tick_timestamp_seconds", (), "When the newest tick that decided something or nothing was."),
    ("config_not_in_force", (), "1 while the cluster file on disk is not the one in force."),
    ("price_per_hour", (), "What its machines cost per hour now, in the currency of the prices."),
    ("type_price_per_hour", ("NodeType",), "What one machine of the type costs per hour."),
    ("offer_price_per_hour", _OFFER, "What one machine of the type costs per hour in this zone and market."),
    ("offer_backoff_seconds", _OFFER, "How long muster avoids the offer after a failure."),
    ("budget_left", (), "What may still be spent in the running period, without what is reserved."),
    ("budget_reserved", (), "What its machines will cost until they can be terminated."),
    ("verdicts", ("subject", "reason"), "Requests, nodes and node types by the reason for their state."),
    ("pending_demand", ("resource", "reason"), "Resources that requests wait for, by the reason."),
    ("pending_demand_wait_seconds", ("resource",), "How long equal requests have waited, the longest."),
    ("backoff_seconds", ("NodeType",), "How long muster avoids the node type after a failure."),
)
_OUR_COUNTERS = (
    ("spend", (), "What the cluster has cost so far, in the currency of the prices."),
    ("quarantined", (), "Inputs that the last tick set aside."),
    ("terminate_exceptions", (), "Terminate calls that were refused or broke."),
    ("launch_failures", ("NodeType", "kind"), "Machines that did not come or could not be set up, by kind."),
    ("offer_launch_failures", (*_OFFER, "kind"), "The same, by the offer from which they were to come."),
    ("notices", ("kind",), "Machines that the cloud announced it would take, by what it announced."),
    ("lost_nodes", ("NodeType",), "Nodes or machines that went although nobody had asked for it."),
)


class Metrics:
    """Holds every metric of one cluster, in their own registry."""

    def __init__(self, session_name: str, cluster_name: str = "") -> None:
        """Raise ImportError when prometheus-client is not installed."""
        from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

        self.registry: CollectorRegistry = CollectorRegistry()
        self.restart_needed = False  # an edit of the cluster file waits for the next monitor
        self.wrap: Callable[[Any], Any] = lambda app: app  # adds paths to the server's
        self._in_all = (session_name, cluster_name)
        self._shown: dict[str, Mapping[Labels, float]] = {}
        self._waits: Waits = {}
        self._spent = 0.0
        names = ("SessionName", "ClusterName")
        of_ray: dict[str, Any] = {"namespace": "autoscaler", "registry": self.registry}
        ours: dict[str, Any] = {"namespace": "muster", "registry": self.registry}
        self._gauges: dict[str, Any] = {
            **{n: Gauge(n, text, (*names, *more), unit=unit, **of_ray) for n, unit, more, text in _GAUGES},
            **{n: Gauge(n, text, (*names, *more), **ours) for n, more, text in _OUR_GAUGES},
        }
        self._counters: dict[str, Any] = {
            **{n: Counter(n, text, names, unit=unit, **of_ray) for n, unit, text in _COUNTERS},
            **{n: Counter(n, text, (*names, *more), **ours) for n, more, text in _OUR_COUNTERS},
        }
        self._histograms: dict[str, Any] = {
            name: Histogram(name, text, names, unit="seconds", buckets=buckets, **of_ray)
            for name, buckets, text in _HISTOGRAMS
        }
        unlabelled = (
            *(name for name, *_ in _COUNTERS),
            *(name for name, more, _ in _OUR_COUNTERS if not more),
        )
        for metric in (*(self._counters[name] for name in unlabelled), *self._histograms.values()):
            metric.labels(*self._in_all)  # shown as 0 before anything happens

    def on_tick(self, tick: TickResult) -> None:
        """Update every metric from a tick."""
        self._histograms["update_time"].labels(*self._in_all).observe(tick.took_s)
        self._count("update_loop_exceptions", 0 if tick.is_decided else 1)
        self._count("node_launch_exceptions", tick.port_errors.launch)
        self._count("drain_node_exceptions", tick.port_errors.drain)
        self._count("terminate_exceptions", tick.port_errors.terminate)
        self._count("quarantined", len(tick.plan.quarantined))
        for record in tick.plan.writes:
            self._follow(record, tick.plan.at)
        self._waits = waits_of(self._waits, tick)
        not_in_force = bool(tick.port_errors.config) or self.restart_needed
        self._set("config_not_in_force", {(): float(not_in_force)})
        gauges = gauges_of(tick, self._waits)
        self._count_by_type(tick, gauges["active_nodes"].keys())
        for name, values in gauges.items():
            self._set(name, values)

    def on_failed_tick(self) -> None:
        """Count a tick that ended in an exception."""
        self._count("update_loop_exceptions", 1)

    def on_config_problem(self) -> None:
        """Count an edit of the cluster file that cannot be used."""
        self._count("config_validation_exceptions", 1)

    def _count_by_type(self, tick: TickResult, types: AbstractSet[Labels]) -> None:
        for (node_type,) in types - self._shown.get("active_nodes", {}).keys():  # 0 before the first
            self._counters["lost_nodes"].labels(*self._in_all, node_type)
            for kind in (*(kind.value for kind in FailureKind), TIMEOUT):
                self._counters["launch_failures"].labels(*self._in_all, node_type, kind)
        for (node_type, _), count in losses_of(tick).items():
            self._count("lost_nodes", count, node_type)
        for notice in fresh_notices(tick):
            self._count("notices", 1, notice.kind.value)
        for labels, count in launch_failures_of(tick).items():
            self._count("launch_failures", count, *labels)
        for labels, count in offer_failures_of(tick).items():
            self._count("offer_launch_failures", count, *labels)
        records = tick.ledger.instances.values()
        spent = spend_so_far(records, tick.ledger.memory, tick.plan.at)
        if spent > self._spent:
            self._counters["spend"].labels(*self._in_all).inc(spent - self._spent)
            self._spent = spent

    def _follow(self, record: Instance, at: float) -> None:
        """Count the transitions of one record in this tick."""
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
            self._histograms["worker_create_node_time"].labels(*self._in_all).observe(at - asked[-1])
        if installing:
            self._count("successful_updates", 1)
            self._histograms["worker_update_time"].labels(*self._in_all).observe(at - installing[-1])

    def _count(self, name: str, more: int, *labels: str) -> None:
        if more:
            self._counters[name].labels(*self._in_all, *labels).inc(more)

    def _set(self, name: str, values: Mapping[Labels, float]) -> None:
        """A label that has no value any more is removed: a series per node or group would stay forever."""
        gauge, shown = self._gauges[name], self._shown.get(name, {})
        for labels in shown.keys() - values.keys():
            gauge.remove(*self._in_all, *labels)
        for labels, value in values.items():
            if shown.get(labels) != value:
                gauge.labels(*self._in_all, *labels).set(value)
        self._shown[name] = values


_COUNTED_STATES = {
    _S.TERMINATED: "stopped_nodes",
    _S.ALLOCATION_FAILED: "failed_create_nodes",
    _S.RAY_INSTALL_FAILED: "failed_updates",
}
TIMEOUT = "timeout"  # beside the kinds of failures: the provider said nothing, and no machine or node came


def launch_failures_of(tick: TickResult) -> Counter[Labels]:
    """Count the machines that did not come or could not be set up, by type and kind of failure; pure."""
    return Counter((record.node_type, kind) for record, kind in _failed_launches(tick))


def offer_failures_of(tick: TickResult) -> Counter[Labels]:
    """Count those of types with offers, by type, zone, market and kind of failure; pure."""
    return Counter(
        (record.node_type, record.offer.zone, record.offer.market, kind)
        for record, kind in _failed_launches(tick)
        if record.offer is not None
    )


def _failed_launches(tick: TickResult) -> Iterator[tuple[Instance, str]]:
    refused: defaultdict[Labels, list[str]] = defaultdict(list)
    for failure in tick.snapshot.launch_failures:
        refused[base_id(failure.request_id), failure.node_type].append(failure.kind.value)
    for record in tick.plan.writes:
        failed = [change.state for change in record.history if change.at == tick.plan.at]
        if _S.ALLOCATION_FAILED in failed or _S.ALLOCATION_TIMEOUT in failed:
            kinds = refused[record.launch_request_id or "", record.node_type]
            yield record, kinds.pop() if kinds else TIMEOUT
        elif _S.RAY_INSTALL_FAILED in failed:
            yield record, FailureKind.SETUP.value


Waits = Mapping[object, tuple[float, frozenset[str]]]  # request -> since when it waits, and for what


def waits_of(known: Waits, tick: TickResult) -> Waits:
    """Return since when each different request has waited without a break; pure.

    Equal requests of a queue are one: each may have waited less. A gang is known by its id, so its time is
    the ledger's, and older than this process.
    """
    if tick.runtime is None:
        return known
    found: dict[object, tuple[float, frozenset[str]]] = {}
    for verdict, request, needs in _waiting(tick):
        key = request.gang_id if isinstance(request, Gang) else structs.replace(request, count=1)
        since = known[key][0] if key in known else tick.plan.at
        if isinstance(request, Gang) and verdict.since is not None:
            since = min(since, verdict.since)
        found[key] = (since, frozenset(needs))
    return found


def _waiting(tick: TickResult) -> Iterator[tuple[Verdict, Demand | Gang, dict[str, float]]]:
    """Yield every request that no running node has room for, and what it needs in all."""
    runtime = tick.runtime
    if runtime is None:
        return
    bundles = (bundle for constraint in runtime.constraints for bundle in constraint.demands)
    requests: dict[Subject, Mapping[str, Demand | Gang]] = {
        Subject.DEMAND: dict(requests_by_id(runtime.demands)),
        Subject.CONSTRAINT: dict(requests_by_id(bundles)),
        Subject.GANG: {gang.gang_id: gang for gang in runtime.gangs},
    }
    for verdict in tick.plan.verdicts:
        request = requests.get(verdict.subject, {}).get(verdict.subject_id)
        if request is not None and verdict.reason is not Reason.PLACED:
            yield verdict, request, _needs(request, verdict.count)


def _needs(request: Demand | Gang, count: int) -> dict[str, float]:
    if isinstance(request, Demand):
        total = request.shape.times(count)
    else:
        bundles = request.options[0] if request.options else ()
        total = _sum(bundle.shape.times(bundle.count) for bundle in bundles)
    return {name: amount for name, amount in total.to_floats().items() if not is_internal(name)}


def gauges_of(tick: TickResult, waits: Waits = MappingProxyType({})) -> dict[str, dict[Labels, float]]:
    """Return every gauge's values after a tick; pure. A metric that is unknown this time is left out."""
    records, types = tuple(tick.ledger.instances.values()), tick.spec.node_types
    none_of_a_type: dict[Labels, float] = {(kind.name,): 0.0 for kind in types}
    verdicts: Counter[Labels] = Counter()
    for verdict in tick.plan.verdicts:
        verdicts[verdict.subject.value, verdict.reason.value] += verdict.count
    health = tick.ledger.memory.health
    # Machines that do not run yet have the size their type promises.
    sizes = {kind.name: kind.resources for kind in types}
    pending = [sizes.get(record.node_type, EMPTY) for record in records if record.state in PENDING]
    found: dict[str, dict[Labels, float]] = {
        "pending_nodes": {**none_of_a_type, **_by_type(records, PENDING)},
        "active_nodes": {**none_of_a_type, **_by_type(records, RUNNING)},
        "recently_failed_nodes": {**none_of_a_type, **_by_type(records, frozenset({_S.TERMINATING}))},
        "pending_resources": _amounts(tick, pending),
        "updating_nodes": {(): _number(records, frozenset({_S.RAY_INSTALLING}))},
        "recovering_nodes": {(): 0.0},
        "running_workers": {(): _number((r for r in records if r.kind is NodeKind.WORKER), RUNNING)},
        "price_per_hour": {(): price_per_hour(records)},
        "type_price_per_hour": {
            (kind.name,): kind.price_per_hour for kind in types if kind.price_per_hour is not None
        },
        "verdicts": {key: float(count) for key, count in verdicts.items()},
        "backoff_seconds": {
            (kind.name,): max(0.0, health[kind.name].blocked_until - tick.plan.at)
            if kind.name in health
            else 0.0
            for kind in types
        },
        **_offer_gauges(tick),
    }
    if tick.is_decided:
        found["last_tick_timestamp_seconds"] = {(): tick.plan.at}
    budget = budget_of(tick.spec, records, tick.ledger.memory, tick.plan.at)
    if budget is not None and budget.budget.total is not None:
        found |= {"budget_left": {(): budget.left}, "budget_reserved": {(): budget.promised}}
    if tick.runtime is not None:
        totals = {node.node_id: node.total for node in tick.runtime.nodes}
        running = [totals.get(r.node_id, EMPTY) for r in records if r.state in RUNNING and r.node_id]
        found["cluster_resources"] = _amounts(tick, running)
        found.update(_demand_gauges(tick, waits))
    return found


def _offer_gauges(tick: TickResult) -> dict[str, dict[Labels, float]]:
    ledger, types = tick.ledger, tick.types_with_offers
    rows = offer_statuses(types, ledger.instances.values(), ledger.memory, tick.plan.at) if types else ()
    labelled = [((row.node_type, row.zone, row.market), row) for row in rows]
    return {
        "offer_price_per_hour": {
            labels: row.price_per_hour for labels, row in labelled if row.price_per_hour is not None
        },
        "offer_backoff_seconds": {
            labels: max(0.0, (row.blocked_until or 0.0) - tick.plan.at) for labels, row in labelled
        },
    }


def _demand_gauges(tick: TickResult, waits: Waits) -> dict[str, dict[Labels, float]]:
    pending: defaultdict[Labels, float] = defaultdict(float)
    for verdict, _, needs in _waiting(tick):
        for name, amount in needs.items():
            pending[name, verdict.reason.value] += amount
    longest: dict[Labels, float] = {}
    for since, names in waits.values():
        for name in names:
            longest[(name,)] = max(longest.get((name,), 0.0), tick.plan.at - since)
    return {"pending_demand": dict(pending), "pending_demand_wait_seconds": longest}


def _by_type(records: Iterable[Instance], states: frozenset[InstanceState]) -> dict[Labels, float]:
    return dict(Counter((record.node_type,) for record in records if record.state in states))


def _number(records: Iterable[Instance], states: frozenset[InstanceState]) -> float:
    return float(sum(record.state in states for record in records))


def _amounts(tick: TickResult, sizes: Iterable[Resources]) -> dict[Labels, float]:
    """Return the configured resources only: Ray adds several for every node and placement group."""
    amounts = _sum(sizes).to_floats()
    configured = sorted({name for kind in tick.spec.node_types for name in kind.resources})
    return {(name,): amounts.get(name, 0.0) for name in configured}


def _sum(sizes: Iterable[Resources]) -> Resources:
    total = EMPTY
    for size in sizes:
        total = total.plus(size)
    return total


def _entered(history: Iterable[StatusChange], state: InstanceState) -> list[float]:
    return [change.at for change in history if change.state is state]


logger = logging.getLogger(__name__)

DEFAULT_PORT = 44217  # Ray's
_LOOPBACK = ("127.", "localhost", "::1", "[::1]")


class MetricsServer:
    """Serves one registry over HTTP until `close`, where a token is named only with it."""

    def __init__(self, metrics: Metrics, host: str, port: int, token: Path | None = None) -> None:
        """Start to serve; `port` 0 takes any free one. Raises ClusterError for a token that is unusable."""
        self._metrics, self.host, self.token = metrics, host, token
        if token is not None and not _token_in(token):
            raise ClusterError(
                f"{token}: no token for the metrics can be read there", fix="write one line into it"
            )
        try:
            self._server, self._thread = self._started(port)
        except OSError as error:
            if port == 0 or error.errno == errno.EADDRNOTAVAIL:
                raise
            self._server, self._thread = self._started(0)
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

    @property
    def address(self) -> str:
        """Return host:port, as Ray's tools expect it."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    def move(self, port: int) -> None:
        """Serve on another port from now on. Raises OSError, and changes nothing, when it cannot be used."""
        if port in (0, self.port):  # 0 is any, so this one as well
            return
        fresh = self._started(port)
        self.close()
        self._server, self._thread = fresh

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _started(self, port: int) -> tuple[Any, Any]:
        """The server starts with nothing to show, so that no request is answered before the token counts."""
        from prometheus_client import CollectorRegistry, make_wsgi_app, start_http_server

        server, thread = start_http_server(port, self.host, CollectorRegistry())
        app = make_wsgi_app(self._metrics.registry)
        server.set_app(self._metrics.wrap(app if self.token is None else _guarded(app, self.token)))
        return server, thread


def _guarded(app: Any, token: Path) -> Any:  # noqa: ANN401 - a WSGI application
    """Return the application behind a bearer token; its file is read again for every request."""

    def answer(environ: dict[str, Any], start_response: Any) -> Any:  # noqa: ANN401 - WSGI's
        wanted, given = _token_in(token), environ.get("HTTP_AUTHORIZATION", "")
        if wanted and hmac.compare_digest(given.encode(), f"Bearer {wanted}".encode()):
            return app(environ, start_response)
        headers = [("WWW-Authenticate", "Bearer"), ("Content-Type", "text/plain")]
        start_response("401 Unauthorized", headers)
        return [b"send the token of the metrics: Authorization: Bearer TOKEN\n"]

    return answer


def _token_in(path: Path) -> str:
    """Return "" for a file that is missing, empty or unreadable: then nobody is let in."""
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return ""


def host_for(address: str) -> str:
    """Return the address to listen on: the head's, loopback for a cluster on loopback."""
    return "127.0.0.1" if address.startswith(_LOOPBACK) else address.rpartition(":")[0].strip("[]")


def start_metrics_server(metrics: Metrics, host: str, port: int, token: Path | None) -> MetricsServer | None:
    """Serve on the head's address, or on loopback where this computer does not have it; logs which."""
    try:
        server = MetricsServer(metrics, host, port, token)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            logger.warning("metrics are not served: %s", error)
            return None
        logger.warning(
            "metrics: %s is not an address of this computer, so they are served on 127.0.0.1 only; choose "
            "another with --metrics-host",
            host,
        )
        return start_metrics_server(metrics, "127.0.0.1", port, token)
    to_anyone = "to anyone who reaches it; --metrics-token-file asks a token"
    how = f"with the token in {token}" if token else to_anyone
    if token or not host.startswith(_LOOPBACK):
        logger.info("metrics: http://%s/metrics, %s", server.address, how)
    return server
