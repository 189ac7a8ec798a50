"""The promises of every implementation of the port, on a real Slurm; `sleep` stands in for Ray."""

from __future__ import annotations

import itertools

import pytest

from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.config.to_spec import node_launches
from muster.providers.kind import ProviderContext, build_provider, load_config
from muster.testing.provider_contract import CloudProviderContract

pytestmark = pytest.mark.slow
FILE = """\
cluster_name: {name}
provider: {{type: slurm, python: "sleep 600 #"}}
head_node_type: head
available_node_types: {{head: {{}}, cpu: {{node_config: {{cpus: 1, memory: 100M}}}}}}
"""
numbers = itertools.count(1)


class TestSlurmProvider(CloudProviderContract):
    @pytest.fixture(autouse=True)
    def site(self, slurm_site, tmp_path):
        file = tmp_path / "cluster.yaml"
        file.write_text(FILE.format(name=f"contract-{next(numbers)}"))
        self._home, self._config, self._made = tmp_path, load_config(file), []
        yield
        for provider in self._made:
            provider.close()
        slurm_site.wire.scancel([job.job_id for job in slurm_site.alive()])

    def open_provider(self):
        context = ProviderContext(
            cluster_name=self._config.cluster_name,
            home=self._home,
            address="127.0.0.1:1",
            clock=SystemClock(),
            ids=RandomIds(),
        )
        self._made.append(build_provider(self._config, lambda: node_launches(self._config), context))
        return self._made[-1]
