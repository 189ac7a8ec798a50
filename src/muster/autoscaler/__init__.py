"""Offer a cluster autoscaler in the manner of Ray's; names are imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.autoscaler import sdk as sdk
    from muster.providers.batching import BatchingNodeProvider as BatchingNodeProvider
    from muster.providers.node_provider import NodeLaunchException as NodeLaunchException
    from muster.providers.node_provider import NodeProvider as NodeProvider
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__,
        {
            ".": ["sdk"],
            "muster.providers.batching": ["BatchingNodeProvider"],
            "muster.providers.node_provider": ["NodeLaunchException", "NodeProvider"],
        },
    )
