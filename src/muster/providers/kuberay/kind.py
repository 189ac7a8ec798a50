"""The kind `kuberay`: the pods of a RayCluster. Its provider is made with the source of the configuration."""

from __future__ import annotations

from typing import ClassVar

from muster.config.check import FileRules
from muster.config.load import Plain
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError
from muster.providers.kind import MANAGED, HeadPolicy, Launches, ProviderContext, ProviderKind
from muster.providers.machines import ManagedProvider


def _build(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    if context.made is None:
        raise ConfigError(
            "'kuberay' takes its groups from a RayCluster: run `muster kuberay-autoscaler` in the head's pod",
            path="provider.type",
        )
    return context.made


class KubeRayRules(FileRules):
    """The source derives every key from the RayCluster; pods come up with the runtime."""

    provider_defaults: ClassVar[Plain] = {
        **MANAGED,
        "disable_launch_config_check": True,
        "foreground_node_launch": True,
        "worker_liveness_check": False,
    }


KIND = ProviderKind(
    name="kuberay", build=_build, rules=KubeRayRules(), head=HeadPolicy.NONE, head_place="a RayCluster"
)
