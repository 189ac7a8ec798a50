from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.autoscaler.lifecycle.own_machines import OwnMachines
from tests.mistakes.views import assert_line
from tests.providers.rack.local_hosts import BashRunner

from muster.autoscaler.lifecycle.open import LaunchContext, OpenCluster
from muster.autoscaler.lifecycle.preflight import (
    ExpectedVersions,
    Finding,
    Probe,
    here,
    judged,
    preflight,
    probe_line,
    probed,
    read_probe,
)
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.config.document import Document
from muster.providers.kind import parse_config
from muster.providers.rack.host_lock import HostReport

GOOD = Probe(
    report=HostReport(now=100.0, cpus=8, boot="b", disk_bytes=10**12),
    python="3.11.7",
    ray="2.60.0",
    has_rsync=True,
)
HEAD = ExpectedVersions(
    cluster="c", is_head=True, ray="2.60.0", has_setup=False, has_mounts=True, in_container=False
)
WORKER = replace(HEAD, is_head=False)


def findings(probe: Probe, expected: ExpectedVersions = HEAD) -> list[tuple[str, str, bool]]:
    return [(one.problem, one.fix, one.is_fatal) for one in judged("h", probe, expected)]


def test_a_good_host_has_no_findings():
    assert findings(GOOD) == []


@pytest.mark.parametrize(
    ("changes", "problem", "fix", "is_fatal"),
    [
        ({"error": "it is off"}, "it is off", "see that it is on", True),
        (
            {"skew_s": -90.0},
            "its clock is -90 s from this computer's",
            "set its clock, for example with",
            False,
        ),
        ({"ports": (6379,)}, "port 6379 is taken", "end what listens there, or choose another port", True),
        ({"has_rsync": False}, "it has no rsync", "`sudo apt install rsync` there", True),
        ({"python": ""}, "it has no Python", "install Python 3.10 or newer", True),
        ({"python": "3.8.1"}, "its Python is 3.8.1", "muster and Ray need 3.10 or newer", True),
        ({"ray": ""}, "it has no ray where the start commands", "`pip install ray==2.60.0` there", True),
        (
            {"ray": "2.9.0"},
            "its Ray is 2.9.0",
            "`pip install ray==2.60.0` there: muster works with 2.48 to 2.60",
            True,
        ),
        (
            {"ray": "2.48.0"},
            "its Ray is 2.48.0, here it is 2.60.0",
            "`pip install ray==2.60.0` there: all",
            True,
        ),
        (
            {"ray": "2.60.1"},
            "its Ray is 2.60.1, here it is 2.60.0",
            "`pip install ray==2.60.0` there: all",
            False,
        ),
    ],
)
def test_each_problem_of_the_head_has_a_fix(changes, problem, fix, is_fatal):
    ((found, how, fatal),) = findings(replace(GOOD, **changes))
    assert found.startswith(problem) and how.startswith(fix) and fatal is is_fatal


def test_a_problem_of_a_worker_is_a_warning_because_it_is_skipped():
    assert [fatal for *_, fatal in findings(replace(GOOD, ports=(1,), ray=""), WORKER)] == [False, False]


def test_what_set_up_commands_may_install_is_not_fatal_and_in_a_container_the_host_needs_nothing():
    bare = replace(GOOD, python="", ray="")
    assert [fatal for *_, fatal in findings(bare, replace(HEAD, has_setup=True))] == [False, False]
    assert findings(bare, replace(HEAD, in_container=True)) == []


def test_a_host_of_another_cluster_is_named_and_one_of_this_cluster_is_fine():
    lock = '{"cluster":"c","cloud_id":"i","launcher":"me@x","taken_at":40.0,"boot":"b"}'
    mine = replace(GOOD, report=replace(GOOD.report, lock=lock, rays=0), ports=(6379,))
    assert findings(mine) == []
    theirs = replace(mine, report=replace(mine.report, lock=lock.replace('"c"', '"other"')), ports=())
    ((problem, fix, fatal),) = findings(theirs)
    assert (" 'other' (me@x, 60 s " in problem, fix != "", fatal) == (True, True, True)


