"""What a file may leave out, per provider, as data. `prepare` lays the user's top-level keys over it.

The default machines of the clouds are small, common ones of our choice; everything else is `ray up`'s.
"""

from __future__ import annotations

from typing import Any

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
