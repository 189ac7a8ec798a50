"""Reads a cluster file: types, defaults, then rules that involve several keys.

Called by the CLI and by `FileSpecSource`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct, structs

from muster.cluster.model import Backoff, Timeouts
from muster.config.check import checked, nearest, shortened
from muster.config.document import Document, Path_, kubernetes_kind, not_kubernetes
from muster.config.node_launch import SizeSource, table_only, with_sizes
from muster.config.prices import check_budget, check_offers
from muster.config.rack import check_rack, with_local_type
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

HEAD_TYPE = "ray.head.default"
WORKER_TYPE = "ray.worker.default"

Plain = dict[str, Any]

COMMON: Plain = {
    "cluster_name": "default",
    "max_workers": 2,
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 5.0,
}
_SSH: Plain = {"auth": {"ssh_user": "ubuntu"}}


def _types(machine: Plain, resources: Plain, head: str = HEAD_TYPE, worker: str = WORKER_TYPE) -> Plain:
    one = {"resources": resources, "node_config": machine}
    return {"head_node_type": head, "available_node_types": {head: one, worker: one}}


_TWO_CPUS: dict[str, float] = {"CPU": 2}
_GCP_NAMES = ("ray_head_default", "ray_worker_small")
_VSPHERE_TYPES: Plain = {
    HEAD_TYPE: {"resources": {}},
    "worker": {"min_workers": 1, "max_workers": 3, "resources": {}},
    "worker_2": {"min_workers": 1, "max_workers": 2, "resources": {}},
}
_SPARK_TYPES: Plain = {
    HEAD_TYPE: {"resources": {"CPU": 8, "GPU": 0}, "node_config": {}, "max_workers": 0},
    "ray.worker": {
        "resources": {"CPU": 1, "object_store_memory": 1_000_000_000},
        "node_config": {},
        "max_workers": 4,
    },
}

_START: Plain = {
    "head_start_ray_commands": ["ray start --head --port=6379 --no-monitor --disable-usage-stats"],
    "worker_start_ray_commands": ["ray start --address=$RAY_HEAD_IP:6379 --disable-usage-stats"],
}

DEFAULTS: dict[str, Plain] = {
    "aws": {**COMMON, **_SSH, **_START, **_types({"InstanceType": "m5.large"}, {})},
    "gcp": {**COMMON, **_SSH, **_types({"machineType": "n1-standard-2"}, _TWO_CPUS, *_GCP_NAMES)},
    "azure": {
        **COMMON,
        **_SSH,
        **_types({"azure_arm_parameters": {"vmSize": "Standard_D2s_v3"}}, _TWO_CPUS),
    },
    "aliyun": {**COMMON, **_SSH, **_types({"InstanceType": "ecs.g6.large"}, _TWO_CPUS)},
    "vsphere": {
        **COMMON,
        **_SSH,
        "cluster_name": "ray-cluster",
        "max_workers": 5,
        "head_node_type": HEAD_TYPE,
        "available_node_types": _VSPHERE_TYPES,
    },
    "local": {**COMMON, **_SSH, **_START},
    "external": {**COMMON, **_types({}, {})},
    "spark": {
        **COMMON,
        "cluster_name": "spark",
        "max_workers": 8,
        "idle_timeout_minutes": 1.0,
        "head_node_type": HEAD_TYPE,
        "available_node_types": _SPARK_TYPES,
    },
    "fake_multinode": COMMON,
    "fake_multinode_docker": COMMON,
    "process": COMMON,
    "readonly": {**COMMON, "max_workers": 0},
    "kuberay": {},  # its source derives every key
}

# Keys of `provider` that the file does not set: these providers bring machines up with the runtime.
_MANAGED: dict[str, Any] = {"disable_node_updaters": True}

PROVIDER_KEYS: dict[str, dict[str, Any]] = {
    "process": _MANAGED,
    "readonly": _MANAGED,
    "kuberay": {
        "disable_node_updaters": True,
        "disable_launch_config_check": True,
        "foreground_node_launch": True,
        "worker_liveness_check": False,
    },
}


LEGACY_HEAD = "ray-legacy-head-node-type"
LEGACY_WORKER = "ray-legacy-worker-node-type"


def prepare(document: Document, written: Mapping[str, Any], sizes: SizeSource = table_only) -> Plain:
    """Returns the document's data made complete; its own top-level keys win over every default."""
    data: Plain = with_provider_keys(written)
    provider = data["provider"]["type"]
    if provider == "kuberay":
        return data
    if provider == "local":
        data = with_local_type(document, data)
    defaults = DEFAULTS.get(provider, {})
    data = over_defaults(with_legacy_types(data, defaults), defaults)
    return with_sizes(document, with_merged_commands(without_legacy_keys(data)), sizes)


