"""StatePublisher writes to the GCS that this autoscaler serves the cluster; the monitor calls it every tick.

Without the flag `ray status` shows nothing of it, and `request_resources` of Ray's own SDK goes elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable

from muster.cluster.model import ClusterSpec
from muster.cluster.ports import TickResult
from muster.runtimes.ray.client import GcsClient

AUTOSCALER_SPACE = "__autoscaler"
V2_FLAG = "__autoscaler_v2_enabled"
CLUSTER_CONFIG = "__autoscaler_cluster_config"
METRICS_ADDRESS = "AutoscalerMetricsAddress"
RAY_STATUS = "__autoscaling_status"  # of Ray's first autoscaler
USAGE_SPACE = "usage_stats"
USAGE_VERSION = "extra_usage_tag_autoscaler_version"


class StatePublisher:
    """Writes what changed, and everything to a head that restarted."""

    def __init__(self, client: GcsClient, metrics_address: Callable[[], str] = lambda: "") -> None:
        self._client, self._metrics_address = client, metrics_address
        self._published_generation = 0
        self._published_config = b""
        self._published_metrics = ""

    def on_tick(self, tick: TickResult) -> None:
        if tick.runtime is not None:
            self.publish(tick.spec, self._metrics_address())

    def publish(self, spec: ClusterSpec, metrics_address: str = "") -> None:
        """Write the limits and the metrics address (ip:port); raise an EngineError when the GCS is away."""
        # Reads the flag each time: a head that is still starting writes its own value over it.
        if self._client.kv_get(V2_FLAG, AUTOSCALER_SPACE) != b"1":
            self._client.kv_put(V2_FLAG, b"1", AUTOSCALER_SPACE)
        from muster.runtimes.ray.messages import cluster_config

        if self._published_generation != self._client.generation:
            self._published_config, self._published_metrics = b"", ""
            self._client.kv_put(USAGE_VERSION, b"v2", USAGE_SPACE)
            self._published_generation = self._client.generation
        config = cluster_config(spec).SerializeToString(deterministic=True)
        if config != self._published_config:
            # Where `report_cluster_config` puts it; that call of Ray's client has no timeout, this one has.
            self._client.kv_put(CLUSTER_CONFIG, config, AUTOSCALER_SPACE)
            self._published_config = config
        if metrics_address != self._published_metrics:
            self._client.kv_put(METRICS_ADDRESS, metrics_address.encode())
            self._published_metrics = metrics_address


def autoscaler_reports(client: GcsClient, above: int = 0) -> tuple[object, ...]:
    """Return what autoscalers last wrote, to compare with a later look; () when there is nothing.

    Ray's first autoscaler replaces a key every five seconds, which muster never writes; its second reports a
    state, as muster does, whose versions up to `above` are muster's own.
    """
    first = client.kv_get(RAY_STATUS)
    from ray.core.generated import autoscaler_pb2

    state = autoscaler_pb2.GetClusterStatusReply.FromString(client.cluster_status()).autoscaling_state
    version, seen = state.autoscaler_state_version, state.last_seen_cluster_resource_state_version
    second = (version, seen) if version > above else None
    return (first, second) if first or second else ()


def max_resources(client: GcsClient) -> dict[str, int] | None:
    """Return how large the cluster may become, by resource; None when no autoscaler has written it."""
    published = client.kv_get(CLUSTER_CONFIG, AUTOSCALER_SPACE)
    if not published:
        return None
    from ray.core.generated import autoscaler_pb2

    return dict(autoscaler_pb2.ClusterConfig.FromString(published).max_resources)
