"""Say who may reach the machines of a cluster, as rules of its security group. No boto3.

SSH is open to the address from which `up` was run, unless the file has a rule for port 22.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Mapping
from typing import Any

from muster.errors import ConfigError

ADDRESS_URL = "https://checkip.amazonaws.com"
SSH_PORT, ASK_S = 22, 5.0
LAUNCHER = "muster: who ran up"  # marks the rule that the next `up` may replace
_SOURCES = {"IpRanges": "CidrIp", "Ipv6Ranges": "CidrIpv6", "PrefixListIds": "PrefixListId"}
_SOURCES |= {"UserIdGroupPairs": "GroupId"}
_TO_ALL = ("tcp", SSH_PORT, SSH_PORT, "0.0.0.0/0")
Rule = dict[str, Any]
RuleKey = tuple[str, int, int, str]


def is_ssh_restricted(settings: Mapping[str, Any]) -> bool:
    """Return whether SSH is for the launcher alone: no session manager, and no rule of the file for it."""
    return not settings.get("use_ssm") and not any(map(_has_ssh, _given(settings)))


def ingress_rules(settings: Mapping[str, Any], group: str, launcher: Callable[[], str]) -> list[Rule]:
    """Return the rules of a cluster's group; `launcher` returns the network that may use SSH."""
    rules: list[Rule] = [{"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": group}]}, *_given(settings)]
    if is_ssh_restricted(settings):
        source = {"CidrIp": launcher(), "Description": LAUNCHER}
        rules.append({"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [source]})
    return rules


def single_rules(rules: list[Rule]) -> dict[RuleKey, Rule]:
    """Return a rule for each source: EC2 refuses a rule as a whole when it has one of its sources."""
    return {
        (*_ports(rule), str(source.get(name, source))): {
            **{key: value for key, value in rule.items() if key not in _SOURCES},
            kind: [source],
        }
        for rule in rules
        for kind, name in _SOURCES.items()
        for source in rule.get(kind) or ()
    }


def is_stale(key: RuleKey, rule: Rule) -> bool:
    """Return whether muster has made a rule: for a launcher, or as earlier versions did for everybody."""
    note = (rule.get("IpRanges") or [{}])[0].get("Description", "")
    return bool(note == LAUNCHER or (key == _TO_ALL and not note))


def launcher_network(settings: Mapping[str, Any], subnet: str) -> str:
    """Return this computer as the head in a subnet sees it, as a network. Raises ConfigError."""
    is_inside = settings.get("use_internal_ips") and not settings.get("use_external_head_ip")
    try:
        found = route_source(subnet.partition("/")[0]) if is_inside else public_address()
        return f"{ipaddress.IPv4Address(found)}/32"
    except (OSError, ValueError) as error:
        why = getattr(error, "reason", error)
        raise ConfigError(
            f"the address of this computer, which alone may use SSH, was not found ({why})",
            path="provider.security_group",
            fix="give IpPermissions with a rule for port 22",
        ) from error


def public_address() -> str:
    """Ask AWS; not through a proxy, which SSH does not use either."""
    import urllib.request

    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(ADDRESS_URL, timeout=ASK_S) as answer:
        return str(answer.read(64).decode("ascii", "replace")).strip()


def route_source(target: str) -> str:
    """Return which address of this computer is used towards another one; nothing is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((target, SSH_PORT))
        return str(probe.getsockname()[0])


def _given(settings: Mapping[str, Any]) -> list[Rule]:
    return list((settings.get("security_group") or {}).get("IpPermissions") or ())


def _has_ssh(rule: Rule) -> bool:
    protocol, low, high = _ports(rule)
    return protocol == "-1" or (protocol == "tcp" and low <= SSH_PORT <= high)


def _ports(rule: Rule) -> tuple[str, int, int]:
    protocol = str(rule["IpProtocol"]).lower()
    return {"6": "tcp"}.get(protocol, protocol), int(rule.get("FromPort", -1)), int(rule.get("ToPort", -1))
