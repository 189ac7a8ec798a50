"""Define `ray.train.lightning` for one worker: Lightning trains in this process, on one device."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from muster.ray_api.train.torch import get_device
from muster.session.checkpoint import Checkpoint
from muster.session.report import report

try:
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import LightningEnvironment
    from lightning.pytorch.strategies import SingleDeviceStrategy
except ModuleNotFoundError:  # the older name of the same package
    import pytorch_lightning as pl
    from pytorch_lightning.plugins.environments import LightningEnvironment
    from pytorch_lightning.strategies import SingleDeviceStrategy


class RayDDPStrategy(SingleDeviceStrategy):  # type: ignore[misc]
    """Strategy of one worker, on its own device; options of DistributedDataParallel have no effect."""

    def __init__(self, *_: Any, **__: Any) -> None:  # noqa: ANN401 - Lightning's
        super().__init__(device=get_device())


class RayLightningEnvironment(LightningEnvironment):  # type: ignore[misc]
    """Cluster environment of one process."""

    @property
    def creates_processes_externally(self) -> bool:
        return True

    def world_size(self) -> int:
        return 1


class RayTrainReportCallback(pl.callbacks.Callback):  # type: ignore[misc]
    """Reports the metrics and a checkpoint at the end of each training epoch."""

    CHECKPOINT_NAME = "checkpoint.ckpt"

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ANN401 - Lightning's
        del pl_module
        metrics = {
            name: value.item() if hasattr(value, "item") else value
            for name, value in trainer.callback_metrics.items()
        }
        metrics |= {"epoch": trainer.current_epoch, "step": trainer.global_step}
        with tempfile.TemporaryDirectory() as folder:
            trainer.save_checkpoint(os.path.join(folder, self.CHECKPOINT_NAME), weights_only=False)
            report(metrics, checkpoint=Checkpoint.from_directory(folder))


def prepare_trainer(trainer: Any) -> Any:  # noqa: ANN401 - a Lightning Trainer
    """Return the trainer; there is nothing to check with one worker."""
    return trainer
