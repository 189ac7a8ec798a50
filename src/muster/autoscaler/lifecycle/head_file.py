"""Write the cluster file that the head gets, and the commands that start Ray there. Pure.

The monitor on the head reads this file instead of the user's: paths are those of the head, keys are copies
that `muster up` leaves there, and what the provider has filled in is kept.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import yaml
from msgspec import Struct, field

from muster.config.schema import ClusterConfig
from muster.errors import ClusterError
from muster.providers.bootstrap import BOOTSTRAPPED
from muster.remote.service import HEAD_KEY, HEAD_PRICES

GCS_PORT = 6379
_OWN_AUTOSCALER = re.compile(r"\s--autoscaling-config(=|\s+)('[^']*'|\"[^\"]*\"|\S+)")
_RAY_START = re.compile(r"(?P<ray>[^\s;&|]*\bray)['\"]?\s+start\b")


class HeadFile(Struct, frozen=True, kw_only=True):
    """The text of the head's cluster file, and which files it needs beside it."""

    text: str
    keys: Mapping[str, str] = field(default_factory=dict)  # path on the head -> path on this computer
    prices: str = ""  # the price file on this computer; the head's is HEAD_PRICES


class Overrides(Struct, frozen=True, kw_only=True):
    """What the command line says in place of the file."""

    cluster_name: str | None = None
    min_workers: int | None = None
    max_workers: int | None = None


NO_OVERRIDES = Overrides()


def with_overrides(data: Mapping[str, Any], given: Overrides) -> dict[str, Any]:
    """Return the file's data with what the command line says; ClusterError where a count fits no type."""
    changed = dict(data)
    min_workers, max_workers = given.min_workers, given.max_workers
    if given.cluster_name is not None:
        changed["cluster_name"] = given.cluster_name
    if max_workers is not None:
        changed["max_workers"] = max_workers
    if min_workers is None:
        return changed
    types = changed.get("available_node_types")
    if not types:  # the old form, and provider local
        changed["min_workers"] = min_workers
        return changed
    workers = [name for name in types if name != changed.get("head_node_type")] or list(types)
    if len(workers) > 1:
        raise ClusterError(
            "--min-workers does not say of which type",
            fix=f"set min_workers of {', '.join(workers)} in the file",
        )
    changed["available_node_types"] = {
        name: {**entry, "min_workers": min_workers} if name == workers[0] else entry
        for name, entry in types.items()
    }
    return changed


def head_file(data: Mapping[str, Any], filled: Mapping[str, Any] | None = None) -> HeadFile:
    """Return the head's file from the user's; `filled` are the sections that the provider has completed."""
    head = {**data, **(filled or {})}
    keys: dict[str, str] = {}
    auth = {
        k: v for k, v in (head.get("auth") or {}).items() if k not in ("ssh_proxy_command", "ssh_public_key")
    }
    head["auth"] = _with_key(auth, keys)
    provider = dict(head["provider"])
    if provider.get("hosts"):
        provider["hosts"] = [
            _with_key({k: v for k, v in host.items() if k != "ssh_proxy_command"}, keys)
            for host in provider["hosts"]
        ]
    if filled:
        provider[BOOTSTRAPPED] = True
    head["provider"] = provider
    if head.get("file_mounts"):
        head["file_mounts"] = {there: there for there in head["file_mounts"]}
    prices = (head.get("muster") or {}).get("prices") or ""
    if prices:
        head["muster"] = {**head["muster"], "prices": HEAD_PRICES}
    text = yaml.safe_dump(head, sort_keys=False, allow_unicode=True)
    return HeadFile(text=text, keys=keys, prices=prices)


def _with_key(section: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    """Points a section at the copy of its key; equal keys are copied once."""
    local = section.get("ssh_private_key")
    if not local:
        return section
    known = {path: there for there, path in keys.items()}
    number = "" if not keys else f"_{len(keys)}"
    there = known.get(local) or HEAD_KEY.replace(".pem", f"{number}.pem")
    keys[there] = local
    return {**section, "ssh_private_key": there}


def head_commands(config: ClusterConfig) -> tuple[str, ...]:
    """Return the head's start commands without Ray's own autoscaler: two would undo each other's work."""
    if not config.head_start_ray_commands:
        raise ClusterError(
            "the file has no head_start_ray_commands, so nothing starts Ray on the head",
            fix=(f"add for example `ray start --head --port={GCS_PORT} --no-monitor`"),
        )
    return tuple(map(without_own_autoscaler, config.head_start_ray_commands))


def without_own_autoscaler(command: str) -> str:
    """Return a start command that leaves scaling to muster; a command of another kind stays as it is.

    Example:
        >>> without_own_autoscaler("ray start --head --autoscaling-config=~/x.yaml --port=1")
        'ray start --head --no-monitor --port=1'
    """
    if not _RAY_START.search(command) or "--head" not in command:
        return command
    plain = _OWN_AUTOSCALER.sub("", command)
    return plain if "--no-monitor" in plain else plain.replace("--head", "--head --no-monitor", 1)


def gcs_port(commands: Sequence[str]) -> int:
    """Return the port that the head's commands give the GCS."""
    for command in commands:
        if _RAY_START.search(command) and "--head" in command:
            found = re.search(r"--port[=\s]+['\"]?(\d+)", command)
            return int(found[1]) if found else GCS_PORT
    return GCS_PORT


def ray_program(commands: Sequence[str]) -> str:
    """Return the `ray` that the commands start: a word of PATH, or a path."""
    for command in commands:
        found = _RAY_START.search(command)
        if found:
            return found["ray"].strip("'\"")
    return "ray"
