"""Connect to the RayCluster that arguments and environment name, and gives the loop its configuration.

A RayClusterSource asks nobody itself: the provider reads the object. A bad edit leaves the last good
configuration in force.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from muster.base.clock import Clock
from muster.base.log import OnChange
from muster.cluster.model import ClusterSpec, NodeType
from muster.config.schema import MANY, ClusterConfig
from muster.config.to_spec import to_spec
from muster.errors import ConfigError, ProviderMisconfigured
from muster.providers.kuberay.client import TIMEOUT_S, KubeClient, KubePaths
from muster.providers.kuberay.credentials import SERVICE_ACCOUNT, from_kubeconfig, in_cluster
from muster.providers.kuberay.effects import IDLE, idle_options
from muster.providers.kuberay.pod_resize import ANNOTATION, resize_limits
from muster.providers.kuberay.provider import KubeRayProvider
from muster.providers.kuberay.ray_cluster import SETTINGS, cluster_config
from muster.providers.kuberay.scaling import WorkerGroup, worker_groups

logger = logging.getLogger(__name__)

CRD_VERSION = "v1"
OLD_S = 60.0  # a RayCluster that could not be read for longer is reported as a problem


class RayClusterSource:
    """A SpecSource; `provider` is the one that it shares with the loop."""

    def __init__(self, provider: KubeRayProvider, environment: Mapping[str, str]) -> None:
        """Read the RayCluster. Raises KubeError, or ConfigError when it cannot be used."""
        self.provider = provider
        self._environment = dict(environment)
        self._changes = OnChange(logger)
        self._problem = ""
        self._complete: Callable[[ClusterConfig], ClusterConfig] = lambda config: config
        found = provider.scaler.cluster.read()
        self._known = _identity(found)
        self._config, self._spec = self._parse(found)

    def current(self) -> tuple[ClusterSpec, str]:
        """Return the last good spec, and what is wrong with the newest one ("" when nothing is)."""
        cluster = self.provider.scaler.cluster
        found = cluster.last() or {}
        known = _identity(found)
        if known != self._known:
            self._known = known
            try:
                self._config, self._spec = self._parse(found)
                self._problem = ""
            except ConfigError as problem:
                self._problem = f"{problem} (the last good configuration stays in force)"
                self._spec = _with_limits(self._spec, found)
        if self._problem or cluster.problem is None or cluster.age_s() < OLD_S:
            return self._spec, self._problem
        return self._spec, f"the RayCluster was not read for {OLD_S:g} s and more: {cluster.problem}"

    @property
    def config(self) -> ClusterConfig:
        """Return the last good configuration."""
        return self._config

    def complete_with(self, complete: Callable[[ClusterConfig], ClusterConfig]) -> None:
        """Pass the configuration through what its provider has filled in."""
        self._complete = complete

    def config_version(self) -> object:
        """Return a value that changes with the object's spec, as last read."""
        return _identity(self.provider.scaler.cluster.last() or {})

    def _parse(self, found: Mapping[str, Any]) -> tuple[ClusterConfig, ClusterSpec]:
        config = self._complete(cluster_config(found, self._environment, self._warn))
        return config, self._with_own(to_spec(config), found)

    def _with_own(self, spec: ClusterSpec, found: Mapping[str, Any]) -> ClusterSpec:
        """Return the spec with what only a RayCluster has: growing pods, the end of an unused one."""
        limits, problems = resize_limits(found)
        for problem in problems:
            self._warn(problem)
        gates = {name: group.gates for name, group in worker_groups(found).items()}
        types = tuple(
            replace(known, resize=limits.get(known.name), gates=gates.get(known.name, ()))
            for known in spec.node_types
        )
        try:
            idle = idle_options(found)
        except ValueError as error:
            self._warn(f"RayCluster: {error}; the cluster stays whoever uses it")
            idle = None
        return replace(spec, node_types=types, idle_cluster=idle)

    def wants_drivers(self) -> bool:
        """Return whether it matters who uses the cluster."""
        return self._spec.idle_cluster is not None

    def _warn(self, text: str) -> None:
        self._changes.log(logging.WARNING, text, text)


def _with_limits(spec: ClusterSpec, found: Mapping[str, Any]) -> ClusterSpec:
    """Return the spec with the limits of an edit that is not used otherwise: the operator follows them."""
    groups = worker_groups(found)
    types = [
        _limited(known, groups[known.name]) if known.name in groups else known for known in spec.node_types
    ]
    more = sum(one.max_nodes for one in types) - sum(one.max_nodes for one in spec.node_types)
    return replace(
        spec,
        node_types=tuple(types),
        max_nodes=None if spec.max_nodes is None else min(MANY, spec.max_nodes + more),
    )


def _limited(known: NodeType, group: WorkerGroup) -> NodeType:
    most = 0 if group.suspended else MANY if group.most is None else group.most * group.hosts
    least = min(most, group.least * group.hosts)
    return replace(known, min_nodes=least, max_nodes=min(MANY, most), gates=group.gates)


def _identity(cluster: Mapping[str, Any]) -> object:
    """Return what the configuration depends on: the generation counts changes of the spec."""
    metadata = cluster.get("metadata") or {}
    notes = metadata.get("annotations") or {}
    own = tuple(notes.get(key) for key in (SETTINGS, ANNOTATION, IDLE))
    return metadata.get("uid"), metadata.get("generation"), own


def connect(
    name: str,
    namespace: str,
    environment: Mapping[str, str],
    kubeconfig: Path | None = None,
    context: str = "",
) -> KubeRayProvider:
    """Return the provider of one RayCluster, not started yet. Raises ProviderError when nothing names it."""
    client, default = connected_client(environment, kubeconfig, context)
    version = environment.get("KUBERAY_CRD_VER") or CRD_VERSION
    return KubeRayProvider(client, KubePaths(namespace or default or "default", name, version))


def connected_client(
    environment: Mapping[str, str],
    kubeconfig: Path | None = None,
    context: str = "",
    *,
    service_account: Path = SERVICE_ACCOUNT,
    clock: Clock | None = None,
) -> tuple[KubeClient, str]:
    """Return the client of a kubeconfig, else of the pod, and the namespace that the former names."""
    if kubeconfig is None:
        return KubeClient(in_cluster(environment, service_account, clock), _timeout_s(environment)), ""
    access, namespace = from_kubeconfig(kubeconfig, environment, context, clock)
    return KubeClient(access, _timeout_s(environment)), namespace


def usual_kubeconfig(environment: Mapping[str, str]) -> Path | None:
    """Return the file that kubectl would use; None inside a pod that has no such file."""
    named = environment.get("KUBECONFIG", "").partition(os.pathsep)[0]
    usual = Path(environment.get("HOME", "~")).expanduser() / ".kube" / "config"
    if named or usual.is_file() or "KUBERNETES_SERVICE_HOST" not in environment:
        return Path(named).expanduser() if named else usual
    return None


def _timeout_s(environment: Mapping[str, str]) -> float:
    text = environment.get("KUBERAY_REQUEST_TIMEOUT_S")
    if not text:
        return TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 < seconds <= 3600:
        raise ProviderMisconfigured(
            f"KUBERAY_REQUEST_TIMEOUT_S={text} is not a number of seconds: write one between 1 and 3600"
        )
    return seconds
