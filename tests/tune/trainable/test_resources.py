from __future__ import annotations

import cloudpickle
import pytest

from muster.errors import TuneError
from muster.trials.placement_group import PlacementGroupFactory
from muster.tune.trainable import Trainable, with_parameters, with_resources
from muster.tune.trainable.util import resource_dict_to_bundles, trial_resources

TWO = PlacementGroupFactory([{"CPU": 2}])


def train(config, data=0):
    return {"x": config["x"] + data}


class Calls:
    def method(self, config):
        return {"x": config["x"]}


class Steps(Trainable):
    def setup(self, config, data=0):
        self.data = data

    def step(self):
        return {"x": self.config["x"] + self.data}


def by_config(config):
    return PlacementGroupFactory([{"CPU": config["cpus"]}])


@pytest.mark.parametrize(
    ("asked", "bundle"),
    [
        (None, {"CPU": 1.0}),
        ({}, {"CPU": 1.0}),
        ({"cpu": 2}, {"CPU": 2.0}),
        ({"CPU": 3, "GPU": 0.5}, {"CPU": 3.0, "GPU": 0.5}),
        ({"gpu": 1}, {"GPU": 1.0}),
        ({"cpu": 0, "CPU": 4, "gpu": 1}, {"GPU": 1.0}),
        ({"cpu": 1, "memory": 1024, "licence": 2}, {"CPU": 1.0, "memory": 1024.0, "licence": 2.0}),
        ({"cpu": 1, "custom_resources": {"a": 1}, "b": 2}, {"CPU": 1.0, "a": 1.0}),
        ({"cpu": 1, "custom_resources": {}, "b": 2}, {"CPU": 1.0}),
        ({"cpu": 1, "gpu": None}, {"CPU": 1.0}),
    ],
)
def test_a_resource_dict_is_one_bundle(asked, bundle):
    assert resource_dict_to_bundles(asked) == PlacementGroupFactory([bundle])
    assert resource_dict_to_bundles(asked).bundles == [bundle]


@pytest.mark.parametrize("wrong", [{"cpu": 0}, {"cpu": 0, "gpu": 0}, {"cpu": "many"}])
def test_asking_for_nothing_is_refused(wrong):
    with pytest.raises(ValueError, match=r"example: .'cpu': 2, 'gpu': 0.5."):
        resource_dict_to_bundles(wrong)


@pytest.mark.conformance("C-073")
def test_a_function_with_resources_is_another_function():
    for asked, needed in (({"cpu": 2}, TWO), (TWO, TWO), (by_config, by_config)):
        changed = with_resources(train, asked)
        assert changed._resources == needed
        assert (changed.__name__, changed({"x": 1})) == ("train", {"x": 1})
    assert not hasattr(train, "_resources")


def test_two_resources_for_one_function_do_not_mix():
    one, other = with_resources(train, {"cpu": 1}), with_resources(train, {"cpu": 2})
    assert [each._resources.head_cpus for each in (one, other)] == [1.0, 2.0]


@pytest.mark.conformance("C-073")
def test_a_bound_method_can_have_resources():
    changed = with_resources(Calls().method, {"cpu": 2})
    assert (changed._resources, changed.__name__, changed({"x": 4})) == (TWO, "method", {"x": 4})


@pytest.mark.conformance("C-073")
def test_a_class_with_resources_is_a_subclass_of_the_same_name():
    for asked in ({"cpu": 2}, TWO, lambda config: TWO):
        changed = with_resources(Steps, asked)
        assert (changed.__name__, issubclass(changed, Steps)) == ("Steps", True)
        assert changed.default_resource_request({}) == TWO
    assert Steps.default_resource_request({}) is None


@pytest.mark.conformance("C-073")
def test_parameters_and_resources_combine_in_either_order():
    for changed in (
        with_resources(with_parameters(train, data=10), {"cpu": 2}),
        with_parameters(with_resources(train, {"cpu": 2}), data=10),
    ):
        assert (changed._resources, changed.__name__, changed({"x": 1})) == (TWO, "train", {"x": 11})
        again = cloudpickle.loads(cloudpickle.dumps(changed))
        assert (again._resources, again({"x": 1})) == (TWO, {"x": 11})
    for changed in (
        with_resources(with_parameters(Steps, data=10), {"cpu": 2}),
        with_parameters(with_resources(Steps, {"cpu": 2}), data=10),
    ):
        again = cloudpickle.loads(cloudpickle.dumps(changed))
        assert (again.default_resource_request({}), again.__name__) == (TWO, "Steps")
        assert again({"x": 1}).train()["x"] == 11


@pytest.mark.parametrize("wrong", [3, "name", Calls])
def test_only_trainables_can_have_resources(wrong):
    with pytest.raises(ValueError, match="with_resources"):
        with_resources(wrong, {"cpu": 1})


@pytest.mark.parametrize("wrong", [3, "cpu", [{"CPU": 1}], None, Calls])
def test_resources_are_a_dict_bundles_or_a_function(wrong):
    with pytest.raises(ValueError, match=r"^resources .*PlacementGroupFactory"):
        with_resources(train, wrong)


def needed(trainable, config, per_trial=None):
    found = trial_resources(trainable, per_trial)
    return found(config) if callable(found) else found


def test_the_trainable_says_first_what_it_needs_then_the_experiment_then_one_cpu():
    one = PlacementGroupFactory([{"CPU": 1}])
    assert needed(train, {}) == one
    assert needed(train, {}, {"cpu": 2}) == TWO
    assert needed(with_resources(train, {"cpu": 2}), {}) == TWO
    assert needed(with_resources(train, by_config), {"cpus": 2}) == TWO
    assert needed(Steps, {}) == one
    assert needed(Steps, {}, {"cpu": 2}) == TWO
    assert needed(Steps, {"cpus": 2}, by_config) == TWO
    assert needed(with_resources(Steps, by_config), {"cpus": 2}) == TWO
    assert needed(with_resources(train, lambda config: {"cpu": 2}), {}) == TWO


def test_saying_it_twice_is_refused():
    for trainable in (with_resources(train, {"cpu": 2}), with_resources(Steps, {"cpu": 2})):
        with pytest.raises(TuneError, match="resources_per_trial"):
            needed(trainable, {}, {"cpu": 1})


def test_a_resource_function_must_answer():
    with pytest.raises(TuneError, match=r"<lambda> \w+ 2: .*PlacementGroupFactory"):
        needed(with_resources(train, lambda config: 2), {})


def test_a_class_may_return_a_dict_of_resources():
    class Wide(Steps):
        @classmethod
        def default_resource_request(cls, config):
            return {"cpu": config["cpus"]}

    assert trial_resources(Wide)({"cpus": 2}) == TWO
