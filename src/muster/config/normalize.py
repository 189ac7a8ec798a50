"""From what people write to what the program needs: defaults, old forms and merged commands, step by step.

Each step is a function of plain data that changes nothing it is given. Called by `load`, with data whose
types were checked already, so that every mistake was told at the place where it stands in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.config.defaults import DEFAULTS, HEAD_TYPE, PROVIDER_KEYS, WORKER_TYPE
from muster.config.document import Document
from muster.config.local import with_local_type

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
