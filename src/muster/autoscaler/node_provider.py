"""Ray's v1 provider class under our name: what a user's own provider derives from."""

from __future__ import annotations

from muster.providers.batching import BatchingNodeProvider, NodeData, ScaleRequest
from muster.providers.node_provider import NodeLaunchException, NodeProvider

__all__ = ["BatchingNodeProvider", "NodeData", "NodeLaunchException", "NodeProvider", "ScaleRequest"]
