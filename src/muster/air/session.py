"""Exports what a trial calls at Ray's older import path, `ray.air.session`: `report` and a getter per name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.session.context import TuneContext
from muster.session.report import get_checkpoint, get_context
from muster.train import report


def _getter(name: str) -> Callable[[], Any]:
    def getter() -> Any:  # noqa: ANN401 - as in TuneContext
        return getattr(get_context(), name)()

    getter.__name__ = getter.__qualname__ = name
    getter.__doc__ = getattr(TuneContext, name).__doc__
    return getter


get_experiment_name = _getter("get_experiment_name")
get_local_rank = _getter("get_local_rank")
get_local_world_size = _getter("get_local_world_size")
get_metadata = _getter("get_metadata")
get_node_rank = _getter("get_node_rank")
get_storage = _getter("get_storage")
get_trial_dir = _getter("get_trial_dir")
get_trial_id = _getter("get_trial_id")
get_trial_name = _getter("get_trial_name")
get_trial_resources = _getter("get_trial_resources")
get_world_rank = _getter("get_world_rank")
get_world_size = _getter("get_world_size")

__all__ = [
    "get_checkpoint",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_metadata",
    "get_node_rank",
    "get_storage",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "report",
]
