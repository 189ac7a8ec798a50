"""Split a `node_config` into what a launch template takes and what only RunInstances takes. Pure.

The keys are those of RunInstances, as for Ray's provider. None is dropped: a key that a template cannot have
sends the whole type to RunInstances, and a key that nobody knows is refused by its name.
"""

from __future__ import annotations

import base64
import copy
import difflib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from muster.errors import ProviderMisconfigured
from muster.providers.aws.tags import tagged

# Keys that are ours or Ray's, beside those of RunInstances.
SUBNETS, TYPES, OFFER = "SubnetIds", "InstanceTypes", "offer"
_OWN = frozenset({SUBNETS, TYPES, OFFER})
_COUNTS = {
    "MinCount": "min_workers and max_workers of the node type say how many there are",
    "MaxCount": "min_workers and max_workers of the node type say how many there are",
    "ClientToken": "muster has its own, so that a repeated call launches nothing more",
    "DryRun": "use `muster up --dry-run`",
}
_OTHER_NAMES = {"RamdiskId": "RamDiskId", "ElasticGpuSpecification": "ElasticGpuSpecifications"}
# A fleet says the market and the subnet itself, and gives no second interface of the user's.
_OF_THE_CALL = frozenset({"SubnetId", "InstanceMarketOptions", *_OWN})
_RUN_ONLY = frozenset({"NetworkInterfaces", "LaunchTemplate"})
TAGGED = ("instance", "volume", "network-interface", "spot-instances-request")


class LaunchKeys(Struct, frozen=True):
    """Which keys this boto3 knows: of RunInstances, and of a launch template."""

    run: frozenset[str]
    template: frozenset[str]


class MachineConfig(Struct, frozen=True, kw_only=True):
    """A `node_config`, sorted."""

    settings: Mapping[str, Any] = {}  # of RunInstances, without type, subnet, market, counts and tags
    machine_types: tuple[str, ...] = ()
    subnets: tuple[str, ...] = ()
    market: str = "on-demand"  # or "spot" or "capacity-block"
    spot: Mapping[str, Any] = {}  # SpotOptions
    tags: Mapping[str, Mapping[str, str]] = {}  # the user's own, by kind of resource
    needs_run: str = ""  # the key that only RunInstances takes; "": a fleet can be used

    @property
    def reservation(self) -> bool:
        """Return whether the type names a capacity reservation, or a group of them."""
        found = self.settings.get("CapacityReservationSpecification") or {}
        return bool(found.get("CapacityReservationTarget")) or self.market == "capacity-block"


NO_CONFIG = MachineConfig()


def read_config(node_config: Mapping[str, Any], keys: LaunchKeys) -> MachineConfig:
    """Return the config, sorted. Raises ProviderMisconfigured for a key that can go nowhere."""
    for key in node_config:
        if key in _COUNTS:
            raise ProviderMisconfigured(f"node_config.{key} cannot be used: {_COUNTS[key]}", fix="remove it")
        if key not in keys.run and key not in _OWN:
            close = difflib.get_close_matches(key, [*keys.run, *_OWN], n=1)
            hint = f"did you mean {close[0]!r}?" if close else "see RunInstances of EC2"
            raise ProviderMisconfigured(
                f"node_config.{key} is not a parameter of RunInstances", fix=f"{hint}"
            )
    settings = copy.deepcopy({k: v for k, v in node_config.items() if k not in _OF_THE_CALL})
    types = tuple(node_config.get(TYPES) or filter(None, [settings.pop("InstanceType", "")]))
    settings.pop("InstanceType", None)
    if "Version" in (settings.get("LaunchTemplate") or {}):  # a number in Ray's files, a text for EC2
        settings["LaunchTemplate"]["Version"] = str(settings["LaunchTemplate"]["Version"])
    if not types and "LaunchTemplate" not in settings:
        raise ProviderMisconfigured("node_config.InstanceType is missing", fix="write for example m5.large")
    market = node_config.get("InstanceMarketOptions") or {}
    spot = dict(market.get("SpotOptions") or {})
    given = node_config.get("TagSpecifications") or ()
    found: dict[str, dict[str, str]] = {}
    for entry in given:
        tags = {one["Key"]: one["Value"] for one in entry.get("Tags", ())}
        found.setdefault(entry.get("ResourceType", "instance"), {}).update(tags)
    return MachineConfig(
        settings={k: v for k, v in settings.items() if k != "TagSpecifications"},
        machine_types=types,
        subnets=subnets_of(node_config),
        market=market.get("MarketType") or "on-demand",
        spot=spot,
        tags=found,
        needs_run=_run_only(settings, keys, market.get("MarketType", ""), spot),
    )


