"""A provider's own command runner, behind the contract; and when it is the one that is used."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
from pathlib import Path

import pytest

from muster.config.document import Document
from muster.errors import CommandFailed, RemoteError
from muster.providers.kind import parse_config
from muster.providers.node_provider import NodeProvider
from muster.providers.v1.calls import has_own_runner, own_runner
from muster.remote.connect import host_of, runner_for
from muster.remote.container import ContainerRunner
from muster.remote.own_runner import OwnRunner
from muster.remote.runner import RunWhere
from muster.remote.ssh import SshRunner


class Theirs:
    """A blocking runner with Ray's names, whose machine is a directory of this one."""

    def __init__(self, home: Path) -> None:
        self.home, self.calls = home, []

    def run(self, cmd, timeout=120, exit_on_fail=False, port_forward=None, with_output=False,
            environment_variables=None, run_env="auto"):  # fmt: skip
        self.calls.append((cmd, timeout, environment_variables, run_env))
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"], **(environment_variables or {})}
        return subprocess.check_output(["bash", "-c", cmd], env=env, stderr=subprocess.STDOUT)

    def run_rsync_up(self, source, target, options=None):
        self.calls.append(("up", source, target, options))
        subprocess.check_call(["cp", "-rp", source.rstrip("/"), self._here(target)])

    def run_rsync_down(self, source, target, options=None):
        subprocess.check_call(["cp", "-rp", self._here(source), target])

    def run_init(self, *, as_head, file_mounts, sync_run_yet):
        self.calls.append(("init", as_head, file_mounts, sync_run_yet))
        return True

    def remote_shell_command_str(self):
        return "ssh -tt -i 'my key' me@host"

    def _here(self, path: str) -> str:
        return path.rstrip("/").replace("~", str(self.home), 1)


@pytest.fixture
def theirs(tmp_path):
    (tmp_path / "home").mkdir()
    return Theirs(tmp_path / "home")


def test_a_command_runs_with_its_variables_and_returns_its_output(theirs):
    seen = []
    runner = OwnRunner(theirs, "n-1")
    work = runner.run("echo $A", environment={"A": "x y"}, where=RunWhere.HOST, on_output=seen.append)
    assert asyncio.run(work) == "x y\n"
    assert seen == [b"x y\n"] and theirs.calls == [("echo $A", 120, {"A": "x y"}, "host")]


def test_secrets_travel_in_a_private_file_that_is_gone_before_the_command_starts(theirs):
    answer = asyncio.run(OwnRunner(theirs, "n-1").run("ls -A ~; echo ${#T} $T", secrets={"T": "s3cret $(x)"}))
    assert answer == "11 ***\n"
    assert "s3cret" not in repr(theirs.calls)


def test_a_command_that_fails_says_so_with_its_code(theirs):
    with pytest.raises(CommandFailed, match="n-1") as raised:
        asyncio.run(OwnRunner(theirs, "n-1").run("echo why; exit 3"))
    assert (raised.value.exit_code, raised.value.last_lines) == (3, ("why",))


def test_files_go_both_ways(theirs, tmp_path):
    (tmp_path / "file").write_text("text")

    async def both():
        runner = OwnRunner(theirs, "n-1")
        await runner.sync_up(str(tmp_path / "file"), "~/sub dir/file", exclude=["*.pyc"])
        await runner.sync_down("~/sub dir/file", str(tmp_path / "new" / "back"))

    asyncio.run(both())
    assert (tmp_path / "new" / "back").read_text() == "text"
    assert theirs.calls[-1][3] == {"rsync_exclude": ["*.pyc"]}


def test_the_container_is_theirs_to_start(theirs):
    work = OwnRunner(theirs, "n-1").prepare(as_head=True, file_mounts={"a": "b"}, is_synced=False)
    assert asyncio.run(work) is True
    assert theirs.calls == [("init", True, {"a": "b"}, False)]


def test_a_terminal_is_theirs_with_our_ports(theirs):
    argv = OwnRunner(theirs, "n-1").shell("top", forward=[(1, 2)])
    assert argv == ["ssh", "-L", "1:localhost:2", "-tt", "-i", "my key", "me@host", "top"]


