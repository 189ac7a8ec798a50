"""SshRunner on real hosts: commands, files, secrets, and what can be wrong with a host or a key."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
from pathlib import Path

import psutil
import pytest
from tests.hosts import PATIENCE_S

from muster.errors import CommandFailed, HostKeyChanged, KeyRefused, RemoteError, Unreachable
from muster.remote.runner import Host
from muster.remote.ssh import CommandOutput, SshRunner, control_directory

pytestmark = pytest.mark.slow
HOSTS = 2
NASTY = "a b'\"`touch x`$(touch y);|&<>*?\\%h"
TOKEN = "token-9f8e7d"


def login(hosts, number: int = 0, **fields) -> Host:
    pins = str(hosts.directory / "known hosts")
    return Host(
        **{"ip": hosts[number].ip, "user": "root", "private_key": str(hosts.key), "known_hosts": pins}
        | fields
    )


def run(hosts, work):
    """Run a coroutine in the controller's network."""
    with hosts.inside():
        return asyncio.run(asyncio.wait_for(work, PATIENCE_S))


def test_a_command_gets_its_environment_and_returns_what_it_wrote(hosts):
    seen = []
    line = 'echo "$WORD"; hostname; echo quiet >&2'
    written = run(
        hosts, SshRunner(login(hosts)).run(line, environment={"WORD": NASTY}, on_output=seen.append)
    )
    assert written == f"{NASTY}\nh1\n"
    assert sorted(b"".join(seen).decode().splitlines()) == sorted([NASTY, "h1", "quiet"])


def test_the_second_command_uses_the_connection_of_the_first(hosts):
    async def both():
        runner = SshRunner(login(hosts))
        connections = [await runner.run("echo $SSH_CONNECTION") for _ in range(2)]
        await runner.close()
        return connections

    first, second = run(hosts, both())
    assert first == second != ""
    assert control_directory().stat().st_mode & 0o777 == 0o700
    assert len(str(control_directory())) < 70


def test_a_login_shell_reads_what_users_wrote_into_their_profile(hosts):
    (hosts[0].home / ".bashrc").write_text("case $- in *i*) ;; *) return;; esac\nexport FROM_RC=yes\n")
    (hosts[0].home / ".bash_profile").write_text(". ~/.bashrc\n")
    runner = SshRunner(login(hosts), login_shell=True)
    seen = []
    assert (
        run(hosts, runner.run("echo $FROM_RC$A", environment={"A": "x"}, on_output=seen.append)) == "yesx\n"
    )
    assert seen == [b"yesx\n"]


def test_a_command_that_fails_carries_its_code_and_its_last_lines(hosts):
    with pytest.raises(CommandFailed, match=r"255.*10\.231\.7\.1") as raised:
        run(hosts, SshRunner(login(hosts)).run("echo out; echo why >&2; exit 255"))
    assert (raised.value.exit_code, raised.value.last_lines) == (255, ("out", "why"))


@pytest.mark.parametrize("login_shell", [False, True])
def test_what_a_command_leaves_in_the_background_does_not_hold_it_up(hosts, login_shell):
    runner = SshRunner(login(hosts, 1), login_shell=login_shell)
    assert run(hosts, runner.run("sleep 987 & echo started")) == "started\n"
    with pytest.raises(CommandFailed) as failed:
        run(hosts, runner.run("nohup sleep 987 & echo why >&2; exit 4"))
    assert (failed.value.exit_code, failed.value.last_lines[-1]) == (4, "why")
    assert "sleep 987" in hosts.commands(hosts[1])
    for process in hosts.processes(hosts[1]):
        process.kill()


def test_a_command_that_takes_too_long_ends_on_both_sides(hosts):
    with pytest.raises(TimeoutError, match=r"10\.231\.7\.2"):
        run(hosts, SshRunner(login(hosts, 1)).run("sleep 1234 & setsid sleep 2345", timeout_s=0.5))
    assert hosts.commands(hosts[1]) == []


def test_a_cancelled_command_ends_on_both_sides(hosts):
    async def cancel_it():
        started = asyncio.Event()
        runner = SshRunner(login(hosts, 1))
        task = asyncio.create_task(
            runner.run("echo on; sleep 3456", on_output=lambda _: started.set(), timeout_s=PATIENCE_S)
        )
        await started.wait()
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert run(hosts, cancel_it())
    assert hosts.commands(hosts[1]) == []


