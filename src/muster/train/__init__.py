"""Export what scripts use of `ray.train` inside a trial; each name is loaded when it is first used.

Trainers, ScalingConfig and the like are refused with a sentence: distributed training stays Ray's own.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from muster.base.lazy import lazy_names
from muster.errors import public

if TYPE_CHECKING:
    from muster.session.checkpoint import Checkpoint as Checkpoint
    from muster.session.report import get_checkpoint as get_checkpoint
    from muster.session.report import get_context as get_context
    from muster.session.report import get_preemption_info as get_preemption_info
    from muster.session.session import PreemptionInfo as PreemptionInfo
    from muster.session.session import TuneContext as TrainContext
    from muster.tune.config import CheckpointConfig as CheckpointConfig
    from muster.tune.config import FailureConfig as FailureConfig
    from muster.tune.config import RunConfig as RunConfig
    from muster.tune.config import SyncConfig as SyncConfig
    from muster.tune.result import Result as Result

_load, _, __all__ = lazy_names(
    __name__,
    {
        "muster.session.checkpoint": ["Checkpoint"],
        "muster.session.session": ["PreemptionInfo"],
        "muster.session.report": ["get_checkpoint", "get_context", "get_preemption_info"],
        "muster.tune.config": ["CheckpointConfig", "FailureConfig", "RunConfig", "SyncConfig"],
        "muster.tune.result": ["Result"],
    },
)
__all__ += ["TrainContext", "report"]
_RAYS_OWN = (
    "BackendConfig",
    "DataConfig",
    "LoggingConfig",
    "ScalingConfig",
    "UserCallback",
    "get_dataset_shard",
)


def report(
    metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None, checkpoint_dir_name: str | None = None
) -> None:
    """Report one result, as `tune.report` does; here the checkpoint may be given by place.

    Args:
        metrics: The metrics by name.
        checkpoint: The state to resume from.
        checkpoint_dir_name: Refused: muster numbers checkpoints.
    """
    from muster.session.report import report as send

    if checkpoint_dir_name is not None:
        raise ValueError(
            f"train.report(checkpoint_dir_name={checkpoint_dir_name!r}): a trial's checkpoints are numbered, "
            "checkpoint_000000 and so on; leave the name out"
        )
    send(metrics, checkpoint=checkpoint)


def _refusal(name: str) -> str:
    return (
        f"muster has no {name}: it belongs to distributed training, which stays Ray's. Import it from ray."
        f"{name}, and call the trainer inside a trial with RunConfig(engine='ray')"
    )


def __dir__() -> list[str]:
    return sorted(__all__)


@public
def __getattr__(name: str) -> object:
    if name in _RAYS_OWN:
        raise ImportError(_refusal(f"train.{name}"))
    if name == "TrainContext":
        from muster.session.session import TuneContext

        return TuneContext
    return _load(name)


class _Trainers:
    """Explains why modules such as `muster.train.torch` do not exist; it comes last of all."""

    @staticmethod
    @public
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        del path, target
        # A probe with `importlib.util.find_spec` gets None.
        if name.startswith(f"{__name__}.") and sys._getframe(3).f_globals["__name__"] != "importlib.util":
            raise ModuleNotFoundError(_refusal(name.removeprefix("muster.")), name=name)


sys.meta_path.append(_Trainers)
