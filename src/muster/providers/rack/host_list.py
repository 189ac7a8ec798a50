"""Read which computers a cluster of provider `local` has: Ray's `worker_ips`, and `hosts` of any size.

`load` calls it to complete and check a file; the on-premise provider and the launcher ask it for the hosts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from muster.config.check import nearest, shortened
from muster.config.document import Document, Path_
from muster.config.schema import ClusterConfig, HostConfig

LOCAL_TYPE = "local.cluster.node"
# A first '-' would be an option of ssh; the rest is what names, IPv4 and IPv6 addresses are made of.
_ADDRESS = re.compile(r"[A-Za-z0-9_:][A-Za-z0-9_.:%-]*")
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.@\\-]*\$?")


class RackHost(Struct, frozen=True, kw_only=True):
    """One computer of a rack, all choices made."""

    ip: str
    node_type: str
    is_head: bool = False
    port: int = 22
    user: str = ""
    private_key: str = ""
    proxy_command: str = ""


def rack_hosts(config: ClusterConfig) -> dict[str, RackHost]:
    """Return the computers of a complete file by address, the head first."""
    provider = config.provider
    types = [name for name in config.available_node_types if name != config.head_type]
    worker_type = types[0] if types else config.head_type
    found: dict[str, RackHost] = {}
    if provider.head_ip is not None:
        found[provider.head_ip] = _host(config, HostConfig(ip=provider.head_ip, head=True), worker_type)
    entries = (*provider.hosts, *(HostConfig(ip=ip) for ip in provider.worker_ips))
    for entry in sorted(entries, key=lambda one: not one.head):
        found[entry.ip] = _host(config, entry, worker_type)
    return found


def _host(config: ClusterConfig, entry: HostConfig, worker_type: str) -> RackHost:
    auth = config.auth
    path = entry.ssh_private_key or auth.ssh_private_key
    return RackHost(
        ip=entry.ip,
        node_type=config.head_type if entry.head else entry.type or worker_type,
        is_head=entry.head,
        port=entry.ssh_port,
        user=entry.user or auth.ssh_user,
        private_key=str(Path(path).expanduser()) if path else "",
        proxy_command=entry.ssh_proxy_command or auth.ssh_proxy_command or "",
    )


def with_local_type(document: Document, data: Mapping[str, Any]) -> dict[str, Any]:
    """Complete the node types of provider local: all computers are of one, unless `hosts` has entries."""
    provider, types = data["provider"], data.get("available_node_types")
    if set(types or ()) == {LOCAL_TYPE}:
        return dict(data)  # prepared before, as on a head
    if types and provider.get("hosts"):
        return _typed(data, types)
    if types:
        raise document.error(
            ("available_node_types",),
            f"does not go with provider local, whose computers are all of the type {LOCAL_TYPE}; remove it,"
            " or list computers of several types under provider.hosts",
        )
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


def _typed(data: Mapping[str, Any], types: Mapping[str, Any]) -> dict[str, Any]:
    """Of each type there are at most as many as are listed; a size that is not given is asked of hosts."""
    named = [entry.get("type") for entry in data["provider"]["hosts"] if not entry.get("head")]
    head = data.get("head_node_type") or next(iter(types))
    others = [name for name in types if name != head] or [head]
    named += [None] * len(data["provider"].get("worker_ips", ()))
    counts = {name: named.count(name) + (named.count(None) if name == others[0] else 0) for name in types}
    completed = {
        name: {"resources": {}, "node_config": {}, "max_workers": counts[name], **entry}
        for name, entry in types.items()
    }
    return {"max_workers": len(named), **data, "available_node_types": completed}


def _listed(document: Document, data: Mapping[str, Any]) -> tuple[int, int]:
    """Return all computers of the list, unless the file asks for fewer; there are no more."""
    provider = data["provider"]
    entries = provider.get("hosts", ())
    if provider.get("worker_ips") is None and not entries:
        raise document.error(
            ("provider",), "'worker_ips' is missing; provider local needs head_ip and worker_ips, or hosts"
        )
    there_are = len(provider.get("worker_ips", ())) + sum(not entry.get("head") for entry in entries)
    most = min(data.get("max_workers", there_are), there_are)
    least = data.get("min_workers")
    return most if least is None else min(least, most), most


def _coordinated(document: Document, data: Mapping[str, Any]) -> tuple[int, int]:
    if "max_workers" not in data:
        raise document.error(
            (), "'max_workers' is missing; with a coordinator_address it limits how many computers to request"
        )
    return data.get("min_workers") or 0, data["max_workers"]


def check_rack(document: Document, config: ClusterConfig) -> None:
    """Check the list as written: one head, no computer twice, names that are names, types that exist."""
    provider = config.provider
    heads = [place for place, entry in _entries(config) if entry.head]
    if len(heads) > 1:
        raise document.error(heads[1], "is a second head; a cluster has one")
    if not heads and not provider.coordinator_address:
        raise document.error(
            ("provider",), "'head_ip' is missing; name the head's address, or mark a host with head: true"
        )
    seen: dict[str, Path_] = {}
    for place, entry in _entries(config):
        _check_entry(document, config, place, entry)
        if entry.ip in seen:
            raise document.error(place, _twice(entry.ip, seen[entry.ip], provider.head_ip))
        seen[entry.ip] = place
    if not provider.lock_dir.startswith(("/", "~")):
        raise document.error(
            ("provider", "lock_dir"),
            f"{shortened(provider.lock_dir)} must be an absolute directory of the hosts, such as /tmp",
        )


def _twice(ip: str, first: Path_, head_ip: str | None) -> str:
    if ip == head_ip:
        return f"{shortened(ip)} is the head already (provider.head_ip); remove it from the workers"
    where = f"{first[-2]}[{first[-1]}]" if isinstance(first[-1], int) else str(first[-1])
    return f"{shortened(ip)} is listed twice (first as {where}); remove one of them"


def _entries(config: ClusterConfig) -> Iterator[tuple[Path_, HostConfig]]:
    provider = config.provider
    if provider.head_ip is not None:
        yield ("provider", "head_ip"), HostConfig(ip=provider.head_ip, head=True)
    for index, ip in enumerate(provider.worker_ips):
        yield ("provider", "worker_ips", index), HostConfig(ip=ip)
    for index, entry in enumerate(provider.hosts):
        yield ("provider", "hosts", index), entry


def _check_entry(document: Document, config: ClusterConfig, place: Path_, entry: HostConfig) -> None:
    if not _ADDRESS.fullmatch(entry.ip):
        raise document.error(place, f"{shortened(entry.ip)} is not an address or a name of a computer")
    if entry.user is not None and not _USER.fullmatch(entry.user):
        raise document.error((*place, "user"), f"{shortened(entry.user)} is not the name of a user")
    types = config.available_node_types
    if entry.type is not None and entry.type not in (types or (LOCAL_TYPE,)):
        hint = nearest(entry.type, types) if types else "describe it under available_node_types"
        raise document.error(
            (*place, "type"), f"{shortened(entry.type)} is not in available_node_types; {hint}"
        )
