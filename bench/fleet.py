"""Describe a running cluster in which nothing is to be done, as neutral facts: input of `reconcile`."""

from __future__ import annotations

from dataclasses import dataclass

from bench.workloads import GIB, Bag

HEAD_TYPE = "head"
TYPES: dict[str, Bag] = {
    HEAD_TYPE: {"CPU": 8.0, "memory": 32 * GIB},
    "small": {"CPU": 8.0, "memory": 32 * GIB},
    "medium": {"CPU": 16.0, "memory": 64 * GIB},
    "large": {"CPU": 64.0, "memory": 256 * GIB},
    "gpu": {"CPU": 32.0, "GPU": 4.0, "memory": 128 * GIB},
}
MAX_WORKERS = 50_000
IDLE_TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Machine:
    """Listed by the cloud, reported by the runtime and running in the ledger."""

    instance_id: str
    cloud_id: str
    node_id: str  # hex
    node_type: str

    @property
    def is_head(self) -> bool:
        return self.node_type == HEAD_TYPE

    @property
    def total(self) -> Bag:
        return TYPES[self.node_type]

    @property
    def available(self) -> Bag:
        """Half of everything is in use, so no node is idle."""
        return {name: quantity / 2 for name, quantity in self.total.items()}


def steady(count: int) -> list[Machine]:
    """Return one head and `count` - 1 workers."""
    workers = [name for name in TYPES if name != HEAD_TYPE]
    return [
        Machine(
            instance_id=f"i-{index:06d}",
            cloud_id=f"cloud-{index:06d}",
            node_id=f"{index:056x}",
            node_type=workers[index % len(workers)] if index else HEAD_TYPE,
        )
        for index in range(count)
    ]
