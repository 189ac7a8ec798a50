"""The head on this computer, with a listening stand-in: started once, found again, ended with all."""

from __future__ import annotations

import re
import socket
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.mistakes.views import assert_line, assert_view
from tests.providers.process.stand_in import CLOCK, create, make_provider, shell, until

from muster.base.ids import RandomIds
from muster.cluster.model import NodeKind
from muster.errors import ProviderError, ProviderMisconfigured
from muster.host.processes import identify, is_alive
from muster.providers.process.head import (
    Head,
    HeadRequest,
    running_head,
    start_head,
    stop_everything,
    token_file,
)
from muster.providers.process.launch_queue import NodeProgram
from muster.providers.process.ray_command import NodeSize
from muster.providers.process.records import NodeDirectory

LISTEN = """
import socket, sys, time
one = socket.create_server(("127.0.0.1", int(sys.argv[1])))
print("Ray runtime started.", flush=True)
time.sleep(600)
"""
LISTENER = NodeProgram(
    command=lambda record, ports: [sys.executable, "-c", LISTEN, str(ports.gcs)], ready=b"Ray runtime started"
)


@pytest.fixture
def request_(tmp_path):
    yield HeadRequest(
        cluster_name="c",
        nodes=tmp_path / "nodes",
        node_type="head",
        size=NodeSize(resources={"CPU": 1}),
        auth={},
        environment={"PATH": "/usr/bin:/bin"},
        tags={"ray-launch-config": "hash"},
        timeout_s=60.0,
    )
    stop_everything(tmp_path / "nodes", CLOCK, grace_s=0.2)


def start(request: HeadRequest, program: NodeProgram = LISTENER, told: list[str] | None = None) -> Head:
    return start_head(request, CLOCK, RandomIds(), (told if told is not None else []).append, program)


def test_a_head_is_started_once_and_seen_by_the_provider(request_, tmp_path) -> None:
    told: list[str] = []
    head = start(request_, told=told)
    again = start(request_)
    port = int(head.address.rpartition(":")[2])
    assert (head.already, again) == (False, Head(**{**vars(head), "already": True}))
    assert_line("providers", "process head starts", told[0].replace(str(port), "PORT"))
    provider = make_provider(tmp_path, shell("exec sleep 600", main_process="raylet"))
    assert [one.node_id for one in provider.machines(NodeKind.HEAD)] == [head.cloud_id]
    assert provider.tags(head.cloud_id) == {
        "ray-launch-config": "hash",
        "ray-node-name": "ray-c-head",
        "ray-node-type": "head",
        "ray-user-node-type": "head",
        "ray-node-status": "up-to-date",
    }
    provider.close()


def test_everything_is_ended_with_its_files_and_twice_is_once(request_, tmp_path) -> None:
    head = start(request_)
    provider = make_provider(tmp_path, shell("exec sleep 600"))
    workers = create(provider, 2)
    assert until(lambda: all(map(provider.answers, workers)))
    provider.close()
    marks = [one.process for one in NodeDirectory(request_.nodes).records()]
    stopped = stop_everything(request_.nodes, CLOCK)
    assert (set(stopped.nodes[:2]), stopped.nodes[2:], dict(stopped.left)) == (
        set(workers),
        (head.cloud_id,),
        {},
    )
    assert ([is_alive(mark) for mark in marks], Path(stopped.temp_dir).exists()) == ([False] * 3, False)
    again = stop_everything(request_.nodes, CLOCK)
    assert (again.nodes, dict(again.left), again.temp_dir) == ((), {}, "")
    assert running_head(request_.nodes) is None


def test_a_head_that_died_is_replaced(request_) -> None:
    first = start(request_)
    mark = identify(first.pid)
    NodeDirectory(request_.nodes).change(
        first.cloud_id, lambda now: replace(now, process=replace(now.process, started="0"))
    )
    second = start(request_)
    assert (second.already, second.cloud_id != first.cloud_id) == (False, True)
    assert not is_alive(mark)  # what was left of it is ended by its name
    assert [one.cloud_id for one in NodeDirectory(request_.nodes).records()] == [second.cloud_id]


def test_a_port_in_use_is_refused_with_the_fix(request_) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        request = HeadRequest(**{**vars(request_), "port": port})
        with pytest.raises(ProviderMisconfigured, match=f"{port}"):
            start(request)
    assert start(request).address == f"127.0.0.1:{port}"


def test_a_head_that_ends_at_once_is_told_with_its_last_words(request_) -> None:
    with pytest.raises(ProviderError) as failed:
        start(request_, shell("echo cannot do this; exit 1"))
    assert_view("providers/head_ended", str(failed.value))
    assert running_head(request_.nodes) is None


@pytest.mark.slow
def test_a_head_that_never_answers_is_ended(request_) -> None:
    request = HeadRequest(**{**vars(request_), "timeout_s": 0.5})
    with pytest.raises(ProviderError) as failed:
        start(request, shell("echo thinking; exec sleep 600"))
    assert_view("providers/head_silent", str(failed.value))
    assert NodeDirectory(request_.nodes).records() == []


def test_a_start_that_ray_gave_up_on_is_tried_again(request_, tmp_path) -> None:
    mark = tmp_path / "tried"
    slow_once = NodeProgram(
        command=lambda record, ports: [
            "/bin/sh",
            "-c",
            f"[ -e {mark} ] || {{ touch {mark}; echo The current node timed out during startup.; exit 1; }};"
            f' exec {sys.executable} -c "$0" {ports.gcs}',
            LISTEN,
        ],
        ready=b"Ray runtime started",
    )
    told: list[str] = []
    start(request_, slow_once, told)
    assert_view("providers/head_again", "\n".join(re.sub(r"port \d+", "port PORT", line) for line in told))


def test_a_head_larger_than_the_computer_is_refused(request_) -> None:
    request = HeadRequest(**{**vars(request_), "size": NodeSize(resources={"memory": 1e15})})
    with pytest.raises(ProviderMisconfigured, match=r"head.*GB"):
        start(request)


def test_a_head_that_was_only_written_down_is_never_started_as_a_worker(request_, tmp_path) -> None:
    start(request_)
    directory = NodeDirectory(request_.nodes)
    (record,) = directory.records()
    directory.add([replace(record, cloud_id="head-2", state="pending", process=None, owner=None)])
    provider = make_provider(tmp_path, shell("exec sleep 600"))
    assert list(provider.list_instances()) == [record.cloud_id]
    assert until(lambda: directory.find("head-2").ended_at is not None)
    provider.close()


def test_a_token_is_made_once_and_is_its_owners_alone(tmp_path) -> None:
    file = tmp_path / "deep" / "auth_token"
    auth = token_file(file)
    token = file.read_text()
    file.chmod(0o644)
    assert token_file(file) == auth == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(file.resolve())}
    assert (file.read_text(), len(token), file.stat().st_mode & 0o777) == (token, 64, 0o600)
