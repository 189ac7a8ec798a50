"""`muster gc` with a cloud in a file: it lists, refuses, asks and ends."""

from __future__ import annotations

import json
import time

import pytest
from click.testing import CliRunner
from tests.autoscaler.test_down_external import Site
from tests.cli.cluster_samples import published
from tests.mistakes.views import assert_view
from tests.providers.v1.file_provider import FileNodeProvider
from tests.support.builders import instance

from muster.autoscaler.status_files import write_status
from muster.cli.main import cli
from muster.cluster.states import InstanceState as S
from muster.providers.background_calls import InstanceLister
from muster.providers.kind import load_config
from muster.providers.machines import ClusterMachines

WORKER = {"ray-node-type": "worker", "ray-user-node-type": "cpu", "ray-launch-request": "r-9"}


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    made = Site(tmp_path)
    made.file.write_text(
        made.file.read_text().replace("min_workers: 2", "min_workers: 2, price_per_hour: 0.5")
    )
    yield made
    if made.monitor is not None:
        made.kill()
        made.monitor.stdout.close()


def gc(*words, answer=None):
    return CliRunner().invoke(cli, ["gc", *words], input=answer)


def leave_behind(site, count, **tags):
    cloud = FileNodeProvider(load_config(site.file).provider.settings(), "rack")
    cloud.create_node({}, {**WORKER, **tags}, count)


def test_nothing_is_left_behind_where_nothing_was_bought(site):
    done = gc(str(site.file))
    text = "rack: nothing is left behind; no head is listed or known here"
    assert (done.exit_code, " ".join(done.stdout.split())) == (0, text)


RACK = """cluster_name: rack
provider: {type: local, head_ip: 127.0.0.1, worker_ips: [127.0.0.2]}
auth: {ssh_private_key: /no/key}
head_start_ray_commands: [ray start --head]
"""


@pytest.mark.parametrize(
    ("words", "found"), [(["gc"], "nothing was found;"), (["down", "-y"], "nothing was found to end")]
)
def test_hosts_that_cannot_be_asked_are_not_taken_for_empty(tmp_path, monkeypatch, words, found):
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    (tmp_path / "rack.yaml").write_text(RACK)
    done = CliRunner().invoke(cli, [words[0], str(tmp_path / "rack.yaml"), *words[1:]])
    assert (done.exit_code, found in done.stdout) == (3, True)
    assert (" 2 " in f" {done.stderr}", ": 127.0.0.1, 127.0.0.2" in done.stderr) == (True, True)


@pytest.mark.slow
def test_machines_without_a_head_are_listed_with_their_price_and_ended_when_asked(site):
    leave_behind(site, 2)
    listed = gc(str(site.file))
    assert listed.exit_code == 0
    assert_view("cli/gc", listed.stdout.replace(str(site.file), "FILE"))
    assert site.machines() == ["rack-1", "rack-2"]
    refused = gc(str(site.file), "--end", answer="n\n")
    assert (refused.exit_code, site.machines()) == (1, ["rack-1", "rack-2"])
    assert ("$1" in refused.stdout, " rack-1, rack-2? [Y/n]" in refused.stdout) == (True, True)
    ended = gc(str(site.file), "--end", answer="y\n")
    assert (ended.exit_code, site.machines()) == (0, [])


@pytest.mark.slow
def test_a_host_that_did_not_answer_is_named_after_the_others_ended(site, monkeypatch):
    leave_behind(site, 1)
    monkeypatch.setattr(ClusterMachines, "silent_hosts", lambda self: {"127.0.0.9": "timed out"})
    ended = gc(str(site.file), "--end", "-y")
    assert (ended.exit_code, site.machines(), "127.0.0.9" in ended.stderr) == (3, [], True)


@pytest.mark.slow
def test_a_slow_list_is_waited_for(site, monkeypatch):
    leave_behind(site, 1)
    wait = InstanceLister.read
    monkeypatch.setattr(InstanceLister, "read", lambda self: setattr(self, "_wait_s", 0.05) or wait(self))
    quick = FileNodeProvider.non_terminated_nodes
    late = lambda self, tags: time.sleep(0.5) or quick(self, tags)  # noqa: E731
    monkeypatch.setattr(FileNodeProvider, "non_terminated_nodes", late)
    done = gc(str(site.file), "--json")
    assert (done.exit_code, len(json.loads(done.stdout)["machines"])) == (0, 1)


def test_json_has_every_field(site):
    leave_behind(site, 1)
    found = json.loads(gc(str(site.file), "--json").stdout)
    assert (found["cluster_name"], found["price_per_hour"], found["head"]["state"]) == (
        "rack",
        0.5,
        "there is none",
    )
    assert found["machines"][0]["request_id"] == "r-9"


@pytest.mark.slow
def test_a_head_that_cannot_be_asked_keeps_everything_until_it_is_forced_and_forcing_asks(site):
    leave_behind(site, 1)
    leave_behind(site, 1, **{"ray-node-type": "head", "ray-user-node-type": "head"})
    done = gc(str(site.file), "--end", "-y")
    assert (done.exit_code, site.machines()) == (2, ["rack-1", "rack-2"])
    assert (": rack-2" in done.stderr, "--force" in done.stderr) == (True, True)
    done = gc(str(site.file), "--end", "--force", "-y", answer="y\n")
    assert (" rack-1, rack-2? [Y/n]" in done.stdout, "$1 " in done.stdout) == (True, False)
    assert (done.exit_code, site.machines()) == (0, [])


def test_force_alone_and_a_cluster_that_nobody_knows_are_errors_of_one_line(site):
    forced, unknown = gc("--force"), gc("other")
    assert (forced.exit_code, unknown.exit_code) == (2, 2)
    assert (forced.stderr.count("\n"), unknown.stderr.count("\n")) == (1, 1)
    assert forced.stderr.startswith("error: --force ")
    assert " 'other' " in unknown.stderr


@pytest.mark.slow
def test_machines_that_did_not_end_are_named(site, monkeypatch):
    monkeypatch.setattr("muster.autoscaler.lifecycle.gc.END_S", 1.0)
    leave_behind(site, 1)
    (site.folder / "cloud" / "refuse").touch()
    done = gc(str(site.file), "--end", "-y")
    assert (done.exit_code, "rack-1 (" in done.stderr) == (3, True)


@pytest.mark.slow
def test_a_monitor_that_runs_owns_its_records_and_one_that_was_killed_cannot_be_asked(site):
    site.start()
    done = gc("rack", "--end", "-y")
    assert (done.exit_code, site.machines()) == (2, ["rack-1", "rack-2"])
    assert " status " in done.stderr
    write_status(site.home, published(instances=(instance("i", S.RAY_RUNNING, cloud_id="rack-1"),)))
    found = json.loads(gc("rack", "--json").stdout)
    assert (found["head"]["state"], [one["cloud_id"] for one in found["machines"]]) == ("runs", ["rack-2"])
    assert gc("rack", "--end", "-y").exit_code == 2
    site.kill()
    killed = gc("rack", "--end", "-y")
    assert (killed.exit_code, " monitor " in killed.stderr, " status " in killed.stderr) == (2, True, False)
