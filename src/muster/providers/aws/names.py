"""Names what `muster up` makes on AWS for a cluster, and where its key is on this computer. Pure; no boto3.

Names follow from the cluster's own, so that every command finds the same things, and a file stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

SSM_PROXY = (
    "aws ssm start-session --region {region} --target {instance_id}"
    " --document-name AWS-StartSSHSession --parameters portNumber=%p"
)


def resource_name(cluster_name: str) -> str:
    """Returns the name of the security group, the role and the instance profile."""
    return f"muster-{re.sub(r'[^A-Za-z0-9._-]', '-', cluster_name)[:50]}"


def key_name(provider: Mapping[str, Any], cluster_name: str) -> str:
    """Returns the name of the key pair; Ray's `provider.key_pair.key_name` is used where it is given."""
    given = provider.get("key_pair")
    own = given.get("key_name") if isinstance(given, Mapping) else None
    return str(own or f"{resource_name(cluster_name)}-{provider.get('region', '')}")


def key_file(name: str) -> str:
    """Returns where the private key is that muster makes."""
    return f"~/.ssh/{name}.pem"


def group_name(provider: Mapping[str, Any], cluster_name: str) -> str:
    """Returns the name of the security group; Ray's `provider.security_group.GroupName` where it is given."""
    given = provider.get("security_group")
    own = given.get("GroupName") if isinstance(given, Mapping) else None
    return str(own or resource_name(cluster_name))


def with_access(data: Mapping[str, Any], cluster_name: str) -> dict[str, Any]:
    """Returns a cluster file with how its machines are reached, where it does not say so itself.

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