def test_a_runner_that_hangs_holds_up_nobody_else(theirs):
    release = threading.Event()
    hanging = Theirs(theirs.home)
    hanging.run = lambda cmd, **options: release.wait(60)

    async def both():
        stuck = asyncio.create_task(OwnRunner(hanging, "n-1").run("x", timeout_s=0.2))
        answer = await OwnRunner(theirs, "n-2").run("echo fine")
        with pytest.raises(TimeoutError, match="n-1"):
            await stuck
        return answer

    assert asyncio.run(both()) == "fine\n"
    release.set()


@pytest.mark.parametrize("raised", [ValueError("odd"), SystemExit(1), RuntimeError()])
def test_whatever_their_runner_raises_is_one_sentence_about_the_machine(theirs, raised):
    def run(cmd, **options):
        raise raised

    theirs.run = run
    with pytest.raises(RemoteError, match="n-1"):
        asyncio.run(OwnRunner(theirs, "n-1").run("x"))


def test_a_method_that_is_missing_is_named():
    with pytest.raises(RemoteError, match="run_init"):
        asyncio.run(OwnRunner(object(), "n-1").prepare(as_head=False, file_mounts={}, is_synced=False))


# ---- which runner is used


class Plain(NodeProvider):
    pass


class WithRunner(NodeProvider):
    def get_command_runner(self, log_prefix, node_id, auth_config, cluster_name, process_runner,
                           use_internal_ip, docker_config=None):  # fmt: skip
        self.asked = (node_id, auth_config, cluster_name, process_runner, use_internal_ip, docker_config)
        return Theirs(Path("/nowhere"))


def test_a_providers_own_runner_is_used_where_it_has_one():
    provider = WithRunner({}, "c")
    assert (has_own_runner(provider), has_own_runner(Plain({}, "c")), has_own_runner(object())) == (
        True,
        False,
        False,
    )
    runner = own_runner(provider, "n-1", auth={"ssh_user": "me"}, cluster_name="c")
    assert isinstance(runner, OwnRunner)
    assert provider.asked == ("n-1", {"ssh_user": "me"}, "c", subprocess, True, {})


def test_a_provider_whose_runner_cannot_be_made_is_named():
    provider = WithRunner({}, "c")
    provider.get_command_runner = lambda **options: None
    with pytest.raises(RemoteError, match="n-1"):
        own_runner(provider, "n-1", auth={}, cluster_name="c")
    with pytest.raises(RemoteError, match="n-1"):
        own_runner(Plain({}, "c"), "n-1", auth={}, cluster_name="c")


def config(**sections: str):
    text = "cluster_name: c\nprovider: {type: aws, region: eu-1}\nmax_workers: 1\nhead_node_type: h\n"
    text += "available_node_types: {h: {resources: {CPU: 1}, node_config: {}}}\n"
    return parse_config(
        Document(text + "".join(f"{key}: {value}\n" for key, value in sections.items()), "c.yaml")
    )


def test_how_a_host_is_reached_comes_from_the_section_auth():
    auth = "{ssh_user: me, ssh_private_key: ~/k, ssh_proxy_command: 'p {instance_id} {region} {ip} %h'}"
    host = host_of(config(auth=auth), "10.0.0.5", instance_id="i-5", known_hosts="/pins")
    assert (host.ip, host.user, host.private_key, host.known_hosts) == ("10.0.0.5", "me", "~/k", "/pins")
    assert host.proxy_command == "p i-5 eu-1 10.0.0.5 %h" and host.strict_host_keys


def test_a_proxy_may_want_the_id_instead_of_the_address():
    auth = "{ssh_proxy_command: 'ssm %h', ssh_proxy_use_node_id: true, strict_host_keys: false}"
    host = host_of(config(auth=auth), "10.0.0.5", instance_id="i-5")
    assert (host.ip, host.strict_host_keys) == ("i-5", False)


def test_a_node_with_a_container_is_reached_in_it():
    plain = config()
    boxed = config(docker="{image: i, container_name: c}")
    assert isinstance(runner_for(plain, SshRunner(host_of(plain, "h")), node_type="h"), SshRunner)
    assert isinstance(runner_for(boxed, SshRunner(host_of(boxed, "h")), node_type="h"), ContainerRunner)
