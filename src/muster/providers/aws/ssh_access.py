"""Says who may reach the machines of a cluster: rules of its security group, in single parts. No boto3.

SSH is open to the address from which `up` was run, unless the file has a rule for port 22. A public address
is one that AWS sees; a private one is that of this computer's route to the subnet; nothing is sent.
"""

from __future__ import annotations

import ipaddress
import socket
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from muster.errors import ConfigError

ADDRESS_URL = "https://checkip.amazonaws.com"
ASK_S = 5.0
SSH_PORT = 22
LAUNCHER = "muster: who ran up"  # marks the rule that the next `up` may replace
_SSH: dict[str, Any] = {"IpProtocol": "tcp", "FromPort": SSH_PORT, "ToPort": SSH_PORT}
_SOURCES = {
    "IpRanges": "CidrIp",
    "Ipv6Ranges": "CidrIpv6",
    "PrefixListIds": "PrefixListId",
    "UserIdGroupPairs": "GroupId",
}
_TO_ALL = ("tcp", SSH_PORT, SSH_PORT, "IpRanges", "0.0.0.0/0")
RuleKey = tuple[str, int, int, str, str]


def is_ssh_restricted(settings: Mapping[str, Any]) -> bool:
    """Returns whether SSH is for the launcher alone: no session manager, and no rule of the file for it."""
    return not settings.get("use_ssm") and not any(map(_has_ssh, _given(settings)))


def ingress_rules(
    settings: Mapping[str, Any], group: str, launcher: Callable[[], str]
) -> list[dict[str, Any]]:
    """Returns the rules of a cluster's group; `launcher` returns the network that may use SSH."""
    rules: list[dict[str, Any]] = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}]
    if is_ssh_restricted(settings):
        rules.append({**_SSH, "IpRanges": [{"CidrIp": launcher(), "Description": LAUNCHER}]})
    return [*rules, *_given(settings)]


def single_rules(rules: list[dict[str, Any]]) -> dict[RuleKey, dict[str, Any]]:
    """Returns a rule for each source: EC2 refuses a rule as a whole when it has one of its sources."""
    return {key: rule for one in rules for key, rule in _split(one)}


def is_stale(key: RuleKey, rule: Mapping[str, Any]) -> bool:
    """Returns whether muster has made a rule: for a launcher, or as earlier versions did for everybody."""
    note = (rule.get("IpRanges") or [{}])[0].get("Description", "")
    return bool(note == LAUNCHER or (key == _TO_ALL and not note))


def launcher_network(settings: Mapping[str, Any], inside: str) -> str:
    """Returns the address of this computer as the head sees it, as a network; `inside` is one of the subnet.

    Raises ConfigError where it is not to be found.
    """
    is_inside = settings.get("use_internal_ips") and not settings.get("use_external_head_ip")
    try:
        found = route_source(inside) if is_inside else public_address()
        return f"{ipaddress.IPv4Address(found)}/32"
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise ConfigError(
            f"the address of this computer, which alone may use SSH, was not found ({why})",
            path="provider.security_group",
            fix="give IpPermissions with a rule for port 22",
        ) from error


def public_address() -> str:
    """Asks AWS; not through a proxy, which SSH does not use either."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(ADDRESS_URL, timeout=ASK_S) as answer:
        return str(answer.read(64).decode("ascii", "replace")).strip()


def route_source(target: str) -> str:
    """Returns which address of this computer is used towards another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target, SSH_PORT))
        return str(probe.getsockname()[0])


def _given(settings: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((settings.get("security_group") or {}).get("IpPermissions") or ())


def _has_ssh(rule: Mapping[str, Any]) -> bool:
    protocol, low, high = _ports(rule)
    return protocol == "-1" or (protocol == "tcp" and low <= SSH_PORT <= high)


def _ports(rule: Mapping[str, Any]) -> tuple[str, int, int]:
    protocol = str(rule["IpProtocol"]).lower()
    return {"6": "tcp"}.get(protocol, protocol), int(rule.get("FromPort", -1)), int(rule.get("ToPort", -1))


def _split(rule: Mapping[str, Any]) -> Iterator[tuple[RuleKey, dict[str, Any]]]:
    protocol, low, high = _ports(rule)
    ports = {key: rule[key] for key in ("FromPort", "ToPort") if key in rule}
    for kind, name in _SOURCES.items():
        for source in rule.get(kind) or ():
            key = (protocol, low, high, kind, str(source.get(name, source)))
            yield key, {"IpProtocol": protocol, **ports, kind: [source]}
