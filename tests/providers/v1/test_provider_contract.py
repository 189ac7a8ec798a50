"""Providers that keep their promises pass the contract."""

from __future__ import annotations

import pytest
from tests.providers.v1.dict_provider import DictNodeProvider
from tests.providers.v1.file_provider import FileNodeProvider

from muster.testing import ProviderContract


class TestDictNodeProvider(ProviderContract):
    def make_provider(self, cluster_name):
        return DictNodeProvider({}, cluster_name)


class TestFileNodeProvider(ProviderContract):
    @pytest.fixture(autouse=True)
    def _place(self, tmp_path):
        self.place = tmp_path

    def make_provider(self, cluster_name):
        return FileNodeProvider({"state_dir": str(self.place)}, cluster_name)
