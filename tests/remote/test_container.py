"""Containers: their command lines as values, and real podman on a host."""

from __future__ import annotations

import asyncio
import subprocess

import pytest
from msgspec.structs import replace
from tests.containers import HOME, machine_options, make_image
from tests.hosts import PATIENCE_S

from muster.config.node_launch import Container
from muster.errors import CommandFailed
from muster.remote.container import (
    ContainerRunner,
    exec_line,
    explained,
    goes_to_container,
    pull_line,
    run_arguments,
    shm_bytes,
)
from muster.remote.runner import Host, RunWhere
from muster.remote.ssh import SshRunner

HOSTS = 1
BOX = Container(
    image="ray:1",
    name="box",
    pull_before_run=True,
    run_options=("--ulimit nofile=1:2", "--env A='$(id) b'"),
    use_podman=False,
    detect_runtime=True,
    detect_shm_size=True,
)


def test_a_container_is_started_with_mounts_language_and_the_network_of_the_machine():
    argv = run_arguments("docker", BOX, {"/data/a b": "/disk/a b"}, ["--shm-size=9b"])
    kept = run_arguments("docker", BOX, {"/data/a b": "/disk/a b"}, ["--shm-size=9b"], is_kept=True)
    assert kept == [word for word in argv if word != "--rm"]
    assert argv == [
        *("docker", "run", "--rm", "--name", "box", "-d", "-it", "-v", "/disk/a b:/data/a b"),
        *("-e", "LC_ALL=C.UTF-8", "-e", "LANG=C.UTF-8", "--shm-size=9b"),
        *("--ulimit", "nofile=1:2", "--env", "A=$(id) b", "--net=host", "ray:1", "bash"),
    ]


def test_an_image_is_pulled_first_or_only_when_it_is_missing():
    have = "docker image inspect ray:1 >/dev/null 2>&1"
    assert pull_line("docker", BOX) == f"docker pull -q ray:1 || {have}"
    assert pull_line("docker", replace(BOX, pull_before_run=False)) == f"{have} || docker pull -q ray:1"
    assert pull_line("podman", replace(BOX, image="a;id")).startswith("podman pull -q 'a;id' ||")


def test_values_are_not_in_the_line_that_enters_a_container():
    line = exec_line("docker", "my box", "echo $TOKEN", ["TOKEN"], login_shell=True)
    assert line == "docker exec -i -e TOKEN 'my box' bash --login -i -c 'echo $TOKEN'"


@pytest.mark.parametrize(
    ("command", "where", "expected"),
    [
        ("ray start", RunWhere.AUTO, True),
        ("docker ps", RunWhere.AUTO, False),
        ("podman ps", RunWhere.AUTO, False),
        ("dockerize x", RunWhere.AUTO, True),
        ("", RunWhere.AUTO, False),
        ("ray start", RunWhere.HOST, False),
        ("docker ps", RunWhere.CONTAINER, True),
    ],
)
def test_commands_run_in_the_container_unless_they_are_dockers_own(command, where, expected):
    assert goes_to_container(command, where) is expected


def test_shared_memory_is_a_little_more_than_the_object_store():
    assert shm_bytes("MemTotal: 9 kB\nMemAvailable:  1000000 kB\n") == int(1000000 * 1024 * 0.3 * 1.1)
    assert shm_bytes("") == 0


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("docker: not found", "docker is not there: install it"),
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker", "start it"),
        ("permission denied while trying to connect to the Docker daemon socket", "group docker"),
        ("Error response from daemon: manifest unknown", "check docker.image"),
    ],
)
def test_what_docker_complains_about_comes_with_a_fix(said, fix):
    error = CommandFailed(f"`docker` ended with code 1 on h: {said}", exit_code=1, last_lines=[said])
    assert fix in str(explained(error, "docker", "ray:1"))


# ---- with podman


@pytest.fixture(scope="module")
def image(hosts):
    yield make_image(hosts, hosts[0])
    hosts.run_on(hosts[0], ["podman", "rm", "-fa", "-t", "0"])


