"""The driver of the end-to-end tests: makes demand of every kind, under names, and takes it back.

A process of its own, run by `bench.live_driver.Driver`. Tasks hold their place until a file appears: that
works across all processes of one computer, and a killed driver leaves nothing to wait for.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

sys.path.insert(0, str(Path(__file__).parents[2]))  # the repository: `bench` is not installed

from bench.live_driver import answers_only, serve

refs: dict[str, list[Any]] = {}
gangs: dict[str, PlacementGroup] = {}
actors: dict[str, list[Any]] = {}


@ray.remote(max_retries=3)
def hold(until: str) -> str:
    Path(f"{until}.began").touch()
    while not os.path.exists(until):
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_id()


@ray.remote
def where() -> str:
    return ray.get_runtime_context().get_node_id()


@ray.remote
def load(megabytes: int) -> bytes:
    return b"x" * (megabytes * 1_000_000)


@ray.remote
class Tenant:
    def where(self) -> str:
        return ray.get_runtime_context().get_node_id()


def tasks(name: str, until: str, count: int = 1, **options: Any) -> None:
    refs[name] = [hold.options(**options).remote(until) for _ in range(count)]


def nodes(name: str, timeout_s: float = 120) -> list[str]:
    """Where the tasks ran; waits for them."""
    return list(ray.get(refs[name], timeout=timeout_s))


def run(**options: Any) -> str:
    """One short task; the node it ran on."""
    return str(ray.get(where.options(**options).remote(), timeout=120))


def put(name: str, megabytes: int, **options: Any) -> None:
    """An object that lies on the node of the task that made it, as long as the name is kept."""
    refs[name] = [load.options(**options).remote(megabytes)]
    ray.wait(refs[name], timeout=120, fetch_local=False)


def tenant(name: str, **options: Any) -> None:
    actors[name] = [Tenant.options(**options).remote()]


def tenants(name: str, gang: str, num_cpus: float = 1) -> None:
    """One actor in each bundle; they come again when their node dies."""
    actors[name] = [
        Tenant.options(
            num_cpus=num_cpus,
            max_restarts=-1,
            max_task_retries=-1,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=gangs[gang], placement_group_bundle_index=index
            ),
        ).remote()
        for index in range(gangs[gang].bundle_count)
    ]


def homes(name: str, timeout_s: float = 120) -> list[str]:
    """The nodes of the actors."""
    return list(ray.get([one.where.remote() for one in actors[name]], timeout=timeout_s))


def gang(
    name: str, bundles: list[dict[str, float]], strategy: str, selectors: list[dict[str, str]] | None = None
) -> str:
    gangs[name] = placement_group(bundles, strategy=strategy, bundle_label_selector=selectors)
    return str(gangs[name].id.hex())


def ready(name: str, timeout_s: float = 120) -> bool:
    return bool(gangs[name].wait(timeout_s))


def drop(*names: str) -> None:
    """Take back whatever has one of the names."""
    for name in names:
        for one in actors.pop(name, []):
            ray.kill(one)
        if name in gangs:
            remove_placement_group(gangs.pop(name))
        for ref in refs.pop(name, []):
            ray.cancel(ref, force=True)


def clear() -> None:
    """Take everything back."""
    drop(*{*refs, *gangs, *actors})
    request([])


def forget(name: str) -> None:
    """Let go of results without cancelling anything."""
    refs.pop(name)


def request(bundles: list[dict[str, float]]) -> None:
    """`request_resources` of muster's own SDK."""
    from muster.autoscaler.sdk import request_resources

    request_resources(bundles=bundles)


def me() -> str:
    """The node this driver is attached to."""
    return str(ray.get_runtime_context().get_node_id())


if __name__ == "__main__":
    answers = answers_only()
    ray.init(log_to_driver=False, logging_level="ERROR")
    listed = (tasks, nodes, run, put, tenant, tenants, homes, gang, ready, forget, request, me, clear)
    serve({"drop": lambda names: drop(*names), **{one.__name__: one for one in listed}}, answers)
