"""The line that starts the watcher of notices on a worker."""

from __future__ import annotations

import pytest

from muster.config.schema import ClusterConfig, MusterConfig, NoticesConfig, ProviderConfig
from muster.providers.kind import rules_named
from muster.remote.notices import notices_line
from muster.remote.steps import NodeSetup, RunCommand, update_steps


def line(kind, *, ray="ray", **notices):
    muster = MusterConfig(notices=NoticesConfig(**notices))
    config = ClusterConfig(provider=ProviderConfig(type=kind), muster=muster, rules=rules_named(kind))
    return notices_line(config, port=1234, ray=ray)


@pytest.mark.parametrize("cloud", ["aws", "azure", "gcp"])
def test_the_provider_says_whose_metadata_service_is_asked(cloud):
    made = line(cloud, ray="/opt/my ray/bin/ray")
    assert '--head "$RAY_HEAD_IP:1234" ' in made
    assert f"--cloud {cloud} --ray '/opt/my ray/bin/ray' >" in made


def test_other_providers_announce_nothing_unless_the_file_says_so():
    assert line("local") == line("aws", source="none") == ""
    made = line("external", source="gcp", address="http://127.0.0.1:80")
    assert "--cloud gcp --ray ray --address http://127.0.0.1:80 >" in made


def test_the_watcher_starts_after_ray_where_ray_runs_with_its_token():
    setup = NodeSetup(start_commands=("ray start",), notices="watch", secrets={"T": "x"})
    (*_, step) = update_steps(setup, {})
    assert step.work == (
        RunCommand(command="ray start", takes_secrets=True),
        RunCommand(command="watch", takes_secrets=True),
    )
