"""Ray's example of a small network, on files of MNIST's format with digits that are easy to tell apart."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install torch torchvision (too large for every CI run)")
pytest.importorskip("torchvision", reason="pip install torch torchvision (too large for every CI run)")

from muster import tune  # noqa: E402
from muster.tune.examples import mnist_pytorch as example  # noqa: E402


def write_digits(folder: Path, name: str, count: int) -> None:
    """A digit d is a white bar in rows 2d to 2d+4, with noise."""
    random = np.random.default_rng(count)
    digits = random.integers(0, 10, count, dtype=np.uint8)
    pictures = random.integers(0, 40, (count, 28, 28), dtype=np.uint8)
    for picture, digit in zip(pictures, digits, strict=True):
        picture[2 * digit : 2 * digit + 5] = 250
    folder.mkdir(parents=True, exist_ok=True)
    images = struct.pack(">IIII", 2051, count, 28, 28) + pictures.tobytes()
    (folder / f"{name}-images-idx3-ubyte").write_bytes(images)
    (folder / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + digits.tobytes())


@pytest.fixture
def data(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, count in (("train", 600), ("t10k", 300)):
        write_digits(tmp_path / "data" / "MNIST" / "raw", name, count)


@pytest.mark.slow
def test_it_learns_and_the_checkpoint_holds_the_network(data, tmp_path):
    tuner = tune.Tuner(
        example.train_mnist,
        param_space={"lr": 0.05, "momentum": 0.9, "should_checkpoint": True},
        run_config=tune.RunConfig(
            storage_path=str(tmp_path / "results"), verbose=0, stop={"training_iteration": 6}
        ),
    )
    (result,) = tuner.fit()
    assert result.error is None
    assert result.metrics["mean_accuracy"] > 0.9
    model = example.ConvNet()
    with result.checkpoint.as_directory() as folder:
        model.load_state_dict(torch.load(Path(folder, "model.pt")))
    _, testing = example.get_data_loaders()
    assert example.test_func(model, testing) > 0.9


def test_an_epoch_has_512_pictures(data):
    training, testing = example.get_data_loaders(batch_size=64)
    seen = [len(digits) for _, digits in example._first(training, example.EPOCH_SIZE)]
    assert (sum(seen), sum(len(d) for _, d in example._first(testing, example.TEST_SIZE))) == (512, 256)
