"""Name and tag what a cluster has on AWS, and write tags of many machines with few calls. No boto3.

Names follow from the cluster's own, so that every command finds the same things. As with Ray, the node's name
is the tag `Name`, and a cluster's machines have `ray-cluster-name`: clusters of one are seen by the other.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from muster.providers.v1.tags import TAG_RAY_NODE_NAME

TAG_CLUSTER = "ray-cluster-name"
TAG_MADE_BY = "muster-cluster"  # on what `up` makes beside machines: only that is removed again
TAG_PART = "muster-launch-part"  # of a request with more machines than one call launches
TAG_RUN = "muster-launch-run"  # of a machine that was launched without a fleet
NAME = "Name"
WINDOW_S = 0.05
MOST_RESOURCES = 500
SSM_DOCUMENT = "AWS-StartSSHSession"
SSM_PROXY = (
    "aws ssm start-session --region {region} --target {instance_id}"
    f" --document-name {SSM_DOCUMENT} --parameters portNumber=%p"
)


def resource_name(cluster_name: str) -> str:
    """Return the name of the security group, the role and the instance profile."""
    return f"muster-{re.sub(r'[^A-Za-z0-9._-]', '-', cluster_name)[:50]}"


def key_name(provider: Mapping[str, Any], cluster_name: str) -> str:
    """Return the name of the key pair; Ray's `provider.key_pair.key_name` is used where it is given."""
    given = provider.get("key_pair")
    own = given.get("key_name") if isinstance(given, Mapping) else None
    return str(own or f"{resource_name(cluster_name)}-{provider.get('region', '')}")


def key_file(name: str) -> str:
    """Return where the private key is that muster makes."""
    return f"~/.ssh/{name}.pem"


def group_name(provider: Mapping[str, Any], cluster_name: str) -> str:
    """Return the name of the security group; Ray's `provider.security_group.GroupName` where it is given."""
    given = provider.get("security_group")
    own = given.get("GroupName") if isinstance(given, Mapping) else None
    return str(own or resource_name(cluster_name))


def with_access(data: Mapping[str, Any], cluster_name: str) -> dict[str, Any]:
    """Return a cluster file with how its machines are reached, where it does not say so itself.

    That is the key that `up` makes, and with `provider.use_ssm` a session of Systems Manager in place of a
    public address and an open port.
    """
    provider, auth = data["provider"], dict(data.get("auth") or {})
    changed = dict(data)
    if not auth.get("ssh_private_key"):
        auth["ssh_private_key"] = key_file(key_name(provider, cluster_name))
    if provider.get("use_ssm"):
        auth.setdefault("ssh_proxy_command", SSM_PROXY)
        changed["provider"] = {**provider, "use_internal_ips": True}
    return {**changed, "auth": auth}


def to_aws(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Return tags in AWS's form, in a fixed order: a repeated call must have equal parameters."""
    named = {NAME if key == TAG_RAY_NODE_NAME else key: value for key, value in tags.items()}
    return [{"Key": key, "Value": value} for key, value in sorted(named.items())]


def from_aws(tags: Iterable[Mapping[str, str]] | None) -> dict[str, str]:
    """Return tags in muster's form.

    Example:
        >>> from_aws([{"Key": "Name", "Value": "ray-c-worker"}])
        {'ray-node-name': 'ray-c-worker'}
    """
    found = {one["Key"]: one["Value"] for one in tags or ()}
    return {TAG_RAY_NODE_NAME if key == NAME else key: value for key, value in found.items()}


def tagged(resource: str, tags: Mapping[str, str]) -> dict[str, Any]:
    """Return one entry of TagSpecifications."""
    return {"ResourceType": resource, "Tags": to_aws(tags)}


class TagWriter:
    """Joins writes of several threads that come within a moment: equal tags are one call."""

    def __init__(
        self, write: Callable[[Sequence[str], list[dict[str, str]]], object], pause: Callable[[float], object]
    ) -> None:
        self._write, self._pause = write, pause
        self._lock = threading.Lock()
        self._waiting: list[_Write] = []

    def put(self, node_id: str, tags: Mapping[str, str]) -> None:
        """Return when the tags are written; raises what the call raised."""
        mine = _Write(node_id, tuple((one["Key"], one["Value"]) for one in to_aws(tags)))
        with self._lock:
            self._waiting.append(mine)
            is_first = len(self._waiting) == 1
        if is_first:
            self._pause(WINDOW_S)
            self._flush()
        mine.done.wait()
        if mine.error is not None:
            raise mine.error

    def _flush(self) -> None:
        with self._lock:
            waiting, self._waiting = self._waiting, []
        groups: dict[tuple[tuple[str, str], ...], list[_Write]] = {}
        for one in waiting:
            groups.setdefault(one.tags, []).append(one)
        for tags, members in groups.items():
            for start in range(0, len(members), MOST_RESOURCES):
                self._write_group(tags, members[start : start + MOST_RESOURCES])

    def _write_group(self, tags: tuple[tuple[str, str], ...], members: list[_Write]) -> None:
        error: Exception | None = None
        try:
            ids = list(dict.fromkeys(one.node_id for one in members))
            self._write(ids, [{"Key": key, "Value": value} for key, value in tags])
        except Exception as raised:  # noqa: BLE001 - raised in the thread of each that asked
            error = raised
        if error is not None and len(members) > 1:  # one that is gone must not fail the others
            for one in members:
                self._write_group(tags, [one])
            return
        for one in members:
            one.error = error
            one.done.set()


class _Write:
    """The tags of one machine on their way."""

    def __init__(self, node_id: str, tags: tuple[tuple[str, str], ...]) -> None:
        self.node_id, self.tags = node_id, tags
        self.done = threading.Event()
        self.error: Exception | None = None
