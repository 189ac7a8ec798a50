"""Know the clouds whose providers come from the user's own Ray: how to load them, how to say what to buy.

The classes are asked for by name when a cluster names them; nothing of Ray is imported before. Pure but for
the import.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from muster.base.untrusted import error_text
from muster.cluster.model import Offer
from muster.config.schema import ClusterConfig
from muster.errors import ConfigError, ProviderMisconfigured
from muster.providers.v1.failures import provider_call

_LOOKUP = "ray.autoscaler._private.providers"  # where Ray finds a class by its type; tried with 2.60
_GET_CLASS = "_get_node_provider_cls"
Terms = Callable[[dict[str, Any], Offer], None]  # writes the zone and the market into a node config


class RayCloud(Struct, frozen=True, kw_only=True):
    """A provider type of the compatibility tier."""

    packages: str  # that its class needs
    has_zone_objects: bool = False  # one object of the class sees one zone only
    write_terms: Terms | None = None  # None: it cannot choose where and how to launch
    zone_key: str = "availability_zone"  # of `provider`
    ids_ignore_case: bool = False  # its lists spell one id in different ways


def _gcp_terms(node_config: dict[str, Any], offer: Offer) -> None:
    """The zone is that of the object. The scheduling is a list of one mapping, as in Ray's own files."""
    given = node_config.get("scheduling") or [{}]
    first = dict(given[0] if isinstance(given, list) else given)
    first["preemptible"] = offer.market == "spot"
    node_config["scheduling"] = [first]


def _azure_terms(node_config: dict[str, Any], offer: Offer) -> None:
    parameters = dict(node_config.get("azure_arm_parameters") or {})
    parameters["priority"] = "Spot" if offer.market == "spot" else "Regular"
    if offer.market != "spot":
        parameters.pop("billingProfile", None)
    if offer.zone:
        parameters["availability_zone"] = offer.zone
    node_config["azure_arm_parameters"] = parameters


CLOUDS: dict[str, RayCloud] = {
    "aliyun": RayCloud(packages="aliyun-python-sdk-core aliyun-python-sdk-ecs"),
    "azure": RayCloud(
        packages="azure-cli-core azure-identity azure-mgmt-compute azure-mgmt-network azure-mgmt-resource",
        write_terms=_azure_terms,
        ids_ignore_case=True,
    ),
    "gcp": RayCloud(
        packages="google-api-python-client google-auth cryptography",
        has_zone_objects=True,
        write_terms=_gcp_terms,
    ),
    "vsphere": RayCloud(packages="kubernetes"),
}


def class_of_ray(kind: str) -> type[Any]:
    """Return the class of the installed Ray; ConfigError says what to install where the monitor runs."""
    try:
        lookup = getattr(importlib.import_module(_LOOKUP), _GET_CLASS)
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise ConfigError(_too_old(kind), path="provider.type") from error
        raise ConfigError(
            f"{kind!r} uses a provider of Ray, which is not installed here",
            path="provider.type",
            fix=("pip install 'ray[default]' where the monitor runs"),
        ) from error
    except Exception as error:
        raise ConfigError(_too_old(kind), path="provider.type") from error
    try:
        found = provider_call(lambda: lookup({"type": kind}))
    except Exception as error:
        line = " ".join(error_text(error).split())
        raise ConfigError(
            f"Ray's provider {kind!r} cannot be loaded ({line})",
            path="provider.type",
            fix=(f"pip install {CLOUDS[kind].packages} where the monitor runs"),
        ) from error
    if not isinstance(found, type):
        raise ConfigError(_too_old(kind), path="provider.type")
    return found


def _too_old(kind: str) -> str:
    return (
        f"the installed Ray has no provider {kind!r} that muster can find; install another Ray, or name the"
        " class: provider.module: package.module.Class"
    )


def zones_of(config: ClusterConfig) -> tuple[str, ...]:
    """Return the zones that the file names: that of `provider` first, then those of offers."""
    cloud = CLOUDS[config.provider.type]
    if not cloud.has_zone_objects:
        return ("",)
    written = str(config.provider.settings().get(cloud.zone_key) or "")
    named = [zone.strip() for zone in written.split(",") if zone.strip()]
    offered = [o.zone for entry in config.available_node_types.values() for o in entry.offers if o.zone]
    region = config.provider.region
    for zone in (*named, *offered) if region else ():
        if not zone.startswith(f"{region}-"):
            raise ConfigError(
                f"zone {zone!r} is not in provider.region {region!r}",
                path="available_node_types",
                fix=("a cluster is in one region, whose network its machines share"),
            )
    return tuple(dict.fromkeys([*named, *offered])) or ("",)


def settings_in(kind: str, settings: Mapping[str, Any], zone: str) -> dict[str, Any]:
    """Return the `provider` section for the object of one zone."""
    return {**settings, CLOUDS[kind].zone_key: zone} if zone else dict(settings)


def node_config_for(
    kind: str, node_config: Mapping[str, Any], offer: Offer | None, zones: Sequence[str]
) -> tuple[dict[str, Any], str]:
    """Return the node config of a purchase, and the zone of the object that makes it."""
    made = {key: value for key, value in node_config.items() if key != "offer"}
    cloud = CLOUDS[kind]
    if offer is None:
        return made, zones[0]
    if cloud.write_terms is None or offer.market == "reserved":
        raise ProviderMisconfigured(
            f"provider {kind!r} cannot launch {offer.name}",
            fix="remove this offer from the cluster file",
        )
    zone = offer.zone if cloud.has_zone_objects and offer.zone else zones[0]
    if zone not in zones:
        raise ProviderMisconfigured(f"zone {zone!r} is not one of this cluster's: restart the monitor")
    cloud.write_terms(made, offer)
    return made, zone
