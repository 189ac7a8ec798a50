"""Connects to the RayCluster that arguments and environment name.

Called by the commands that work on Kubernetes. Nothing is asked before the first use.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from muster.base.clock import Clock
from muster.errors import ProviderMisconfigured
from muster.providers.kuberay.client import TIMEOUT_S, KubeClient, KubePaths
from muster.providers.kuberay.credentials import SERVICE_ACCOUNT, from_kubeconfig, in_cluster
from muster.providers.kuberay.provider import KubeRayProvider

CRD_VERSION = "v1"


def connect(
    name: str,
    namespace: str,
    environment: Mapping[str, str],
    kubeconfig: Path | None = None,
    context: str = "",
) -> KubeRayProvider:
    """Returns the provider of one RayCluster, not started yet. Raises ProviderError when nothing names it."""
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
    """Returns the client of a kubeconfig, else of the pod, and the namespace that the former names."""
    if kubeconfig is None:
        return KubeClient(in_cluster(environment, service_account, clock), _timeout_s(environment)), ""
    access, namespace = from_kubeconfig(kubeconfig, environment, context, clock)
    return KubeClient(access, _timeout_s(environment)), namespace


def usual_kubeconfig(environment: Mapping[str, str]) -> Path | None:
    """Returns the file that kubectl would use; None inside a pod that has no such file."""
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
