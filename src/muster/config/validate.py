"""What no single key of the cluster file can say: references, sums, keys that need each other."""

from __future__ import annotations

import re
import sys

from msgspec import structs

from muster.cluster.model import Backoff, Timeouts
from muster.config.check import nearest
from muster.config.document import Document, Path_
from muster.config.schema import PROVIDERS, ClusterConfig

# Zero here would not mean "fast": machines would be given up the moment they are asked for.
_MUST_BE_POSITIVE: dict[str, tuple[str, ...]] = {
    "timeouts": ("request_s", "allocate_s", "install_s", "terminating_s", "stop_requested_s", "stopping_s"),
    "backoff": tuple(field.name for field in structs.fields(Backoff)),
}
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


def check_written(document: Document, config: ClusterConfig, platform: str = sys.platform) -> None:
    """Rules about the file as people wrote it."""
    _check_provider(document, config)
    _check_docker(document, config)
    _check_auth(document, config)
    _check_muster(document, config)
    if config.file_mounts_sync_continuously and platform == "win32":
        raise document.error(("file_mounts_sync_continuously",), "does not work on Windows; remove it")


def check_prepared(document: Document, config: ClusterConfig) -> None:
    """Rules about the file once it is complete."""
    if config.provider.type == "readonly" and not config.available_node_types:
        return  # its types are the nodes that are found
    _check_head(document, config)
    _check_counts(document, config)


def _check_provider(document: Document, config: ClusterConfig) -> None:
    provider = config.provider
    if provider.type not in PROVIDERS:
        raise document.error(
            ("provider", "type"),
            f"{provider.type!r} is not a provider; {nearest(provider.type, PROVIDERS)} "
            "(a class of your own: type external, and its name as module)",
        )
    if provider.type != "external":
        return
    if provider.module is None:
        raise document.error(("provider",), "'module' is missing; name the class as package.module.Class")
    if not _CLASS.fullmatch(provider.module):
        raise document.error(("provider", "module"), f"{provider.module!r} is not like package.module.Class")


def _check_docker(document: Document, config: ClusterConfig) -> None:
    docker = config.docker
    image = bool(docker.image or (docker.head_image and docker.worker_image))
    if docker.container_name and not image:
        raise document.error(
            ("docker",), "has a container_name but no image; add image (or head_image and worker_image)"
        )
    if not docker.container_name and (docker.image or docker.head_image or docker.worker_image):
        raise document.error(
            ("docker",), "has an image but no container_name; add one, such as ray_container"
        )


def _check_auth(document: Document, config: ClusterConfig) -> None:
    if config.auth.ssh_proxy_use_node_id and not config.auth.ssh_proxy_command:
        raise document.error(("auth", "ssh_proxy_use_node_id"), "needs ssh_proxy_command; add it")


def _check_muster(document: Document, config: ClusterConfig) -> None:
    sections: dict[str, Timeouts | Backoff] = {
        "timeouts": config.muster.timeouts,
        "backoff": config.muster.backoff,
    }
    for section, names in _MUST_BE_POSITIVE.items():
        for name in names:
            if not getattr(sections[section], name) > 0:
                raise document.error(("muster", section, name), "must be above 0")
    monitor = document.data.get("muster", {}).get("monitor", {})
    if "max_interval_s" in monitor and monitor["max_interval_s"] < config.muster.monitor.interval_s:
        raise document.error(
            ("muster", "monitor", "max_interval_s"),
            f"{monitor['max_interval_s']:g} is less than interval_s, {config.muster.monitor.interval_s:g}",
        )
    backoff = config.muster.backoff
    if backoff.max_s < backoff.base_s:
        raise document.error(
            ("muster", "backoff", "max_s"), f"{backoff.max_s:g} is less than base_s, {backoff.base_s:g}"
        )


def _check_head(document: Document, config: ClusterConfig) -> None:
    types = config.available_node_types
    if not types:
        told = "is empty" if "available_node_types" in document.data else "is missing"
        raise document.error(("available_node_types",), f"{told}; describe at least one node type")
    if config.head_node_type is None and len(types) > 1:
        raise document.error((), "'head_node_type' is missing; name the head's entry of available_node_types")
    if config.head_type not in types:
        hint = nearest(config.head_type, types)
        raise document.error(
            ("head_node_type",), f"{config.head_type!r} is not in available_node_types; {hint}"
        )


def _check_counts(document: Document, config: ClusterConfig) -> None:
    for name, node_type in config.available_node_types.items():
        highest = config.type_max_workers(name)
        if node_type.min_workers > highest:
            written: Path_ = ("available_node_types", name, "min_workers")
            raise document.error(
                written if "available_node_types" in document.data else ("min_workers",),
                f"{node_type.min_workers} is more than this type's max_workers, {highest}; raise max_workers",
            )
    wanted = sum(node_type.min_workers for node_type in config.available_node_types.values())
    if wanted > config.max_workers:
        raise document.error(
            ("max_workers",),
            f"{config.max_workers} is less than the sum of all min_workers, {wanted}; raise it to {wanted}",
        )
