"""A new kind is one folder and one line of the table: the commands and the controller work with it."""

from __future__ import annotations

import pytest
from click.testing import CliRunner
from tests.providers.toy.kind import CLOUD

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds, NodeId
from muster.base.resources import Resources
from muster.base.rng import Ambient, Seed
from muster.cli.main import cli
from muster.cluster.controller import ClusterController
from muster.cluster.model import CloudInstance, Demand, NodeKind, NodeReport, NodeStatus, RuntimeReport
from muster.cluster.ports import Drainer, Ports
from muster.config.to_spec import node_launches, to_spec
from muster.errors import ConfigError
from muster.providers import kind
from muster.stores.ledger.memory import MemoryInstanceStore

FILE = "cluster_name: box\nprovider: {type: toy, region: nursery}\nidle_timeout_minutes: 1\n"


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setitem(kind.KINDS, "toy", ("tests.providers.toy.kind", "TOY"))
    monkeypatch.setenv("HOME", str(tmp_path))
    CLOUD.clear()
    path = tmp_path / "box.yaml"
    path.write_text(FILE)
    return path


def run(*words):
    return CliRunner().invoke(cli, [str(word) for word in words])


def test_its_files_are_completed_checked_and_refused_by_its_rules(file):
    config = kind.load_config(file)
    assert config.available_node_types["ray.worker.default"].resources["CPU"] == 4
    file.write_text(FILE.replace("nursery", "attic"))
    with pytest.raises(ConfigError) as caught:
        kind.load_config(file)
    assert (caught.value.path, caught.value.line) == ("provider.region", 2)
    file.write_text(FILE.replace("nursery", "nursery, broken: true"))
    with pytest.raises(ConfigError) as caught:
        kind.check_provider(kind.load_config(file))
    assert caught.value.path == "provider.broken"


def test_plan_and_dry_run_know_its_machines(file, tmp_path):
    demand = tmp_path / "demand.yaml"
    demand.write_text("demands: [{resources: {CPU: 4}, count: 2}]\n")
    planned = run("plan", file, "--demand", demand)
    assert planned.exit_code == 0, planned.output
    assert "brick" in planned.output
    done = run("up", file, "--dry-run", "--no-check")
    assert done.exit_code == 0, done.output
    assert "the toy box in the nursery" in done.output


class Runtime(Drainer):
    """Every machine has an idle node until it is drained."""

    def __init__(self):
        self.wanted, self.drained = 0, set()

    def read(self):
        nodes = tuple(
            NodeReport(
                node_id=NodeId(f"n-{name}"),
                cloud_id=name,
                node_type=one.node_type,
                ip=name,
                status=NodeStatus.IDLE,
                idle_s=0.0 if self.wanted else 600.0,
                total=Resources.of({"CPU": 4}),
                available=Resources.of({"CPU": 4}),
                is_head=one.kind is NodeKind.HEAD,
            )
            for name, one in CLOUD.items()
            if f"n-{name}" not in self.drained
        )
        demands = (Demand(shape=Resources.of({"CPU": 4}), count=self.wanted),) if self.wanted else ()
        return RuntimeReport(nodes=nodes, demands=demands)

    def publish(self, version, report):
        pass

    def drain(self, action):
        self.drained.add(action.node_id)

    def poll(self):
        return ()


class Spec:
    def __init__(self, config):
        self.current = lambda: (to_spec(config), "")


def test_the_controller_launches_and_removes_its_machines(file, tmp_path):
    config, clock, ids, runtime = kind.load_config(file), ManualClock(10_000.0), CountingIds(), Runtime()
    context = kind.ProviderContext(cluster_name="box", home=tmp_path, address="", clock=clock, ids=ids)
    port = kind.build_provider(config, lambda: node_launches(config), context)
    head = CloudInstance(cloud_id="toy-head", node_type="ray.head.default", kind=NodeKind.HEAD)
    CLOUD["toy-head"] = head
    store = MemoryInstanceStore(clock=clock)
    ports = Ports(
        provider=port, nodes=runtime, drainer=runtime, installer=None, store=store, spec=Spec(config)
    )
    controller = ClusterController(ports, Ambient(clock=clock, ids=ids, seed=Seed(1)))

    def tick(times):
        for _ in range(times):
            clock.advance(1.0)
            controller.tick()

    runtime.wanted = 3  # the head holds one
    tick(5)
    assert sorted(one.kind.name for one in CLOUD.values()) == ["HEAD", "WORKER", "WORKER"]
    runtime.wanted = 0
    tick(300)
    assert list(CLOUD) == ["toy-head"]


def test_down_ends_its_machines(file):
    CLOUD["toy-head"] = CloudInstance(cloud_id="toy-head", node_type="ray.head.default", kind=NodeKind.HEAD)
    CLOUD["toy-1"] = CloudInstance(cloud_id="toy-1", node_type="ray.worker.default", kind=NodeKind.WORKER)
    done = run("down", file, "-y")
    assert done.exit_code == 0, done.output
    assert CLOUD == {}
