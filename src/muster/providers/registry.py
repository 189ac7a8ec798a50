"""From `provider: {type: ...}` to something that buys machines; a provider is imported when it is named.

Called by composition roots. Providers we build ourselves are `cls(provider_config, cluster_name,
surroundings)`; those of users are `cls(provider_config, cluster_name)`, as under Ray.
"""

from __future__ import annotations

import difflib
import logging
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from muster.cluster.ports import CloudProvider
from muster.config.node_launch import NodeLaunch
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError
from muster.providers.surroundings import ProviderSurroundings

logger = logging.getLogger(__name__)

__all__ = ["Launches", "ManagedProvider", "ProviderSurroundings", "build_provider"]

Launches = Callable[[], Mapping[str, NodeLaunch]]  # today's node types, asked again for every launch

# Types of `ray up` that muster knows the name of and nothing else.
NOT_BUILT = (
    "aliyun",
    "aws",
    "azure",
    "fake_multinode",
    "fake_multinode_docker",
    "gcp",
    "kuberay",
    "local",
    "spark",
    "vsphere",
)


class ManagedProvider(CloudProvider, Protocol):
    """A provider that has threads or files to let go of."""

    def close(self) -> None: ...


def build_provider(
    config: ClusterConfig,
    launches: Launches,
    surroundings: ProviderSurroundings,
) -> ManagedProvider:
    """The provider of a cluster file; ConfigError names the key and the fix."""
    kind = config.provider.type
    build = _BUILDERS.get(kind)
    if build is None:
        raise ConfigError(_why_not(kind), path="provider.type")
    return build(config, launches, surroundings)


Build = Callable[[ClusterConfig, Launches, ProviderSurroundings], ManagedProvider]


def _process(
    config: ClusterConfig, launches: Launches, surroundings: ProviderSurroundings
) -> ManagedProvider:
    from muster.providers.process.provider import ProcessNodeProvider

    made = ProcessNodeProvider(config.provider.settings(), surroundings.cluster_name, surroundings)
    return _adapted(config, made, launches, surroundings)


def _external(
    config: ClusterConfig, launches: Launches, surroundings: ProviderSurroundings
) -> ManagedProvider:
    from muster.providers.external import make_external

    made = make_external(config.provider.settings(), surroundings.cluster_name)
    if not config.provider.disable_node_updaters:
        logger.warning(
            "provider.disable_node_updaters is not true, but muster does not set machines up over SSH yet:"
            " the machines of %s must start their node themselves",
            config.provider.module,
        )
    return _adapted(config, made, launches, surroundings)


def _readonly(
    config: ClusterConfig, launches: Launches, surroundings: ProviderSurroundings
) -> ManagedProvider:
    from muster.providers.readonly import ReadOnlyProvider

    if surroundings.runtime is None:
        raise ConfigError(
            "'readonly' shows the nodes of a running cluster; it works where the monitor runs, not here",
            path="provider.type",
        )
    return ReadOnlyProvider(surroundings.runtime)


_BUILDERS: dict[str, Build] = {"external": _external, "process": _process, "readonly": _readonly}


def _adapted(
    config: ClusterConfig,
    node_provider: Any,  # noqa: ANN401 - duck typed
    launches: Launches,
    surroundings: ProviderSurroundings,
) -> ManagedProvider:
    from muster.providers.v1.adapter import AdapterLimits, V1Adapter

    return V1Adapter(
        node_provider,
        launches,
        cluster_name=surroundings.cluster_name,
        limits=AdapterLimits(
            max_launch_batch=config.muster.limits.max_launch_batch,
            max_concurrent=config.muster.limits.max_concurrent,
            installs_runtime=True,  # as long as there is no installer of ours, who else would
        ),
        clock=surroundings.clock,
    )


def _why_not(kind: str) -> str:
    if kind in NOT_BUILT:
        return (
            f"{kind!r} is not built yet; use type: external with module: my_package.MyProvider (a class"
            " written for Ray works unchanged), or type: process for nodes on this computer"
        )
    built = sorted(_BUILDERS)
    close = difflib.get_close_matches(kind, built, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"there are {', '.join(built)}"
    return f"{kind!r} is not a provider; {hint}"
