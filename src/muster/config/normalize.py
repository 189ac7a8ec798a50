"""From what people write to what the program needs: defaults, old forms and merged commands, step by step.

Each step is a function of plain data that changes nothing it is given. Called by `load`, with data whose
types were checked already, so that every mistake was told at the place where it stands in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.config.document import Document

HEAD_TYPE = "ray.head.default"
WORKER_TYPE = "ray.worker.default"

COMMON: dict[str, Any] = {
    "cluster_name": "default",
    "max_workers": 2,
    "upscaling_speed": 1.0,
    "idle_timeout_minutes": 5.0,
}
_SSH: dict[str, Any] = {"auth": {"ssh_user": "ubuntu"}}


def _two_types(node_config: dict[str, Any], resources: dict[str, float]) -> dict[str, Any]:
    one = {"resources": resources, "node_config": node_config}
    return {"head_node_type": HEAD_TYPE, "available_node_types": {HEAD_TYPE: one, WORKER_TYPE: one}}


_TWO_CPUS: dict[str, float] = {"CPU": 2}

DEFAULTS: dict[str, dict[str, Any]] = {
    "aws": {**COMMON, **_SSH, **_two_types({"InstanceType": "m5.large"}, _TWO_CPUS)},
    "gcp": {**COMMON, **_SSH, **_two_types({"machineType": "n1-standard-2"}, _TWO_CPUS)},
    "azure": {
        **COMMON,
        **_SSH,
        **_two_types({"azure_arm_parameters": {"vmSize": "Standard_D2s_v3"}}, _TWO_CPUS),
    },
    "aliyun": {**COMMON, **_SSH, **_two_types({"InstanceType": "ecs.g6.large"}, _TWO_CPUS)},
    "vsphere": {**COMMON, **_SSH, **_two_types({}, _TWO_CPUS)},
    "local": {**COMMON, **_SSH},
    "external": {**COMMON, **_two_types({}, {})},
    "spark": {**COMMON, **_two_types({}, {})},
    "fake_multinode": COMMON,
    "fake_multinode_docker": COMMON,
    "process": COMMON,
    "readonly": {**COMMON, "max_workers": 0},
    "kuberay": {},  # its source derives every key
}

# Keys of `provider` itself, where the file does not say: these providers bring machines up with the runtime.
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


LOCAL_TYPE = "local.cluster.node"


def with_local_type(document: Document, data: Mapping[str, Any]) -> dict[str, Any]:
    """Manual mode lists the computers; in coordinator mode a server hands them out."""
    if set(data.get("available_node_types", ())) == {LOCAL_TYPE}:
        return dict(data)  # prepared before, as on a head
    if data.get("available_node_types"):
        raise document.error(
            ("available_node_types",),
            f"does not go with provider local, whose computers are all of the type {LOCAL_TYPE}; remove it",
        )
    provider = data["provider"]
    least, most = (
        _coordinated(document, data) if provider.get("coordinator_address") else _listed(document, data)
    )
    only = {"resources": {}, "node_config": {}, "min_workers": least, "max_workers": most}
    return {
        **data,
        "max_workers": most,
        "head_node_type": LOCAL_TYPE,
        "available_node_types": {LOCAL_TYPE: only},
    }


def _listed(document: Document, data: Mapping[str, Any]) -> tuple[int, int]:
    """All computers of the list, unless the file asks for fewer; there are no more."""
    provider = data["provider"]
    for key in ("head_ip", "worker_ips"):
        if provider.get(key) is None:
            raise document.error(
                ("provider",),
                f"{key!r} is missing; provider local needs head_ip and worker_ips, or coordinator_address",
            )
    there_are = len(provider["worker_ips"])
    most = min(data.get("max_workers", there_are), there_are)
    least = data.get("min_workers")
    return most if least is None else min(least, most), most


def _coordinated(document: Document, data: Mapping[str, Any]) -> tuple[int, int]:
    if "max_workers" not in data:
        raise document.error(
            (), "'max_workers' is missing; with a coordinator_address it says how many computers to ask for"
        )
    return data.get("min_workers") or 0, data["max_workers"]


LEGACY_HEAD = "ray-legacy-head-node-type"
LEGACY_WORKER = "ray-legacy-worker-node-type"

Plain = dict[str, Any]


def prepare(document: Document) -> Plain:
    """The document's data made complete; its own top-level keys win over every default."""
    data: Plain = with_provider_keys(document.data)
    provider = data["provider"]["type"]
    if provider == "kuberay":
        return data
    if provider == "local":
        data = with_local_type(document, data)
    defaults = DEFAULTS.get(provider, {})
    data = over_defaults(with_legacy_types(data, defaults), defaults)
    return with_merged_commands(without_legacy_keys(data))


def with_provider_keys(data: Mapping[str, Any]) -> Plain:
    """Switches of `provider` that follow from its type, where the file does not set them."""
    given = data["provider"]
    return {**data, "provider": {**PROVIDER_KEYS.get(given["type"], {}), **given}}


def over_defaults(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Plain:
    """The keys of the file over the provider's; a head type belongs to the types it came with."""
    if "available_node_types" in data:
        defaults = {key: value for key, value in defaults.items() if key != "head_node_type"}
    return {"auth": {}, **defaults, **data}


def with_legacy_types(data: Mapping[str, Any], defaults: Mapping[str, Any]) -> Plain:
    """`head_node` and `worker_nodes` as two node types, in files that have no `available_node_types`."""
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
    """What a legacy file that describes one side only gets for the other, in its own form."""
    types: Mapping[str, Plain] = defaults.get("available_node_types", {})
    head, worker = (
        {**entry.get("node_config", {}), "resources": entry.get("resources", {})}
        for entry in (types.get(HEAD_TYPE, {}), types.get(WORKER_TYPE, {}))
    )
    return head, worker


def _legacy_type(described: Mapping[str, Any]) -> Plain:
    """The old form keeps the resources among the settings of the machine."""
    node_config = {key: value for key, value in described.items() if key != "resources"}
    return {"node_config": node_config, "resources": described.get("resources") or {}}


def without_legacy_keys(data: Mapping[str, Any]) -> Plain:
    """The old keys have become node types, or have no meaning beside them."""
    return {
        key: value for key, value in data.items() if key not in ("min_workers", "head_node", "worker_nodes")
    }


def with_merged_commands(data: Mapping[str, Any]) -> Plain:
    """`setup_commands` run first on the head and on workers."""
    shared = data.get("setup_commands", [])
    merged = {key: [*shared, *data.get(key, [])] for key in ("head_setup_commands", "worker_setup_commands")}
    return {**data, **merged}
