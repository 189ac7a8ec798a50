"""What is known of the nodes: whole files, one writer at a time, nothing lost."""

from __future__ import annotations

import subprocess
import sys

import pytest
from msgspec.structs import replace
from tests.providers.process.stand_in import record

from muster.host.processes import ProcessIdentity
from muster.providers.process.ray_command import NodePorts
from muster.providers.process.records import NodeDirectory

TAGGER = """
import sys
from pathlib import Path
from msgspec.structs import replace
from muster.providers.process.records import NodeDirectory
directory, who = NodeDirectory(Path(sys.argv[1])), sys.argv[2]
for number in range(40):
    tag = {f"{who}-{number}": "x"}
    directory.change("node-1", lambda now: replace(now, tags={**now.tags, **tag}))
"""


@pytest.fixture
def directory(tmp_path):
    return NodeDirectory(tmp_path / "nodes")


def test_a_record_reads_back_as_it_was_written(directory) -> None:
    mark = ProcessIdentity(pid=7, started="99", boot="b")
    ports = NodePorts(agent_http=1, agent_grpc=2, metrics=3, gcs=4, client=5)
    written = record(
        state="running", ports=ports, owner=mark, process=mark, main_process=mark, started_at=2.0
    )
    directory.add([written])
    assert (directory.find("node-1"), directory.records()) == (written, [written])


def test_records_are_listed_oldest_first(directory) -> None:
    directory.add([record("b", created_at=2.0), record("c", created_at=1.0), record("a", created_at=2.0)])
    assert [one.cloud_id for one in directory.records()] == ["c", "a", "b"]


def test_a_change_is_seen_at_once_and_none_leaves_all_as_it_was(directory) -> None:
    directory.add([record()])
    assert directory.change("node-1", lambda now: replace(now, state="running")).state == "running"
    assert directory.change("node-1", lambda now: None) is None
    assert directory.find("node-1").state == "running"
    assert directory.change("nobody", lambda now: now) is None
    directory.forget("node-1")
    assert directory.records() == []


def test_a_damaged_file_is_told_and_left_out(directory, caplog) -> None:
    directory.add([record(), record("node-2")])
    (directory.path / "node-1.json").write_bytes(b'{"v": 1, "d": {')
    assert [one.cloud_id for one in directory.records()] == ["node-2"]
    (warning,) = caplog.messages
    assert str(directory.path / "node-1.json") in warning


@pytest.mark.slow
def test_several_processes_lose_nothing_of_each_others_changes(directory) -> None:
    directory.add([record()])
    command = [sys.executable, "-c", TAGGER, str(directory.path)]
    writers = [subprocess.Popen([*command, who]) for who in ("x", "y", "z")]
    assert [one.wait(60) for one in writers] == [0, 0, 0]
    expected = {"a": "1", **{f"{who}-{number}": "x" for who in "xyz" for number in range(40)}}
    assert directory.find("node-1").tags == expected


def test_the_temporary_directory_is_short_private_and_found_again(directory) -> None:
    root = directory.temp_root()
    try:
        again = NodeDirectory(directory.path).temp_root()
        assert (again, root.stat().st_mode & 0o777) == (root, 0o700)
        session = "session_2026-11-16_05-50-11_167705_4194304/sockets/plasma_store"
        assert len(f"{root}/node-0123456789ab/{session}") <= 103  # 107 on Linux, 103 on macOS
    finally:
        assert directory.remove_temp_root() == root
    assert (root.exists(), directory.remove_temp_root()) == (False, None)
