"""Providers that use an id again, as Ray's local provider and AWS's stopped machines do: a new machine."""

from __future__ import annotations

import threading

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import S, after, machine, record, spec, world
from tests.providers.v1.dict_provider import DictNodeProvider
from tests.providers.v1.scripted import Scripted, adapted
from tests.support.builders import demand, node_report, node_type

from muster.cluster.controller import ClusterController
from muster.cluster.model import NodeStatus
from muster.cluster.plan import Terminate
from muster.cluster.ports import Ports
from muster.cluster.reconcile import reconcile
from muster.testing import ProviderContract

_creating = threading.Lock()


class Slots(DictNodeProvider):
    """Ids are places: the first free place is used."""

    def create_node(self, node_config, tags, count):
        made = {}
        for _ in range(count):
            with _creating:
                taken = set(self.non_terminated_nodes({}))
                free = next(n for n in range(1000) if f"slot-{n}" not in taken)
                self.nodes[f"slot-{free}"] = {"state": "running", "tags": dict(tags), "ip": f"10.9.0.{free}"}
            made[f"slot-{free}"] = {}
        return made


class TestSlots(ProviderContract):
    def make_provider(self, cluster_name):
        return Slots({}, cluster_name)


class Life:
    """A controller over a provider with slots; nodes come and go as the test says."""

    def __init__(self):
        cpu = node_type("cpu", max_nodes=1)
        self.stage = Stage(installer=False, wishes=spec(cpu, idle_timeout_s=5.0, max_nodes=2))
        self.v1 = type("Slotted", (Scripted,), {})()
        self.v1.create_node_with_resources_and_labels = lambda config, tags, count, *_: Slots.create_node(
            self.v1, config, tags, count
        )
        ports = Ports(**{**vars(self.stage.ports), "provider": adapted(self.v1)})
        self.controller = ClusterController(ports, self.stage.ambient)

    def tick(self, times=1):
        for _ in range(times):
            self.stage.clock.advance(1)
            self.controller.tick()

    def join(self, name):
        self.stage.runtime.nodes[1:] = [node_report(name, cloud_id="slot-0")]

    def shown(self):
        found = self.stage.store.load().instances.values()
        return [(i.state.name, i.cloud_id, i.node_id) for i in found if i.node_type == "cpu"]


def test_a_machine_with_a_used_id_is_a_new_record_and_stays():
    life = Life()
    life.tick()
    life.stage.runtime.demands = [demand()]
    life.tick(2)
    life.join("n-1")
    life.tick()
    assert life.shown() == [("RAY_RUNNING", "slot-0", "n-1")]
    life.stage.runtime.demands = []
    life.stage.runtime.nodes[1:] = [node_report("n-1", cloud_id="slot-0", status=NodeStatus.DEAD)]
    life.tick(4)
    assert (life.shown(), life.v1.terminates) == ([], [["slot-0"]])
    life.stage.runtime.demands = [demand()]
    life.tick(2)
    assert life.shown() == [("ALLOCATED", "slot-0", None)]
    life.stage.runtime.nodes.append(node_report("n-2", cloud_id="slot-0"))
    life.tick(10)
    assert life.shown() == [("RAY_RUNNING", "slot-0", "n-2")]
    assert life.v1.terminates == [["slot-0"]]
    assert len(life.v1.nodes) == 1


@pytest.mark.parametrize("state", [S.TERMINATING, S.TERMINATION_FAILED])
def test_an_id_used_again_before_the_next_list_belongs_to_the_new_request(state):
    old = record("old", state, cloud_id="c-1", launch_request_id="r-1")
    new = record("new", S.REQUESTED, launch_request_id="r-2")
    seen = world([old, new], machines=[machine("1", request_id="r-2")], nodes=[])
    plan = reconcile(seen)
    records = after(seen, plan)
    assert (records["old"].state, records["new"].state) == (S.TERMINATED, S.ALLOCATED)
    assert records["new"].cloud_id == "c-1"
    assert [action for action in plan.actions if isinstance(action, Terminate)] == []


def test_a_machine_that_still_goes_is_not_taken_for_a_new_one():
    old = record("old", S.TERMINATING, cloud_id="c-1", launch_request_id="r-1")
    new = record("new", S.REQUESTED, launch_request_id="r-2")
    seen = world([old, new], machines=[machine("1", request_id="r-1")], nodes=[])
    records = after(seen, reconcile(seen))
    assert (records["old"].state, records["new"].state) == (S.TERMINATING, S.REQUESTED)
