"""Run Ray 2.60's Reconciler over its in-memory storage, on a cluster where nothing is to be done.

Called in the peer process.
"""

from __future__ import annotations

import logging
import time
from functools import cache
from typing import Any

from bench.fleet import HEAD_TYPE, IDLE_TIMEOUT_S, MAX_WORKERS, TYPES, Machine, steady
from bench.measure import Timed, timed


def reconcile_steady(count: int) -> Timed:
    """Run one loop over `count` running instances; the value is whether it changed nothing."""
    logging.disable(logging.CRITICAL)
    from ray.autoscaler.v2.instance_manager.reconciler import Reconciler

    arguments = steady_arguments(count)
    before = instances_and_version(arguments)
    result = timed(lambda: arguments, lambda given: Reconciler.reconcile(**given))
    return Timed(instances_and_version(arguments) == before and before[0] == count, result.cpu_s)


def instances_and_version(arguments: dict[str, Any]) -> tuple[int, int]:
    from ray.core.generated import instance_manager_pb2 as im

    reply = arguments["instance_manager"].get_instance_manager_state(im.GetInstanceManagerStateRequest())
    return len(reply.state.instances), reply.state.version


@cache
def steady_arguments(count: int) -> dict[str, Any]:
    """Make the arguments once per process: a loop that changes nothing can run again on the same storage."""
    from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
    from ray.autoscaler.v2.instance_manager.instance_manager import InstanceManager
    from ray.autoscaler.v2.instance_manager.instance_storage import InstanceStorage
    from ray.autoscaler.v2.instance_manager.node_provider import CloudInstance
    from ray.autoscaler.v2.instance_manager.storage import InMemoryStorage
    from ray.autoscaler.v2.instance_manager.subscribers.cloud_resource_monitor import CloudResourceMonitor
    from ray.autoscaler.v2.scheduler import ResourceDemandScheduler
    from ray.core.generated import autoscaler_pb2 as pb

    machines = steady(count)
    storage = InstanceStorage("bench", InMemoryStorage())
    storage.batch_upsert_instances([record_of(machine) for machine in machines])
    return {
        "instance_manager": InstanceManager(storage, []),
        "scheduler": ResourceDemandScheduler(None),
        "cloud_provider": untouchable_provider(),
        "cloud_resource_monitor": CloudResourceMonitor(),
        "ray_cluster_resource_state": pb.ClusterResourceState(
            cluster_resource_state_version=1, node_states=[node_of(machine) for machine in machines]
        ),
        "non_terminated_cloud_instances": {
            m.cloud_id: CloudInstance(m.cloud_id, m.node_type, kind_of(m), True) for m in machines
        },
        "autoscaling_config": AutoscalingConfig(cluster_config(), skip_content_hash=True),
        "_logger": logging.getLogger("bench.peer"),
    }


def untouchable_provider():
    from ray.autoscaler.v2.instance_manager.node_provider import ICloudInstanceProvider

    class Untouchable(ICloudInstanceProvider):
        """Nothing is to be done, so being asked for anything is an error of the benchmark."""

        def get_non_terminated(self):
            raise AssertionError("the list was handed over")

        def terminate(self, ids, request_id):
            raise AssertionError("nothing is to be terminated")

        def launch(self, shape, request_id):
            raise AssertionError("nothing is to be launched")

        def poll_errors(self):
            return []

    return Untouchable()


def kind_of(machine: Machine) -> int:
    from ray.core.generated import instance_manager_pb2 as im

    return im.NodeKind.HEAD if machine.is_head else im.NodeKind.WORKER


def record_of(machine: Machine):
    from ray.core.generated import instance_manager_pb2 as im

    record = im.Instance(
        instance_id=machine.instance_id,
        cloud_instance_id=machine.cloud_id,
        node_id=machine.node_id,
        status=im.Instance.RAY_RUNNING,
        instance_type=machine.node_type,
        node_kind=kind_of(machine),
    )
    for status in (im.Instance.QUEUED, im.Instance.REQUESTED, im.Instance.ALLOCATED, im.Instance.RAY_RUNNING):
        record.status_history.add(instance_status=status, timestamp_ns=time.time_ns())
    return record


def node_of(machine: Machine):
    from ray.core.generated import autoscaler_pb2 as pb

    head_mark = {"node:__internal_head__": 1.0} if machine.is_head else {}
    return pb.NodeState(
        node_id=bytes.fromhex(machine.node_id),
        instance_id=machine.cloud_id,
        ray_node_type_name=machine.node_type,
        total_resources={**machine.total, **head_mark},
        available_resources={**machine.available, **head_mark},
        status=pb.NodeStatus.RUNNING,
    )


def cluster_config() -> dict[str, Any]:
    """Return the part of a cluster YAML that the reconciler reads."""
    types = {
        name: {
            "resources": {key: int(quantity) for key, quantity in bag.items()},
            "node_config": {},
            "min_workers": 0,
            "max_workers": 0 if name == HEAD_TYPE else MAX_WORKERS,
        }
        for name, bag in TYPES.items()
    }
    commands = (
        "initialization_commands setup_commands head_setup_commands worker_setup_commands "
        "head_start_ray_commands worker_start_ray_commands"
    )
    return {
        "cluster_name": "bench",
        "max_workers": MAX_WORKERS,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": IDLE_TIMEOUT_S / 60,
        "provider": {"type": "external", "module": "none", "disable_node_updaters": True},
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        "head_node_type": HEAD_TYPE,
        "available_node_types": types,
        **{name: [] for name in commands.split()},
    }
