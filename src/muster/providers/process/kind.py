"""The kind `process`: Ray nodes as processes of this computer."""

from __future__ import annotations

import sys
from pathlib import Path

from muster.config.check import FileRules
from muster.config.schema import ClusterConfig
from muster.providers.kind import MANAGED, HeadPolicy, Launches, ProviderContext, ProviderKind
from muster.providers.machines import ManagedProvider


def _build(config: ClusterConfig, launches: Launches, context: ProviderContext) -> ManagedProvider:
    from muster.providers.process.launch_queue import ray_worker
    from muster.providers.process.provider import ProcessProvider
    from muster.remote.notices import notices_line

    current = context.current or (lambda: config)
    ray = str(Path(sys.executable).with_name("ray"))
    # From the file as it is when a node starts, as on machines that are set up over SSH.
    program = ray_worker(context.address, lambda: notices_line(current(), address=context.address, ray=ray))
    return ProcessProvider(context, launches, program=program)


_USABLE_MEMORY = 0.7  # of a computer; the rest is for object stores and all that runs beside the nodes
_LEAST_MEMORY = 100_000_000.0


class ProcessRules(FileRules):
    """Nodes share this computer, and come up with the runtime."""

    provider_defaults = MANAGED

    def memory_shares(self, config: ClusterConfig) -> dict[str, float]:
        """Return the memory of types that name none. Ray would offer the whole computer's on every node.

        The CPUs of the largest cluster that the file allows share what the types with their own number
        leave.
        """
        from muster.host.machine import memory_bytes

        types, room, left = config.available_node_types, config.max_workers, _USABLE_MEMORY * memory_bytes()
        weights = {
            name: max(1.0, entry.resources.get("CPU", 0.0))
            for name, entry in types.items()
            if "memory" not in entry.resources
        }
        total = weights.get(config.head_type, 0.0)
        for name in sorted(types, key=lambda one: -weights.get(one, 0.0)):
            count = min(config.type_max_workers(name), config.max_workers)
            left -= types[name].resources.get("memory", 0.0) * (count + int(name == config.head_type))
            total += weights.get(name, 0.0) * min(count, room)
            room -= min(count, room) if name in weights else 0
        if not memory_bytes():
            return {}
        return {
            name: float(round(max(_LEAST_MEMORY, left * weight / max(1.0, total))))
            for name, weight in weights.items()
        }


KIND = ProviderKind(
    name="process",
    build=_build,
    rules=ProcessRules(),
    head=HeadPolicy.HERE,
    head_place="on this computer: `ray` and `muster` reach it directly",
    place=lambda config: "this computer",
)
