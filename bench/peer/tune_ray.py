"""Run Ray Tune 2.60 as a driver of an existing cluster, in a child process."""

from __future__ import annotations

import os
import tempfile

from bench import tune_job
from bench.peer.tune import ENVIRONMENT
from bench.tune_job import Fit, Job


def start(environment: dict[str, str]) -> None:
    """Connect, and run one experiment."""
    tune_job.settle({**ENVIRONMENT, **environment})
    import ray

    ray.init(address=os.environ["RAY_ADDRESS"], log_to_driver=False, logging_level="ERROR")
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as storage:
        fit(Job(trials=2), storage)


def stop() -> None:
    import ray

    ray.shutdown()


def fit(job: Job, storage: str) -> Fit:
    from ray import tune

    return tune_job.fit(tune, job, storage)
