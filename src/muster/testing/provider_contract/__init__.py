"""ProviderContract: the test class every NodeProvider passes. Subclass it and say how to make one.

Example:
    class TestMyProvider(ProviderContract):
        node_config = {"InstanceType": "small"}

        def make_provider(self, cluster_name):
            return MyProvider({"region": "here"}, cluster_name)
"""

from __future__ import annotations

from muster.testing.provider_contract.adapter import AdapterPromises
from muster.testing.provider_contract.nodes import NodePromises
from muster.testing.provider_contract.tags import TagPromises, ThreadPromises

__all__ = ["ProviderContract"]


class ProviderContract(NodePromises, TagPromises, ThreadPromises, AdapterPromises):
    """What a v1 provider promises; a failure says what it did and what the promise is."""
