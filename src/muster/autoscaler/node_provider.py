"""Offer Ray's v1 provider class under muster's path, for users' own providers to derive from."""

from __future__ import annotations

from muster.providers.batching import BatchingNodeProvider, NodeData, ScaleRequest
from muster.providers.node_provider import NodeLaunchException, NodeProvider

__all__ = ["BatchingNodeProvider", "NodeData", "NodeLaunchException", "NodeProvider", "ScaleRequest"]
