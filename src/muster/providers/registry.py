"""Builds the provider that `provider: {type: ...}` names; a provider is imported when it is named.

Called by composition roots. Muster's own providers are `cls(provider_config, cluster_name, context)`; those
of users are `cls(provider_config, cluster_name)`, as under Ray.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from muster.base.clock import Clock
from muster.base.foreign import error_text
from muster.base.ids import CloudId, IdSource, RequestId
from muster.cluster.model import (
    CloudInstance,
    LaunchFailure,
    NodeKind,
    NodeReport,
    NodeStatus,
    RuntimeReport,
    TerminateFailure,
)
from muster.cluster.ports import CloudProvider
from muster.cluster.snapshot import ProviderTraits
from muster.config.node_launch import NodeLaunch
from muster.config.rack import rack_hosts
from muster.config.schema import PROVIDERS, ClusterConfig
from muster.errors import ConfigError
from muster.providers.batching import submitting
from muster.providers.compat.clouds import CLOUDS
from muster.providers.v1.adapter import ReadOnlyRefusal
from muster.providers.v1.failures import provider_call
from muster.remote.notices import notices_line

NEEDED = (
    "create_node",
    "external_ip",
    "internal_ip",
    "is_running",
    "node_tags",
    "non_terminated_nodes",
    "terminate_node",
)
_KEY = "provider.module"


def check_provider(config: ClusterConfig, file: str = "") -> None:
    """Raises ConfigError for a provider that can never be built; nothing is made and no cloud is asked."""
    try:
        if config.provider.type not in _BUILDERS:
            raise ConfigError(_why_not(config.provider.type), path="provider.type")
        if config.provider.type == "external":
            usable_class(config.provider.settings())
        elif config.provider.type in CLOUDS:
            class_of(config)
        if config.provider.type == "aws" and not config.provider.region:
            raise ConfigError("is missing; write for example us-west-2", path="provider.region")
    except ConfigError as error:
        raise ConfigError(error.message, path=error.path, file=file) from error


def class_of(config: ClusterConfig) -> type[Any]:
    """Returns the class that completes and makes the provider of a file, where that is not muster's own."""
    if config.provider.type not in CLOUDS:
        return usable_class(config.provider.settings())
    from muster.providers.compat.provider import compat_class

    return compat_class(config, usable_class)


def usable_class(provider_config: Mapping[str, Any]) -> type[Any]:
    """Returns the class of an external provider; ConfigError when it is not there or lacks methods."""
    found = external_class(provider_config.get("module"))
    missing = [name for name in NEEDED if not callable(getattr(found, name, None))]
    if missing:
        raise ConfigError(
            f"{found.__name__} lacks {', '.join(missing)}; derive it from muster.autoscaler.NodeProvider"
            " and define them (docs/providers.md)",
            path=_KEY,
        )
    return found


def make_external(provider_config: Mapping[str, Any], cluster_name: str) -> Any:  # noqa: ANN401 - duck typed
    """Returns the provider object; ConfigError names the wrong key and the fix."""
    found = usable_class(provider_config)
    try:
        return provider_call(lambda: found(dict(provider_config), cluster_name))
    except ConfigError:
        raise
    except Exception as error:
        raise ConfigError(
            f"{found.__name__}(provider_config, cluster_name) failed: {error_text(error)}",
            path="provider",
        ) from error


def external_class(module: object) -> type[Any]:
    """Returns the class that a dotted path names."""
    if not isinstance(module, str) or not module:
        raise ConfigError(
            "is missing; name your class, for example my_package.my_module.MyProvider", path=_KEY
        )
    package, dot, name = module.rpartition(".")
    if not dot or not all(part.isidentifier() for part in module.split(".")):
        raise ConfigError(
            f"{module!r} must be a dotted path to a class, like my_package.my_module.MyProvider", path=_KEY
        )
    loaded = _load(package, module)
    try:
        found = provider_call(lambda: getattr(loaded, name, None))
    except Exception as error:
        raise ConfigError(f"{module!r} cannot be read: {error_text(error)}", path=_KEY) from error
    if not isinstance(found, type):
        raise ConfigError(_no_class(loaded, package, name), path=_KEY)
    return found


