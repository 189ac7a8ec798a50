"""MachineSetup and the installer on machines that answer from a script."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from msgspec.structs import replace
from tests.mistakes.views import assert_line
from tests.remote.scripted import ScriptedRunner, Tags

from muster.base.clock import ManualClock
from muster.base.ids import CloudId, InstanceId, RequestId
from muster.cluster.plan import Install
from muster.config.node_launch import RuntimeHashes
from muster.errors import CommandFailed, HostKeyChanged, KeyRefused, RemoteError, Unreachable
from muster.remote.installer import NodeInstaller
from muster.remote.node_setup import MachineSetup, Surroundings, Timing
from muster.remote.steps import NodeSetup, final_tags

QUICK = Timing(interval_s=0.01, ready_s=60.0, command_tries=2, connection_tries=3)
SETUP = NodeSetup(
    file_mounts={"~/a": "/src/a"},
    synced_files=("/not/here",),
    setup_commands=("setup",),
    start_commands=("start",),
    secrets={"TOKEN": "secret"},
    hashes=RuntimeHashes("r", "c"),
)
EVERYTHING = ["host: uptime", "copy /src/a to ~/a", "prepare", "auto: setup", "auto: start"]


def failed(code: int = 1) -> CommandFailed:
    return CommandFailed("it failed", exit_code=code)


def update(runner, tmp_path, *, tags=None, setup=SETUP):
    access = Tags(setup, lambda cloud_id: runner)
    access.now["n"].update(tags or {})
    machine = MachineSetup("n", runner, access, tmp_path, timing=QUICK)
    begun = []
    machine.on_work = lambda kind, work: begun.append(kind.value)
    asyncio.run(machine.run(setup))
    return access, begun


@pytest.mark.conformance("IN-4")
def test_a_machine_is_set_up_and_tagged_at_every_step(tmp_path):
    runner = ScriptedRunner()
    access, begun = update(runner, tmp_path)
    assert runner.calls == EVERYTHING
    assert access.statuses["n"] == [
        "waiting-for-ssh",
        "syncing-files",
        "setting-up",
        "setting-up",
        "up-to-date",
    ]
    assert access.now["n"] == final_tags(SETUP.hashes)
    assert list(dict.fromkeys(begun)) == ["wait", "sync", "initialize", "setup", "start"]


def test_every_step_has_a_log_without_secrets(tmp_path):
    update(ScriptedRunner(), tmp_path)
    logs = {path.name: path.read_text() for path in (tmp_path / "n").iterdir()}
    assert sorted(logs) == ["initialize.log", "setup.log", "start.log", "sync.log", "wait.log"]
    assert logs["start.log"].endswith("] $ start\noutput of start\n")
    assert_line("remote", "file not here", logs["sync.log"].splitlines()[-1])
    assert "secret" not in "".join(logs.values())


def test_a_log_does_not_grow_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("muster.remote.node_setup.LOG_BYTES", 60)
    for _ in range(2):
        update(ScriptedRunner(), tmp_path)
    kept = sorted(path.name for path in (tmp_path / "n").glob("start*"))
    text = (tmp_path / "n" / "start.log").read_text()
    assert kept == ["start.log"] and text.endswith("output of start\n") and text.count("$ start") == 2
    update(ScriptedRunner(), tmp_path)
    assert (tmp_path / "n" / "start.old.log").read_text() == text
    monkeypatch.setattr("muster.remote.node_setup.LOG_BYTES", 40)
    update(ScriptedRunner(), tmp_path)
    assert_line("remote", "log that was cut", (tmp_path / "n" / "start.log").read_text().splitlines()[-1])


def test_what_the_tags_say_is_there_is_not_done_again(tmp_path):
    runner = ScriptedRunner()
    update(runner, tmp_path, tags=final_tags(SETUP.hashes))
    assert runner.calls == ["host: uptime", "auto: start"]


def test_a_container_that_is_gone_is_set_up_again(tmp_path):
    runner = ScriptedRunner()
    runner.needs_set_up = True
    setup = NodeSetup(has_container=True, setup_commands=("setup",), hashes=RuntimeHashes("r", None))
    update(runner, tmp_path, tags=final_tags(setup.hashes), setup=setup)
    assert runner.calls == ["host: uptime", "prepare", "prepare", "auto: setup"]


def test_a_machine_that_answers_late_is_waited_for(tmp_path):
    runner = ScriptedRunner({"host: uptime": [Unreachable("off"), TimeoutError("slow"), Unreachable("off")]})
    update(runner, tmp_path)
    assert runner.calls == ["host: uptime"] * 3 + EVERYTHING


def test_a_broken_connection_is_tried_again_where_it_broke(tmp_path):
    runner = ScriptedRunner(
        {"auto: setup": [Unreachable("cut"), Unreachable("cut")], "auto: start": [failed()]}
    )
    access, begun = update(runner, tmp_path)
    again = ["host: uptime", "auto: setup"]
    assert runner.calls == [*EVERYTHING[:3], "auto: setup", *again, *again, *["auto: start"] * 2]
    assert begun.count("setup") == 1 and access.statuses["n"][-1] == "up-to-date"


@pytest.mark.parametrize(
    ("call", "errors", "kind", "says"),
    [
        ("auto: setup", [failed(), failed(7)], CommandFailed, "step setup of n failed: it failed"),
        ("copy /src/a to ~/a", [RemoteError("no file")], RemoteError, "step sync of n failed: no file"),
        ("auto: start", [TimeoutError("long")], RemoteError, "step start of n failed: long"),
        ("prepare", [ValueError("odd")], RemoteError, "step initialize of n failed: odd"),
        ("host: uptime", [HostKeyChanged("other key")], HostKeyChanged, "step wait of n failed: other key"),
        ("host: uptime", [KeyRefused("no")] * 99, KeyRefused, "did not answer within 0.02 s: no"),
        ("host: uptime", [Unreachable("off")] * 99, Unreachable, "did not answer within 0.05 s: off"),
    ],
)
def test_a_step_that_cannot_be_done_fails_the_machine_with_its_log(tmp_path, call, errors, kind, says):
    runner = ScriptedRunner({call: errors})
    access = Tags(SETUP, lambda cloud_id: runner)
    timing = replace(QUICK, ready_s=0.05, refused_s=0.02)
    with pytest.raises(kind, match=r"\(log: .*\.log\)") as raised:
        asyncio.run(MachineSetup("n", runner, access, tmp_path, timing=timing).run(SETUP))
    assert says in str(raised.value) and access.now["n"]["ray-node-status"] == "update-failed"


def test_a_set_up_takes_time_and_threads_from_its_surroundings(tmp_path):
    paused = []

    async def pause(seconds):
        paused.append(seconds)
        clock.advance(seconds)

    async def call(work):
        return work()

    clock = ManualClock()
    runner = ScriptedRunner({"host: uptime": [Unreachable("off")] * 999})
    io = Surroundings(clock=clock, pause=pause, call=call)
    machine = MachineSetup("n", runner, Tags(SETUP, None), tmp_path, timing=Timing(), surroundings=io)
    with pytest.raises(Unreachable):
        asyncio.run(machine.run(SETUP))
    assert paused[:3] == [0.25, 0.5, 1.0] and 900.0 < sum(paused) < 910.0


def test_a_machine_that_was_terminated_is_not_waited_for(tmp_path):
    runner = ScriptedRunner({"host: uptime": [Unreachable("off")] * 99})
    access = Tags(SETUP, lambda cloud_id: runner)
    access.gone.add("n")
    with pytest.raises(RemoteError) as ended:
        asyncio.run(MachineSetup("n", runner, access, tmp_path, timing=QUICK).run(SETUP))
    said = str(ended.value).replace(str(tmp_path), "TMP")
    assert_line("remote", "machine terminated meanwhile", said)


def test_a_provider_that_cannot_write_tags_does_not_stop_the_machine(tmp_path, caplog):
    runner = ScriptedRunner()
    access = Tags(SETUP, lambda cloud_id: runner)
    access.set_tags = None  # calling it raises
    asyncio.run(MachineSetup("n", runner, access, tmp_path, timing=QUICK).run(SETUP))
    assert runner.calls == EVERYTHING
    for warning in caplog.messages:
        assert_line("remote", "tags not written", warning)
    assert caplog.messages


def test_a_provider_that_cannot_read_tags_has_the_machine_set_up(tmp_path):
    runner = ScriptedRunner({"host: uptime": [Unreachable("off")]})
    access = Tags(SETUP, lambda cloud_id: runner)
    access.tags = access.is_gone = None  # calling them raises
    asyncio.run(MachineSetup("n", runner, access, tmp_path, timing=QUICK).run(SETUP))
    assert runner.calls == ["host: uptime", *EVERYTHING]


def test_a_disk_that_is_full_here_does_not_stop_the_machine(tmp_path):
    (tmp_path / "file").write_text("")
    runner = ScriptedRunner()
    access = Tags(SETUP, lambda cloud_id: runner)
    asyncio.run(MachineSetup("n", runner, access, tmp_path / "file" / "logs", timing=QUICK).run(SETUP))
    assert runner.calls == EVERYTHING


# ---- the installer


def install(number: int, request: str = "") -> Install:
    return Install(
        request_id=RequestId(request or f"r-{number}"),
        instance_id=InstanceId(f"m-{number}"),
        cloud_id=CloudId(f"i-{number}"),
        node_type="w",
    )


def wait_until(condition) -> None:
    give_up = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < give_up, "it did not happen within 60 s"
        time.sleep(0.005)


@pytest.fixture
def installed(tmp_path):
    """Make an installer over scripted machines; every machine has a runner of its own."""
    made = []

    def make(answers=None, *, takes_s=0.0):
        runners: dict[str, ScriptedRunner] = {}

        def runner_of(cloud_id):
            return runners.setdefault(
                cloud_id, ScriptedRunner((answers or {}).get(cloud_id), takes_s=takes_s)
            )

        access = Tags(SETUP, runner_of)
        installer = NodeInstaller(access, tmp_path, timing=QUICK)
        made.append(installer)
        return installer, access, runners

    yield make
    for installer in made:
        installer.close()


def test_in_1_and_in_3_a_machine_that_is_set_up_reports_nothing(installed):
    installer, access, runners = installed()
    installer.start(install(1))
    wait_until(lambda: not installer.under_way(RequestId("r-1")))
    assert list(installer.poll()) == [] and access.now["i-1"]["ray-node-status"] == "up-to-date"
    assert runners["i-1"].is_closed


def test_in_2_a_machine_that_cannot_be_set_up_is_reported_once_with_the_reason(installed):
    installer, _, _ = installed({"i-1": {"auto: setup": [failed(), failed()]}})
    installer.start(install(1))
    wait_until(lambda: not installer.under_way(RequestId("r-1")))
    [failure] = installer.poll()
    assert failure.instance_id == "m-1" and str(failed()) in failure.message
    assert list(installer.poll()) == []


def test_the_last_lines_of_a_command_that_failed_are_logged(installed, caplog):
    lines = ("pip: no such package", "tried three mirrors")
    error = CommandFailed("it failed", exit_code=7, last_lines=lines)
    installer, _, _ = installed({"i-1": {"auto: setup": [error, error]}})
    installer.start(install(1))
    wait_until(lambda: not installer.under_way(RequestId("r-1")))
    (logged,) = [entry.getMessage() for entry in caplog.records if "i-1" in entry.getMessage()]
    assert all(line in logged for line in lines)


@pytest.mark.conformance("IN-5")
def test_in_5_a_machine_that_the_provider_does_not_know_is_reported(installed):
    installer, access, _ = installed()
    access._runner_of = {}.__getitem__
    installer.start(install(1))
    wait_until(lambda: not installer.under_way(RequestId("r-1")))
    (failure,) = installer.poll()
    assert_line("remote", "machine that the provider does not know", failure.message)


def test_a_repeated_request_does_nothing_while_under_way_and_after(installed):
    installer, _, runners = installed(takes_s=0.05)
    for _ in range(3):
        installer.start(install(1))
    wait_until(lambda: not installer.under_way(RequestId("r-1")))
    installer.start(install(1))
    assert not installer.under_way(RequestId("r-1"))
    assert runners["i-1"].calls == EVERYTHING


def test_a_new_request_for_a_machine_takes_the_place_of_the_earlier_one(installed):
    installer, access, runners = installed(takes_s=0.05)
    installer.start(install(1))
    wait_until(lambda: "i-1" in runners)
    installer.start(install(1, "r-again"))
    wait_until(lambda: not installer.under_way(RequestId("r-again")))
    assert not installer.under_way(RequestId("r-1"))
    assert list(installer.poll()) == [] and access.now["i-1"]["ray-node-status"] == "up-to-date"


def test_many_machines_are_set_up_side_by_side_in_one_thread(installed):
    installer, access, _ = installed({"i-7": {"host: uptime": [HostKeyChanged("other")]}}, takes_s=0.2)
    began = time.monotonic()
    for number in range(50):
        installer.start(install(number))
    names = [thread.name for thread in threading.enumerate()]
    wait_until(lambda: not any(installer.under_way(RequestId(f"r-{number}")) for number in range(50)))
    one_after_the_other_s = 50 * 5 * 0.2
    assert time.monotonic() - began < one_after_the_other_s / 2
    assert names.count("node-installer") == 1
    assert [failure.instance_id for failure in installer.poll()] == ["m-7"]
    assert sum(tags["ray-node-status"] == "up-to-date" for tags in access.now.values()) == 49


def test_a_provider_that_hangs_holds_up_only_its_own_machine(installed):
    installer, access, _ = installed()
    release = threading.Event()
    ask = access.tags
    access.tags = lambda node: (release.wait(60) if node == "i-1" else None, ask(node))[1]
    installer.start(install(1))
    installer.start(install(2))
    wait_until(lambda: not installer.under_way(RequestId("r-2")))
    assert installer.under_way(RequestId("r-1"))
    release.set()
    wait_until(lambda: not installer.under_way(RequestId("r-1")))


def test_a_machine_without_an_address_is_waited_for(installed):
    installer, access, _ = installed()
    find, answers = access._runner_of, iter([None, None])
    asked = []

    def late(cloud_id):
        asked.append(cloud_id)
        if len(asked) == 1:
            raise ConnectionError("try again")
        return next(answers, find(cloud_id))

    access._runner_of = late
    installer.start(install(1))
    wait_until(lambda: not installer.under_way(RequestId("r-1")))
    assert access.now["i-1"]["ray-node-status"] == "up-to-date"


def test_a_closed_installer_ends_what_is_under_way_and_takes_no_more(installed):
    installer, _, runners = installed(takes_s=60.0)
    installer.start(install(1))
    wait_until(lambda: runners and runners["i-1"].calls)
    installer.close()
    installer.start(install(2))
    assert list(installer.poll()) == [] and runners["i-1"].is_closed and "i-2" not in runners
    assert "node-installer" not in [thread.name for thread in threading.enumerate()]
