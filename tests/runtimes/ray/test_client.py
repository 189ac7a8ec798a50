"""What cannot be reached or is not there: one line, in bounded time. No cluster is started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.mistakes.views import assert_line
from tests.support.ray_cluster import AUTH

from muster.errors import EngineDenied, EngineUnreachable
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.native import check_auth, find_address


def message_of(error: type[Exception], address: str) -> str:
    with pytest.raises(error) as caught:
        GcsClient(address, AUTH).connect()
    text = str(caught.value)
    assert "\n" not in text
    return text


def test_a_port_where_nobody_listens_is_told_at_once() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound, not listening: refused, and nobody else gets it
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        started = time.monotonic()
        text = message_of(EngineUnreachable, address)
    assert_line("runtimes", "nobody listens", text.replace(address, "ADDRESS"))
    assert time.monotonic() - started < 30  # Ray alone would try for 40 s


@pytest.mark.slow
def test_a_port_that_answers_with_silence_is_given_up() -> None:
    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        text = message_of(EngineUnreachable, address)
    assert_line("runtimes", "silence", re.sub(r"\(.*\)", "(CAUSE)", text.replace(address, "ADDRESS")))


@pytest.mark.parametrize("address", ["", "head", "head:", ":6379", "head:0", "head:70000", "head:x"])
def test_what_is_no_address_is_refused_before_anything_is_tried(address: str) -> None:
    text = message_of(EngineUnreachable, address)
    assert_line("runtimes", "not an address", text.replace(repr(address), "ADDRESS"))


def test_without_ray_the_message_says_how_to_install_it() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from muster.errors import EngineMissing\n"
        "from muster.runtimes.ray import client, native, node_requests, node_source, publish, kv_board\n"
        "import muster.autoscaler.sdk as sdk\n"
        "try: sdk.get_cluster_status('127.0.0.1:1')\n"
        "except EngineMissing as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    (line,) = done.stdout.splitlines()
    assert_line("runtimes", "without Ray", re.sub(r"\(.*\)", "(CAUSE)", line))


def test_a_token_that_cannot_be_read_is_told_before_the_cluster_is_asked(tmp_path: Path) -> None:
    missing, empty = tmp_path / "nothing", tmp_path / "empty"
    empty.write_text("\n")
    for path, message in (
        (
            missing,
            f"{missing}: the token cannot be read (No such file or directory): see RAY_AUTH_TOKEN_PATH",
        ),
        (empty, f"{empty}: the token file is empty: copy the token of the head into it"),
    ):
        with pytest.raises(EngineDenied) as caught:
            check_auth({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(path)})
        assert str(caught.value) == message


def test_token_mode_without_any_token_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(EngineDenied, match="RAY_AUTH_TOKEN_PATH"):
        check_auth({"RAY_AUTH_MODE": "token"})
    check_auth({"RAY_AUTH_MODE": "disabled"})
    check_auth({})


def test_the_cluster_of_a_program_is_the_one_it_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "10.0.0.1:6379")
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert find_address() == "10.0.0.1:6379"
    assert find_address("10.0.0.2:6379") == "10.0.0.2:6379"
    with pytest.raises(EngineUnreachable) as no_head:
        find_address("auto")
    assert_line("runtimes", "address auto without a head", str(no_head.value))
    (tmp_path / "ray").mkdir()
    (tmp_path / "ray" / "ray_current_cluster").write_text("10.0.0.3:6379")
    assert find_address("auto") == "10.0.0.3:6379"
    with pytest.raises(EngineUnreachable) as ray_client:
        find_address("ray://10.0.0.1:10001")
    assert_line("runtimes", "address of Ray Client", str(ray_client.value))
    monkeypatch.delenv("RAY_ADDRESS")
    with pytest.raises(EngineUnreachable) as unnamed:
        find_address()
    assert_line("runtimes", "no address", str(unnamed.value))


def test_importing_the_package_does_not_import_ray() -> None:
    code = (
        "import sys\n"
        "from muster.runtimes.ray import client, node_requests, node_source, publish\n"
        "from muster.runtimes.ray import status, kv_board\n"
        "import muster.autoscaler.sdk\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True, env=dict(os.environ))


@pytest.mark.parametrize("change", ["kv_put", "drain_node", "report_state", "call"])
def test_a_client_that_only_reads_refuses_every_change_before_it_connects(change):
    client = GcsClient("127.0.0.1:1", read_only=True)  # nobody answers there: it must not even be tried
    arguments = {"kv_put": ("k", b"v"), "drain_node": ("ab", 1, "", 0), "report_state": (b"",)}
    with pytest.raises(EngineDenied) as denied:
        getattr(client, change)(*arguments.get(change, ("internal_kv_del", b"k", False, b"")))
    assert_line("runtimes", f"read-only client, {change}", str(denied.value))