@pytest.mark.parametrize("login_shell", [False, True])
def test_a_secret_is_in_no_process_argument_and_no_output(hosts, login_shell):
    async def look_while_it_runs():
        started, seen = asyncio.Event(), []

        def note(chunk: bytes) -> None:
            seen.append(chunk)
            started.set()

        runner = SshRunner(login(hosts), login_shell=login_shell)
        line = "echo begins: ${#T} characters; read -r -t 60 x < ~/fifo; echo it is $T; exit 3"
        task = asyncio.create_task(runner.run(line, secrets={"T": TOKEN}, on_output=note))
        await started.wait()
        arguments = [_arguments(process) for process in psutil.process_iter()]
        (hosts[0].home / "fifo").write_text("go\n")
        with pytest.raises(CommandFailed) as failed:
            await task
        return arguments, b"".join(seen).decode(), failed.value

    with_fifo = hosts[0].home / "fifo"
    with_fifo.unlink(missing_ok=True)
    os.mkfifo(with_fifo)
    arguments, seen, error = run(hosts, look_while_it_runs())
    assert any("begins: " in line for line in arguments)  # the command was seen, on this side or that
    assert [line for line in arguments if TOKEN in line] == []
    assert seen == "begins: 12 characters\nit is ***\n"
    assert TOKEN not in str(error) + "".join(error.last_lines)


