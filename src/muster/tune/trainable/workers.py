"""Train with several processes per trial: with_workers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from muster.errors import public
from muster.host.machine import environment
from muster.trials.placement_group import PlacementGroupFactory, resource_dict_to_bundles
from muster.tune.trainable.function_trainable import trainable_name
from muster.tune.trainable.util import is_class, wrapped_function

_THREADS = "OMP_NUM_THREADS"


@public
def with_workers(
    trainable: Callable[..., Any], workers: int, resources_per_worker: Mapping[str, float] | None = None
) -> Callable[..., Any]:
    """Return a trainable each of whose trials runs the function in several processes, the ranks.

    All ranks run the function with the same config, on one machine. muster sets the environment variables
    that `torch.distributed.init_process_group()` reads: RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE,
    MASTER_ADDR and MASTER_PORT, a free port. Every rank sees all GPUs of its trial. `tune.report` sends the
    results of rank 0; in other ranks it returns at once. When a rank fails, muster ends the others, and the
    trial fails.

    Args:
        trainable: A function of the config.
        workers: The number of ranks.
        resources_per_worker: What each rank needs; the trial reserves it once per rank. Default: 1 CPU.

    Returns:
        A trainable for a Tuner. The given function does not change.

    Raises:
        ValueError: `trainable` is not a function or has resources already, or `workers` is not positive.

    Example:
        >>> def train(config): ...
        >>> with_workers(train, workers=4, resources_per_worker={"GPU": 1})._resources
        PlacementGroupFactory([{'GPU': 4.0}], strategy='PACK')
    """
    _check(trainable, workers)
    each = resource_dict_to_bundles(resources_per_worker).bundles[0]

    def inner(config: Any, **more: Any) -> None:  # noqa: ANN401 - whatever with_parameters adds
        from muster.engines.worker.ranks import RankTask, run_ranks  # only trials need it

        run_ranks(RankTask(trainable, config, more), workers, _threads(each, workers))

    total = PlacementGroupFactory([{name: amount * workers for name, amount in each.items()}])
    wrapped_function(inner, trainable)._resources = total  # type: ignore[attr-defined]
    return inner


def _check(trainable: object, workers: object) -> None:
    name = trainable_name(trainable)
    if is_class(trainable, "with_workers"):
        raise ValueError(f"with_workers: {name} is a class, which runs in one process; pass a function")
    if hasattr(trainable, "_resources"):
        raise ValueError(f"with_workers: {name} has resources already; pass resources_per_worker instead")
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise ValueError(f"with_workers: workers={workers!r} must be a positive integer")


def _threads(each: Mapping[str, float], workers: int) -> dict[str, str]:
    """Return the limit on threads of one rank, where the engine has set that of all ranks together."""
    cpus = each.get("CPU", 0.0)
    is_of_engine = environment().get(_THREADS) == str(max(1, int(cpus * workers)))
    return {_THREADS: str(max(1, int(cpus)))} if is_of_engine else {}
