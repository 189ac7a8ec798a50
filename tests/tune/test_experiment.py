"""Experiment: what is checked when it is made, and the ways to write one."""

from __future__ import annotations

import pytest

from muster.errors import TuneError
from muster.tune.config import CheckpointConfig
from muster.tune.experiment import Experiment, Trial
from muster.tune.experiment.experiment import as_experiments
from muster.tune.experiment.trial import ExportFormat
from muster.tune.registry import get_trainable, register_trainable
from muster.tune.trainable.trainable import Trainable


def train(config):
    return {"loss": 1}


class Steps(Trainable):
    def step(self):
        return {"loss": 1}


def test_an_experiment_registers_its_trainable_by_name():
    experiment = Experiment("e", train, config={"x": 1}, stop={"loss": 3}, num_samples=2)
    assert experiment.run_identifier == "train"
    assert get_trainable("train") is train
    assert experiment.public_spec == {"num_samples": 2, "stop": {"loss": 3}, "time_budget_s": None}


def test_a_registered_name_stands_for_its_trainable():
    register_trainable("by name", Steps)
    assert Experiment("e", "by name").trainable is Steps


def test_a_name_that_nothing_has_is_refused_at_once():
    with pytest.raises(TuneError, match=r"\bnobody\..*register_trainable\("):
        Experiment("e", "nobody")


@pytest.mark.conformance("C-070")
@pytest.mark.parametrize("option", [{"checkpoint_frequency": 2}, {"checkpoint_at_end": True}])
def test_a_function_cannot_be_saved_from_outside(option):
    with pytest.raises(ValueError, match=r"^CheckpointConfig\(checkpoint_\w+=\w+\) .*\btrain\b"):
        Experiment("e", train, checkpoint_config=CheckpointConfig(**option))


def test_a_class_is_not_saved_at_the_end_unless_that_is_asked_for():
    assert Experiment("e", Steps).checkpoint_config.checkpoint_at_end is False
    asked = Experiment("e", Steps, checkpoint_config={"checkpoint_at_end": True})
    assert asked.checkpoint_config == CheckpointConfig(checkpoint_at_end=True)


def test_the_callers_checkpoint_config_stays_as_it_was():
    mine = CheckpointConfig(checkpoint_frequency=3)
    Experiment("e", Steps, checkpoint_config=mine)
    assert mine == CheckpointConfig(checkpoint_frequency=3)


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"config": [1]}, ValueError, "must be a dict"),
        ({"stop": [1]}, ValueError, "only Stoppers"),
        ({"export_formats": [3]}, TuneError, "export_formats takes names"),
        ({"log_to_file": 3}, ValueError, "log_to_file"),
        ({"time_budget_s": "soon"}, ValueError, "time_budget_s"),
        ({"sync_config": 3}, ValueError, "SyncConfig is needed"),
        ({"local_dir": "here"}, DeprecationWarning, "use storage_path"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_said(arguments, kind, words):
    with pytest.raises(kind, match=words):
        Experiment("e", train, **arguments)


def test_each_run_gets_a_stopper_of_its_own():
    experiment = Experiment("e", train, stop=lambda trial_id, result: True)
    assert experiment.stopper("t", {}) is True
    assert experiment.stopper is not experiment.stopper
    assert Experiment("e", train, stop={"loss": 1}).stopper is None


def test_the_path_is_below_the_storage_path(tmp_path):
    assert Experiment("e", train, storage_path=tmp_path).path == str(tmp_path / "e")
    assert Experiment("", train, storage_path=tmp_path).path is None


def test_a_checkpoint_to_begin_with_is_an_absolute_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert Experiment("e", train, restore="saved").restore == str(tmp_path / "saved")
    assert Experiment("e", train, restore="s3://bucket/saved").restore == "s3://bucket/saved"


@pytest.mark.conformance("C-092")
def test_experiments_may_be_written_as_a_dict():
    found = as_experiments({"one": {"run": train, "config": {"x": 1}}, "two": Experiment("two", Steps)})
    assert [(each.name, each.run_identifier, each.config) for each in found] == [
        ("one", "train", {"x": 1}),
        ("two", "Steps", {}),
    ]


@pytest.mark.conformance("C-092")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"e": {"config": {}}}, "add the key `run`"),
        ({"e": {"run": train, "colour": "red"}}, "cannot be understood.*colour"),
        ("e", "an Experiment, a list of them, or a dict"),
        ([train], "an Experiment, a list of them, or a dict"),
    ],
)
def test_what_is_no_experiment_is_refused(given, words):
    with pytest.raises(TuneError, match=words):
        as_experiments(given)


def test_one_and_several_are_told_apart():
    one, two = Experiment("1", train), Experiment("2", train)
    assert (as_experiments(one), as_experiments([one, two])) == ([one], [one, two])


def test_export_formats_are_checked():
    ExportFormat.validate([ExportFormat.MODEL, ExportFormat.ONNX])
    with pytest.raises(TuneError, match="pdf"):
        ExportFormat.validate(["pdf"])


def test_the_package_offers_trial_too():
    assert Trial.TERMINATED == "TERMINATED"
