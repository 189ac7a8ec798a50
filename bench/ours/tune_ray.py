"""Runs muster.tune as a driver of an existing Ray cluster, in a child process."""

from __future__ import annotations

import os

from bench import tune_job
from bench.tune_job import Fit, Job


def start(environment: dict[str, str]) -> None:
    """Connects, as the other side does."""
    tune_job.settle(environment)
    import ray

    import muster.tune.tuner  # noqa: F401

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")


def fit(job: Job, storage: str) -> Fit:
    from muster import tune

    return tune_job.fit(tune, job, storage, engine="ray")
