from __future__ import annotations

import shlex
import subprocess

import pytest

from muster.autoscaler.lifecycle.head_work import (
    attach_line,
    command_line,
    forwarded,
    log_line,
    ray_environment,
    session_kind,
)
from muster.errors import ClusterError

NASTY = "echo '$(id)' \"`id`\"; printf '%s' 'a b'"


def test_a_command_finds_its_cluster():
    assert ray_environment("10.0.0.1:6379", {"RAY_AUTH_MODE": "token"}) == {
        "RAY_ADDRESS": "10.0.0.1:6379",
        "RAY_HEAD_IP": "10.0.0.1",
        "RAY_AUTH_MODE": "token",
    }


@pytest.mark.parametrize("inside", ["tmux", "screen"])
def test_a_session_gets_the_command_as_one_word(inside):
    words = shlex.split(command_line(NASTY, inside=inside, environment={"A": "x; y"}))
    assert words[-1] == f"export A='x; y'; {NASTY}"
    assert words[0] == inside and words[-3:-1] == ["--login", "-c"]


def test_a_plain_command_with_an_environment_prints_what_it_says():
    line = command_line(NASTY, environment={"A": "it's $HOME"}) + '; echo " $A"'
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("$(id) uid=")  # as the user has quoted it
    assert done.stdout.endswith("a b it's $HOME\n")


def test_a_detached_session_that_stops_the_cluster_does_it_on_the_head():
    line = command_line("python a.py", inside="tmux", stop_with="/my env/python")
    stop = "'/my env/python' -m muster down ~/ray_bootstrap_config.yaml -y"
    assert shlex.split(line)[-1] == f"python a.py; {stop}"


def test_terminals_and_sessions_are_opened_or_joined():
    assert attach_line("tmux", is_new=False) == "tmux attach || tmux new"
    assert attach_line("tmux", is_new=True) == "tmux new"
    assert attach_line("screen", is_new=False) == "screen -L -xRR"
    assert attach_line("", is_new=False, environment={"A": "b c"}) == "export A='b c'; exec bash --login -i"


def test_two_kinds_of_session_are_refused():
    assert session_kind(tmux=True, screen=False) == "tmux"
    with pytest.raises(ClusterError, match=r"--tmux.*--screen"):
        session_kind(tmux=True, screen=True)


@pytest.mark.parametrize("word", ["", "x", "0", "70000", "1:", "1:2:3", "-1"])
def test_what_is_no_port_is_refused(word):
    if word == "1:":
        assert forwarded([word]) == [(1, 1)]
        return
    with pytest.raises(ClusterError, match=r"PORT.*8265"):
        forwarded([word])


def test_logs_are_those_of_the_monitor_or_of_one_node():
    assert (
        log_line("/h/my cluster", "", lines=5, is_followed=True) == "tail -n 5 -F '/h/my cluster'/monitor.log"
    )
    assert log_line("/h", "10.0.0.1; id", lines=5, is_followed=False) == (
        "tail -n 5 -v /h/install/'10.0.0.1; id'*/*.log"
    )
