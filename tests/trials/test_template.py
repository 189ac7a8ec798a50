from __future__ import annotations

import sys

import pytest

from muster.trials.model import CheckpointPolicy, TrialPolicies
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import TrialTemplate


def test_a_trial_has_everything_the_template_says():
    policy = CheckpointPolicy(num_to_keep=2, frequency=3)
    template = TrialTemplate(
        trainable_name="train",
        resources=PlacementGroupFactory([{"CPU": 2}]),
        stopping_criterion={"acc": 1},
        policies=TrialPolicies(
            max_failures=3, checkpoint_policy=policy, restore_path="/some/where", log_to_file=("out", "err")
        ),
        export_formats=("model",),
    )
    trial = template.make("id1", {"x": 1}, {"x": 1}, "0_x=1")
    assert (str(trial), trial.config, trial.evaluated_params, trial.experiment_tag, trial.status) == (
        "train_id1",
        {"x": 1},
        {"x": 1},
        "0_x=1",
        "PENDING",
    )
    assert trial.placement_group_factory == PlacementGroupFactory([{"CPU": 2}])
    assert (trial.stopping_criterion, trial.max_failures, trial.checkpoint_policy) == ({"acc": 1}, 3, policy)
    assert (trial.export_formats, trial.restore_path, trial.log_to_file) == (
        ["model"],
        "/some/where",
        ("out", "err"),
    )
    trial.stopping_criterion["acc"] = 2
    assert template.make("id2", {}, {}, "").stopping_criterion == {"acc": 1}


def test_without_resources_a_trial_takes_one_cpu():
    trial = TrialTemplate(trainable_name="t").make("a", {}, {}, "")
    assert trial.placement_group_factory == PlacementGroupFactory([{"CPU": 1}])


def test_resources_may_depend_on_the_config():
    template = TrialTemplate(
        trainable_name="t", resources=lambda config: PlacementGroupFactory([{"CPU": config["n"]}])
    )
    assert template.make("a", {"n": 3}, {}, "").placement_group_factory.required_resources == {"CPU": 3.0}


def test_users_may_name_trials_and_directories():
    template = TrialTemplate(
        trainable_name="t",
        trial_name_creator=lambda trial: f"my-{trial.trial_id}",
        trial_dirname_creator=lambda trial: f"dir-{trial.config['x']}-{trial}",
    )
    trial = template.make("a", {"x": 1}, {}, "")
    assert (str(trial), trial.custom_dirname) == ("my-a", "dir-1-my-a")


def test_a_directory_name_must_not_be_a_path():
    template = TrialTemplate(trainable_name="t", trial_dirname_creator=lambda trial: "a/b")
    with pytest.raises(ValueError, match="a/b"):
        template.make("a", {}, {}, "")


def test_a_directory_name_must_fit():
    template = TrialTemplate(trainable_name="t", trial_dirname_creator=lambda trial: trial.config["name"])
    assert template.make("a", {"name": "é" * 125}, {}, "").custom_dirname == "é" * 125
    with pytest.raises(ValueError, match="252 bytes"):
        template.make("a", {"name": "é" * 126}, {}, "")


def test_minus_one_sample_is_no_end():
    assert TrialTemplate(trainable_name="t", num_samples=-1).samples == sys.maxsize
    assert TrialTemplate(trainable_name="t", num_samples=7).samples == 7
