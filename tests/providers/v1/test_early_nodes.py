"""The whole loop over V1Adapter with slow calls: nodes join long before the provider lists their machines."""

from __future__ import annotations

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import BUSY, HEAD_NODE, spec
from tests.providers.v1.scripted import Scripted, adapted
from tests.support.builders import demand, node_report, node_type

from muster.base.clock import SystemClock
from muster.cluster.controller import ClusterController
from muster.providers.v1 import tags as t

WANTED = 10


class SlowRack(Scripted):
    """Creating and listing take several ticks; a machine is listed two minutes after it has come up."""

    def __init__(self, clock) -> None:
        super().__init__()
        self.clock, real = clock, SystemClock()
        self.before_list = lambda *_: real.sleep(0.003)
        self.after_create = lambda made: [real.sleep(0.01), made][1]
        tags = {t.TAG_RAY_NODE_KIND: t.NODE_KIND_HEAD, t.TAG_RAY_USER_NODE_TYPE: "head"}
        self.nodes["c-head"] = {"state": "running", "ip": "10.1.0.0", "tags": tags}

    def non_terminated_nodes(self, tag_filters):
        listed = super().non_terminated_nodes(tag_filters)
        return [
            n for n in listed if self.clock.now() >= self.nodes[n].setdefault("born", self.clock.now()) + 120
        ]

    def workers(self) -> list[str]:
        return [n for n, node in list(self.nodes.items()) if n != "c-head" and node["state"] == "running"]


@pytest.mark.slow
def test_ten_wanted_through_slow_calls_are_ten_bought():
    stage = Stage(installer=False, wishes=spec(node_type("cpu", {"CPU": 1}, max_nodes=40)))
    rack = SlowRack(stage.clock)
    rack.nodes["c-head"]["born"] = 0.0

    def read():
        joined = rack.workers()
        nodes = [node_report(f"n-{n}", cloud_id=n, ip=rack.nodes[n]["ip"], available=BUSY) for n in joined]
        left = WANTED - len(nodes)
        stage.runtime.nodes = [HEAD_NODE, *nodes]
        stage.runtime.demands = [demand({"CPU": 1}, left)] if left > 0 else []
        return stage.runtime._report()

    stage.runtime.answers["read"] = read
    port = adapted(rack, threads=True, list_wait_s=0.001)
    controller = ClusterController(replace_provider(stage.ports, port), stage.ambient)
    late = 0
    for _ in range(160):
        result = controller.tick()
        late += result.snapshot is not None and result.snapshot.cloud is None
        stage.clock.advance(5.0)
        SystemClock().sleep(0.001)
    port.close()
    records = [r for r in stage.store.load().instances.values() if r.node_type == "cpu"]
    assert late > 20  # most lists came too late for their tick
    assert (len(rack.workers()), rack.terminates) == (WANTED, [])
    assert {(r.state.name, r.provisional) for r in records} == {("RAY_RUNNING", False)}
    assert {r.cloud_id for r in records} == set(rack.workers())


def replace_provider(ports, provider):
    return type(ports)(**{**vars(ports), "provider": provider})
