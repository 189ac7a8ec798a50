"""Read a cluster file: types first, then the rules of its provider, then what makes it complete. Pure."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import structs

from muster.cluster.model import Backoff, Timeouts
from muster.config.check import PLAIN_RULES, FileRules, MachineSize, checked, nearest, shortened
from muster.config.document import Document, Path_, kubernetes_kind, not_kubernetes
from muster.config.prices import check_budget, check_offers
from muster.config.schema import KIND_KEYS, MAX_WORKERS, ClusterConfig

Plain = dict[str, Any]
# Takes the rules, the section `provider` and machine types; returns the sizes that the cloud describes.
SizeSource = Callable[[FileRules, Mapping[str, Any], Sequence[str]], Mapping[str, MachineSize]]


def table_only(
    rules: FileRules, provider: Mapping[str, Any], machine_types: Sequence[str]
) -> Mapping[str, MachineSize]:
    """Describe nothing, for commands without an account such as `muster plan`: the table stands."""
    return {}


def any_size(
    rules: FileRules, provider: Mapping[str, Any], machine_types: Sequence[str]
) -> Mapping[str, MachineSize]:
    """Let types of unknown size pass, for commands that need other keys: `up` asks the cloud for sizes."""
    unknown = [name for name in machine_types if rules.asks_for_sizes and rules.size_of(name) is None]
    return dict.fromkeys(unknown, MachineSize(0, 0))


RulesOf = Callable[[str], FileRules]  # takes `provider.type`


def parse(
    document: Document, rules_of: RulesOf, environment: Mapping[str, str], sizes: SizeSource
) -> ClusterConfig:
    """Return a document as typed data; ConfigError names file, line, key and fix.

    Args:
        document: The file, with the positions of its keys.
        rules_of: Finds the rules of a provider type; one without a kind has rules that refuse it.
        environment: Variables with settings that the file does not give.
        sizes: Describes machine types that the file gives no resources for.
    """
    written = document.data
    if written is None:
        raise document.error((), "is empty; it needs cluster_name, provider and available_node_types")
    if kind := kubernetes_kind(written):
        raise document.error((), not_kubernetes(kind))
    if isinstance(written, dict) and written.get("head_node_type") == {}:  # in an example of Ray's
        written = {key: value for key, value in written.items() if key != "head_node_type"}
    rules = _rules(written, rules_of)
    untyped = frozenset(("provider", key) for key in KIND_KEYS - rules.own_keys)

    def typed(data: object) -> ClusterConfig:
        return structs.replace(checked(document, (), data, ClusterConfig, untyped), rules=rules)

    check_written(document, typed(written))
    data = complete(document, written, rules, sizes)
    if environment:
        from muster.config.environment import with_environment  # not for `muster plan`

        data = with_environment(data, environment)
    config = typed(data)
    check_prepared(document, config)
    return config


def _rules(written: object, rules_of: RulesOf) -> FileRules:
    """Return the rules of the file's type; any where it has none, which the types refuse afterwards."""
    section = written.get("provider") if isinstance(written, dict) else None
    name = section.get("type") if isinstance(section, dict) else None
    return rules_of(name) if isinstance(name, str) else PLAIN_RULES


# -- completing the data ----------------------------------------------------------------------------

LEGACY_HEAD = "ray-legacy-head-node-type"
LEGACY_WORKER = "ray-legacy-worker-node-type"
_LEGACY_KEYS = ("min_workers", "head_node", "worker_nodes")  # node types replace them


def complete(document: Document, written: Mapping[str, Any], rules: FileRules, sizes: SizeSource) -> Plain:
    """Return the document's data made complete; its own top-level keys win over every default."""
    provider = {**rules.provider_defaults, **written["provider"]}
    data = _with_legacy_types(rules.complete(document, {**written, "provider": provider}), rules.defaults)
    types: Plain = data.get("available_node_types") or rules.defaults.get("available_node_types", {})
    has_default_head = rules.defaults.get("head_node_type") in types
    defaults = {k: v for k, v in rules.defaults.items() if k != "head_node_type" or has_default_head}
    whole: Plain = {"auth": {}, **defaults, **data}
    for key in _LEGACY_KEYS:
        whole.pop(key, None)
    for key in ("head_setup_commands", "worker_setup_commands"):
        whole[key] = [*whole.get("setup_commands", []), *whole.get(key, [])]
    return _with_sizes(document, whole, rules, sizes) if whole.get("available_node_types") else whole


