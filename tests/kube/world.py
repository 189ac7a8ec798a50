"""What the tests of Kubernetes share: a server of either kind, its operator, and providers for both."""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

from tests.kube.api_server import NAMESPACE
from tests.kube.operator import AdminClient, OperatorDouble, ray_cluster

from muster.providers.kuberay.client import KubeClient, KubePaths
from muster.providers.kuberay.credentials import KubeAccess
from muster.providers.kuberay.provider import KubeRayProvider

PATIENCE_S = 60.0


class KubeServer(Protocol):
    """What the in-memory server and the real one have in common."""

    url: str
    ca_file: str | None
    admin_token: str

    def token(self, role: str) -> str: ...


def until(holds: Callable[[], Any], what: str = "") -> Any:
    """Wait for a condition, generously: the computer may be busy. Returns what it returned."""
    ends = time.monotonic() + PATIENCE_S
    while time.monotonic() < ends:
        found = holds()
        if found:
            return found
        time.sleep(0.01)
    raise AssertionError(f"it did not come true within {PATIENCE_S:g} s: {what or holds}")


class KubeWorld:
    """One RayCluster on one server."""

    def __init__(self, server: KubeServer, name: str = "demo") -> None:
        self.server, self.name = server, name
        context = ssl.create_default_context(cafile=server.ca_file) if server.ca_file else None
        self.admin = AdminClient(server.url, server.admin_token, context)
        self.operator = OperatorDouble(self.admin, name)
        self._closers: list[Callable[[], None]] = []

    def create(self, *groups: Any, annotations: Mapping[str, str] | None = None, **spec: Any) -> None:
        """Make the RayCluster, and the pods that its replicas ask for."""
        made = ray_cluster(self.name, *groups, **spec)
        made["metadata"]["annotations"] = dict(annotations or {})
        self.admin.create_cluster(made)
        self.operator.step()

    def client(self, role: str = "kuberay-1.3", token: str = "") -> KubeClient:
        ca_file = Path(self.server.ca_file) if self.server.ca_file else None
        access = KubeAccess(url=self.server.url, token=token or self.server.token(role), ca_file=ca_file)
        return KubeClient(access, timeout_s=20.0)

    def provider(
        self, role: str = "kuberay-1.3", token: str = "", *, threads: bool = False
    ) -> KubeRayProvider:
        """Return a provider that has seen the pods; without threads `scaler.step()` sends what waits."""
        made = KubeRayProvider(self.client(role, token), KubePaths(NAMESPACE, self.name))
        self._closers.append(made.close)
        if threads:
            made.start()
        else:
            made._watch.routine.start()
            made.effects.routine.start()
        until(lambda: made._watch.age_s() < PATIENCE_S, "the pods are listed")
        if threads:
            made.scaler.wake()
            until(lambda: made.scaler.confirmed is not None, "the RayCluster is read")
        else:
            self.confirm(made)
        return made

    def confirm(self, provider: KubeRayProvider) -> None:
        """Let the provider list the pods that it sees, as after a read of the RayCluster."""
        provider.scaler.confirmed = frozenset(provider.pods())

    def sees(self, provider: KubeRayProvider, *names: str) -> None:
        """Wait until the provider lists exactly these workers, the head aside."""
        until(
            lambda: {name for name, pod in provider.pods().items() if pod.is_worker} == set(names),
            f"the provider sees {names}",
        )
        self.confirm(provider)

    def caught_up(self, provider: KubeRayProvider) -> None:
        """Wait until the provider has seen what is there now, also the states of pods."""
        pods = self.admin.pods(f"ray.io/cluster={self.name}")
        listed = {pod["metadata"]["name"] for pod in pods}
        newest = max((int(pod["metadata"]["resourceVersion"]) for pod in pods), default=0)
        until(
            lambda: set(provider.pods()) == listed and provider._watch._newest >= newest,
            f"the provider sees {listed} of version {newest}",
        )

    def group(self, index: int = 0) -> dict[str, Any]:
        found: dict[str, Any] = self.admin.cluster(self.name)["spec"]["workerGroupSpecs"][index]
        return found

    def size(self, index: int = 0) -> tuple[Any, list[str]]:
        """Return the replicas of a group and the names that it tells the operator to delete."""
        group = self.group(index)
        return group.get("replicas"), (group.get("scaleStrategy") or {}).get("workersToDelete") or []

    def close(self) -> None:
        self.operator.close()
        for close in reversed(self._closers):
            close()
