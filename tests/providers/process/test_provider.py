"""Nodes on this computer, with lines of shell in the place of Ray: how they end, die and are taken over."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.mistakes.views import assert_line
from tests.providers.process.stand_in import AT_A_TIME, CLOCK, create, make_provider, record, shell, until

from muster.base.clock import ManualClock
from muster.base.ids import RequestId
from muster.cluster.model import FailureKind
from muster.host.processes import find, identify, is_alive, table, was_started_with
from muster.providers.process import provider as health
from muster.providers.process import stop
from muster.providers.process.records import NodeDirectory
from muster.providers.process.stop import stop_everything

SLEEP = shell("exec sleep 600")
OWNER = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from tests.providers.process.stand_in import create, make_provider, shell
from muster.providers.process import provider
if sys.argv[3] == "never":
    provider.LaunchQueue._start = lambda self, cloud_id: __import__("time").sleep(600)
print(*create(make_provider(Path(sys.argv[1]), shell("exec sleep 600")), 2), flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def provide(tmp_path):
    made = []

    def provide(program=SLEEP, **more):
        made.append(make_provider(tmp_path, program, **more))
        return made[-1]

    yield provide
    for provider in made:
        provider.close()
    stop_everything(tmp_path / "nodes", CLOCK, grace_s=0.2)


@pytest.fixture
def directory(tmp_path):
    return NodeDirectory(tmp_path / "nodes")


def of_node(cloud_id: str) -> list[int]:
    entry = f"RAY_CLOUD_INSTANCE_ID={cloud_id}"
    return [one.pid for one in table() if one.is_alive and was_started_with(one.pid, entry)]


def began(directory: NodeDirectory, cloud_id: str) -> bool:
    """Not only written down as running: past the gate."""
    mark = directory.find(cloud_id).process
    return mark is not None and find(mark.pid).name == "sleep"


def ended(directory: NodeDirectory, cloud_id: str) -> bool:
    return directory.find(cloud_id).ended_at is not None


def test_a_node_knows_its_name_and_lives_in_its_own_directory(provide, directory) -> None:
    provider = provide(shell('echo "$RAY_CLOUD_INSTANCE_ID $RAY_NODE_TYPE_NAME $PWD"; exec sleep 600'))
    (node,) = create(provider)
    assert until(lambda: directory.output(node))
    temp_dir = directory.find(node).temp_dir
    assert directory.output(node).decode() == f"{node} small {temp_dir}\n"
    provider.terminate_machines([node])
    assert until(lambda: ended(directory, node))
    assert not Path(temp_dir).exists()


@pytest.mark.slow
def test_at_most_so_many_start_at_a_time_and_the_next_when_one_has_joined(provide, directory) -> None:
    provider = provide(
        shell("while [ ! -e go ]; do sleep 0.02; done; echo joined; exec sleep 600", ready=b"joined")
    )
    nodes = create(provider, AT_A_TIME + 1)
    assert until(lambda: sum(map(provider.answers, nodes)) == AT_A_TIME)
    CLOCK.sleep(0.3)
    assert [provider.answers(node) for node in nodes] == [True] * AT_A_TIME + [False]
    assert sorted(provider.list_instances()) == sorted(nodes)  # waiting ones are listed
    Path(directory.find(nodes[0]).temp_dir, "go").touch()
    assert until(lambda: provider.answers(nodes[-1]))


def test_a_node_that_is_terminated_while_it_waits_is_never_started(provide, directory, tmp_path) -> None:
    provider = provide(
        shell(f"echo $RAY_CLOUD_INSTANCE_ID >> {tmp_path}/started; exec sleep 600", ready=b"never")
    )
    *first, waiting, last = create(provider, AT_A_TIME + 2)
    assert until(lambda: all(map(provider.answers, first)))
    provider.terminate_machines([waiting, first[0]])
    assert until(lambda: provider.answers(last))
    assert waiting not in (tmp_path / "started").read_text()


@pytest.mark.slow
def test_one_that_does_not_listen_is_killed_with_all_it_started(provide, directory) -> None:
    stubborn = (
        "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 600; :' & sh -c 'sleep 600; :' & sleep 600; :"
    )
    provider = provide(shell(stubborn), grace_s=0.3)
    (node,) = create(provider)
    assert until(lambda: len(of_node(node)) == 6)
    provider.terminate_machines([node])
    assert list(provider.list_instances()) == []
    assert until(lambda: ended(directory, node))
    assert of_node(node) == []


@pytest.mark.slow
def test_a_slow_end_holds_up_no_start(provide, directory) -> None:
    provider = provide(shell("trap '' TERM; while :; do sleep 0.1; done"), grace_s=600.0)
    (slow,) = create(provider)
    assert until(lambda: provider.answers(slow))
    CLOCK.sleep(0.3)  # until it has set its trap
    provider.terminate_machines([slow])
    (next_one,) = create(provider)
    assert until(lambda: provider.answers(next_one))
    assert (ended(directory, slow), provider.is_gone(slow)) == (False, True)
    os.killpg(directory.find(slow).process.pid, signal.SIGKILL)


def test_a_node_that_dies_by_itself_is_not_listed_and_its_words_are_kept(provide, directory, caplog) -> None:
    provider = provide(shell("echo no room; exit 1"))
    (node,) = create(provider)
    assert until(lambda: list(provider.list_instances()) == [])
    assert (provider.answers(node), provider.is_gone(node)) == (False, True)
    assert_line("providers", "process node ended", directory.find(node).reason)
    (told,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert_line("providers", "process node did not start", told.replace(node, "NODE"))
    assert until(lambda: ended(directory, node))


def test_a_node_whose_heart_stops_is_ended_though_its_command_stays(provide, directory, caplog) -> None:
    """A drained node ends the same way, so this is no warning; the ledger knows which of the two it is."""
    caplog.set_level(logging.INFO)
    provider = provide(shell("sh -c 'sleep 600; :' & sleep 601; sleep 602", main_process="sleep"))
    (node,) = create(provider)
    assert until(
        lambda: list(provider.list_instances()) == [node] and directory.find(node).main_process is not None
    )
    os.kill(directory.find(node).main_process.pid, signal.SIGKILL)
    assert until(lambda: list(provider.list_instances()) == [])
    assert_line("providers", "process without its main process", directory.find(node).reason)
    assert until(lambda: ended(directory, node))
    assert of_node(node) == []
    (told,) = [r for r in caplog.records if node in r.getMessage()]
    assert told.levelname == "INFO"
    assert_line("providers", "process node stopped", told.getMessage().replace(node, "NODE"))


def test_a_node_without_a_heart_is_given_time_to_get_one_and_no_more(provide, directory) -> None:
    clock = ManualClock(1000.0)
    provider = provide(SLEEP)
    (node,) = create(provider)
    assert until(lambda: provider.answers(node))
    young = replace(directory.find(node), started_at=1000.0)
    look = health.NodeHealth(directory, "raylet", clock)
    assert look.problem(young) == ""
    clock.advance(121.0)
    assert_line("providers", "process node without a raylet", look.problem(young))


@pytest.mark.slow
@pytest.mark.parametrize("begun", ["begun", "never"])
def test_nodes_of_a_killed_owner_are_taken_over(provide, directory, tmp_path, begun: str) -> None:
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", OWNER, str(tmp_path), str(root), begun]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        nodes = owner.stdout.readline().decode().split()
        if begun == "begun":
            assert until(lambda: all(began(directory, node) for node in nodes))
        before = {node: directory.find(node).process for node in nodes}
        owner.kill()
        owner.wait()
    provider = provide()
    assert sorted(provider.list_instances()) == sorted(nodes)
    assert until(lambda: all(map(provider.answers, nodes)))
    after = {node: directory.find(node).process for node in nodes}
    assert begun == "never" or after == before
    provider.terminate_machines(nodes)
    assert until(lambda: all(ended(directory, node) for node in nodes))
    assert not any(is_alive(mark) for mark in after.values())


def test_an_end_that_its_owner_did_not_finish_is_finished(provide, directory) -> None:
    provider = provide()
    (node,) = create(provider)
    assert until(lambda: provider.answers(node))
    mark = directory.find(node).process
    directory.change(node, lambda now: replace(now, state="terminated", owner=replace(mark, started="0")))
    assert list(provider.list_instances()) == []
    assert until(lambda: ended(directory, node))
    assert not is_alive(mark)


def test_what_a_closed_provider_has_not_started_is_left_to_the_next(provide, directory) -> None:
    provider = provide(shell("exec sleep 600", ready=b"never"))
    nodes = create(provider, AT_A_TIME + 1)
    assert until(lambda: sum(map(provider.answers, nodes)) == len(nodes) - 1)
    provider.close()
    second = provide()
    assert sorted(second.list_instances()) == sorted(nodes)
    assert until(lambda: all(map(second.answers, nodes)))


def test_a_launch_is_under_way_until_its_nodes_are_listed(provide) -> None:
    provider = provide()
    for request, node_type in (("r-1", "small"), ("r-2", "huge")):
        provider.launch(RequestId(request), {node_type: 1})
        assert provider.under_way(RequestId(request))
    provider.list_instances()
    assert not any(provider.under_way(RequestId(one)) for one in ("r-1", "r-2"))


def test_a_launch_whose_nodes_ended_unlisted_is_filled_by_the_next_provider(provide, directory) -> None:
    """As when the head is lost with its nodes between two ticks: the next monitor repeats the launch."""
    request = RequestId("r-1")
    first = provide()
    first.launch(request, {"small": 1})
    (lost,) = [one.cloud_id for one in directory.records()]
    assert until(lambda: first.answers(lost))
    os.killpg(directory.find(lost).process.pid, signal.SIGKILL)
    assert until(lambda: not first.answers(lost))
    second = provide()
    second.launch(request, {"small": 1})
    (found,) = second.list_instances()
    assert found != lost
    second.terminate_machines([found])
    second.launch(request, {"small": 1})  # by the same process: it was filled
    assert list(second.list_instances()) == []


def test_a_process_that_only_has_the_number_of_a_node_is_not_touched(provide, directory) -> None:
    stranger = subprocess.Popen(["sleep", "600"], start_new_session=True)
    try:
        provider = provide()
        (node,) = create(provider)
        assert until(lambda: provider.answers(node))
        real = directory.find(node).process
        # A node runs from the moment it is admitted; its name is in its environment only after exec.
        assert until(lambda: was_started_with(real.pid, f"RAY_CLOUD_INSTANCE_ID={node}"))
        others = replace(identify(stranger.pid), started="0")
        directory.change(node, lambda now: replace(now, process=others))
        assert (provider.answers(node), list(provider.list_instances())) == (False, [])
        assert until(lambda: ended(directory, node))
        assert (stranger.poll(), is_alive(real)) == (None, False)  # found by its name, not by the number
    finally:
        stranger.kill()
        stranger.wait()


def test_a_starter_that_cannot_be_had_fails_the_node_and_says_so(
    provide, directory, monkeypatch, caplog
) -> None:
    provider = provide()
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    (node,) = create(provider)
    assert until(lambda: directory.find(node).state == "terminated")
    assert "/nowhere/python" in directory.find(node).reason
    assert until(lambda: not list(provider.list_instances()) and ended(directory, node))


def test_memory_that_is_not_there_is_refused_with_type_and_numbers(provide) -> None:
    provider = provide()
    for _ in range(2):  # a repeat is not another failure
        assert create(provider, 2, node_type="huge", request="r-1") == []
    failures = provider.poll_launch_failures()
    assert [(one.node_type, one.kind) for one in failures] == [("huge", FailureKind.CONFIG)] * 2
    assert (list(provider.list_instances()), provider.poll_launch_failures()) == ([], ())


def test_more_processors_than_there_are_is_fine(provide) -> None:
    provider = provide()
    (node,) = create(provider, node_type="wide")
    assert list(provider.list_instances()) == [node]


def test_records_of_ended_nodes_are_forgotten_after_a_while(provide, directory) -> None:
    provider = provide(SLEEP)
    old, young = create(provider, 2)
    provider.terminate_machines([old, young])
    assert until(lambda: ended(directory, old) and ended(directory, young))
    directory.change(old, lambda now: replace(now, ended_at=CLOCK.now() - 3601))
    create(provider)
    assert (directory.find(old), directory.find(young) is None) == (None, False)
    assert (directory.log_of(old).exists(), provider.is_gone(old)) == (False, True)


def test_the_session_of_a_gone_leader_may_be_anothers() -> None:
    ours, theirs = identify(os.getpid()), find(os.getpid())
    gone = record(process=replace(ours, started="0"))
    assert stop.NodeProcesses(gone).living([theirs], with_environments=True) == []
