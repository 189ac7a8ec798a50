"""The provider of nodes on this computer keeps the promises of every port; `sleep` stands in for Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.providers.process.stand_in import CLOCK, make_provider

from muster.providers.process.launch_queue import NodeProgram
from muster.providers.process.provider import ProcessProvider
from muster.providers.process.stop import stop_everything
from muster.testing.provider_contract import CloudProviderContract

SLEEPER = NodeProgram(command=lambda record, ports: ["sleep", "600"])


class TestProcessProvider(CloudProviderContract):
    node_type = "small"

    @pytest.fixture(autouse=True)
    def _places(self, tmp_path: Path) -> Iterator[None]:
        self._home, self._made = tmp_path, []
        yield
        for provider in self._made:
            provider.close()
        stop_everything(tmp_path / "nodes", CLOCK)

    def open_provider(self) -> ProcessProvider:
        self._made.append(make_provider(self._home, SLEEPER, grace_s=1.0))
        return self._made[-1]
