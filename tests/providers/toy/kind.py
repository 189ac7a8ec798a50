"""A toy kind: everything that muster must know of a cloud that it has never seen, in one folder.

Its machines are entries of a dict, which is the cloud's state: it outlives the providers.
"""

from __future__ import annotations

from typing import ClassVar

from muster.cluster.model import CloudInstance, NodeKind
from muster.cluster.snapshot import ProviderTraits
from muster.config.check import FileRules, MachineSize
from muster.errors import ConfigError
from muster.providers.kind import ProviderKind, two_types
from muster.providers.machines import Machine, ManagedProvider

CLOUD: dict[str, CloudInstance] = {}


class ToyProvider(ManagedProvider):
    def __init__(self, cluster_name):
        self._cluster = cluster_name

    def traits(self):
        return ProviderTraits(installs_runtime=True)

    def list_instances(self):
        return dict(CLOUD)

    def launch(self, request_id, shape, offers=()):
        if any(one.request_id == request_id for one in CLOUD.values()):
            return
        for node_type, count in shape.items():
            for number in range(count):
                name = f"toy-{request_id}-{number}"
                CLOUD[name] = CloudInstance(
                    cloud_id=name, node_type=node_type, kind=NodeKind.WORKER, request_id=request_id
                )

    def terminate(self, request_id, cloud_ids):
        self.terminate_machines(cloud_ids)

    def machines(self, kind):
        return [
            Machine(node_id=name, node_type=one.node_type, ip="10.9.9.9", tags={})
            for name, one in CLOUD.items()
            if one.kind is kind
        ]

    def terminate_machines(self, node_ids):
        for name in node_ids:
            CLOUD.pop(name, None)

    def close(self):
        pass


class ToyRules(FileRules):
    defaults: ClassVar[dict] = {
        **two_types({"shape": "brick"}, None),
        "head_start_ray_commands": ["ray start --head"],
    }
    machine_key = ("shape",)

    def check(self, document, config):
        if config.provider.region != "nursery":
            raise document.error(("provider", "region"), "must be nursery")

    def size_of(self, machine_type):
        return {"brick": MachineSize(4, 1024)}.get(machine_type)


def check(config):
    if config.provider.settings().get("broken"):
        raise ConfigError("is broken", path="provider.broken")


TOY = ProviderKind(
    name="toy",
    build=lambda config, launches, context: ToyProvider(context.cluster_name),
    rules=ToyRules(),
    check=check,
    place=lambda config: f"the toy box in the {config.provider.region}",
)
