"""Run Ray Tune 2.60 on the jobs of `bench.tune_job`, in a child process with one local Ray."""

from __future__ import annotations

import importlib.util
import shutil
import tempfile

from bench import tune_job
from bench.tune_job import Fit, Job

ENVIRONMENT = {
    "RAY_worker_niceness": "0",  # its workers would otherwise run with low priority
    "RAY_USAGE_STATS_ENABLED": "0",
}
NEEDED = ("pandas", "pyarrow", "tensorboardX")  # without the last, its TensorBoard logger is silently off


def missing() -> list[str]:
    """Return what Ray Tune lacks to run with all its default loggers."""
    return [name for name in NEEDED if importlib.util.find_spec(name) is None]


_place: list[str] = []  # of the files that Ray makes for itself, outside of any experiment


def start() -> None:
    """Start Ray and run one experiment, so that nothing is started for the first time when it counts."""
    tune_job.settle(ENVIRONMENT)
    _place.append(tempfile.mkdtemp(prefix="muster-ray-", dir="/tmp"))  # short: it holds Unix sockets
    begin(_place[0])
    with tempfile.TemporaryDirectory(prefix="muster-bench-") as storage:
        fit(Job(trials=2), storage)


def begin(directory: str) -> None:
    import ray

    ray.init(
        num_cpus=tune_job.CPUS,
        include_dashboard=False,
        log_to_driver=False,
        logging_level="ERROR",
        _temp_dir=directory,
    )


def stop() -> None:
    """End Ray's processes and remove its files."""
    import ray

    ray.shutdown()
    for directory in _place:
        shutil.rmtree(directory, ignore_errors=True)
    _place.clear()


def fit(job: Job, storage: str) -> Fit:
    from ray import tune

    return tune_job.fit(tune, job, storage)


def restore(job: Job, directory: str, then: str) -> float:
    from ray import tune

    return tune_job.restore(tune, job, directory, then)
