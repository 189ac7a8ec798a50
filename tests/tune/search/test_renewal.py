"""Configs of an earlier run that get the objects of another space of the same shape."""

from __future__ import annotations

import pytest
from tests.tune.search.searchers import Recorder

from muster.trials.template import TrialTemplate
from muster.tune.search import BasicVariantGenerator, SearchGenerator
from muster.tune.search.placeholders import renewing
from muster.tune.search.space import choice, grid_search, sample_from, uniform


class Net:
    def __init__(self, name, run):
        self.name, self.run = name, run

    def __repr__(self):
        return f"{self.name}{self.run}"


def space(run):
    return {
        "fixed": [Net("fixed", run), 1],
        "option": choice([Net("a", run), Net("b", run)]),
        "part": choice([{"net": Net("c", run), "width": 1}]),
        "derived": sample_from(lambda config: Net(config["option"].name, run)),
        "rate": uniform(0, 1),
        "plain": sample_from(lambda config: len(config["part"])),
    }


class Draws(Recorder):
    """Suggests a value of every domain of the space it is told."""

    def set_search_properties(self, metric, mode, config, **spec):
        self.domains = {name: each for name, each in config.items() if hasattr(each, "sample")}
        return True

    def suggest(self, trial_id):
        return {name: domain.sample() for name, domain in self.domains.items()}


def first_trial(search, of):
    template = TrialTemplate(trainable_name="f", param_space=of, num_samples=3)
    search.set_search_properties("loss", "min", of)
    search.add_configurations([template])
    return search.next_trial()


def made(config):
    """By which run each object was made."""
    return {name: str(value) for name, value in config.items() if name not in ("rate", "plain")}


@pytest.mark.parametrize("search", [BasicVariantGenerator(random_state=1), SearchGenerator(Draws())])
def test_constants_options_parts_of_options_and_derived_objects_are_new(search):
    trial = first_trial(search, space(1))
    again = renewing(lambda trial_id, config, params, tag: config, space(2))
    config = again(trial.trial_id, trial.config, trial.evaluated_params, trial.experiment_tag)
    before, after = made(trial.config), made(config)
    assert [text[0] for text in after.values()] == [text[0] for text in before.values()]
    assert (after["option"], after["derived"]) == (f"{before['option'][0]}2",) * 2
    assert (after["part"], after["fixed"]) == ("{'net': c2, 'width': 1}", "[fixed2, 1]")
    assert (config["rate"], config["plain"]) == (trial.config["rate"], trial.config["plain"])


def test_options_of_grids_are_found_by_their_place_and_others_stay():
    first = {"net": grid_search([Net("a", 1), Net("b", 1), 3]), "gone": choice([Net("c", 1)])}
    search = BasicVariantGenerator(random_state=1)
    trials = [first_trial(search, first), search.next_trial(), search.next_trial()]
    second = {"net": grid_search([Net("a", 2), Net("b", 2), 3]), "gone": choice([7])}
    again = renewing(lambda trial_id, config, params, tag: config, second)
    configs = [again(t.trial_id, t.config, t.evaluated_params, t.experiment_tag) for t in trials]
    assert [str(config["net"]) for config in configs] == ["a2", "b2", "3"]
    assert [str(config["gone"]) for config in configs] == ["c1"] * 3  # nothing says what it would be now


def test_what_a_config_does_not_have_is_left_out():
    again = renewing(
        lambda trial_id, config, params, tag: config, {"a": {"b": Net("b", 2)}, "c": Net("c", 2)}
    )
    assert str(again("", {"a": 1, "c": Net("c", 1)}, {}, "")) == "{'a': 1, 'c': c2}"
