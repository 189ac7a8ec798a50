"""Imported lazily as `ray.train.torch`: define TorchTrainer for one worker, and what its loop calls."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from muster.ray_api.train.one_worker import BackendConfig, OneWorkerTrainer, is_gpu_wanted


@dataclass
class TorchConfig(BackendConfig):
    """Settings of torch's process group, which one worker does not need."""

    backend: str | None = None
    init_method: str = "env"
    timeout_s: int = 1800


class TorchTrainer(OneWorkerTrainer):
    """Trainer of Ray Train for PyTorch, with one worker in this process."""


def get_device() -> Any:  # noqa: ANN401 - a torch.device
    """Return the device of this worker: its first GPU, else the CPU."""
    import torch

    return torch.device("cuda", 0) if is_gpu_wanted() and torch.cuda.is_available() else torch.device("cpu")


def prepare_model(
    model: Any,  # noqa: ANN401 - a torch.nn.Module
    move_to_device: Any = True,  # noqa: ANN401 - a bool or a device
    parallel_strategy: str | None = "ddp",
    parallel_strategy_kwargs: dict[str, Any] | None = None,
) -> Any:  # noqa: ANN401
    """Return the model on its device; one worker needs no DistributedDataParallel."""
    del parallel_strategy, parallel_strategy_kwargs
    if move_to_device is False:
        return model
    return model.to(get_device() if move_to_device is True else move_to_device)


def prepare_data_loader(
    data_loader: Any,  # noqa: ANN401 - a DataLoader
    add_dist_sampler: bool = True,
    move_to_device: bool = True,
    auto_transfer: bool = True,
) -> Any:  # noqa: ANN401
    """Return the loader; its batches are moved to the GPU where the worker has one."""
    del add_dist_sampler, auto_transfer
    device = get_device()
    return _MovingLoader(data_loader, device) if move_to_device and device.type != "cpu" else data_loader


class _MovingLoader:
    """DataLoader that yields its batches on a device."""

    def __init__(self, loader: Any, device: Any) -> None:  # noqa: ANN401 - torch's
        self._loader, self._device = loader, device

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401
        return getattr(self._loader, name)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return (_moved(batch, self._device) for batch in self._loader)


def _moved(batch: Any, device: Any) -> Any:  # noqa: ANN401 - torch's
    if isinstance(batch, dict):
        return {name: _moved(each, device) for name, each in batch.items()}
    if isinstance(batch, list | tuple):
        return type(batch)(_moved(each, device) for each in batch)
    return batch.to(device, non_blocking=True) if hasattr(batch, "to") else batch
