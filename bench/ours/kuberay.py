"""Run in another process: muster's sidecar over an API server, with as many nodes as pods.

Everything but the head is real: the provider and its threads, the source, the loop with a SQLite ledger,
Ray's messages and muster's parser. The head's answer is made once, and parsed again for each tick.
"""

from __future__ import annotations

import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.base.rng import Ambient, Seed
from muster.cluster.controller import ClusterController
from muster.cluster.ports import Ports
from muster.providers.kuberay.client import KubeClient, KubePaths
from muster.providers.kuberay.credentials import KubeAccess
from muster.providers.kuberay.provider import KubeRayProvider
from muster.providers.kuberay.source import RayClusterSource
from muster.runtimes.ray.native import set_up
from muster.runtimes.ray.node_source import GcsNodeSource
from muster.stores.ledger.store import SqliteInstanceStore

TICK_S = 0.25  # ticks of a steady cluster come every second or more: this is a hard pace
SETTLE = 6  # ticks until all pods have records and nodes


class HeadDouble:
    """Answers as the GCS of a cluster with these pods, all busy; takes reports and drains."""

    generation = 1

    def __init__(self, provider: KubeRayProvider) -> None:
        set_up({})
        from ray.core.generated import autoscaler_pb2

        self._messages, self._provider, self._reply, self.waiting = autoscaler_pb2, provider, b"", 0

    def build(self) -> None:
        reply = self._messages.GetClusterResourceStateReply()
        state = reply.cluster_resource_state
        state.cluster_resource_state_version = 1
        for number, pod in enumerate(self._provider.pods().values()):
            node = state.node_states.add()
            node.node_id = number.to_bytes(28, "big")
            node.instance_id, node.ray_node_type_name = pod.name, pod.group
            node.node_ip_address, node.status = pod.machine.internal_ip, self._messages.NodeStatus.RUNNING
            node.total_resources.update({"CPU": 4.0, "memory": 8e9, f"node:{pod.name}": 1.0})
            node.available_resources.update({"CPU": 0.0, "memory": 1e9, f"node:{pod.name}": 1.0})
            if not pod.is_worker:
                node.total_resources["node:__internal_head__"] = 1.0
        if self.waiting:
            ask = state.pending_resource_requests.add()
            ask.request.resources_bundle["CPU"] = 4.0
            ask.count = self.waiting
        self._reply = reply.SerializeToString()

    def resource_state(self) -> bytes:
        return self._reply

    def cluster_status(self) -> bytes:
        return b""

    def report_state(self, state: bytes) -> None:
        """Take a report."""

    def drain(self, action: object) -> None:
        """Take a drain."""

    def poll(self) -> tuple[()]:
        return ()


def main(url: str, token: str, ticks: int) -> None:
    """Run a steady cluster, then one that must grow; prints CPU per tick and memory."""
    client = KubeClient(KubeAccess(url=url, token=token))
    provider = KubeRayProvider(client, KubePaths("research", "demo"))
    source = RayClusterSource(provider, {})
    provider.start()
    head = HeadDouble(provider)
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as folder:
        store = SqliteInstanceStore(Path(folder) / "ledger.db", clock=clock)
        ports = Ports(
            provider=provider,
            nodes=GcsNodeSource(head, clock),
            drainer=head,
            installer=None,
            store=store,
            spec=source,
            notices=provider,
        )
        controller = ClusterController(ports, Ambient(clock, RandomIds(), Seed(0)))
        _wait_for_pods(provider)
        head.build()
        _run(controller.tick, SETTLE)
        print("steady", flush=True)
        steady = _run(controller.tick, ticks)
        print("listing", flush=True)
        listing = _run(lambda: (provider.list_instances(), provider.read(), provider.traits()), ticks)
        head.waiting = 100
        head.build()
        print("growing", flush=True)
        growing = _run(controller.tick, 1)
        _run(controller.tick, 4)
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
        figures = {"steady_s": steady, "listing_s": listing, "growing_s": growing, "peak_mb": peak_mb}
        print(json.dumps(figures), flush=True)
        provider.close()
        store.close()


def _run(tick: Callable[[], object], ticks: int) -> float:
    """Return the CPU seconds of one tick, all threads of the process included."""
    before = time.process_time()
    for _ in range(ticks):
        tick()
        time.sleep(TICK_S)
    return (time.process_time() - before) / ticks


def _wait_for_pods(provider: KubeRayProvider) -> None:
    while provider._watch.age_s() == float("inf"):
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
