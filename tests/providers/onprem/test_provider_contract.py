"""The promises of every v1 provider, on hosts that are directories of this computer."""

from __future__ import annotations

import pytest
from tests.providers.onprem.local_hosts import Racks, workers

from muster.testing.provider_contract import ProviderContract


class TestOnPremProvider(ProviderContract):
    crowd = 4
    several = 2

    @pytest.fixture(autouse=True)
    def racks(self, tmp_path, monkeypatch):
        # What another object has ended is seen at the next look at its host.
        monkeypatch.setattr("muster.providers.onprem.rack.FRESH_S", 0.5)
        self.all = Racks(tmp_path, workers(6))
        yield
        self.all.close()

    def make_provider(self, cluster_name):
        return self.all.provider(cluster_name)