@pytest.fixture
def box(hosts, image):
    ssh = SshRunner(Host(ip=hosts[0].ip, user="root", private_key=str(hosts.key)))
    options = (*machine_options(), "--env WORD='a b'")
    return ContainerRunner(ssh, replace(BOX, image=image, use_podman=True, run_options=options))


def run(hosts, work):
    with hosts.inside():
        return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


@pytest.mark.slow
def test_a_container_gets_files_commands_and_secrets_and_is_started_once(hosts, box, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "a.txt").write_text("one")
    (tmp_path / "key $x").write_text("a key")
    mounts = {"~/code": str(tmp_path / "code")}

    async def story():
        await box.sync_up(mounts["~/code"], "~/code")
        await box.sync_up(str(tmp_path / "key $x"), "~/deep/key $x")
        starts = [await box.prepare(as_head=False, file_mounts=mounts, is_synced=True) for _ in range(2)]
        asked = 'echo $HOME $WORD $PLAIN $TOKEN; cat ~/code/a.txt ~/deep/"key \\$x"; ls /run/.containerenv'
        answer = await box.run(asked, environment={"PLAIN": "p 'q'"}, secrets={"TOKEN": "s3cret-9"})
        (tmp_path / "code" / "a.txt").write_text("two")
        await box.sync_up(mounts["~/code"], "~/code")
        await box.sync_up(str(tmp_path / "key $x"), "~/later")
        later = await box.run("cat ~/code/a.txt ~/later")
        await box.sync_down("~/deep/", str(tmp_path / "back"))
        outside = await box.run("ls /run/.containerenv 2>&1 || true", where=RunWhere.HOST)
        return starts, answer, later, outside

    starts, answer, later, outside = run(hosts, story())
    assert starts == [True, False]
    assert answer == f"{HOME} a b p 'q' ***\nonea key/run/.containerenv\n"
    assert later == "twoa key" and "No such file" in outside
    assert (tmp_path / "back" / "key $x").read_text() == "a key"


@pytest.mark.slow
def test_a_container_is_made_anew_when_a_mount_is_missing_it_is_gone_or_the_image_is_another(
    hosts, box, tmp_path
):
    async def story():
        start = {"as_head": True, "is_synced": False}
        await box.prepare(file_mounts={}, **start)
        again = await box.prepare(file_mounts={"/data": str(tmp_path)}, **start)
        same = await box.prepare(file_mounts={"/data": str(tmp_path)}, **start)
        await box.run("podman rm -f -t 0 box")
        gone = await box.prepare(file_mounts={}, **start)
        await box.run(f"podman tag {box._container.image} localhost/other:1")
        box._container = replace(box._container, image="localhost/other:1")
        return again, same, gone, await box.prepare(file_mounts={}, **start)

    assert run(hosts, story()) == (True, False, True, True)


@pytest.mark.slow
def test_a_command_that_takes_too_long_ends_in_the_container(hosts, box):
    async def story():
        await box.prepare(as_head=False, file_mounts={}, is_synced=True)
        with pytest.raises(TimeoutError):
            await box.run("sleep 4321", timeout_s=1.0)
        return await box.run(
            "sleep 1234 & echo started"
        )  # and what stays in the background is not waited for

    assert run(hosts, story()) == "started\n"
    assert [line for line in hosts.commands(hosts[0]) if "4321" in line] == []


@pytest.mark.slow
def test_an_image_that_is_nowhere_is_named(hosts, box, image):
    box._container = replace(box._container, image="localhost/none:1")
    with pytest.raises(CommandFailed, match="localhost/none:1"):
        run(hosts, box.prepare(as_head=False, file_mounts={}, is_synced=True))


@pytest.mark.slow
def test_a_terminal_is_in_the_container(hosts, box):
    run(hosts, box.prepare(as_head=False, file_mounts={}, is_synced=True))
    argv = box.shell("echo $WORD $HOME")
    argv[1:1] = ["-o", "StrictHostKeyChecking=no"]
    done = hosts.run_in_controller(argv, stdin=subprocess.DEVNULL)
    assert f"a b {HOME}" in done.stdout, done
