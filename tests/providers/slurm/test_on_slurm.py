"""What a real Slurm does to the jobs of a provider; `sleep` stands in for Ray."""

from __future__ import annotations

import contextlib
import itertools
import subprocess

import pytest

from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.cluster.model import FailureKind
from muster.config.to_spec import node_launches
from muster.errors import MusterError
from muster.providers.kind import ProviderContext, build_provider, load_config
from muster.providers.slurm import provider as slurm
from muster.providers.slurm.batch import job_name
from muster.providers.slurm.build import check_site

pytestmark = pytest.mark.slow
FILE = """\
cluster_name: {cluster}
provider: {{type: slurm, python: "{python}"}}
head_node_type: head
max_workers: 8
available_node_types:
  head: {{}}
  cpu: {{node_config: {{partition: main, cpus: 2, {more}}}}}
"""
SLEEP = "sleep 600 #"
numbers = itertools.count(1)


def request():
    return f"r-{next(numbers)}"


@pytest.fixture
def cluster():
    """A cluster that no earlier test had: Slurm remembers ended jobs, and failed ones are listed."""
    return f"site-{next(numbers)}"


@pytest.fixture
def made(slurm_site, cluster, tmp_path, monkeypatch):
    monkeypatch.setattr(slurm, "LIST_EVERY_S", 0.2)
    providers = []

    def make(python=SLEEP, more="memory: 100M"):
        file = tmp_path / "cluster.yaml"
        file.write_text(FILE.format(cluster=cluster, python=python, more=more))
        config = load_config(file)
        context = ProviderContext(
            cluster_name=cluster, home=tmp_path, address="127.0.0.1:1", clock=SystemClock(), ids=RandomIds()
        )
        providers.append(build_provider(config, lambda: node_launches(config), context))
        return providers[-1], config

    yield make
    for provider in providers:
        provider.close()
    slurm_site.wire.scancel([job.job_id for job in slurm_site.alive()])


def listed(provider):
    """The machines; an empty list while the controller is away."""
    try:
        return list(provider.list_instances().values())
    except MusterError:
        return []


def until(site, look, holds):
    found = []

    def done():
        found[:] = [look()]
        return holds(found[0])

    site.wait(done, 30.0)
    return found[0]


def running(provider, count):
    return lambda: sum(one.is_running for one in listed(provider)) == count


def test_a_controller_that_is_away_leaves_the_list_unknown_and_the_jobs_running(made, slurm_site):
    (provider, _), name = made(), request()
    provider.launch(name, {"cpu": 2})
    slurm_site.wait(running(provider, 2), 30.0)
    before = {one.cloud_id for one in listed(provider)}
    slurm_site.kill_controller()
    try:
        provider._is_stale = True
        with pytest.raises(MusterError):
            provider.list_instances()
    finally:
        slurm_site.start_controller()
    after = until(slurm_site, lambda: listed(provider), bool)
    assert {one.cloud_id for one in after} == before


def test_a_job_that_is_preempted_is_gone_and_is_not_queued_again(made, slurm_site, cluster):
    provider, _ = made()
    provider.launch(request(), {"cpu": 4})  # all of the site
    slurm_site.wait(running(provider, 4), 30.0)
    script = "#!/bin/sh\nsleep 60\n"
    slurm_site.wire.sbatch(["--partition=urgent", "--cpus-per-task=2", "--output=/dev/null"], script)
    left = until(slurm_site, lambda: listed(provider), lambda machines: len(machines) < 4)
    assert all(one.is_running for one in left)
    assert not [job for job in slurm_site.alive() if job.name == job_name(cluster) and job.is_waiting]


def test_a_job_is_not_queued_again_by_a_node_that_fails(made, slurm_site, cluster):
    provider, _ = made()
    provider.launch(request(), {"cpu": 1})
    slurm_site.wait(running(provider, 1), 30.0)
    (job,) = [one for one in slurm_site.alive() if one.name == job_name(cluster)]
    slurm_site.scontrol("update", f"NodeName={job.nodes}", "State=DOWN", "Reason=test")
    try:
        until(slurm_site, lambda: listed(provider), lambda machines: not machines)
    finally:
        with contextlib.suppress(subprocess.CalledProcessError):  # it has come back by itself
            slurm_site.scontrol("update", f"NodeName={job.nodes}", "State=RESUME")
    assert job.job_id not in {one.job_id for one in slurm_site.alive()}


def test_a_job_that_cannot_start_its_node_says_why(made, slurm_site):
    provider, _ = made(python="no-such-python")
    provider.launch(request(), {"cpu": 1})
    (machine,) = until(slurm_site, lambda: listed(provider), lambda found: found and found[0].problem)
    assert machine.problem.kind is FailureKind.CONFIG
    assert "no-such-python" in machine.problem.message
    provider.terminate("t-1", [machine.cloud_id])
    until(slurm_site, lambda: listed(provider), lambda machines: not machines)


def test_a_time_limit_that_the_partition_never_grants_is_found_before_up_and_in_the_queue(made, slurm_site):
    provider, config = made(more='time: "120"')
    (finding,) = check_site(provider, config, lambda step: None)
    assert finding.key == ("available_node_types", "cpu", "node_config")
    provider.launch(request(), {"cpu": 1})
    (machine,) = until(slurm_site, lambda: listed(provider), lambda found: found and found[0].problem)
    assert (machine.problem.kind, machine.problem.has_place) == (FailureKind.CONFIG, False)


@pytest.mark.parametrize("more", ['gres: "gpu:1"', "memory: 900G", "extra: [--partition=nope]"])
def test_what_slurm_refuses_is_found_before_up_and_fails_a_launch(made, slurm_site, more):
    provider, config = made(more=more)
    assert len(check_site(provider, config, lambda step: None)) == 1
    provider.launch(request(), {"cpu": 2})
    failures = until(slurm_site, provider.poll_launch_failures, bool)
    assert [failure.kind for failure in failures] == [FailureKind.CONFIG] * 2


def test_a_site_that_accepts_the_types_has_no_findings(made):
    provider, config = made()
    assert check_site(provider, config, lambda step: None) == []