def _arguments(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_what_says_how_a_command_ended_is_no_output_also_where_it_comes_in_pieces():
    seen, ends = [], []
    output = CommandOutput(seen.append, command_id="m-1")
    output.on_end = lambda: ends.append(output.exit_code)
    for piece in (b"a m-", b"1 m-1", b":3", b"\nb m-1:4\nm-1", b"c"):
        output.add(piece, is_stdout=False)
    output.end()
    assert (b"".join(seen), ends, output.text()) == (b"a m-1 b m-1c", [3], "")


def test_a_secret_is_hidden_also_where_output_comes_in_pieces():
    seen = []
    output = CommandOutput(seen.append, {"T": TOKEN})
    for piece in (b"x " + TOKEN[:5].encode(), TOKEN[5:].encode() + b" y"):
        output.add(piece, is_stdout=True)
    output.end()
    assert (b"".join(seen), output.text()) == (b"x *** y", "x *** y")


def test_files_and_directories_go_up_and_down_whatever_their_names(hosts, tmp_path):
    tree = tmp_path / f"from {NASTY.replace('/', '')}"
    (tree / "inner").mkdir(parents=True)
    (tree / "inner" / "kept.txt").write_text("kept")
    (tree / "inner" / "left.pyc").write_text("left")
    (tree / "ignored.log").write_text("ignored")
    (tree / ".rsyncignore").write_text("*.log\n")
    target = "~/to $(touch z) 'x'/deep"

    async def there_and_back():
        runner = SshRunner(login(hosts))
        await runner.sync_up(str(tree), target, exclude=["*.pyc"], filters=[".rsyncignore"])
        await runner.sync_up(str(tree / "inner" / "kept.txt"), "~/one/file name")
        await runner.sync_down(target + "/", str(tmp_path / "back"))
        await runner.sync_down("~/one/file name", str(tmp_path / "one" / "file"))

    run(hosts, there_and_back())
    back = sorted(str(path.relative_to(tmp_path / "back")) for path in (tmp_path / "back").rglob("*"))
    assert back == [".rsyncignore", "inner", "inner/kept.txt"]
    assert (tmp_path / "one" / "file").read_text() == "kept"
    assert not (hosts[0].home / "z").exists()


def test_a_path_that_is_not_here_is_named(hosts):
    with pytest.raises(RemoteError, match="/nowhere"):
        run(hosts, SshRunner(login(hosts)).sync_up("/nowhere", "~/x"))


def test_a_host_without_rsync_is_named(hosts, tmp_path):
    (tmp_path / "file").write_text("x")
    link = hosts[1].home / ".bashrc"
    link.write_text("rsync() { echo 'bash: rsync: command not found' >&2; return 127; }\n")
    try:
        with pytest.raises(CommandFailed, match=r"10\.231\.7\.2"):
            run(hosts, SshRunner(login(hosts, 1)).sync_up(str(tmp_path / "file"), "~/x"))
    finally:
        link.unlink()


def test_a_full_disk_on_the_host_is_named(hosts):
    line = "mount -t tmpfs -o size=64k none /var/spool/cron && head -c 1M /dev/zero > /var/spool/cron/x"
    with pytest.raises(CommandFailed, match=r"10\.231\.7\.2"):
        run(hosts, SshRunner(login(hosts, 1)).run(line))


def test_a_key_that_is_absent_or_open_to_others_is_named(hosts, tmp_path):
    loose = tmp_path / "loose key"
    shutil.copy(hosts.key, loose)
    loose.chmod(0o644)
    with pytest.raises(RemoteError, match="600"):
        run(hosts, SshRunner(login(hosts, private_key=str(loose))).run("true"))
    with pytest.raises(RemoteError, match=r"auth.ssh_private_key"):
        run(hosts, SshRunner(login(hosts, private_key="/no/key")).run("true"))


def test_files_with_any_name_hold_the_key_and_the_pins(hosts, tmp_path):
    key, pins = tmp_path / "k 'e\"y; %h #", tmp_path / "p 'i\"n\\s; %h #"
    shutil.copy(hosts.key, key)
    key.chmod(0o600)
    host = login(hosts, private_key=str(key), known_hosts=str(pins))
    assert run(hosts, SshRunner(host).run("hostname")) == "h1\n"
    (tmp_path / "file").write_text("x")
    run(hosts, SshRunner(host).close())
    run(hosts, SshRunner(host).sync_up(str(tmp_path / "file"), "~/got"))
    assert pins.read_text().startswith("10.231.7.1 ") and (hosts[0].home / "got").read_text() == "x"


def test_a_key_that_the_host_does_not_know_is_named(hosts, tmp_path):
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    with pytest.raises(KeyRefused, match=r"auth\.ssh_user"):
        run(hosts, SshRunner(login(hosts, private_key=str(other))).run("true"))


def test_a_host_is_pinned_on_first_use_and_another_one_in_its_place_is_refused(hosts, tmp_path):
    pins = tmp_path / "pins"
    strict = login(hosts, 1, known_hosts=str(pins))
    run(hosts, SshRunner(strict).run("true"))
    assert pins.read_text().startswith("10.231.7.2 ssh-ed25519 ")
    hosts.change_host_key(hosts[1])
    run(hosts, SshRunner(strict).close())
    with pytest.raises(HostKeyChanged, match=re.escape(str(pins))):
        run(hosts, SshRunner(strict).run("true"))
    lax = login(hosts, 1, known_hosts=str(pins), strict_host_keys=False)
    assert run(hosts, SshRunner(lax).run("hostname")) == "h2\n"


def test_a_banner_is_not_part_of_the_output(hosts):
    hosts[1].sshd_options = "Banner /var/tmp/banner"
    hosts[1].path("/var/tmp/banner").write_text("Welcome. Permission denied to strangers.\n")
    hosts.boot(hosts[1])
    seen = []
    lax = login(hosts, 1, strict_host_keys=False)
    assert run(hosts, SshRunner(lax).run("hostname", on_output=seen.append)) == "h2\n"
    assert seen == [b"h2\n"]


def test_a_host_that_accepts_and_says_nothing_is_given_up(hosts):
    with hosts.inside(), socket.create_server(("10.231.7.254", 0)) as silent:
        port = silent.getsockname()[1]
        runner = SshRunner(Host(ip="10.231.7.254", port=port))
        with pytest.raises((Unreachable, TimeoutError), match=f"10.231.7.254 port {port}"):
            asyncio.run(runner.run("true", timeout_s=1.0))


def test_a_host_that_is_off_is_unreachable_and_the_others_are_not_held_up(hosts):
    async def ask_both():
        runners = [SshRunner(login(hosts, 0)), SshRunner(Host(ip="10.231.7.99"))]
        return await asyncio.gather(*(one.run("hostname") for one in runners), return_exceptions=True)

    answer, problem = run(hosts, ask_both())
    assert answer == "h1\n"
    assert isinstance(problem, Unreachable) and "10.231.7.99" in str(problem)


def test_a_proxy_command_is_the_way_to_a_host(hosts):
    through = f"nsenter --net=/run/netns/{hosts.controller} nc.sh %h %p"
    script = hosts.directory / "nc.sh"
    script.write_text(
        "#!/bin/sh\nexec " + f"{shutil.which('python3')} {Path(__file__).with_name('relay.py')} $1 $2\n"
    )
    script.chmod(0o755)
    host = login(hosts, proxy_command=through.replace("nc.sh", str(script)))
    assert asyncio.run(SshRunner(host).run("hostname")) == "h1\n"  # from outside of the hosts' network


def test_a_forked_process_has_a_control_directory_of_its_own(monkeypatch):
    here = control_directory()
    monkeypatch.setattr(os, "getpid", lambda: 1)
    there = control_directory()
    there.rmdir()
    assert there != here and control_directory() == there and there.is_dir()  # made again
    there.rmdir()


def test_a_terminal_runs_a_command_with_forwarded_ports(hosts):
    argv = SshRunner(login(hosts)).shell("tty && echo $-", forward=[(18265, 22)])
    done = hosts.run_in_controller(argv, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done
    assert done.stdout.startswith("/dev/pts/") and "i" in done.stdout.split()[1]