def _load(package: str, module: str) -> Any:  # noqa: ANN401 - a module of the user
    try:
        return provider_call(lambda: importlib.import_module(package))
    except ModuleNotFoundError as error:
        if error.name is not None and (package == error.name or package.startswith(f"{error.name}.")):
            message = (
                f"{module!r}: there is no module {error.name!r}; install it, or put its directory"
                " on PYTHONPATH where the monitor runs"
            )
        else:
            message = f"{module!r}: {package} needs {error.name!r}, which is not installed here"
        raise ConfigError(message, path=_KEY) from error
    except Exception as error:
        raise ConfigError(
            f"{module!r}: importing {package} failed: {error_text(error)}", path=_KEY
        ) from error


def _no_class(loaded: object, package: str, name: str) -> str:
    classes = [key for key, value in vars(loaded).items() if isinstance(value, type)]
    close = difflib.get_close_matches(name, classes, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"it defines {', '.join(sorted(classes)) or 'none'}"
    return f"module {package} has no class {name!r}; {hint}"


@dataclass(frozen=True)
class ProviderContext:
    """A ProviderContext holds what a provider needs of time, ids and the environment."""

    cluster_name: str
    home: Path  # the cluster's directory on this machine
    address: str  # of the GCS; "" where no head runs yet
    clock: Clock
    ids: IdSource
    auth: Mapping[str, str] = field(default_factory=dict)  # RAY_AUTH_MODE, RAY_AUTH_TOKEN_PATH
    environment: Mapping[str, str] = field(default_factory=dict)  # what new processes inherit
    runtime: Callable[[], RuntimeReport] | None = None  # the runtime's report, from which `readonly` lists
    current: Callable[[], ClusterConfig] | None = None  # the file as it is now; None: it does not change
    made: ManagedProvider | None = None  # that the source of the configuration shares; None: it is to be made


logger = logging.getLogger(__name__)

__all__ = ["Launches", "ManagedProvider", "ProviderContext", "build_provider"]

Launches = Callable[[], Mapping[str, NodeLaunch]]  # today's node types, asked again for every launch


class ManagedProvider(CloudProvider, Protocol):
    """A ManagedProvider is a provider with threads or files to close."""

    def close(self) -> None: ...


def build_provider(
    config: ClusterConfig,
    launches: Launches,
    context: ProviderContext,
) -> ManagedProvider:
    """Returns the provider of a cluster file; ConfigError names the key and the fix."""
    check_provider(config)
    return _BUILDERS[config.provider.type](config, launches, context)


Build = Callable[[ClusterConfig, Launches, ProviderContext], ManagedProvider]


def _process(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    from muster.providers.process.program import ray_worker
    from muster.providers.process.provider import ProcessNodeProvider

    current = context.current or (lambda: config)
    ray = str(Path(sys.executable).with_name("ray"))
    # By the file as it is when a node starts, as on machines that are set up over SSH.
    program = ray_worker(context.address, lambda: notices_line(current(), address=context.address, ray=ray))
    made = ProcessNodeProvider(config.provider.settings(), context.cluster_name, context, program=program)
    return _adapted(config, made, launches, context)


def _external(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    made = submitting(make_external(config.provider.settings(), context.cluster_name))
    if not config.provider.disable_node_updaters and not config.worker_start_ray_commands:
        logger.warning(
            "provider.disable_node_updaters is not true, but there are no worker_start_ray_commands: the"
            " machines of %s must start their node themselves",
            config.provider.module,
        )
    return _adapted(config, made, launches, context)


def _local(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    from muster.providers.onprem.build import make_onprem

    current = context.current or (lambda: config)
    made = make_onprem(
        config,
        context.home,
        context.clock,
        context.ids,
        lambda: rack_hosts(current()),
        context.address,
    )
    return _adapted(config, made, launches, context)


def _compat(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    """The provider of the user's own Ray: docs/other-clouds.md."""
    from muster.providers.compat.provider import make_compat

    made = make_compat(config, context.home, context.clock, class_of(config))
    return _adapted(config, made, launches, context)


def _aws(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    from muster.providers.aws.provider import AwsNodeProvider

    made = AwsNodeProvider(
        config.provider.settings(),
        context.cluster_name,
        clock=context.clock,
        ids=context.ids,
        uses_docker=bool(config.docker.container_name),
    )
    return _adapted(config, made, launches, context)


def _kuberay(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    if context.made is None:
        raise ConfigError(
            "'kuberay' takes its groups from a RayCluster: run `muster kuberay-autoscaler` in the head's pod",
            path="provider.type",
        )
    return context.made


def _readonly(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    if context.runtime is None:
        raise ConfigError(
            "'readonly' shows the nodes of a running cluster; it works where the monitor runs, not here",
            path="provider.type",
        )
    return ReadOnlyProvider(context.runtime)


_BUILDERS: dict[str, Build] = {
    **dict.fromkeys(CLOUDS, _compat),
    "aws": _aws,
    "external": _external,
    "kuberay": _kuberay,
    "local": _local,
    "process": _process,
    "readonly": _readonly,
}
# Types of `ray up` that muster knows the name of and nothing else.
NOT_BUILT = tuple(kind for kind in PROVIDERS if kind not in _BUILDERS)


def _adapted(
    config: ClusterConfig,
    node_provider: Any,  # noqa: ANN401 - duck typed
    launches: Launches,
    context: ProviderContext,
) -> ManagedProvider:
    from muster.providers.v1.adapter import AdapterLimits, V1Adapter

    return V1Adapter(
        node_provider,
        launches,
        cluster_name=context.cluster_name,
        limits=AdapterLimits(
            max_launch_batch=max(
                config.muster.limits.max_launch_batch, getattr(node_provider, "max_launch_batch", 0)
            ),
            least_threads=getattr(node_provider, "launch_threads", 1),
            max_concurrent=config.muster.limits.max_concurrent,
            # Without commands there is nothing to set up: the provider must do it.
            installs_runtime=None if installs_by_commands(config) else True,
        ),
        clock=context.clock,
    )


def installs_by_commands(config: ClusterConfig) -> bool:
    """Returns whether muster's installer sets machines up, by the commands of the file."""
    updates = not config.provider.disable_node_updaters and bool(config.worker_start_ray_commands)
    return updates and config.provider.type in (*CLOUDS, "aws", "external", "local")


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


_BY_HAND = "do it with the tool that runs the cluster"


class ReadOnlyProvider:
    """A ReadOnlyProvider lists the runtime's living nodes and refuses everything else."""

    def __init__(self, runtime: Callable[[], RuntimeReport]) -> None:
        self._runtime = runtime

    def traits(self) -> ProviderTraits:
        return ProviderTraits(read_only=True)

    def list_instances(self) -> Mapping[CloudId, CloudInstance]:
        machines = [_machine(n) for n in self._runtime().nodes if n.status is not NodeStatus.DEAD]
        return {machine.cloud_id: machine for machine in machines}

    def launch(self, request_id: RequestId, shape: Mapping[str, int]) -> None:
        raise ReadOnlyRefusal(f"provider type readonly: muster does not start nodes; {_BY_HAND}")

    def terminate(self, request_id: RequestId, cloud_ids: Sequence[CloudId]) -> None:
        raise ReadOnlyRefusal(f"provider type readonly: muster does not stop nodes; {_BY_HAND}")

    def resize(self, request_id: RequestId, cloud_id: CloudId, desired: Mapping[str, float]) -> None:
        raise ReadOnlyRefusal("provider type readonly: nothing is resized")

    def poll_launch_failures(self) -> Sequence[LaunchFailure]:
        return ()

    def poll_terminate_failures(self) -> Sequence[TerminateFailure]:
        return ()

    def close(self) -> None:
        """Does nothing: the provider holds nothing open."""


def _machine(node: NodeReport) -> CloudInstance:
    """Returns the machine of a node; one without a machine's name is known by its own."""
    return CloudInstance(
        cloud_id=node.cloud_id or CloudId(node.node_id),
        node_type=node.node_type or f"node_{node.node_id}",
        kind=NodeKind.HEAD if node.is_head else NodeKind.WORKER,
        internal_ip=node.ip,
    )
