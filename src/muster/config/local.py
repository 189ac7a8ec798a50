"""Provider `local`: computers that are there already, rewritten to the one node type they all are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from muster.config.document import Document

LOCAL_TYPE = "local.cluster.node"


def with_local_type(document: Document, data: Mapping[str, Any]) -> dict[str, Any]:
    """Manual mode lists the computers; in coordinator mode a server hands them out."""
    if set(data.get("available_node_types", ())) == {LOCAL_TYPE}:
        return dict(data)  # prepared before, as on a head
    if data.get("available_node_types"):
        raise document.error(
            ("available_node_types",),
            f"does not go with provider local, whose computers are all of the type {LOCAL_TYPE}; remove it",
        )
    provider = data["provider"]
    least, most = (
        _coordinated(document, data) if provider.get("coordinator_address") else _listed(document, data)
    )
    only = {"resources": {}, "node_config": {}, "min_workers": least, "max_workers": most}
    return {
        **data,
        "max_workers": most,
        "head_node_type": LOCAL_TYPE,
        "available_node_types": {LOCAL_TYPE: only},
    }


def _listed(document: Document, data: Mapping[str, Any]) -> tuple[int, int]:
    """All computers of the list, unless the file asks for fewer; there are no more."""
    provider = data["provider"]
    for key in ("head_ip", "worker_ips"):
        if provider.get(key) is None:
            raise document.error(
                ("provider",),
                f"{key!r} is missing; provider local needs head_ip and worker_ips, or coordinator_address",
            )
    there_are = len(provider["worker_ips"])
    most = min(data.get("max_workers", there_are), there_are)
    least = data.get("min_workers")
    return most if least is None else min(least, most), most


def _coordinated(document: Document, data: Mapping[str, Any]) -> tuple[int, int]:
    if "max_workers" not in data:
        raise document.error(
            (), "'max_workers' is missing; with a coordinator_address it says how many computers to ask for"
        )
    return data.get("min_workers") or 0, data["max_workers"]
