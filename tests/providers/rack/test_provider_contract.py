"""The promises of every implementation of the port, on hosts that are directories of this computer."""

from __future__ import annotations

import pytest
from tests.providers.rack.local_hosts import Racks, workers

from muster.testing.provider_contract import CloudProviderContract


class TestRackProvider(CloudProviderContract):
    @pytest.fixture(autouse=True)
    def racks(self, tmp_path):
        self.all = Racks(tmp_path, workers(6, "cpu"))
        yield
        self.all.close()

    def open_provider(self):
        return self.all.provider()
