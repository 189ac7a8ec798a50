"""A small cloud in memory for whole-loop scenarios: it sells at once, lists late, omits, and boots nodes.

It shares nothing with the simulator: what is wrong in one world must not hide in the other.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.cluster.fakes import Stage
from tests.cluster.worlds import BUSY, HEAD_MACHINE, HEAD_NODE, spec
from tests.support.builders import cloud_instance, demand, node_report, node_type

from muster.cluster.controller import ClusterController
from muster.cluster.model import NodeStatus

EVERYTHING = float("inf")


@dataclass
class Sold:
    """One machine that was launched, with what is known of it from outside."""

    cloud_id: str
    born: float
    tag: str | None
    node_type: str = "cpu"
    ended: bool = False
    node_dead: bool = False


class SmallCloud:
    """A stage whose provider and runtime follow what is launched; every call of `run` is one tick."""

    def __init__(self, wanted: int, *, most: int = 0, tags: bool = True, lists_after_s=0.0, boots_s=20.0):
        self.wanted, self.tags, self.lists_after_s, self.boots_s = wanted, tags, lists_after_s, boots_s
        kind = node_type("cpu", {"CPU": 1}, max_nodes=most or wanted)
        self.stage = Stage(installer=False, wishes=spec(kind, idle_timeout_s=300.0))
        self.sold: dict[str, Sold] = {}
        self.seen_requests: set[str] = set()
        self.only_head = False  # the list shows nothing else
        self.omitted: set[str] = set()
        self.node_fields = lambda sold: {"cloud_id": sold.cloud_id, "ip": f"10.0.0.{sold.cloud_id[2:]}"}
        self.extra_nodes: list = []
        self.peak = 0
        answers = self.stage.provider.answers
        answers.update(launch=self._launch, terminate=self._terminate, list_instances=self._list)
        self.stage.runtime.answers["read"] = self._read
        self.controller = ClusterController(self.stage.ports, self.stage.ambient)

    @property
    def now(self) -> float:
        return self.stage.clock.now()

    def alive(self) -> list[Sold]:
        return [sold for sold in self.sold.values() if not sold.ended]

    def records(self) -> list:
        """The live records of workers."""
        return [r for r in self.stage.store.load().instances.values() if r.node_type != "head"]

    def run(self, ticks: int, every_s: float = 5.0):
        for _ in range(ticks):
            result = self.controller.tick()
            self.peak = max(self.peak, len(self.alive()))
            self.stage.clock.advance(every_s)
        return result

    def _launch(self, request_id, shape):
        if request_id in self.seen_requests:
            return
        self.seen_requests.add(request_id)
        for name, count in shape.items():
            for _ in range(count):
                cloud_id = f"m-{len(self.sold) + 1}"
                self.sold[cloud_id] = Sold(cloud_id, self.now, request_id if self.tags else None, name)

    def _terminate(self, _request_id, cloud_ids):
        for cloud_id in cloud_ids:
            if cloud_id in self.sold:
                self.sold[cloud_id].ended = self.sold[cloud_id].node_dead = True

    def _list(self):
        listed = {"c-head": HEAD_MACHINE}
        for sold in self.alive():
            if self.only_head or sold.cloud_id in self.omitted or self.now < sold.born + self.lists_after_s:
                continue
            listed[sold.cloud_id] = cloud_instance(
                sold.cloud_id,
                node_type=sold.node_type,
                request_id=sold.tag,
                internal_ip=f"10.0.0.{sold.cloud_id[2:]}",
            )
        return listed

    def nodes(self) -> list:
        return [
            node_report(
                f"n-{sold.cloud_id}",
                node_type=sold.node_type,
                available=BUSY,
                status=NodeStatus.DEAD if sold.node_dead else NodeStatus.RUNNING,
                **self.node_fields(sold),
            )
            for sold in self.sold.values()
            if self.now >= sold.born + self.boots_s
        ]

    def _read(self):
        nodes = self.nodes()
        working = sum(node.status is not NodeStatus.DEAD for node in nodes)
        self.stage.runtime.nodes = [HEAD_NODE, *nodes, *self.extra_nodes]
        left = self.wanted - working
        self.stage.runtime.demands = [demand({"CPU": 1}, left)] if left > 0 else []
        return self.stage.runtime._report()
