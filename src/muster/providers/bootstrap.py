"""Ask a user's provider class to complete the cluster file: keys, networks, sizes of its machine types.

Called when a monitor starts on the head, and never by what only plans, shows or watches: these methods of a
class may create things in its cloud. Edits of the file made later are completed from the same answers.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from muster.base.resources import Resources
from muster.base.untrusted import describe, error_text
from muster.config.schema import ClusterConfig, NodeTypeConfig
from muster.errors import ConfigError
from muster.providers.v1.failures import provider_call

# In the order of `ray up`.
METHODS = ("fillout_available_node_types_resources", "bootstrap_config")
_OURS = ("muster", "min_workers", "head_node", "worker_nodes")  # and what older files had
_MODULE = "provider.module"
BOOTSTRAPPED = "muster_bootstrapped"  # a key of `provider`, in the file that `muster up` leaves on the head


class CompletedConfig(Struct, frozen=True, kw_only=True):
    """A cluster file as it was when its provider was asked, and the answer."""

    asked: ClusterConfig
    answer: ClusterConfig

    def apply(self, config: ClusterConfig) -> ClusterConfig:
        """Return the file with the answers for what has not been edited since; the rest is as written."""
        before, after = self.asked.available_node_types, self.answer.available_node_types
        return replace(
            config,
            provider=self.answer.provider if config.provider == self.asked.provider else config.provider,
            auth=self.answer.auth if config.auth == self.asked.auth else config.auth,
            available_node_types={
                name: _completed(entry, before[name], after[name]) if name in before else entry
                for name, entry in config.available_node_types.items()
            },
        )


def filled_in(config: ClusterConfig, found: type[Any]) -> ClusterConfig:
    """Call what a user's class has of METHODS; ConfigError names the one that failed, and why.

    A file that `muster up` has completed already is used as it is.
    """
    if config.provider.settings().get(BOOTSTRAPPED):
        return config
    data = plain_config(config)
    for method in METHODS:
        if callable(getattr(found, method, None)):
            data = _called(found, method, data)
    return _merged(config, data, found.__name__)


def plain_config(config: ClusterConfig) -> dict[str, Any]:
    """Return the cluster file as plain data with Ray's keys; the caller may change it."""
    data = {key: value for key, value in config.plain().items() if value is not None}
    for key in _OURS:
        data.pop(key, None)
    types = {}
    for name, entry in data["available_node_types"].items():
        # Whole numbers are of type int in Ray's schema.
        resources = {one: int(n) if float(n).is_integer() else n for one, n in entry["resources"].items()}
        given = {key: value for key, value in entry.items() if value is not None}
        types[name] = {"node_config": {}, **given, "resources": resources}
    sections = {"provider": config.provider.settings(), "auth": config.auth.settings()}
    return copy.deepcopy({**data, **sections, "available_node_types": types})


def _called(found: type[Any], method: str, data: dict[str, Any]) -> dict[str, Any]:
    name = f"{found.__name__}.{method}"
    try:
        answer = provider_call(lambda: getattr(found, method)(data))
    except Exception as error:
        raise ConfigError(f"{name}(cluster_config) failed: {error_text(error)}", path=_MODULE) from error
    if not isinstance(answer, dict) or not isinstance(answer.get("available_node_types"), dict):
        raise ConfigError(
            f"{name} must return the cluster file with its node types, it returned {describe(answer)}",
            path=_MODULE,
        )
    return answer


def _merged(config: ClusterConfig, data: dict[str, Any], owner: str) -> ClusterConfig:
    """Return the config with the answer's node types, `provider` and `auth`; nothing else of it is used."""
    types = {
        name: _typed(entry, data["available_node_types"].get(name), f"{owner}: node type {name!r}")
        for name, entry in config.available_node_types.items()
    }
    merged = replace(config, available_node_types=types)
    for section in ("provider", "auth"):
        if isinstance(data.get(section), dict):
            changed = replace(getattr(config, section), written=data[section])
            merged = replace(merged, **{section: changed})
    return merged


def _typed(entry: NodeTypeConfig, answer: object, where: str) -> NodeTypeConfig:
    if not isinstance(answer, Mapping):
        return entry
    config, resources = answer.get("node_config", entry.node_config), answer.get("resources", {})
    try:
        quantities = Resources.of(resources).to_floats()
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(f"{where}: resources {describe(resources)}: {error}", path=_MODULE) from error
    return replace(entry, node_config=config, resources=quantities)


def _completed(entry: NodeTypeConfig, before: NodeTypeConfig, after: NodeTypeConfig) -> NodeTypeConfig:
    same_machine = entry.node_config == before.node_config
    return replace(
        entry,
        node_config=after.node_config if same_machine else entry.node_config,
        resources=after.resources
        if same_machine and entry.resources == before.resources
        else entry.resources,
    )