@pytest.mark.parametrize(
    ("changes", "image", "found"),
    [
        ({"has_program": False}, "a", ("it has no podman", "`sudo apt install podman` there")),
        (
            {"may_use_program": False},
            "a",
            ("its user may not use podman", "add the user to the group podman there"),
        ),
        (
            {"has_image": False},
            "localhost/a",
            ("the image localhost/a is not there", "build it there, or fix docker.image"),
        ),
        ({"has_image": False}, "registry.io/a", None),
    ],
)
def test_what_a_container_needs_is_looked_for_and_fatal_unless_it_may_be_installed(changes, image, found):
    wanted = replace(HEAD, in_container=True, program="podman", image=image)
    probe = replace(GOOD, **changes)
    assert findings(probe, wanted) == ([(*found, True)] if found else [])
    installed = [(*found, False)] if found else []
    assert findings(probe, replace(wanted, may_be_installed=True)) == installed


class Lists(OwnMachines):
    """A provider that raises, or hangs, when it is asked for its machines."""

    def non_terminated_nodes(self, tag_filters):
        if self.provider_config["does"] == "raise":
            raise PermissionError("no rights for ListMachines")
        if self.provider_config["does"] == "hang":
            threading.Event().wait()
        return super().non_terminated_nodes(tag_filters)


def external_findings(tmp_path, does):
    file = tmp_path / "c.yaml"
    module = "tests.autoscaler.lifecycle.test_preflight.Lists"
    file.write_text(
        f"provider: {{type: external, module: {module}, folder: {tmp_path}, does: {does}}}\n"
        "cluster_name: own\n"
        "available_node_types: {head: {resources: {CPU: 1}}}\nhead_node_type: head\n"
        "head_start_ray_commands: [ray start --head]\n"
    )
    context = LaunchContext(tmp_path / "clusters", {}, SystemClock(), RandomIds())
    with OpenCluster(context, file) as session:
        return [(one.problem, one.is_fatal) for one in asyncio.run(preflight(session))]


def test_a_class_of_a_user_that_raises_hangs_or_answers_is_told_apart(tmp_path, monkeypatch):
    monkeypatch.setattr("muster.autoscaler.lifecycle.preflight.PROBE_S", 0.3)
    name = "tests.autoscaler.lifecycle.test_preflight.Lists.non_terminated_nodes"
    ((raised, is_fatal),) = external_findings(tmp_path, "raise")
    assert raised.startswith(f"{name} ") and is_fatal
    assert_line("autoscaler", "provider class raises", raised)
    ((hung, is_fatal),) = external_findings(tmp_path, "hang")
    assert hung.startswith(f"{name} ") and is_fatal
    assert_line("autoscaler", "provider class hangs", hung)
    assert external_findings(tmp_path, "answer") == []


def test_a_key_that_is_no_file_is_found(tmp_path):
    (found,) = here(config(f"auth: {{ssh_private_key: {tmp_path}}}\n"))
    assert f" {tmp_path} " in found.problem


def test_a_probe_of_this_computer_says_what_it_has(tmp_path):
    line = probe_line("~/locks", "ray", (1,), ("no-such-program", "an image"))
    probe = asyncio.run(probed(BashRunner(tmp_path / "h"), line, SystemClock()))
    assert (probe.error, probe.ports, probe.report.lock) == ("", (), "")
    assert (probe.has_program, probe.may_use_program, probe.has_image) == (False, False, False)
    assert probe.report.cpus > 0 and probe.report.memory_bytes > 10**8 and abs(probe.skew_s) < 30


def test_a_listening_port_is_read_as_hexadecimal():
    assert read_probe("now=5\nport=18EB\nport=zz\nrsync=1\n", now=5).ports == (6379,)


def config(text: str):
    return parse_config(Document(f"provider: {{type: local, head_ip: h, worker_ips: [a]}}\n{text}", "c.yaml"))


def test_a_key_that_others_may_read_an_absent_one_and_absent_files_are_found_here(tmp_path):
    loose = tmp_path / "loose key"
    loose.touch(mode=0o644)
    os.chmod(loose, 0o644)
    assert here(config(f"auth: {{ssh_private_key: '{loose}'}}\nfile_mounts: {{/x: {tmp_path}/none}}\n")) == [
        Finding(
            place="",
            problem=f"the key {loose} can be read by others (mode 644), so ssh refuses it",
            fix=f"`chmod 600 '{loose}'`",
        ),
        Finding(
            place="",
            problem=f"file_mounts: {tmp_path}/none (for /x) is not here",
            fix="create it, or remove the entry",
        ),
    ]
    (absent,) = here(config(f"auth: {{ssh_private_key: {tmp_path}/none}}\n"))
    assert f" {tmp_path}/none " in str(absent)
    assert Path(loose).exists()
