"""Creates the demand of the scale-up benchmark, the same for both sides: actors that need a node each.

Runs as a process of its own (`python -m bench.scaleup_demand ADDRESS NODES`), because Ray keeps the token of
the first cluster a process meets. Prints one JSON object with epoch times.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

PATIENCE_S = 180.0
LOOK_S = 0.05


def main() -> None:
    address, wanted = sys.argv[1], int(sys.argv[2])
    import ray

    ray.init(address=address, logging_level="ERROR", log_to_driver=False)

    @ray.remote(num_cpus=1)
    class Tenant:
        def where(self) -> str:
            return ray.get_runtime_context().get_node_id()

    at: dict[str, Any] = {"asked": time.time()}
    tenants = [Tenant.remote() for _ in range(wanted)]
    answers = [tenant.where.remote() for tenant in tenants]
    wait_until(lambda: workers(ray) >= wanted, f"{wanted} nodes")
    at["nodes_ready"] = time.time()
    at["places"] = len(set(ray.get(answers, timeout=PATIENCE_S)))
    at["tenants_ready"] = time.time()
    for tenant in tenants:
        ray.kill(tenant)
    at["released"] = time.time()
    wait_until(lambda: workers(ray) == 0, "no nodes")
    at["nodes_gone"] = time.time()
    ray.shutdown()
    print(json.dumps(at))


def workers(ray: Any) -> int:
    """Returns the live nodes without the head."""
    return sum(node["Alive"] and "node:__internal_head__" not in node["Resources"] for node in ray.nodes())


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    give_up = time.monotonic() + PATIENCE_S
    while not is_so():
        if time.monotonic() > give_up:
            raise SystemExit(f"gave up after {PATIENCE_S:.0f} s waiting for {what}")
        time.sleep(LOOK_S)


if __name__ == "__main__":
    main()
