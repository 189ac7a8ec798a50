"""Run muster.tune as a driver of an existing Ray cluster, in a child process."""

from __future__ import annotations

import os
import time
from typing import Any

from bench import tune_job
from bench.tune_job import Fit, Job


def start(environment: dict[str, str]) -> None:
    """Connect, as the other side does."""
    tune_job.settle(environment)
    import ray

    import muster.tune.tuner  # noqa: F401

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")


def fit(job: Job, storage: str) -> Fit:
    from muster import tune

    return tune_job.fit(tune, job, storage, engine="ray")


def empty_actors(job: Job) -> tuple[float, float]:
    """Return seconds until the first and the last actor answer that Ray starts with nothing of a tuner."""
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    started = time.perf_counter()
    groups = [placement_group([{"CPU": job.cpus}]) for _ in range(job.trials)]
    empty: Any = ray.remote(Empty)
    actors = [
        empty.options(num_cpus=job.cpus, scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()
        for group in groups
    ]
    answers = [actor.pid.remote() for actor in actors]
    ray.wait(answers)
    first_s = time.perf_counter() - started
    pids = ray.get(answers)
    last_s = time.perf_counter() - started
    for actor, group in zip(actors, groups, strict=True):
        ray.kill(actor)
        remove_placement_group(group)
    tune_job.wait_until_gone(pids)
    return first_s, last_s


class Empty:
    """An actor that does nothing."""

    def pid(self) -> int:
        return os.getpid()