def subnets_of(node_config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the subnets that a config names, by itself or for its first interface."""
    interfaces = node_config.get("NetworkInterfaces") or [{}]
    one = node_config.get("SubnetId") or interfaces[0].get("SubnetId")
    return tuple(node_config.get(SUBNETS) or filter(None, [one]))


def _run_only(settings: Mapping[str, Any], keys: LaunchKeys, market: str, spot: Mapping[str, Any]) -> str:
    """Return the first key that a fleet cannot have."""
    for key in settings:
        if key in _RUN_ONLY or _OTHER_NAMES.get(key, key) not in keys.template:
            return key
    if market == "capacity-block" or spot.get("SpotInstanceType") == "persistent":
        return "InstanceMarketOptions"
    return ""


class MachineDefaults(Struct, frozen=True, kw_only=True):
    """What machines get where their config does not say otherwise."""

    hop_limit: int = 1  # of the metadata service; 2 where nodes run in containers
    root_device: str = ""  # of the image; "": not known, then its disks are as the image has them
    root_gib: int = 0


def with_defaults(settings: Mapping[str, Any], defaults: MachineDefaults) -> dict[str, Any]:
    """Return the settings with IMDSv2, encrypted disks that end with their machine, and shutdown as an end.

    A machine that shuts itself down is gone then: so a worker without a head can end itself.
    """
    metadata = {
        "HttpEndpoint": "enabled",
        "HttpTokens": "required",
        "HttpPutResponseHopLimit": defaults.hop_limit,
    }
    filled = {
        "InstanceInitiatedShutdownBehavior": "terminate",
        **settings,
        "MetadataOptions": {**metadata, **(settings.get("MetadataOptions") or {})},
    }
    if "HibernationOptions" in settings:  # a machine that hibernates is stopped, not ended
        filled["InstanceInitiatedShutdownBehavior"] = settings.get(
            "InstanceInitiatedShutdownBehavior", "stop"
        )
    disks = [_disk(one) for one in settings.get("BlockDeviceMappings") or ()]
    root = defaults.root_device
    if root and root not in [one.get("DeviceName") for one in disks]:
        size = {"VolumeSize": defaults.root_gib} if defaults.root_gib else {}
        disks.insert(0, _disk({"DeviceName": root, "Ebs": size}))
    if disks:
        filled["BlockDeviceMappings"] = disks
    return filled


def _disk(mapping: Mapping[str, Any]) -> dict[str, Any]:
    if "Ebs" not in mapping:  # an instance store, or a device that is taken away
        return dict(mapping)
    return {**mapping, "Ebs": {"Encrypted": True, "DeleteOnTermination": True, **mapping["Ebs"]}}


def template_data(
    config: MachineConfig, settings: Mapping[str, Any], tags: Mapping[str, str]
) -> dict[str, Any]:
    """Return the data of a launch template, as a fleet wants it: user data in base64, and no market."""
    data = {_OTHER_NAMES.get(key, key): value for key, value in settings.items()}
    if isinstance(data.get("ElasticGpuSpecifications"), dict):
        data["ElasticGpuSpecifications"] = [data["ElasticGpuSpecifications"]]
    if data.get("UserData"):
        data["UserData"] = encoded(data["UserData"])
    if len(config.machine_types) == 1:
        data["InstanceType"] = config.machine_types[0]
    data["TagSpecifications"] = [tagged(kind, {**tags, **config.tags.get(kind, {})}) for kind in TAGGED]
    return data


def encoded(user_data: str | bytes) -> str:
    """Return user data in base64."""
    raw = user_data.encode() if isinstance(user_data, str) else user_data
    return base64.b64encode(raw).decode("ascii")
