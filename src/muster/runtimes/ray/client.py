"""A GcsClient is one connection to the GCS of a Ray cluster; every call has a deadline.

Used by everything in this package, from several threads. A head that restarts without an external store is a
new cluster to Ray: the client connects to it by itself, and counts that in `generation`.
"""

from __future__ import annotations

import json
import queue
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar, cast

from muster.errors import EngineDenied, EngineMissing, EngineUnreachable
from muster.runtimes.ray.native import check_ray, is_same_line, parameters_of, set_up

T = TypeVar("T")

CALL_S = 5.0
PROBE_S = 2.0
_ANOTHER_CLUSTER = "WrongClusterID"
_READS = frozenset(
    {
        "get_all_job_info",
        "get_all_node_info",
        "get_cluster_resource_state",
        "get_cluster_status",
        "get_draining_nodes",
        "internal_kv_get",
        "internal_kv_keys",
        "internal_kv_multi_get",
    }
)
_LATEST_MS = 4e15  # what Ray names as the deadline where there is none is later
_DRAINING = 4  # the number of the status in Ray's messages
_CODES_OF_DENIAL = frozenset({7, 16})  # gRPC: PERMISSION_DENIED, UNAUTHENTICATED


class JobRow(NamedTuple):
    """One driver, as the GCS lists it."""

    namespace: str
    is_dead: bool
    ended_at: float  # seconds since the epoch, by the head's clock; 0: it has not
    name: str = ""  # its id, hex