def _with_legacy_types(data: Plain, defaults: Mapping[str, Any]) -> Plain:
    """Turn `head_node` and `worker_nodes` into two node types, in files without `available_node_types`."""
    head, worker = data.get("head_node") or {}, data.get("worker_nodes") or {}
    if "available_node_types" in data or not (head or worker):
        return data
    types: dict[str, Plain] = defaults.get("available_node_types", {})
    head_type = defaults.get("head_node_type", "")
    default_worker = next((entry for name, entry in types.items() if name != head_type), {})
    both = {
        LEGACY_HEAD: {**_legacy_type(head, types.get(head_type, {})), "min_workers": 0, "max_workers": 0},
        LEGACY_WORKER: {
            **_legacy_type(worker, default_worker),
            "min_workers": data.get("min_workers") or 0,
            "max_workers": data.get("max_workers", defaults.get("max_workers", MAX_WORKERS)),
        },
    }
    return {"head_node_type": LEGACY_HEAD, **data, "available_node_types": both}


def _legacy_type(described: Mapping[str, Any], default: Mapping[str, Any]) -> Plain:
    """Return a node type; the old form keeps the resources among the settings of the machine."""
    if not described:
        return {"node_config": default.get("node_config", {}), "resources": default.get("resources", {})}
    node_config = {key: value for key, value in described.items() if key != "resources"}
    return {"node_config": node_config, "resources": described.get("resources") or {}}


def _with_sizes(document: Document, data: Plain, rules: FileRules, source: SizeSource) -> Plain:
    """Add the resources of machines of known types, where the file does not give them.

    As in Ray, the memory of the head is left to the head.
    """
    types: Mapping[str, Any] = data["available_node_types"]
    head = data.get("head_node_type") or next(iter(types))
    machines = {name: rules.machine_type(entry.get("node_config") or {}) for name, entry in types.items()}
    named = list(dict.fromkeys(filter(None, machines.values())))
    described = source(rules, data["provider"], named) if named else {}
    sized: Plain = {}
    for name, entry in types.items():
        given = entry.get("resources")
        known = rules.machine_resources(entry.get("node_config") or {}, described)
        if given is None and not known:
            unknown = f", and the size of {machines[name]} is not known" if machines[name] else ""
            raise document.error(("available_node_types", name), f"'resources' is missing{unknown}; add it")
        if name == head:
            known.pop("memory", None)
        added = known if rules.completes_resources or not given else {}
        sized[name] = {**entry, "resources": {**added, **(given or {})}}
    return {**data, "available_node_types": sized}


# -- rules that involve several keys ------------------------------------------------------------------

# Zero here would not mean "fast": machines would be given up the moment they are asked for.
_MUST_BE_POSITIVE: dict[str, tuple[str, ...]] = {
    "timeouts": ("request_s", "allocate_s", "install_s", "terminating_s", "stop_requested_s", "stopping_s"),
    "backoff": tuple(field.name for field in structs.fields(Backoff)),
}
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}")
MAX_TYPE_NAME = 128
NAME_RULE = "use up to 63 letters, digits, '-', '_' and '.', the first of them a letter, a digit or '_'"


def is_cluster_name(name: str) -> bool:
    """Return whether a cluster may have this name: it becomes a directory, and a tag of every machine."""
    return _NAME.fullmatch(name) is not None


def check_written(document: Document, config: ClusterConfig, platform: str = sys.platform) -> None:
    """Check the file as the user wrote it. Raises ConfigError."""
    if not is_cluster_name(config.cluster_name):
        shown = shortened(config.cluster_name)
        raise document.error(("cluster_name",), f"{shown} cannot be the name of a cluster; {NAME_RULE}")
    for name in config.available_node_types:  # becomes a tag of machines, and a variable of their processes
        if not (name.isprintable() and 0 < len(name) <= MAX_TYPE_NAME):
            rule = f"use 1 to {MAX_TYPE_NAME} printable characters"
            raise document.error(("available_node_types", name), f"cannot be the name of a node type; {rule}")
    config.rules.check(document, config)
    _check_docker(document, config)
    if config.auth.ssh_proxy_use_node_id and not config.auth.ssh_proxy_command:
        raise document.error(("auth", "ssh_proxy_use_node_id"), "needs ssh_proxy_command; add it")
    _check_muster(document, config)
    check_offers(document, config)
    if config.file_mounts_sync_continuously and platform == "win32":
        raise document.error(("file_mounts_sync_continuously",), "does not work on Windows; remove it")


def check_prepared(document: Document, config: ClusterConfig) -> None:
    """Check the file once it is complete. Raises ConfigError."""
    if not config.rules.needs_node_types and not config.available_node_types:
        return
    _check_head(document, config)
    _check_counts(document, config)
    check_budget(document, config)


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
