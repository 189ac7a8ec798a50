"""Command lines of ssh and rsync as values: what any field holds stays text, and complaints become advice."""

from __future__ import annotations

import shlex
import subprocess
from itertools import pairwise

import pytest
from tests.mistakes.views import assert_line

from muster.errors import HostKeyChanged, KeyRefused, RemoteError, Unreachable
from muster.remote.runner import Host
from muster.remote.ssh_command import (
    check_host,
    explain_command,
    explain_ssh,
    fill_proxy_command,
    home_relative,
    remote_line,
    remote_path,
    rsync_arguments,
    secrets_input,
    selection,
    ssh_arguments,
    ssh_options,
    terminal_arguments,
    upload_paths,
)

HOST = Host(ip="10.0.0.9", user="ubuntu", private_key="/keys/a", known_hosts="/pins", instance_id="i-1")
NASTY = "a b'\"`touch x`$(touch y);|&<>*?!#~\\\n%h"


def options_of(argv: list[str]) -> dict[str, str]:
    return dict(part.split("=", 1) for flag, part in pairwise(argv) if flag == "-o")


def test_a_command_is_one_argument_after_the_address():
    argv = ssh_arguments(HOST, "LINE", socket="/c/s", log="/c/log", connect_s=7)
    assert argv[:4] == ["ssh", "-T", "-E", "/c/log"]
    assert argv[-7:] == ["-l", "ubuntu", "-p", "22", "--", "10.0.0.9", "LINE"]
    assert options_of(argv) == {
        "BatchMode": "yes",
        "StrictHostKeyChecking": "accept-new",
        "UserKnownHostsFile": '"/pins"',
        "GlobalKnownHostsFile": "/dev/null",
        "HashKnownHosts": "no",
        "UpdateHostKeys": "no",
        "KexAlgorithms": "-sntrup761*",
        "LogLevel": "ERROR",
        "ServerAliveInterval": "5",
        "ServerAliveCountMax": "3",
        "ConnectTimeout": "7",
        "ExitOnForwardFailure": "yes",
        "ControlPath": "/c/s",
        "HostKeyAlias": "i-1",
        "ControlMaster": "auto",
        "ControlPersist": "30s",
        "IdentitiesOnly": "yes",
        "IdentityFile": '"/keys/a"',
    }


def test_whoever_wants_no_host_keys_gets_none():
    lax = options_of(ssh_options(Host(ip="h", strict_host_keys=False, known_hosts="/pins")))
    assert (lax["StrictHostKeyChecking"], lax["UserKnownHostsFile"]) == ("no", "/dev/null")


def test_a_terminal_with_forwarded_ports_has_a_connection_of_its_own():
    argv = terminal_arguments(Host(ip="h"), "", socket="/c/s", forward=[(8265, 80)])
    assert options_of(argv)["ControlPath"] == "none"
    assert argv[-4:] == ["-L", "8265:localhost:80", "--", "h"]
    assert (
        options_of(terminal_arguments(Host(ip="h"), "", socket="/c/s", forward=()))["ControlPath"] == "/c/s"
    )


@pytest.mark.parametrize("login_shell", [False, True])
@pytest.mark.parametrize("given", [{}, {"SECRET": NASTY}])
def test_whatever_a_value_holds_arrives_as_it_is(login_shell, given, tmp_path):
    command = 'printf \'%s|%s|%s|\' "$VALUE" "$SECRET" ' + shlex.quote(NASTY)
    line = remote_line(
        command, environment={"VALUE": NASTY}, has_secrets=bool(given), login_shell=login_shell
    )
    run = subprocess.run(
        ["sh", "-c", line],  # what sshd does
        input=secrets_input(given),
        cwd=tmp_path,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        check=True,
    )
    assert run.stdout.decode() == f"{NASTY}|{given.get('SECRET', '')}|{NASTY}|"
    assert list(tmp_path.iterdir()) == []
    assert given == {} or NASTY not in line.replace(shlex.quote(NASTY), "")


def test_a_secret_is_not_in_the_command_line():
    line = remote_line("true", has_secrets=True)
    assert secrets_input({"T": "s3cret"}) == b"export T=s3cret\0" and "s3cret" not in line


@pytest.mark.parametrize("environment", [{"A B": "x"}, {"A;id": "x"}, {"": "x"}, {"A": "x\0y"}])
def test_a_variable_that_cannot_be_one_is_refused(environment):
    with pytest.raises(RemoteError, match="variable"):
        remote_line("true", environment=environment)


@pytest.mark.parametrize(
    "host",
    [Host(ip="-oProxyCommand=id"), Host(ip=""), Host(ip="a b"), Host(ip="h;id"), Host(ip="h", user="-x"),
     Host(ip="h", user="a;id")],
)  # fmt: skip
def test_an_address_or_a_user_that_would_be_an_option_is_refused(host):
    with pytest.raises(RemoteError) as refused:
        check_host(host)
    assert str(refused.value).startswith(repr(host.user or host.ip))


