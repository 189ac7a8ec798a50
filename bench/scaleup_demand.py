"""Create the demand of the scale-up benchmark, the same for all sides: actors that need a node each.

Runs as a separate process (`python -m bench.scaleup_demand ADDRESS NODES [keep]`), because Ray keeps the
token of the first cluster a process meets. Prints a JSON object when it has asked, and another with all epoch
times at the end; with `keep` it ends when work runs on each node, otherwise when the nodes are gone again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import GcsNodeSource

PATIENCE_S = 180.0
LOOK_S = 0.05
DEMAND_LOOK_S = 0.01  # between two looks for the demand in the GCS: a cheap call, for a second or so


def main() -> None:
    address, wanted, keeps = sys.argv[1], int(sys.argv[2]), sys.argv[3:] == ["keep"]
    import ray

    ray.init(address=address, logging_level="ERROR", log_to_driver=False)
    state = GcsNodeSource(GcsClient(address))
    state.read()  # connected, and everything is imported

    @ray.remote(num_cpus=1)
    class Tenant:
        def where(self) -> str:
            return ray.get_runtime_context().get_node_id()

    at: dict[str, Any] = {"asked": time.time()}
    tenants = [Tenant.remote() for _ in range(wanted)]
    answers = [tenant.where.remote() for tenant in tenants]
    print(json.dumps(at), flush=True)
    wait_until(lambda: bool(state.read().demands) or workers(ray) > 0, "demand in the GCS", DEMAND_LOOK_S)
    at["in_gcs"] = time.time()
    at["joined"] = joined(ray, wanted)
    at["nodes_ready"] = at["joined"][-1]
    at["places"] = len(set(ray.get(answers, timeout=PATIENCE_S)))
    at["tenants_ready"] = time.time()
    if not keeps:
        for tenant in tenants:
            ray.kill(tenant)
        at["released"] = time.time()
        wait_until(lambda: workers(ray) == 0, "no nodes")
        at["nodes_gone"] = time.time()
    print(json.dumps(at), flush=True)
    ray.shutdown()


def joined(ray: Any, wanted: int) -> list[float]:
    """Return when the first, second, ... node was in the cluster's list."""
    times: list[float] = []

    def all_there() -> bool:
        times.extend([time.time()] * (workers(ray) - len(times)))
        return len(times) >= wanted

    wait_until(all_there, f"{wanted} nodes")
    return times[:wanted]


def workers(ray: Any) -> int:
    """Return the live nodes without the head."""
    return sum(node["Alive"] and "node:__internal_head__" not in node["Resources"] for node in ray.nodes())


def wait_until(is_so: Callable[[], bool], what: str, look_s: float = LOOK_S) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up:
            raise SystemExit(f"gave up after {PATIENCE_S:.0f} s waiting for {what}")
        time.sleep(look_s)


if __name__ == "__main__":
    main()
