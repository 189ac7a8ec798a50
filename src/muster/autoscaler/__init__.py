"""Offers a cluster autoscaler in the manner of Ray's; names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.autoscaler import sdk
    from muster.providers.batching import BatchingNodeProvider
    from muster.providers.node_provider import NodeLaunchException, NodeProvider

__all__ = ["BatchingNodeProvider", "NodeLaunchException", "NodeProvider", "sdk"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "BatchingNodeProvider": "muster.providers.batching",
        "NodeLaunchException": "muster.providers.node_provider",
        "NodeProvider": "muster.providers.node_provider",
        "sdk": "muster.autoscaler.sdk",
    },
)