def with_provider_keys(data: Mapping[str, Any]) -> Plain:
    """Sets switches of `provider` that follow from its type, where the file does not set them."""
    given = data["provider"]
    return {**data, "provider": {**PROVIDER_KEYS.get(given["type"], {}), **given}}


def over_defaults(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Plain:
    """Puts the keys of the file over the provider's; a default head counts if its type is there."""
    types = data.get("available_node_types", defaults.get("available_node_types", {}))
    if defaults.get("head_node_type") not in types:
        defaults = {key: value for key, value in defaults.items() if key != "head_node_type"}
    return {"auth": {}, **defaults, **data}


def with_legacy_types(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Plain:
    """Turns `head_node` and `worker_nodes` into two node types, in files without `available_node_types`."""
    head, worker = data.get("head_node") or {}, data.get("worker_nodes") or {}
    if "available_node_types" in data or not (head or worker):
        return dict(data)
    highest = data.get("max_workers", defaults.get("max_workers", 0))
    default_head, default_worker = _default_machines(defaults)
    types = {
        LEGACY_HEAD: {**_legacy_type(head or default_head), "min_workers": 0, "max_workers": 0},
        LEGACY_WORKER: {
            **_legacy_type(worker or default_worker),
            "min_workers": data.get("min_workers") or 0,
            "max_workers": highest,
        },
    }
    return {"head_node_type": LEGACY_HEAD, **data, "available_node_types": types}


def _default_machines(defaults: Mapping[str, Any]) -> tuple[Plain, Plain]:
    """Returns what a legacy file that describes one side only gets for the other, in its own form."""
    types: Mapping[str, Plain] = defaults.get("available_node_types", {})
    named = defaults.get("head_node_type", "")
    others = [entry for name, entry in types.items() if name != named]
    head, worker = (
        {**entry.get("node_config", {}), "resources": entry.get("resources", {})}
        for entry in (types.get(named, {}), others[0] if others else {})
    )
    return head, worker


def _legacy_type(described: Mapping[str, Any]) -> Plain:
    """The old form keeps the resources among the settings of the machine."""
    node_config = {key: value for key, value in described.items() if key != "resources"}
    return {"node_config": node_config, "resources": described.get("resources") or {}}


def without_legacy_keys(data: Mapping[str, Any]) -> Plain:
    """Removes the old keys, which have become node types, or have no meaning beside them."""
    return {
        key: value for key, value in data.items() if key not in ("min_workers", "head_node", "worker_nodes")
    }


def with_merged_commands(data: Mapping[str, Any]) -> Plain:
    """Runs `setup_commands` first on the head and on workers."""
    shared = data.get("setup_commands", [])
    merged = {key: [*shared, *data.get(key, [])] for key in ("head_setup_commands", "worker_setup_commands")}
    return {**data, **merged}


# Zero here would not mean "fast": machines would be given up the moment they are asked for.
_MUST_BE_POSITIVE: dict[str, tuple[str, ...]] = {
    "timeouts": ("request_s", "allocate_s", "install_s", "terminating_s", "stop_requested_s", "stopping_s"),
    "backoff": tuple(field.name for field in structs.fields(Backoff)),
}
_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
MAX_TYPE_NAME = 128
NAME_RULE = "use up to 63 letters, digits, '-', '_' and '.', the first of them a letter, a digit or '_'"


def is_cluster_name(name: str) -> bool:
    """Returns whether a cluster may have this name: it becomes a directory, and a tag of every machine."""
    return _NAME.fullmatch(name) is not None


def check_written(document: Document, config: ClusterConfig, platform: str = sys.platform) -> None:
    """Checks rules about the file as the user wrote it."""
    if not is_cluster_name(config.cluster_name):
        shown = shortened(config.cluster_name)
        raise document.error(("cluster_name",), f"{shown} cannot be the name of a cluster; {NAME_RULE}")
    for name in config.available_node_types:  # becomes a tag of machines, and a variable of their processes
        if not (name.isprintable() and 0 < len(name) <= MAX_TYPE_NAME):
            rule = f"use 1 to {MAX_TYPE_NAME} printable characters"
            raise document.error(("available_node_types", name), f"cannot be the name of a node type; {rule}")
    _check_provider(document, config)
    _check_docker(document, config)
    if config.auth.ssh_proxy_use_node_id and not config.auth.ssh_proxy_command:
        raise document.error(("auth", "ssh_proxy_use_node_id"), "needs ssh_proxy_command; add it")
    _check_muster(document, config)
    check_offers(document, config)
    if config.file_mounts_sync_continuously and platform == "win32":
        raise document.error(("file_mounts_sync_continuously",), "does not work on Windows; remove it")


def check_prepared(document: Document, config: ClusterConfig) -> None:
    """Checks rules about the file once it is complete."""
    if config.provider.type == "readonly" and not config.available_node_types:
        return  # its types are the nodes that are found
    _check_head(document, config)
    _check_counts(document, config)
    check_budget(document, config)


def _check_provider(document: Document, config: ClusterConfig) -> None:
    provider = config.provider
    if provider.type not in PROVIDERS:
        raise document.error(
            ("provider", "type"),
            f"{shortened(provider.type)} is not a provider; {nearest(provider.type, PROVIDERS)} "
            "(a class of your own: type external, and its name as module)",
        )
    if provider.type == "local":
        check_rack(document, config)
    if provider.type != "external":
        return
    if provider.module is None:
        raise document.error(("provider",), "'module' is missing; name the class as package.module.Class")
    if not _CLASS.fullmatch(provider.module):
        raise document.error(
            ("provider", "module"),
            f"{shortened(provider.module)} is not the path of a class; write it as package.module.Class",
        )


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


def _check_muster(document: Document, config: ClusterConfig) -> None:
    sections: dict[str, Timeouts | Backoff] = {
        "timeouts": config.muster.timeouts,
        "backoff": config.muster.backoff,
    }
    for section, names in _MUST_BE_POSITIVE.items():
        for name in names:
            if not getattr(sections[section], name) > 0:
                raise document.error(("muster", section, name), "must be above 0; raise it or remove the key")
    monitor, interval_s = document.data.get("muster", {}).get("monitor", {}), config.muster.monitor.interval_s
    if "max_interval_s" in monitor and monitor["max_interval_s"] < interval_s:
        raise document.error(
            ("muster", "monitor", "max_interval_s"),
            f"{monitor['max_interval_s']:g} is less than interval_s, {interval_s:g}; raise it",
        )
    backoff = config.muster.backoff
    if backoff.max_s < backoff.base_s:
        raise document.error(
            ("muster", "backoff", "max_s"),
            f"{backoff.max_s:g} is less than base_s, {backoff.base_s:g}; raise it",
        )


def _check_head(document: Document, config: ClusterConfig) -> None:
    types = config.available_node_types
    if not types:
        state = "is empty" if "available_node_types" in document.data else "is missing"
        raise document.error(("available_node_types",), f"{state}; describe at least one node type")
    if config.head_node_type is None and len(types) > 1:
        raise document.error((), "'head_node_type' is missing; name the head's entry of available_node_types")
    if config.head_type not in types:
        hint = nearest(config.head_type, types)
        raise document.error(
            ("head_node_type",), f"{shortened(config.head_type)} is not in available_node_types; {hint}"
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
    """A Variable has the place of its value within `muster`, its type, and the meaning of `inf`."""

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
    Variable("AUTOSCALER_NODE_START_WAIT_S", ("setup", "ready_s"), PositiveSeconds, TEN_YEARS_S),
    Variable("AUTOSCALER_NODE_SSH_INTERVAL_S", ("setup", "interval_s"), Interval),
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
    """Returns `data` with the variables that are set in its section `muster`, where the file has no value."""
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
    """Returns the number; a text that is no number stays as it is, to be refused by its type."""
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
        raise ConfigError(f"must be 1 or 0, not {shortened(text)}", path=variable.name, file="environment")
    return known[text.lower()]


_NO_VARIABLES: Mapping[str, str] = {}


def load_config(
    path: Path, environment: Mapping[str, str] = _NO_VARIABLES, sizes: SizeSource = table_only
) -> ClusterConfig:
    """Returns the file as typed data; ConfigError names file, line, key and fix."""
    return parse_config(Document.load(path), environment, sizes)


def parse_config(
    document: Document, environment: Mapping[str, str] = _NO_VARIABLES, sizes: SizeSource = table_only
) -> ClusterConfig:
    """Returns typed data of a document already read; `environment` gives settings that the file does not."""
    if document.data is None:
        raise document.error((), "is empty; it needs cluster_name, provider and available_node_types")
    if kind := kubernetes_kind(document.data):
        raise document.error((), not_kubernetes(kind))
    written = document.data
    if isinstance(written, dict) and written.get("head_node_type") == {}:  # in an example of Ray's
        written = {key: value for key, value in written.items() if key != "head_node_type"}
    check_written(document, checked(document, (), written, ClusterConfig))
    data = with_environment(prepare(document, written, sizes), environment)
    config = checked(document, (), data, ClusterConfig)
    check_prepared(document, config)
    return config
