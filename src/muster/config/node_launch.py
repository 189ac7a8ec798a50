"""NodeLaunch: everything a provider is told to make one machine of a type, as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field


class NodeLaunch(Struct, frozen=True, kw_only=True):
    """One node type, ready for a provider's create call."""

    node_type: str
    node_config: Mapping[str, Any] = field(default_factory=dict)
    resources: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    launch_hash: str = ""
    machine_type: str = ""
