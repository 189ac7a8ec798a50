"""What scripts with `from ray import train, tune` use of `train`."""

from __future__ import annotations

import importlib.util
import json
import tempfile
from pathlib import Path

import pytest

from muster import train, tune


def trainable(config):
    start = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as folder:
            start = json.loads(Path(folder, "state.json").read_text())["epoch"]
    for epoch in range(start + 1, 4):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "state.json").write_text(json.dumps({"epoch": epoch}))
            train.report({"epoch": epoch, "id": train.get_context().get_trial_id()}, train.Checkpoint(folder))
        if epoch == 2 and start == 0:
            raise RuntimeError("once")


@pytest.mark.slow
def test_a_script_for_ray_train_and_tune_runs(tmp_path):
    tuner = tune.Tuner(
        trainable,
        run_config=train.RunConfig(
            name="e",
            storage_path=str(tmp_path),
            verbose=False,
            failure_config=train.FailureConfig(max_failures=1),
            checkpoint_config=train.CheckpointConfig(num_to_keep=1),
        ),
    )
    (result,) = tuner.fit()
    assert isinstance(result, train.Result)
    assert (result.metrics["epoch"], result.metrics["id"]) == (3, result.metrics["trial_id"])
    assert [row["epoch"] for row in result.metrics_history] == [1, 2, 3]


def test_its_names_are_those_of_tune():
    assert train.RunConfig is tune.RunConfig
    assert {"RunConfig", "report", "Checkpoint"} <= set(dir(train))
    assert isinstance(train.get_context(), train.TrainContext)


@pytest.mark.parametrize(
    "script",
    [
        "from muster.train import ScalingConfig",
        "from muster.train.torch import TorchTrainer",
        "import muster.train.xgboost",
    ],
)
def test_what_stays_rays_is_refused_in_one_sentence(script):
    with pytest.raises(
        ImportError, match=r"muster has no train\.\w+: .* stays Ray's\. Import it from ray\.train"
    ):
        exec(script, {})


def test_a_probe_for_a_module_that_stays_rays_finds_nothing():
    assert importlib.util.find_spec("muster.train.torch") is None


def test_other_missing_names_are_missing_as_usual():
    with pytest.raises(AttributeError, match="nonsense"):
        train.nonsense  # noqa: B018
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'muster\.nonsense'"):
        import muster.nonsense  # noqa: F401


def test_a_name_for_a_checkpoint_is_refused():
    with pytest.raises(ValueError, match="checkpoints are numbered"):
        train.report({"a": 1}, None, "mine")
