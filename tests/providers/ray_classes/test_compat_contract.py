"""A class in the style of Ray's, behind the compatibility tier, keeps the provider contract."""

from __future__ import annotations

import pytest
from tests.providers.ray_classes.cloud_styles import GcpLike

from muster.base.clock import SystemClock
from muster.providers.ray_classes.provider import CompatProvider, GuardedObject
from muster.testing import ProviderContract


class ClusterGcpLike(GcpLike):
    """Sees the machines of its own cluster only, by their labels."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self.machines = self.world.setdefault(f"{cluster_name} {self.zone}", {})


class TestCompatProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def _fresh(self):
        GcpLike.reset()

    def make_provider(self, cluster_name):
        def made(zone):
            return GuardedObject(lambda: ClusterGcpLike({"availability_zone": zone}, cluster_name))

        config = {"type": "gcp", "availability_zone": "r-a"}
        return CompatProvider(
            config, cluster_name, {zone: made(zone) for zone in ("r-a", "r-b")}, SystemClock()
        )
