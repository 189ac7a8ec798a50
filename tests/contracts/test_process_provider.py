"""The provider of nodes on this computer keeps the promises of every provider; `sleep` stands in for Ray."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.providers.process.program import NodeProgram
from muster.providers.process.provider import ProcessNodeProvider
from muster.providers.process.stop import stop_everything
from muster.providers.registry import ProviderContext
from muster.testing.provider_contract import ProviderContract

SLEEPER = NodeProgram(command=lambda record, ports: ["sleep", "600"])


class TestProcessProvider(ProviderContract):
    starts_within_s = 30.0

    @pytest.fixture(autouse=True)
    def _places(self, tmp_path: Path) -> Iterator[None]:
        self._start_dir, self._made = tmp_path, []
        yield
        for provider in self._made:
            provider.close()
        stop_everything(tmp_path / "nodes", SystemClock())

    def make_provider(self, cluster_name: str) -> ProcessNodeProvider:
        surroundings = ProviderContext(
            cluster_name=cluster_name, home=self._start_dir, address="", clock=SystemClock(), ids=RandomIds()
        )
        self._made.append(ProcessNodeProvider({}, cluster_name, surroundings, program=SLEEPER, grace_s=1.0))
        return self._made[-1]
