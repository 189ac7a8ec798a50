"""Nodes on this computer have a watcher of notices where the file names a cloud; it ends with its node."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from tests.host.metadata_server import EVENTS, NAME, PREEMPTED, SPOT, metadata_service
from tests.providers.process.stand_in import CLOCK, create, make_provider, shell, until

from muster.config.schema import ClusterConfig, MusterConfig, NoticesConfig, ProviderConfig
from muster.host.node_notices import ADDRESS_VARIABLE
from muster.host.processes import table, was_started_with
from muster.providers.process.records import NodeDirectory
from muster.providers.process.stop import stop_everything
from muster.remote.notices import notices_line

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bash") is None, reason="bash is not installed"),
]
ANSWERS = {
    "aws": {SPOT: {"action": "terminate", "time": "2017-09-18T08:22:00Z"}},
    "gcp": {PREEMPTED: "TRUE"},
    "azure": {
        NAME: "vm",
        EVENTS: {"Events": [{"EventId": "1", "EventType": "Preempt", "Resources": ["vm"]}]},
    },
}


@pytest.fixture
def told(tmp_path):
    """A stand-in for Ray's Python, which writes down what the head is told."""
    (tmp_path / "ray").write_text("")
    (tmp_path / "python3").write_text(f'#!/bin/sh\n{{ echo "$3 $4"; cat; echo; }} >> {tmp_path}/told\n')
    for name in ("ray", "python3"):
        (tmp_path / name).chmod(0o755)

    def read():
        file = tmp_path / "told"
        lines = file.read_text().splitlines() if file.exists() else []
        return {where: json.loads(value) for where, value in zip(lines[::2], lines[1::2], strict=False)}

    return read


def line(cloud: str, folder: Path) -> str:
    muster = MusterConfig(notices=NoticesConfig(source=cloud))
    config = ClusterConfig(provider=ProviderConfig(type="process"), muster=muster)
    return notices_line(config, address="head:1", ray=str(folder / "ray"))


def watchers(node: str) -> list[int]:
    entry = f"RAY_CLOUD_INSTANCE_ID={node}"
    return [
        one.pid
        for one in table()
        if one.is_alive and one.name.startswith("python") and was_started_with(one.pid, entry)
    ]


@pytest.mark.parametrize("cloud", ["aws", "gcp", "azure"])
def test_what_the_cloud_announces_about_one_node_reaches_the_head_and_its_watcher_ends_with_it(
    cloud, tmp_path, told
) -> None:
    with metadata_service() as service:
        program = shell("exec sleep 600", watcher=lambda: line(cloud, tmp_path))
        provider = make_provider(tmp_path, program, **{ADDRESS_VARIABLE: service.address_of_each})
        try:
            taken, other = create(provider, 2)
            for path, answer in ANSWERS[cloud].items():
                service.put(path, answer, machine=taken)
            assert until(lambda: told().get(f"head:1 notice/{taken}"), 60.0)
            notice = told()[f"head:1 notice/{taken}"]
            assert (notice["cloud_id"], notice["kind"]) == (taken, "interruption")
            assert notice["source"].startswith(f"{cloud}: ")
            assert until(lambda: any(f"/{other}/" in path for path in service.asked), 60.0)
            assert f"head:1 notice/{other}" not in told()
            provider.terminate_machines([taken])
            directory = NodeDirectory(tmp_path / "nodes")
            assert until(lambda: directory.find(taken).ended_at is not None)
            assert (watchers(taken), len(watchers(other))) == ([], 1)
        finally:
            provider.close()
            stop_everything(tmp_path / "nodes", CLOCK, grace_s=0.2)
    assert watchers(other) == []


def test_without_a_cloud_in_the_file_nodes_have_no_watcher() -> None:
    assert notices_line(ClusterConfig(provider=ProviderConfig(type="process")), address="head:1") == ""