class GcsClient:
    """Connects on first use, or with `connect`.

    `auth` holds RAY_AUTH_MODE and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH; when it is empty, the environment
    decides.
    """

    def __init__(
        self,
        address: str,
        auth: Mapping[str, str] | None = None,
        *,
        call_timeout_s: float = CALL_S,
        read_only: bool = False,
    ) -> None:
        self.address, self._read_only = address, read_only
        self.generation = 0  # how many clusters were met at the address; each gets all reports again
        self._auth = dict(auth or {})
        self._timeout_s = call_timeout_s
        self._lock = threading.Lock()
        self._client: Any = None
        self._cluster_id = ""
        self._was_away = False

    def connect(self) -> None:
        """Raise EngineMissing, EngineUnreachable or EngineDenied; return at once when connected."""
        self._connected()

    def call(self, method: str, *arguments: object, **options: object) -> Any:  # noqa: ANN401
        """Call a method of Ray's native client. `options` should hold the call's timeout."""
        if self._read_only and method not in _READS:
            raise EngineDenied(f"{method} would change the cluster at {self.address}, which is only read")
        return self._guarded(lambda client: getattr(client, method)(*arguments, **options))

    # -- the calls that are made ------------------------------------------------------------------

    def resource_state(self) -> bytes:
        """Return a GetClusterResourceStateReply, serialised."""
        return bytes(self.call("get_cluster_resource_state", timeout_s=self._timeout_s))

    def cluster_status(self) -> bytes:
        """Return a GetClusterStatusReply, serialised."""
        return bytes(self.call("get_cluster_status", timeout_s=self._timeout_s))

    def report_state(self, state: bytes) -> None:
        """Send an AutoscalingState; one with a lower version than the last is dropped silently."""
        self.call("report_autoscaling_state", state, timeout_s=self._timeout_s)

    def drain_node(self, node_id: str, reason: int, message: str, deadline_ms: int) -> tuple[bool, str]:
        """Return whether the drain was accepted, and why not; Ray ignores a `node_id` that is not hex."""
        encoded = (node_id.encode(), reason, message.encode(), deadline_ms)
        accepted, why = self._bounded("drain_node", *encoded)
        return bool(accepted), str(why)

    def drain_deadlines(self) -> dict[str, float | None]:
        """Return the living nodes that are being drained, by hex id, and until when each has time.

        In seconds since the epoch; None: that is not known.
        """
        if parameters_of("get_draining_nodes"):
            found = self.call("get_draining_nodes", timeout=self._timeout_s)
            return {name: at / 1000 if 0 < at < _LATEST_MS else None for name, at in found.items()}
        from ray.core.generated import autoscaler_pb2 as pb

        state = pb.GetClusterResourceStateReply.FromString(self.resource_state()).cluster_resource_state
        return {node.node_id.hex(): None for node in state.node_states if node.status == _DRAINING}

    def resize_node(self, node_id: str, size: Mapping[str, float]) -> dict[str, float]:
        """Let a node count another size; returns what it counts then, more where running work needs it."""
        resources = {name.encode(): quantity for name, quantity in size.items()}
        call = "resize_raylet_resource_instances"
        counted = self.call(call, node_id.encode(), resources, timeout_s=self._timeout_s)
        return {str(name): float(quantity) for name, quantity in counted.items()}

    def jobs(self) -> list[JobRow]:
        """Return every driver that the cluster remembers."""
        rows = self.call(
            "get_all_job_info",
            skip_submission_job_info_field=True,
            skip_is_running_tasks_field=True,
            timeout=self._timeout_s,
        )
        return [
            JobRow(row.config.ray_namespace, bool(row.is_dead), row.end_time / 1000, row.job_id.hex())
            for row in rows.values()
        ]

    def node_labels(self) -> dict[str, dict[str, str]]:
        """Return the labels that each node was started with, by hex id."""
        nodes = self.call("get_all_node_info", timeout=self._timeout_s)
        return {node_id.hex(): dict(info.labels) for node_id, info in nodes.items()}

    def cloud_ids(self) -> dict[str, str]:
        """Return the cloud's name of the machine of each node, by hex id."""
        nodes = self.call("get_all_node_info", timeout=self._timeout_s)
        return {node_id.hex(): str(info.instance_id) for node_id, info in nodes.items()}

    def request_constraint(
        self, sizes: list[dict[str, float]], labels: list[dict[str, str]], counts: list[int]
    ) -> None:
        """Replace the size that the cluster should have; the three lists are parallel."""
        method = "request_cluster_resource_constraint"
        if "label_selectors" in parameters_of(method):
            self.call(method, sizes, labels, counts, timeout_s=self._timeout_s)
        elif any(labels):
            raise EngineMissing(
                f"Ray {check_ray()} takes no labels in request_resources: leave bundle_label_selectors out, "
                "or use a newer Ray"
            )
        else:
            self.call(method, sizes, counts, timeout_s=self._timeout_s)

    def _bounded(self, method: str, *arguments: object) -> Any:  # noqa: ANN401
        """Call a method that has no timeout in older Rays: it would wait for as long as the GCS is away."""
        if "timeout" in parameters_of(method):
            return self.call(method, *arguments, timeout=self._timeout_s)
        return within(self._timeout_s, lambda: self.call(method, *arguments), self.address)

    def kv_get(self, key: str, namespace: str | None = None) -> bytes | None:
        found = self.call("internal_kv_get", key.encode(), _space(namespace), timeout=self._timeout_s)
        return None if found is None else bytes(found)

    def kv_put(self, key: str, value: bytes, namespace: str | None = None) -> None:
        self.call("internal_kv_put", key.encode(), value, True, _space(namespace), timeout=self._timeout_s)

    def kv_delete(self, key: str, namespace: str | None = None) -> None:
        self.call("internal_kv_del", key.encode(), False, _space(namespace), timeout=self._timeout_s)

    def kv_with_prefix(self, prefix: str, namespace: str | None = None) -> dict[str, bytes]:
        """Return every key that begins so, with its value; one that cannot be text is left out."""
        space, limit = _space(namespace), {"timeout": self._timeout_s}
        keys = [bytes(key) for key in self.call("internal_kv_keys", prefix.encode(), space, **limit)]
        found = self.call("internal_kv_multi_get", keys, space, **limit) if keys else {}
        texts = {bytes(key).decode(errors="replace"): bytes(value) for key, value in found.items()}
        return {key: value for key, value in texts.items() if key.startswith(prefix)}

    def session_name(self) -> str:
        """Return Ray's name of this life of the cluster; "" while the head is still starting."""
        return (self.kv_get("session_name", "session") or b"").decode()

    # -- how --------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[[Any], T]) -> T:
        client = self._connected()
        try:
            return work(client)
        except _ray_errors() as error:
            if _ANOTHER_CLUSTER not in str(error):
                raise self._translated(error) from None
        with self._lock:
            if self._client is client:
                self._client = None
        client = self._connected()
        try:
            return work(client)
        except _ray_errors() as error:
            raise self._translated(error) from None

    def _connected(self) -> Any:  # noqa: ANN401 - Ray's client has no type
        with self._lock:
            if self._client is not None:
                if self._was_away:
                    self._probe()
                return self._client
            host_and_port(self.address)
            raylet = set_up(self._auth)
            self._probe()
            try:
                client = raylet.GcsClient(address=self.address)
                _check_version(client, self.address, self._timeout_s)
            except _ray_errors() as error:
                raise self._translated(error) from None
            cluster_id = client.cluster_id.hex()
            self.generation += cluster_id != self._cluster_id
            self._client, self._cluster_id = client, cluster_id
            return client

    def _probe(self) -> None:
        """Connect once: a refusal is known at once, Ray's client would try for its whole timeout."""
        try:
            socket.create_connection(host_and_port(self.address), timeout=PROBE_S).close()
        except OSError as error:
            self._was_away = True
            raise EngineUnreachable(_unreachable(self.address, error.strerror or str(error))) from None
        self._was_away = False

    def _translated(self, error: Exception) -> Exception:
        """Return the EngineError: a refused token has its own, the others mean that the GCS is away."""
        if type(error).__name__ == "AuthenticationError" or getattr(error, "rpc_code", 0) in _CODES_OF_DENIAL:
            return EngineDenied(_denied(self.address, self._auth))
        self._was_away = True
        return EngineUnreachable(_unreachable(self.address, str(error).splitlines()[0]))


