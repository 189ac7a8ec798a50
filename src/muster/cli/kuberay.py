"""Implement `muster kuberay-autoscaler`, the sidecar of a RayCluster: same arguments as Ray's own.

Whatever ends it is written to the container's termination message, so that `kubectl describe pod` shows it.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING

import click

from muster.cli.monitor import log_to_stderr, stop_on_signals
from muster.errors import ConfigError, MusterError

if TYPE_CHECKING:
    from muster.providers.kuberay.provider import KubeRayProvider
    from muster.providers.kuberay.source import RayClusterSource

logger = logging.getLogger("muster.kuberay")

TERMINATION_LOG = Path("/dev/termination-log")
HOME = Path("/tmp/ray/muster")  # on the volume that KubeRay gives the head's pod: it outlives the container
RETRY_S = 2.0

_EPILOG = """\b
Examples:
  muster kuberay-autoscaler --cluster-name demo --cluster-namespace default

Environment: RAY_CLUSTER_NAME, RAY_CLUSTER_NAMESPACE, KUBERAY_CRD_VER, KUBERAY_REQUEST_TIMEOUT_S,
RAY_KUBERAY_CLIENT_CERT_PATH, RAY_KUBERAY_CLIENT_KEY_PATH, RAY_KUBERAY_CA_CERT_PATH, RAY_ADDRESS,
RAY_AUTH_MODE, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH."""


@click.command(name="kuberay-autoscaler", epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.option("--cluster-name", envvar="RAY_CLUSTER_NAME", required=True, help="Name of the RayCluster.")
@click.option(
    "--cluster-namespace", envvar="RAY_CLUSTER_NAMESPACE", required=True, help="Namespace of the RayCluster."
)
@click.option(
    "--kubeconfig",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Kubeconfig to use. Default: the service account of the pod.",
)
@click.option("--context", default="", help="Context of the kubeconfig. Default: its current one.")
@click.option(
    "--address",
    help="HOST:PORT of the head's GCS. Default: RAY_ADDRESS, else this pod's, with the head's port.",
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help=f"Directory of the ledger. Default: the cluster's name in $MUSTER_HOME/clusters, else {HOME}.",
)
@click.option(
    "--shadow", is_flag=True, help="Change nothing: report what muster would do next to Ray's own autoscaler."
)
@click.option("--once", is_flag=True, help="Run one tick and exit.")
@click.option(
    "--termination-log",
    type=click.Path(dir_okay=False, path_type=Path),
    default=TERMINATION_LOG,
    help="File of the container's termination message.",
)
def kuberay_autoscaler(
    cluster_name: str,
    cluster_namespace: str,
    once: bool,
    shadow: bool,
    termination_log: Path,
    **given: object,
) -> None:
    """Run the autoscaler of a RayCluster as a sidecar of its head.

    The autoscaler reads worker groups and limits from the RayCluster and applies edits while it runs. It
    needs only the Role that KubeRay creates for its own autoscaler.
    """
    log_to_stderr()
    stop = stop_on_signals()
    sidecar = _Sidecar(cluster_name, cluster_namespace, termination_log, stop)
    sidecar.is_shadow = shadow
    try:
        sidecar.run(dict(os.environ), once=once, **given)  # type: ignore[arg-type]  # the options above
    except MusterError as error:
        sidecar.note_end(str(error))
        raise
    except Exception as error:
        sidecar.note_end(f"{type(error).__name__}: {error}")
        raise


class _Sidecar:
    """One run of the command."""

    def __init__(self, name: str, namespace: str, termination_log: Path, stop: Event) -> None:
        self._name, self._namespace, self._log, self._stop = name, namespace, termination_log, stop
        self._last_line, self.is_shadow = "", False

    def run(
        self,
        environment: Mapping[str, str],
        *,
        kubeconfig: Path | None,
        context: str,
        address: str | None,
        home: Path | None,
        once: bool,
    ) -> None:
        from muster.autoscaler.build import MonitorOptions, StartCancelled, build_monitor
        from muster.autoscaler.connect import find_head_address
        from muster.autoscaler.home import ClusterHome
        from muster.autoscaler.known_clusters import clusters_root
        from muster.autoscaler.shadow import HOME_SUFFIX
        from muster.providers.kuberay.source import connect

        provider = connect(self._name, self._namespace, environment, kubeconfig, context)
        try:
            source = self._source(provider, environment)
            if source is None:
                return
            root = clusters_root({"MUSTER_HOME": str(HOME), **environment})
            name = self._name + (HOME_SUFFIX if self.is_shadow else "")
            where = ClusterHome(home) if home is not None else ClusterHome.of(name, root)
            known = address or environment.get("RAY_ADDRESS") or self._pod_address(provider, environment)
            head = find_head_address(where, known, environment)
            options = MonitorOptions(
                config=where.cluster, home=where, head=head, source=source, shadow=self.is_shadow
            )
            provider.start()
            build_monitor(options, environment, self._stop).run(self._stop, once=once)
        except StartCancelled:
            pass
        finally:
            provider.close()
        logger.info("the autoscaler of %s has ended", self._name)

    def _pod_address(self, provider: KubeRayProvider, environment: Mapping[str, str]) -> str:
        """Return the address of the head in this pod; outside of one, on this computer."""
        from muster.providers.kuberay.ray_cluster import head_port

        host = "127.0.0.1"
        if "KUBERNETES_SERVICE_HOST" in environment:
            with contextlib.suppress(OSError):
                host = socket.gethostbyname(socket.gethostname())
        return f"{host}:{head_port(provider.scaler.cluster.last() or {})}"

    def _source(self, provider: KubeRayProvider, environment: Mapping[str, str]) -> RayClusterSource | None:
        """Wait until the RayCluster can be read and used; a mistake in it is said once, and can be fixed.

        Returns None when the wait was ended. Raises what no edit of the RayCluster would fix.
        """
        from muster.providers.kuberay.client import KubeError
        from muster.providers.kuberay.source import RayClusterSource

        while not self._stop.is_set():
            try:
                source = RayClusterSource(provider, environment)
                self.note_end("")
                return source
            except ConfigError as error:
                self._log_line(f"the RayCluster cannot be used: {error}")
            except KubeError as error:
                self._log_line(str(error))
            self._stop.wait(RETRY_S)
        return None

    def _log_line(self, text: str) -> None:
        if text != self._last_line:
            self._last_line = text
            logger.error("%s; it is tried again every %g s", text, RETRY_S)
            self.note_end(text)

    def note_end(self, text: str) -> None:
        """Write the reason where Kubernetes looks for it; elsewhere there is no such file."""
        try:
            if self._log.exists():
                self._log.write_text(f"{text}\n" if text else "", encoding="utf-8")
        except OSError:
            logger.warning("the termination message cannot be written to %s", self._log)
