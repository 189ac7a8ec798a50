"""Read a cluster file: types, preparation, then what no single key can say. Called by the CLI and by
`FileSpecSource`."""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from muster.cluster.model import Backoff, Timeouts
from muster.config.check import checked, nearest
from muster.config.document import Document, Path_
from muster.config.normalize import prepare
from muster.config.schema import (
    MANY,
    PROVIDERS,
    TEN_YEARS_S,
    ClusterConfig,
    Count,
    Interval,
    Port,
    PositiveCount,
    PositiveSeconds,
    Seconds,
)
from muster.errors import ConfigError

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


_MaybeSeconds = Annotated[float, Meta(ge=-TEN_YEARS_S, le=TEN_YEARS_S)]


class Variable(Struct, frozen=True):
    """One variable: where its value goes within `muster`, what it may be, and what `inf` stands for."""

    name: str
    path: tuple[str, ...]
    kind: Any
    endless: float | None = None  # None: `inf` makes no sense


def _timeout(word: str, key: str, kind: Any = PositiveSeconds) -> Variable:  # noqa: ANN401 - a typing form
    return Variable(f"RAY_AUTOSCALER_RECONCILE_{word}", ("timeouts", key), kind, TEN_YEARS_S)


VARIABLES = (
    _timeout("REQUEST_STATUS_TIMEOUT_S", "request_s"),
    _timeout("ALLOCATE_STATUS_TIMEOUT_S", "allocate_s"),
    _timeout("RAY_INSTALL_STATUS_TIMEOUT_S", "install_s"),
    _timeout("TERMINATING_STATUS_TIMEOUT_S", "terminating_s"),
    _timeout("RAY_STOP_REQUESTED_STATUS_TIMEOUT_S", "stop_requested_s"),
    _timeout("TRANSIENT_STATUS_WARN_INTERVAL_S", "warn_s", Seconds),
    Variable(
        "RAY_AUTOSCALER_RECONCILE_MAX_NUM_RETRY_REQUEST_TO_ALLOCATE",
        ("limits", "max_request_retries"),
        Count,
        MANY,
    ),
    Variable("AUTOSCALER_MAX_CONCURRENT_LAUNCHES", ("limits", "max_concurrent"), Count, MANY),
    Variable("AUTOSCALER_MAX_LAUNCH_BATCH", ("limits", "max_launch_batch"), PositiveCount, MANY),
    Variable("AUTOSCALER_UPDATE_INTERVAL_S", ("monitor", "interval_s"), Interval),
    Variable("AUTOSCALER_METRIC_PORT", ("monitor", "metrics_port"), Port),
    Variable("AUTOSCALER_CONSERVE_GPU_NODES", ("conserve_gpus",), bool),
    Variable(
        "RAY_AUTOSCALER_PENDING_NODE_IDLE_TIMEOUT_S",
        ("timeouts", "pending_idle_s"),
        _MaybeSeconds,
        TEN_YEARS_S,
    ),
    Variable(
        "RAY_AUTOSCALER_AVAILABILITY_RECOVERY_S", ("backoff", "recovery_s"), PositiveSeconds, TEN_YEARS_S
    ),
)


def with_environment(data: Mapping[str, Any], environment: Mapping[str, str]) -> dict[str, Any]:
    """`data` with the variables that are set in its section `muster`, where the file says nothing."""
    section: dict[str, Any] = dict(data.get("muster", {}))
    for variable in VARIABLES:
        text = environment.get(variable.name, "").strip()
        if text:
            section = _filled(section, variable.path, _value(variable, text))
    return {**data, "muster": section} if section else dict(data)


def _filled(section: Mapping[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = path
    if rest:
        return {**section, first: _filled(section.get(first, {}), tuple(rest), value)}
    return {first: value, **section}


def _value(variable: Variable, text: str) -> object:
    if variable.kind is bool:
        return _switch(variable, text)
    where = Document("", "environment")
    number = checked(where, (variable.name,), _number(variable, text), variable.kind)
    return None if variable.kind is _MaybeSeconds and number < 0 else number


def _number(variable: Variable, text: str) -> object:
    """What the text says; a text that is no number goes on as it is, to be refused by its kind."""
    if text.lower() in ("inf", "+inf", "infinity") and variable.endless is not None:
        return variable.endless
    try:
        value = float(text)
    except ValueError:
        return text
    return int(value) if value.is_integer() else value


def _switch(variable: Variable, text: str) -> bool:
    known = {"1": True, "true": True, "0": False, "false": False}
    if text.lower() not in known:
        raise ConfigError(f"must be 1 or 0, not {text!r}", path=variable.name, file="environment")
    return known[text.lower()]


_NO_VARIABLES: Mapping[str, str] = {}


def load_config(path: Path, environment: Mapping[str, str] = _NO_VARIABLES) -> ClusterConfig:
    """The file as typed data; ConfigError names file, line, key and fix."""
    return parse_config(Document.load(path), environment)


def parse_config(document: Document, environment: Mapping[str, str] = _NO_VARIABLES) -> ClusterConfig:
    """Typed data of a document already read; `environment` gives settings that the file does not."""
    if document.data is None:
        raise document.error((), "is empty; it needs cluster_name, provider and available_node_types")
    check_written(document, checked(document, (), document.data, ClusterConfig))
    config = checked(document, (), with_environment(prepare(document), environment), ClusterConfig)
    check_prepared(document, config)
    return config
