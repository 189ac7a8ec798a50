"""The kinds whose node provider class comes from the user's Ray: docs/other-clouds.md."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from muster.config.check import FileRules, MachineSize
from muster.config.load import Plain
from muster.config.schema import ClusterConfig
from muster.providers.bootstrap import filled_in
from muster.providers.kind import (
    HEAD_TYPE,
    SSH,
    Launches,
    ProviderContext,
    ProviderKind,
    known_size,
    two_types,
)
from muster.providers.machines import ManagedProvider
from muster.providers.ray_classes.clouds import class_of_ray
from muster.providers.v1.kind import usable_class


def _class(config: ClusterConfig) -> type[Any]:
    settings = config.provider.settings()
    return usable_class(settings) if settings.get("module") else class_of_ray(config.provider.type)


def _build(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    from muster.providers.ray_classes.provider import make_compat
    from muster.providers.v1.kind import adapt

    made = make_compat(config, context.home, context.clock, _class(config))
    return adapt(config, made, launches, context)


def _fill_in(config: ClusterConfig, *context: object) -> ClusterConfig:
    return filled_in(config, _class(config))


_TWO_CPUS: Plain = {"CPU": 2}


class AliyunRules(FileRules):
    """No sizes are known."""

    defaults: ClassVar[Plain] = {**SSH, **two_types({"InstanceType": "ecs.g6.large"}, _TWO_CPUS)}
    machine_key = ("InstanceType",)


class AzureRules(FileRules):
    """Sizes are those of the table."""

    defaults: ClassVar[Plain] = {
        **SSH,
        **two_types({"azure_arm_parameters": {"vmSize": "Standard_D2s_v3"}}, _TWO_CPUS),
    }
    machine_key = ("azure_arm_parameters", "vmSize")
    notices = "azure"

    def size_of(self, machine_type: str) -> MachineSize | None:
        return known_size("azure", machine_type)


_CUSTOM = re.compile(r"(?:[a-z]\w+-)?custom-(\d+)-(\d+)(?:-ext)?")  # CPUs and MiB are in the name
_MAX_ADDED = 64  # GPUs of one machine


class GcpRules(FileRules):
    """Sizes are those of the table or of the name; a node_config may add GPUs to a machine."""

    defaults: ClassVar[Plain] = {
        **SSH,
        **two_types({"machineType": "n1-standard-2"}, _TWO_CPUS, "ray_head_default", "ray_worker_small"),
    }
    machine_key = ("machineType",)
    notices = "gcp"

    def size_of(self, machine_type: str) -> MachineSize | None:
        name = machine_type.lower().rpartition("/")[2]  # the whole address of a type is allowed, too
        custom = _CUSTOM.fullmatch(name)
        return MachineSize(int(custom[1]), int(custom[2])) if custom else known_size("gcp", name)

    def added_accelerators(self, node_config: Mapping[str, Any]) -> Iterator[tuple[str, int, str]]:
        """Yield the GPUs of `guestAccelerators`: `nvidia-tesla-t4`, or the address of such a type."""
        listed = node_config.get("guestAccelerators")
        for entry in listed if isinstance(listed, list) else ():
            given = entry if isinstance(entry, dict) else {}
            name, count = given.get("acceleratorType"), given.get("acceleratorCount")
            if isinstance(name, str) and isinstance(count, int) and 0 < count <= _MAX_ADDED:
                kind = name.rpartition("/")[2].removeprefix("nvidia-").removeprefix("tesla-")
                yield "GPU", count, kind.upper()


class VsphereRules(FileRules):
    """The provider's class fills in the sizes."""

    defaults: ClassVar[Plain] = {
        **SSH,
        "cluster_name": "ray-cluster",
        "max_workers": 5,
        "head_node_type": HEAD_TYPE,
        "available_node_types": {
            HEAD_TYPE: {"resources": {}},
            "worker": {"min_workers": 1, "max_workers": 3, "resources": {}},
            "worker_2": {"min_workers": 1, "max_workers": 2, "resources": {}},
        },
    }


def _kind(name: str, rules: FileRules) -> ProviderKind:
    return ProviderKind(
        name=name, build=_build, rules=rules, check=_class, fill_in=_fill_in, prepare=_fill_in
    )


ALIYUN = _kind("aliyun", AliyunRules())
AZURE = _kind("azure", AzureRules())
GCP = _kind("gcp", GcpRules())
VSPHERE = _kind("vsphere", VsphereRules())
