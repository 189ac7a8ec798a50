"""The kind `slurm`: a Ray node is a Slurm job, and the head runs on the computer where `muster up` runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import convert

from muster.config.check import FileRules, checked
from muster.config.document import Document
from muster.config.load import Plain
from muster.config.schema import ClusterConfig
from muster.host.machine import node_ip
from muster.providers.kind import MANAGED, HeadPolicy, ProviderKind, imported_from
from muster.providers.slurm.batch import JobConfig, problems_of, resources_of

_NOT_USED = {
    "worker_start_ray_commands": "is not used: muster starts Ray in each job; remove it",
    "file_mounts": "is not used: jobs see the file system that their nodes share; remove it",
    "docker": "is not used; run containers with provider.python, such as 'apptainer exec ray.sif python3'",
}


class SlurmRules(FileRules):
    """Jobs come up with the runtime; a type without resources has those that its jobs ask for."""

    provider_defaults = MANAGED

    def check(self, document: Document, config: ClusterConfig) -> None:
        for key, why in _NOT_USED.items():
            if document.data.get(key):
                raise document.error((key,), why)
        for key in ("python", "head_ip"):
            if not isinstance(config.provider.settings().get(key, ""), str):
                raise document.error(("provider", key), "must be text; put it in quotes")
        for name, entry in config.available_node_types.items():
            path = ("available_node_types", name, "node_config")
            checked(document, path, entry.node_config or {}, JobConfig)
            for below, problem in problems_of(entry.node_config or {}):
                raise document.error((*path, *below), problem)

    def complete(self, document: Document, data: Mapping[str, Any]) -> Plain:
        """Add the resources of jobs; a head on this computer runs no tasks and costs nothing."""
        types: Plain = data.get("available_node_types") or {}
        head = data.get("head_node_type") or next(iter(types), "")
        whole = {
            name: {"resources": {"CPU": 0.0}, "price_per_hour": 0.0, **entry}
            if name == head
            else {"resources": resources_of(convert(entry.get("node_config") or {}, JobConfig)), **entry}
            for name, entry in types.items()
        }
        return {**data, "available_node_types": whole} if types else dict(data)


KIND = ProviderKind(
    name="slurm",
    build=imported_from(".slurm.build", "make_provider"),
    rules=SlurmRules(),
    head=HeadPolicy.HERE,
    head_place="on this computer; its workers are Slurm jobs",
    place=lambda config: "Slurm",
    has_workers=True,
    head_ip=lambda config: config.provider.head_ip or node_ip(),
    preflight=imported_from(".slurm.build", "check_site"),
    quiet_s=1.0,
)
