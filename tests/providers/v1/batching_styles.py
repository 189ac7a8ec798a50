"""Managers that are asked for machines by number: one over muster's base class, one over Ray's."""

from __future__ import annotations

import itertools
import threading
import warnings

from muster.autoscaler import BatchingNodeProvider
from muster.autoscaler.node_provider import NodeData

_clusters: dict[str, dict[str, object]] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


class _AtOnce:
    """Makes and ends what it is asked for before the request returns; the machines outlive the object."""

    node_data: type

    def _there(self):
        head = self.node_data(kind="head", type="head", ip="10.3.0.0", status="up-to-date")
        return _clusters.setdefault(self.cluster_name, {"head": head})

    def get_node_data(self):
        with _lock:
            return dict(self._there())

    def submit_scale_request(self, scale_request):
        with _lock:
            there = self._there()
            for name in scale_request.workers_to_delete:
                there.pop(name, None)
            for node_type, wanted in scale_request.desired_num_workers.items():
                present = sum(one.type == node_type and one.kind == "worker" for one in there.values())
                for _ in range(wanted - present):
                    number = next(_numbers)
                    there[f"w-{number}"] = self.node_data(
                        kind="worker",
                        type=node_type,
                        ip=f"10.3.{number // 256}.{number % 256}",
                        status="up-to-date",
                    )


class MusterManager(_AtOnce, BatchingNodeProvider):
    node_data = NodeData


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    try:
        from ray.autoscaler import batching_node_provider as rays
    except ImportError:
        rays = None

if rays is not None:

    class RayManager(_AtOnce, rays.BatchingNodeProvider):
        node_data = rays.NodeData
