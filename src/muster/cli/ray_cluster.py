"""Do `muster up`, `status`, `why` and `down` for a file that is a RayCluster of Kubernetes.

Imported lazily by those commands. They show what the API server knows; the decisions of the loop are shown by
the same commands inside the autoscaler's container.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import yaml

from muster.base.codec import encode_plain
from muster.base.resources import Resources
from muster.base.text import did_you_mean
from muster.cli.console import confirm, emit
from muster.errors import ClusterError, ConfigError

if TYPE_CHECKING:
    from muster.providers.kuberay.manage import PodRow, RayClusterManager

KIND = "RayCluster"
_EXEC = "kubectl exec -n {0.namespace} {0.head_pod} -c autoscaler -- muster {1}"


def manifest_of(word: str | Path | None) -> dict[str, Any] | None:
    """Return the RayCluster of a file; None for any other file, and for names. Raises ConfigError."""
    path = Path(os.path.expanduser(str(word or "")))
    if word is None or not path.is_file():
        return None
    text = path.read_text(encoding="utf-8", errors="replace")
    if KIND not in text or "apiVersion" not in text:
        return None
    try:
        mine = [one for one in _objects(text) if one.get("kind") == KIND]
    except yaml.YAMLError:
        return None  # the reader of cluster files names the line
    if not mine:
        return None
    if len(mine) > 1 or not isinstance(mine[0].get("metadata"), Mapping):
        raise ConfigError(
            "has more than one RayCluster, or one without metadata", file=str(path), fix="keep one"
        )
    return mine[0]


def _objects(text: str) -> list[dict[str, Any]]:
    return [dict(one) for one in yaml.safe_load_all(text) if isinstance(one, Mapping)]


def up_ray_cluster(
    path: Path, manifest: dict[str, Any], *, yes: bool, dry_run: bool, **given: object
) -> None:
    """Apply the file, after its configuration was checked."""
    from muster.providers.kuberay.pod_resize import resize_limits
    from muster.providers.kuberay.ray_cluster import cluster_config

    refuse_options(given, "a RayCluster", path)
    config = cluster_config(manifest, warn=lambda text: emit(f"warning: {text}".encode()))
    problems = resize_limits(manifest)[1]
    if problems:  # of an object that is there already they are warnings
        raise ConfigError(
            f"RayCluster: {problems[0]}", file=str(path), fix="fix it, or remove the annotation"
        )
    others = [str(one.get("kind")) for one in _objects(path.read_text("utf-8")) if one.get("kind") != KIND]
    if others:
        emit(
            f"warning: {path} has other objects, too ({', '.join(others)}): apply them with kubectl".encode()
        )
    manager, where = _manager(manifest)
    for name, kind in config.available_node_types.items():
        if name != config.head_type:
            sizes = Resources.of(kind.resources)
            emit(f"{name}: {kind.min_workers} to {config.type_max_workers(name)} pods of {sizes}".encode())
    if dry_run:
        return
    if not yes:
        confirm(f"Apply RayCluster {where}?")
    emit(f"RayCluster {where}: {manager.apply(manifest)}; `muster status {path}` shows its pods".encode())


# Options of `up` that do no harm where they mean nothing.
_IGNORED = ("dry_run", "no_check", "no_config_cache", "redirect_command_output", "login_shells", "no_restart")


def refuse_options(given: Mapping[str, object], kind: str, file: Path) -> None:
    """Raise ClusterError for options of `up` that mean nothing for this kind of cluster."""
    names = [name for name, value in given.items() if value and name not in _IGNORED]
    if names:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in names)
        raise ClusterError(f"{options}: not for {kind}", fix=f"edit {file} instead")


def down_ray_cluster(manifest: dict[str, Any], *, yes: bool) -> None:
    manager, where = _manager(manifest)
    if not yes:
        confirm(f"Delete RayCluster {where} and everything that runs on it?")
    was_there = manager.delete()
    emit(f"RayCluster {where}: {'is being deleted' if was_there else 'is not there'}".encode())


def show_ray_cluster(manifest: dict[str, Any], *, as_json: bool) -> None:
    manager, where = _manager(manifest)
    report = manager.report()
    if as_json:
        emit(encode_plain(report))
        return
    lines = [f"RayCluster {where}: {len(report.pods)} pods"]
    if report.untouched:
        lines.append(f"nothing is launched or removed: {report.untouched}")
    for group in report.groups:
        states = ", ".join(f"{count} {state}" for state, count in group.states.items()) or "no pods"
        most = "any number" if group.most is None else str(group.most)
        hosts = f" of {group.hosts} pods" if group.hosts > 1 else ""
        lines.append(f"  {group.name}: {group.replicas} of {group.least} to {most} replicas{hosts}; {states}")
    lines += [_line(pod) for pod in report.pods if pod.detail]
    lines.append(f"decisions: {_EXEC.format(report, 'status')}")
    emit("\n".join(lines).encode())


def explain_in_ray_cluster(subject: str, manifest: dict[str, Any], *, as_json: bool) -> None:
    """Say why a pod is as it is, or the pods of a group."""
    report = _manager(manifest)[0].report()
    pods = [pod for pod in report.pods if subject in (pod.name, pod.group)] or [
        pod for pod in report.pods if pod.name.startswith(subject)
    ]
    group = next((one for one in report.groups if one.name == subject), None)
    if not pods and group is None:
        names = [*(group.name for group in report.groups), *(pod.name for pod in report.pods)]
        known = did_you_mean(subject, names) or f"; there are {', '.join(names)}"
        raise ClusterError(f"RayCluster {report.name} has no pod or group {subject!r}{known}")
    if as_json:
        emit(encode_plain({"group": group, "pods": pods}))
        return
    lines = [_line(pod) for pod in pods]
    if group is not None:
        named = f"; to be deleted: {', '.join(group.to_delete)}" if group.to_delete else ""
        lines.insert(0, f"{group.name}: {group.replicas} replicas{named}")
    lines.append(f"its history: {_EXEC.format(report, f'why {subject}')}")
    emit("\n".join(lines).encode())


def _line(pod: PodRow) -> str:
    return f"  {pod.name} ({pod.group}): {pod.state}" + (f": {pod.detail}" if pod.detail else "")


def _manager(manifest: dict[str, Any]) -> tuple[RayClusterManager, str]:
    from muster.providers.kuberay.client import KubePaths
    from muster.providers.kuberay.manage import RayClusterManager
    from muster.providers.kuberay.source import CRD_VERSION, connected_client, usual_kubeconfig

    metadata, version = manifest["metadata"], str(manifest.get("apiVersion", "")).rpartition("/")[2]
    client, default = connected_client(os.environ, usual_kubeconfig(os.environ))
    name, namespace = str(metadata.get("name", "")), str(metadata.get("namespace") or default or "default")
    click.get_current_context().call_on_close(client.close)
    return RayClusterManager(
        client, KubePaths(namespace, name, version or CRD_VERSION)
    ), f"{namespace}/{name}"
