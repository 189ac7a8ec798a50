"""Read a cluster file and check what no single key can say; called by the CLI and by `FileSpecSource`."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from muster.cluster.model import Backoff, Timeouts
from muster.config.check import checked, nearest
from muster.config.document import Document
from muster.config.schema import ClusterConfig

# Zero here would not mean "fast": machines would be given up the moment they are asked for.
_MUST_BE_POSITIVE: dict[str, tuple[str, ...]] = {
    "timeouts": ("request_s", "allocate_s", "install_s", "terminating_s", "stop_requested_s", "stopping_s"),
    "backoff": tuple(field.name for field in structs.fields(Backoff)),
}


def load_config(path: Path) -> ClusterConfig:
    """The file as typed data; ConfigError names file, line, key and fix."""
    return parse_config(Document.load(path))


def parse_config(document: Document) -> ClusterConfig:
    """Typed data of a document already read."""
    if document.data is None:
        raise document.error((), "is empty; it needs cluster_name, provider and available_node_types")
    _explain_legacy(document)
    config = checked(document, (), document.data, ClusterConfig)
    _check_head(document, config)
    _check_counts(document, config)
    _check_muster(document, config)
    return config


def _explain_legacy(document: Document) -> None:
    given = document.data if isinstance(document.data, dict) else {}
    for key in ("head_node", "worker_nodes"):
        if given.get(key) and "available_node_types" not in given:
            raise document.error((key,), "is the old form; describe the machines under available_node_types")


def _check_head(document: Document, config: ClusterConfig) -> None:
    types = config.available_node_types
    if not types:
        raise document.error(("available_node_types",), "is empty; describe at least one node type")
    if config.head_node_type is None and len(types) > 1:
        raise document.error((), "'head_node_type' is missing; name the head's entry of available_node_types")
    if config.head_type not in types:
        hint = nearest(config.head_type, types)
        raise document.error(
            ("head_node_type",), f"{config.head_type!r} is not in available_node_types; {hint}"
        )


def _check_counts(document: Document, config: ClusterConfig) -> None:
    for name, node_type in config.available_node_types.items():
        highest = config.type_max_workers(name)
        if node_type.min_workers > highest:
            raise document.error(
                ("available_node_types", name, "min_workers"),
                f"{node_type.min_workers} is more than this type's max_workers, {highest}; raise max_workers",
            )
    wanted = sum(node_type.min_workers for node_type in config.available_node_types.values())
    if wanted > config.max_workers:
        raise document.error(
            ("max_workers",),
            f"{config.max_workers} is less than the sum of all min_workers, {wanted}; raise it to {wanted}",
        )


def _check_muster(document: Document, config: ClusterConfig) -> None:
    sections: dict[str, Timeouts | Backoff] = {
        "timeouts": config.muster.timeouts,
        "backoff": config.muster.backoff,
    }
    for section, names in _MUST_BE_POSITIVE.items():
        for name in names:
            if not getattr(sections[section], name) > 0:
                raise document.error(("muster", section, name), "must be above 0")
    backoff = config.muster.backoff
    if backoff.max_s < backoff.base_s:
        raise document.error(
            ("muster", "backoff", "max_s"), f"{backoff.max_s:g} is less than base_s, {backoff.base_s:g}"
        )
