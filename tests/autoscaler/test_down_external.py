"""`muster down` of a cluster whose machines a provider launched: terminated, or named."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.cluster.fakes import FakeProvider
from tests.cluster.worlds import HEAD_MACHINE, machine
from tests.providers.v1.file_provider import FileNodeProvider
from tests.support.builders import cloud_instance

from muster.autoscaler.home import ClusterHome
from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.cli.main import cli
from muster.cluster.model import FailureKind, NodeKind, TerminateFailure
from muster.host.processes import identify, is_alive
from muster.providers.teardown import WorkerTeardown
from muster.stores.ledger.history import open_history

ROOT = Path(__file__).resolve().parents[2]
FILE = """
cluster_name: rack
provider:
  type: external
  module: tests.autoscaler.test_down_external.Cloud
  disable_node_updaters: true
  state_dir: {folder}/cloud
head_node_type: head
max_workers: 3
available_node_types:
  head: {{resources: {{CPU: 0}}}}
  cpu: {{resources: {{CPU: 1}}, min_workers: 2}}
"""
# All but the runtime is real: the file, the provider under its adapter, the ledger, the loop.
MONITOR = """
import os, sys, time
from pathlib import Path
from tests.cluster.fakes import FakeDrainer, FakeRuntime
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import ClusterRecord, write_record
from muster.base.rng import Ambient
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.base.rng import Seed
from muster.cluster.controller import ClusterController
from muster.cluster.ports import Ports
from muster.config.to_spec import node_launches
from muster.providers.kind import watch_file
from muster.host.processes import identify
from muster.providers.kind import ProviderContext
from muster.providers.kind import build_provider
from muster.stores.ledger.store import SqliteInstanceStore

file, home = Path(sys.argv[1]), ClusterHome(Path(sys.argv[2]))
home.path.mkdir(parents=True)
clock, ids = SystemClock(), RandomIds()
source = watch_file(file)
context = ProviderContext(cluster_name="rack", home=home.path, address="", clock=clock, ids=ids)
provider = build_provider(source.config, lambda: node_launches(source.config), context)
store = SqliteInstanceStore(home.ledger, clock=clock)
if sys.argv[3] == "record":
    write_record(home, ClusterRecord(
        cluster_name="rack", config=str(file), address="127.0.0.1:1", monitor=identify(os.getpid()),
        monitor_pid=os.getpid(), provider=source.config.provider.settings()))
ports = Ports(provider=provider, nodes=FakeRuntime(), drainer=FakeDrainer(poll=()), installer=None,
              store=store, spec=source)
controller = ClusterController(ports, Ambient(clock, ids, Seed(0)))
while True:
    held = controller.tick().ledger.instances.values()
    if sum(i.state.name == "ALLOCATED" and i.node_type == "cpu" for i in held) == 2:
        print("launched", flush=True)
    time.sleep(0.05)
