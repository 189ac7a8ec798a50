"""`muster gc` with a cloud in a file: it lists, refuses, asks and ends."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.autoscaler.test_down_external import Site
from tests.cli.cluster_samples import published
from tests.providers.v1.file_provider import FileNodeProvider

from muster.autoscaler.status_files import write_status
from muster.cli.main import cli
from muster.cluster.states import InstanceState as S
from muster.config.load import load_config
from muster.testing.builders import instance

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
    assert "2 hosts could not be asked, and what runs there is not known: 127.0.0.1, 127.0.0.2" in done.stderr


@pytest.mark.slow
def test_machines_without_a_head_are_listed_with_their_price_and_ended_when_asked(site):
    leave_behind(site, 2)
    listed = gc(str(site.file))
    assert listed.exit_code == 0
    lines = listed.stdout.splitlines()
    assert lines[0] == "rack: 2 machines that nobody owns"
    assert [line.split()[:3] for line in lines[2:4]] == [
        ["rack-1", "worker", "cpu"],
        ["rack-2", "worker", "cpu"],
    ]
    assert lines[2].endswith("$0.5/h")
    assert " ".join(lines[4:]) == "Together they cost $1 per hour; `muster gc rack --end` ends them"
    assert site.machines() == ["rack-1", "rack-2"]
    refused = gc(str(site.file), "--end", answer="n\n")
    assert (refused.exit_code, site.machines()) == (1, ["rack-1", "rack-2"])
    assert "Together they cost $1 per hour. End rack-1, rack-2? [Y/n]" in refused.stdout
    ended = gc(str(site.file), "--end", answer="y\n")
    assert (ended.exit_code, site.machines()) == (0, [])


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
    assert "error: nothing was ended: a head is listed that was not started from here: rack-2" in done.stderr
    assert "--force asks and ends them all the same" in done.stderr
    done = gc(str(site.file), "--end", "--force", "-y", answer="y\n")
    assert "Their price is not known. End rack-1, rack-2? [Y/n]" in done.stdout
    assert (done.exit_code, site.machines()) == (0, [])


def test_force_alone_and_a_cluster_that_nobody_knows_are_errors_of_one_line(site):
    assert gc("--force").stderr == "error: --force goes with --end: alone it changes nothing\n"
    assert "no cluster 'other' in" in gc("other").stderr


@pytest.mark.slow
def test_machines_that_did_not_end_are_named(site, monkeypatch):
    monkeypatch.setattr("muster.autoscaler.launch.unowned.END_S", 1.0)
    leave_behind(site, 1)
    (site.folder / "cloud" / "refuse").touch()
    done = gc(str(site.file), "--end", "-y")
    assert (done.exit_code, "rack-1 (" in done.stderr) == (3, True)


@pytest.mark.slow
def test_a_monitor_that_runs_owns_its_records_and_one_that_was_killed_cannot_be_asked(site):
    site.start()
    done = gc("rack", "--end", "-y")
    assert (done.exit_code, site.machines()) == (2, ["rack-1", "rack-2"])
    assert "has not published a status yet" in done.stderr
    write_status(site.home, published(instances=(instance("i", S.RAY_RUNNING, cloud_id="rack-1"),)))
    found = json.loads(gc("rack", "--json").stdout)
    assert (found["head"]["state"], [one["cloud_id"] for one in found["machines"]]) == ("runs", ["rack-2"])
    assert gc("rack", "--end", "-y").exit_code == 2
    site.kill()
    assert "the monitor on this computer does not run" in gc("rack", "--end", "-y").stderr