def _ray_errors() -> tuple[type[Exception], ...]:
    """Return what a call may raise; Ray has been imported by then."""
    from ray import exceptions

    denial = getattr(exceptions, "AuthenticationError", None)  # older Rays know no tokens
    # Those say with a RaySystemError that the head has restarted.
    return (
        (exceptions.RpcError, exceptions.RaySystemError) if denial is None else (denial, exceptions.RpcError)
    )


def within(seconds: float, work: Callable[[], T], address: str) -> T:
    """Return what `work` returns; raises EngineUnreachable after that long, and lets it continue alone."""
    done: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put((True, work()))
        except Exception as error:  # noqa: BLE001 - raised again by whoever waits
            done.put((False, error))

    threading.Thread(target=run, name="muster-gcs-call", daemon=True).start()
    try:
        is_good, result = done.get(timeout=seconds)
    except queue.Empty:
        raise EngineUnreachable(_unreachable(address, f"no answer in {seconds:g} s")) from None
    if not is_good:
        raise result
    return cast("T", result)


def host_and_port(address: str) -> tuple[str, int]:
    """Return the parts of the address; raise EngineUnreachable for what can never be reached."""
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise EngineUnreachable(f"{address!r} is not the address of a GCS: write host:port of the Ray head")
    return host, int(port)


def _check_version(client: Any, address: str, timeout_s: float) -> None:  # noqa: ANN401
    """Check the cluster's own version, which a head that is still starting has not written yet."""
    metadata = client.internal_kv_get(b"CLUSTER_METADATA", b"cluster", timeout=timeout_s)
    version = json.loads(metadata).get("ray_version", "") if metadata else ""
    here = check_ray()
    if version and not is_same_line(str(version), here):
        raise EngineMissing(
            f"the cluster at {address} runs Ray {version}, here is {here}: install its version here "
            f"(pip install ray=={version})"
        )


def _unreachable(address: str, why: str) -> str:
    return f"no Ray GCS answers at {address} ({why}): check the address, and that the head runs"


def _denied(address: str, auth: Mapping[str, str]) -> str:
    offered = "the token given" if auth.get("RAY_AUTH_MODE", "").lower() == "token" else "a client without it"
    return (
        f"the Ray cluster at {address} does not accept {offered}: set RAY_AUTH_MODE=token and"
        " RAY_AUTH_TOKEN_PATH (or RAY_AUTH_TOKEN) to the token of its head"
    )


def _space(namespace: str | None) -> bytes | None:
    return None if namespace is None else namespace.encode()