def test_paths_for_rsync_need_no_shell():
    assert remote_path(HOST, "~/a b") == "10.0.0.9:./a b"
    assert remote_path(Host(ip="fe80::1"), ":x") == "[fe80::1]:./:x"
    assert home_relative("/abs/$(id)") == "/abs/$(id)"
    assert selection(["*.pyc"], [".gitignore"]) == ["--exclude=*.pyc", "--filter=dir-merge,- .gitignore"]


def test_rsync_gets_its_ssh_quoted_by_rsyncs_own_rules():
    host = Host(ip="h", proxy_command="nc 'a b' \"c\" %h")
    shell = rsync_arguments(host, socket="/c/s", log="/l")[5]
    assert "'ProxyCommand=nc ''a b'' \"c\" %h'" in shell
    assert rsync_arguments(host, socket="/c/s", log="/l")[:5] == ["rsync", "-az", "-s", "--timeout=120", "-e"]


def test_a_proxy_command_gets_values_as_words():
    filled = fill_proxy_command("t --id {instance_id} {region} {ip} {other} %p", instance_id="$(x)", ip="1%2")
    assert filled == "t --id '$(x)' '' 1%%2 {other} %p"


CHANGED = "@@@@@\n@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\n@@@\nHost key verification failed.\n"


@pytest.mark.parametrize(
    ("log", "kind", "says"),
    [
        (CHANGED, HostKeyChanged, "remove its line from /pins"),
        ("ubuntu@10.0.0.9: Permission denied (publickey).", KeyRefused, "auth.ssh_private_key"),
        ("WARNING: UNPROTECTED PRIVATE KEY FILE!\nPermission denied", RemoteError, "chmod 600"),
        ("ssh: connect to host 10.0.0.9 port 22: Connection refused", Unreachable, "sshd runs there"),
        ("ssh: connect to host 10.0.0.9 port 22: No route to host", Unreachable, "power"),
        ("ssh: connect to host 10.0.0.9 port 22: Connection timed out", Unreachable, "port 22 is open"),
        ("Connection timed out during banner exchange", Unreachable, "does not answer"),
        ("ssh: Could not resolve hostname x: Name or service not known", Unreachable, "resolve"),
        ("Timeout, server 10.0.0.9 not responding.", Unreachable, "does not answer"),
        ("kex_exchange_identification: read: Connection reset by peer", Unreachable, "reset by peer"),
        ("", Unreachable, "the connection broke"),
    ],
)
def test_what_ssh_complains_about_becomes_one_sentence_with_the_host_and_a_fix(log, kind, says):
    error = explain_ssh(HOST, log)
    assert type(error) is kind
    assert says in str(error) and "i-1 (10.0.0.9)" in str(error) and "\n" not in str(error)


def test_a_proxy_that_does_not_answer_is_named():
    host = Host(ip="h", proxy_command="nc x")
    said = str(explain_ssh(host, "Connection closed by UNKNOWN port 65535"))
    assert_line("remote", "proxy that does not answer", said)


@pytest.mark.parametrize(
    ("code", "output", "says"),
    [
        (1, "tar: write: No space left on device", "the disk of h1 is full"),
        (127, "bash: line 1: python3: command not found", "h1 has no python3 on its PATH"),
        (12, "sh: 1: rsync: not found\nrsync error: error in rsync protocol", "h1 has no rsync"),
        (3, "one\ntwo\n", "ended with code 3 on h1: two"),
        (3, "", "said nothing"),
    ],
)
def test_a_command_that_fails_says_what_the_host_lacks(code, output, says):
    error = explain_command("h1", "do it", code, output.splitlines())
    assert says in str(error)
    assert (error.exit_code, error.last_lines) == (code, tuple(output.splitlines()))


@pytest.mark.parametrize(
    ("target", "goes_to", "directory"),
    [("/a/b", "/a/b", "/a"), ("~/b", "~/b", ""), ("/b", "/b", ""), ("d/", "d/", "d"), ("b", "b", "")],
)
def test_a_file_goes_into_a_directory_that_is_made(tmp_path, target, goes_to, directory):
    (tmp_path / "file").touch()
    found = upload_paths(str(tmp_path / "file"), target, "h")
    assert found == (str(tmp_path / "file"), goes_to, directory)


def test_the_contents_of_a_directory_go_into_the_target(tmp_path):
    assert upload_paths(str(tmp_path), "~/x", "h") == (f"{tmp_path}/", "~/x/", "~/x")
    with pytest.raises(RemoteError):
        upload_paths(str(tmp_path / "none"), "~/x", "h")


def test_the_shell_itself_is_started_with_what_a_command_is_found_by():
    """What a shell exports is in the environment of its children only."""
    line = remote_line("cat /proc/$$/environ", login_shell=True, command_id="c-1", marks={"NODE": "it's"})
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=True, stdin=subprocess.DEVNULL)
    assert {b"MUSTER_COMMAND_ID=c-1", b"NODE=it's"} <= set(done.stdout.split(b"\0"))
