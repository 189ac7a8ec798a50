"""Define Ray's example of a small network for the digits of MNIST, under Ray's names; needs torchvision.

The data is downloaded to `~/data` when it is not there; one process at a time does so.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import nn, optim
from torch.nn import functional
from torch.utils.data import DataLoader

from muster.base.clock import SystemClock
from muster.host.file_lock import FileLock
from muster.session.checkpoint import Checkpoint
from muster.session.report import report

EPOCH_SIZE = 512  # pictures per call of train_func
TEST_SIZE = 256
_DOWNLOAD_S = 600.0
_MEAN, _DEVIATION = 0.1307, 0.3081  # of all pixels


class ConvNet(nn.Module):  # type: ignore[misc]  # torch has no types here
    """Has one convolution of three channels and one linear layer; it returns log-probabilities."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 3, kernel_size=3)
        self.fc = nn.Linear(192, 10)

    def forward(self, pictures: Any) -> Any:  # noqa: ANN401 - tensors
        features = functional.relu(functional.max_pool2d(self.conv1(pictures), 3))
        return functional.log_softmax(self.fc(features.flatten(1)), dim=1)


def get_data_loaders(batch_size: int = 64) -> tuple[Any, Any]:
    """Return the pictures to train with and those to test with, in shuffled batches."""
    from torchvision import datasets, transforms

    place = Path("~/data").expanduser()
    place.mkdir(parents=True, exist_ok=True)
    prepare = transforms.Compose([transforms.ToTensor(), transforms.Normalize((_MEAN,), (_DEVIATION,))])
    lock = FileLock.acquire(place / "mnist", clock=SystemClock(), wait_s=_DOWNLOAD_S)
    try:
        parts = [
            datasets.MNIST(str(place), train=train, download=True, transform=prepare)
            for train in (True, False)
        ]
    finally:
        lock.release()
    training, testing = (DataLoader(part, batch_size=batch_size, shuffle=True) for part in parts)
    return training, testing


def train_func(model: Any, optimizer: Any, train_loader: Any, device: Any = None) -> None:  # noqa: ANN401
    """Train with the first EPOCH_SIZE pictures."""
    place = device or torch.device("cpu")
    model.train()
    for pictures, digits in _first(train_loader, EPOCH_SIZE):
        optimizer.zero_grad()
        functional.nll_loss(model(pictures.to(place)), digits.to(place)).backward()
        optimizer.step()


def test_func(model: Any, data_loader: Any, device: Any = None) -> float:  # noqa: ANN401
    """Return which share of the first TEST_SIZE pictures is recognised."""
    place = device or torch.device("cpu")
    model.eval()
    right = total = 0
    with torch.no_grad():
        for pictures, digits in _first(data_loader, TEST_SIZE):
            right += int((model(pictures.to(place)).argmax(1) == digits.to(place)).sum())
            total += len(digits)
    return right / total


def train_mnist(config: dict[str, Any]) -> None:
    """Train forever, with `lr` and `momentum`, and report `mean_accuracy`: the experiment has to stop it.

    With `should_checkpoint` in the config, each result has a checkpoint.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader, test_loader = get_data_loaders()
    model = ConvNet().to(device)
    optimizer = optim.SGD(model.parameters(), lr=config.get("lr", 0.01), momentum=config.get("momentum", 0.9))
    while True:
        train_func(model, optimizer, train_loader, device)
        metrics = {"mean_accuracy": test_func(model, test_loader, device)}
        if not config.get("should_checkpoint", False):
            report(metrics)
            continue
        with tempfile.TemporaryDirectory() as folder:
            torch.save(model.state_dict(), str(Path(folder, "model.pt")))
            report(metrics, checkpoint=Checkpoint.from_directory(folder))


def _first(loader: Any, size: int) -> Any:  # noqa: ANN401 - pairs of tensors
    """Yield batches until that many pictures were seen."""
    seen = 0
    for pictures, digits in loader:
        if seen >= size:
            return
        yield pictures, digits
        seen += len(digits)
