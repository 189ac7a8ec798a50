"""The provider's own name of a machine, for reports and prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

# Where each provider's node_config names its machine type.
_PATHS: dict[str, tuple[str, ...]] = {
    "aws": ("InstanceType",),
    "aliyun": ("InstanceType",),
    "azure": ("azure_arm_parameters", "vmSize"),
    "gcp": ("machineType",),
}


def machine_type(provider: str, node_config: Mapping[str, Any]) -> str:
    """ "" when the provider has no such names or the config does not say."""
    path = _PATHS.get(provider, ())
    found: Any = node_config if path else ""
    for step in path:
        found = found.get(step) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""
