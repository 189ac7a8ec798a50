"""Provides ProviderContract, the test class every NodeProvider passes. Subclass it, define `make_provider`.

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
    """A ProviderContract tests what a v1 provider promises; a failure names the promise."""
