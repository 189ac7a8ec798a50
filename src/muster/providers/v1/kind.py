"""The kind `external`: a node provider class of the user, written for Ray or for muster.

Finds, makes and adapts the class that `provider.module` names; every mistake is a ConfigError.
"""

from __future__ import annotations

import difflib
import importlib
import logging
import re
from collections.abc import Mapping
from typing import Any, ClassVar

from muster.base.untrusted import error_text
from muster.config.check import FileRules, shortened
from muster.config.document import Document
from muster.config.load import Plain
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError
from muster.providers.batching import submitting
from muster.providers.bootstrap import filled_in
from muster.providers.kind import Launches, ProviderContext, ProviderKind, two_types
from muster.providers.machines import ManagedProvider
from muster.providers.v1.adapter import AdapterLimits, V1Adapter
from muster.providers.v1.failures import provider_call

logger = logging.getLogger(__name__)

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


def usable_class(provider_config: Mapping[str, Any]) -> type[Any]:
    """Return the class of an external provider; ConfigError when it is not there or lacks methods."""
    found = external_class(provider_config.get("module"))
    missing = [name for name in NEEDED if not callable(getattr(found, name, None))]
    if missing:
        raise ConfigError(
            f"{found.__name__} lacks {', '.join(missing)}",
            path=_KEY,
            fix=("derive it from muster.autoscaler.NodeProvider and define them (docs/providers.md)"),
        )
    return found


def make_external(provider_config: Mapping[str, Any], cluster_name: str) -> Any:  # noqa: ANN401 - duck typed
    """Return the provider object; ConfigError names the wrong key and the fix."""
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
    """Return the class that a dotted path names."""
    if not isinstance(module, str) or not module:
        raise ConfigError(
            "is missing", path=_KEY, fix="name your class, for example my_package.my_module.MyProvider"
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
        classes = [key for key, value in vars(loaded).items() if isinstance(value, type)]
        close = difflib.get_close_matches(name, classes, n=1)
        hint = (
            f"did you mean {close[0]!r}?" if close else f"it defines {', '.join(sorted(classes)) or 'none'}"
        )
        raise ConfigError(f"module {package} has no class {name!r}", path=_KEY, fix=f"{hint}")
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


def adapt(
    config: ClusterConfig,
    node_provider: Any,  # noqa: ANN401 - duck typed
    launches: Launches,
    context: ProviderContext,
) -> ManagedProvider:
    """Return the port of a node provider; muster sets its machines up by the commands of the file, if any."""
    return V1Adapter(
        node_provider,
        launches,
        cluster_name=context.cluster_name,
        limits=AdapterLimits(
            max_launch_batch=config.muster.limits.max_launch_batch,
            max_concurrent=config.muster.limits.max_concurrent,
            use_internal_ips=config.provider.use_internal_ips,
            use_external_head_ip=config.provider.use_external_head_ip,
            installs_runtime=None if config.has_worker_commands else True,
        ),
        clock=context.clock,
    )


def _build(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    made = submitting(make_external(config.provider.settings(), context.cluster_name))
    if not config.provider.disable_node_updaters and not config.worker_start_ray_commands:
        logger.warning(
            "provider.disable_node_updaters is not true, but there are no worker_start_ray_commands: the"
            " machines of %s must start their node themselves",
            config.provider.module,
        )
    return adapt(config, made, launches, context)


def _fill_in(config: ClusterConfig, *context: object) -> ClusterConfig:
    return filled_in(config, usable_class(config.provider.settings()))


_CLASS = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+")


class ExternalRules(FileRules):
    """The file names the class."""

    defaults: ClassVar[Plain] = two_types({}, {})

    def check(self, document: Document, config: ClusterConfig) -> None:
        module = config.provider.module
        if module is None:
            raise document.error(("provider",), "'module' is missing; name the class as package.module.Class")
        if not _CLASS.fullmatch(module):
            raise document.error(
                ("provider", "module"),
                f"{shortened(module)} is not the path of a class; write it as package.module.Class",
            )


KIND = ProviderKind(
    name="external",
    build=_build,
    rules=ExternalRules(),
    check=lambda config: usable_class(config.provider.settings()),
    fill_in=_fill_in,
    prepare=_fill_in,
)