"""


class Cloud(FileNodeProvider):
    """A cloud in a file, which refuses to end machines while a file named `refuse` lies beside it.

    Each line of a file named `ended` is a machine that it no longer lists, and that `down` must end again.
    """

    def nodes_for_teardown(self, tag_filters):
        file = Path(self.provider_config["state_dir"]) / "ended"
        kind = tag_filters["ray-node-type"]
        named = file.read_text().split() if file.exists() else []
        return [*self.non_terminated_nodes(tag_filters), *(name for name in named if name.startswith(kind))]

    def terminate_node(self, node_id):
        if node_id.startswith(("head-", "worker-")):
            with (Path(self.provider_config["state_dir"]) / "torn_down").open("a") as file:
                file.write(f"{node_id}\n")
            return
        if (Path(self.provider_config["state_dir"]) / "refuse").exists():
            raise PermissionError(f"not authorized to end {node_id}")
        super().terminate_node(node_id)


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / "rack.yaml"
        self.file.write_text(FILE.format(folder=folder), encoding="utf-8")
        self.home = ClusterHome.of("rack", folder / "clusters")
        self.monitor: subprocess.Popen[str] | None = None

    def start(self, record="record"):
        """A monitor with two machines."""
        path = os.pathsep.join([str(ROOT), str(ROOT / "src")])
        self.monitor = subprocess.Popen(
            [sys.executable, "-c", MONITOR, str(self.file), str(self.home.path), record],
            env={**os.environ, "PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )
        assert self.monitor.stdout.readline() == "launched\n"
        return self.monitor

    def kill(self):
        self.monitor.send_signal(signal.SIGKILL)
        self.monitor.wait()

    def machines(self):
        state = json.loads((self.folder / "cloud" / "rack.json").read_text())
        return sorted(name for name, node in state["nodes"].items() if node["state"] != "terminated")

    def down(self, word="rack", *more):
        return CliRunner().invoke(cli, ["down", word, "-y", *more])

    def live_records(self):
        with open_history(self.home.ledger) as history:
            return sorted(i.cloud_id for i in history.find() if i.state.name == "ALLOCATED")


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    made = Site(tmp_path)
    yield made
    if made.monitor is not None:
        made.kill()
        made.monitor.stdout.close()


LAUNCHED = ["rack-1", "rack-2"]


@pytest.mark.slow
def test_the_machines_of_a_monitor_that_was_killed_are_ended_through_the_provider(site):
    site.start()
    site.kill()
    assert (site.machines(), site.live_records()) == (LAUNCHED, LAUNCHED)
    site.home.token.write_text("of the head that its user started")
    done = site.down()
    assert (done.exit_code, site.machines(), site.live_records()) == (0, [], [])
    assert (site.home.token.exists(), site.home.cluster.exists()) == (True, False)
    words = done.output.splitlines()[0].split()
    assert (words[0], "2" in words) == ("rack", True)
    again = site.down()
    assert (again.exit_code, again.output.split()[0], " 2 " in again.output) == (0, "rack", False)


@pytest.mark.slow
def test_machines_that_only_nodes_for_teardown_names_are_ended(site):
    (site.folder / "cloud").mkdir()
    (site.folder / "cloud" / "ended").write_text("worker-1\nworker-2\nhead-1\n")
    assert site.down(str(site.file)).exit_code == 0
    assert (site.folder / "cloud" / "torn_down").read_text().split() == ["worker-1", "worker-2", "head-1"]


@pytest.mark.slow
def test_a_monitor_that_runs_is_stopped_first(site):
    monitor = site.start()
    mark = identify(monitor.pid)
    done = site.down()
    assert (done.exit_code, site.machines(), is_alive(mark)) == (0, [], False)
    text = f"rack is down: stopped its monitor (process {monitor.pid}) and 2 workers"
    assert " ".join(done.output.split()).startswith(text)


@pytest.mark.slow
def test_machines_that_do_not_end_are_named_and_stay_in_the_ledger(site, monkeypatch):
    monkeypatch.setattr("muster.autoscaler.lifecycle.down.WORKERS_S", 3.0)
    site.start()
    site.kill()
    (site.folder / "cloud" / "refuse").touch()
    done = site.down()
    assert (done.exit_code, site.machines(), site.live_records()) == (3, LAUNCHED, LAUNCHED)
    why = "permission: PermissionError: not authorized to end"
    assert f": rack-1 ({why} rack-1); rack-2 ({why} rack-2)" in done.output
    (site.folder / "cloud" / "refuse").unlink()
    assert (site.down().exit_code, site.machines()) == (0, [])


@pytest.mark.slow
def test_a_provider_that_cannot_be_built_stops_nothing_and_says_what_runs(site):
    monitor = site.start()
    record = json.loads(site.home.cluster.read_text())
    record["provider"]["module"] = "nowhere.to.be.Found"
    site.home.cluster.write_text(json.dumps(record))
    done = site.down()
    assert (done.exit_code, monitor.poll(), site.machines()) == (2, None, LAUNCHED)
    assert (": rack-1, rack-2; " in done.output, " 'nowhere'" in done.output) == (True, True)


@pytest.mark.slow
def test_without_a_record_the_name_alone_is_refused_and_the_file_is_enough(site):
    site.start("no record")
    site.kill()
    done = site.down()
    assert (done.exit_code, site.machines()) == (2, LAUNCHED)
    assert ("rack-1, rack-2; " in done.output, " FILE`" in done.output) == (True, True)
    done = site.down(str(site.file))
    assert (done.exit_code, site.machines()) == (0, [])


# -- the teardown alone, in virtual time ---------------------------------------------------------------


def teardown(provider, known=(), patience_s=100.0, quiet_s=2.0, report=lambda text: None, keep=()):
    work = WorkerTeardown(provider, ManualClock(), CountingIds(), known=known, keep=dict(keep))
    return work.run(report, patience_s, quiet_s)


class Ending(FakeProvider):
    """Ends what it is told to at once."""

    def terminate(self, request_id, cloud_ids):
        super().terminate(request_id, cloud_ids)
        for cloud_id in cloud_ids:
            self.machines.pop(cloud_id, None)


def test_the_kept_workers_of_a_type_do_not_include_the_head():
    provider = Ending()
    provider.machines |= {f"c-{n}": machine(str(n)) for n in range(3)}
    head = machine("0")
    provider.machines["c-0"] = replace(head, kind=NodeKind.HEAD)
    assert teardown(provider, keep={head.node_type: 1}).ended == ("c-2",)
    assert sorted(provider.machines) == ["c-0", "c-1", "c-head"]


def test_workers_go_and_the_head_stays():
    provider = Ending()
    provider.machines |= {"c-1": machine("1"), "c-2": machine("2")}
    assert teardown(provider).ended == ("c-1", "c-2")
    assert provider.machines == {"c-head": HEAD_MACHINE}


def test_how_many_machines_are_left_is_said_once_per_change():
    provider, said = FakeProvider(), []
    provider.machines |= {"c-1": machine("1"), "c-2": machine("2")}
    looks = iter(range(1000))

    def listed():
        if (look := next(looks)) in (8, 16):
            provider.machines.pop(f"c-{look // 8}")
        return dict(provider.machines)

    provider.answers["list_instances"] = listed
    teardown(provider, report=said.append)
    assert [re.findall(r"\d+", line) for line in said] == [["2"], ["1"]]


def test_a_machine_that_turns_up_late_goes_too():
    provider = Ending()
    looks = iter(range(1000))

    def listed():
        if next(looks) == 5:
            provider.machines["c-late"] = machine("late")
        return dict(provider.machines)

    provider.answers["list_instances"] = listed
    assert teardown(provider).ended == ("c-late",)


def test_a_machine_without_readable_tags_goes_if_the_ledger_knows_it():
    provider = Ending()
    for name in ("ours", "theirs"):
        provider.machines[name] = cloud_instance(name, kind=NodeKind.UNMANAGED, node_type="")
    assert teardown(provider, known=["ours"]).ended == ("ours",)
    assert set(provider.machines) == {"c-head", "theirs"}


def test_a_refusal_is_tried_again_and_a_broken_list_is_waited_for():
    provider = Ending()
    provider.machines["c-1"] = machine("1")
    provider.answers["terminate"] = ConnectionError("reset")
    answers = iter([ConnectionError("no list")] * 3)
    provider.answers["list_instances"] = lambda: _raise_or(next(answers, None), provider)
    done = teardown(provider, patience_s=5.0)
    assert (done.ended, done.left) == ((), {"c-1": "ConnectionError: reset"})
    assert len(provider.called("terminate")) > 1
    del provider.answers["terminate"]
    assert teardown(provider).ended == ("c-1",)


def _raise_or(error, provider):
    if error is not None:
        raise error
    return dict(provider.machines)


def test_a_list_that_never_answers_leaves_what_the_ledger_knows():
    provider = Ending()
    provider.answers["list_instances"] = ConnectionError("no list")
    left = {"c-1": "the list failed: ConnectionError: no list"}
    assert teardown(provider, known=["c-1"]).left == left
    assert list(teardown(provider).left) == ["(not known)"]


def test_what_the_provider_could_not_end_is_told_with_its_reason():
    provider = FakeProvider()
    provider.machines["c-1"] = machine("1")
    failure = TerminateFailure(cloud_id="c-1", kind=FailureKind.PERMISSION, message="no")
    provider.answers["poll_terminate_failures"] = [failure]
    assert teardown(provider).left == {"c-1": f"{failure.kind.value}: {failure.message}"}
