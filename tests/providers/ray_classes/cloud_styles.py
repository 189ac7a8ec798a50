"""Providers in the style of those in Ray's wheel: an object per zone, errors of a cloud's library, hangs."""

from __future__ import annotations

import itertools
import threading
from typing import ClassVar


class HttpError(Exception):
    """As Google's library has it: the status is in the response."""

    def __init__(self, status: int, text: str = "") -> None:
        self.resp = type("Response", (), {"status": status})()
        super().__init__(f"<HttpError {status} {text}>")


class ResourceNotFoundError(Exception):
    """As Azure's library has it."""


class GcpLike:
    """Sees one zone. A machine that was taken is a 404 in every call, also in a list that is under way."""

    world: ClassVar[dict[str, dict[str, dict]]] = {}  # zone -> name -> machine
    numbers: ClassVar[itertools.count] = itertools.count(1)
    sold_out: ClassVar[set[str]] = set()
    taken_while_listed: ClassVar[list[str]] = []
    failing: ClassVar[set[str]] = set()
    made: ClassVar[list[str]] = []  # zones of the objects that were made
    hangs: ClassVar[threading.Event | None] = None

    def __init__(self, provider_config, cluster_name):
        self.zone = provider_config["availability_zone"]
        self.made.append(self.zone)
        self.machines = self.world.setdefault(self.zone, {})

    @classmethod
    def reset(cls):
        for kept in (cls.world, cls.sold_out, cls.taken_while_listed, cls.failing, cls.made):
            kept.clear()
        cls.hangs = None

    def _get(self, node_id):
        if node_id not in self.machines:
            raise HttpError(404, f"The resource '{node_id}' was not found")
        return self.machines[node_id]

    def non_terminated_nodes(self, tag_filters):
        if self.hangs is not None:
            self.hangs.wait(60)
        if self.zone in self.failing:
            raise HttpError(503, "Service Unavailable")
        if self.taken_while_listed:
            self.machines.pop(self.taken_while_listed.pop(), None)
            raise HttpError(404, "a machine went while it was read")
        return [n for n, one in self.machines.items() if tag_filters.items() <= one["tags"].items()]

    def is_running(self, node_id):
        return self._get(node_id)["status"] == "RUNNING"

    def is_terminated(self, node_id):
        return self._get(node_id)["status"] != "RUNNING"

    def node_tags(self, node_id):
        return dict(self._get(node_id)["tags"])

    def set_node_tags(self, node_id, tags):
        self._get(node_id)["tags"].update(tags)

    def internal_ip(self, node_id):
        return self._get(node_id)["ip"]

    def external_ip(self, node_id):
        return None

    def create_node(self, node_config, tags, count):
        if self.zone in self.sold_out:
            raise HttpError(503, "ZONE_RESOURCE_POOL_EXHAUSTED")
        made = {}
        for _ in range(count):
            number = next(self.numbers)
            name = f"ray-mine-worker-{number:08x}-compute"
            self.machines[name] = {
                "tags": dict(tags),
                "status": "RUNNING",
                "ip": f"10.0.0.{number}",
                "config": node_config,
            }
            made[name] = {}
        return made

    def terminate_node(self, node_id):
        self._get(node_id)
        del self.machines[node_id]

    def terminate_nodes(self, node_ids):
        raise AssertionError("one that is gone would fail all")


class AzureLike(GcpLike):
    """Sees every zone; has its own error, and no status in it."""

    def __init__(self, provider_config, cluster_name):
        super().__init__({"availability_zone": "everywhere"}, cluster_name)

    def _get(self, node_id):
        if node_id not in self.machines:
            raise ResourceNotFoundError("(ResourceNotFound) gone")
        return self.machines[node_id]
