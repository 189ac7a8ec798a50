from __future__ import annotations

from types import SimpleNamespace

import pytest

from muster.engines.ray.actor_pool import selecting
from muster.engines.ray.actor_setup import is_other_version, missing_module
from muster.engines.worker.handshake import mismatch
from muster.trials.placement_group import PlacementGroupFactory

HELLO = {"hostname": "n1", "python": "3.11.7", "ray": "2.60.0", "muster": "0.0.1"}


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"python": "3.11.2"}, None),
        (
            {"python": "3.12.1"},
            "the node n1 runs Python 3.12.1, the driver 3.11.7: give every node Python 3.11, or start the"
            " driver with 3.12",
        ),
        (
            {"ray": "2.59.1"},
            "the node n1 runs Ray 2.59.1, the driver 2.60.0: install the same on both"
            " (pip install ray==2.60.0)",
        ),
    ],
)
def test_another_python_or_ray_is_said_in_one_line(changes, why):
    assert mismatch({**HELLO, **changes}, python="3.11.7", ray="2.60.0") == why


def test_a_muster_that_does_not_say_its_ray_is_not_judged_by_it():
    hello = {name: value for name, value in HELLO.items() if name != "ray"}
    assert mismatch(hello, python="3.11.7", ray="2.60.0") is None


def named(name, text="", **facts):
    return type(name, (Exception,), facts)(text)


@pytest.mark.parametrize(
    ("outcome", "foreign"),
    [
        (named("RayTaskError(TypeError)", "Terms.__new__() takes 3 positional arguments"), True),
        (named("ActorDiedError", "creation task", _actor_init_failed=True), True),
        (named("ActorDiedError", "the process died", _actor_init_failed=False), False),
        (named("OutOfMemoryError"), False),
        (None, False),
    ],
)
def test_an_actor_whose_own_code_fails_is_of_another_version(outcome, foreign):
    assert is_other_version(outcome) is foreign


def test_a_part_of_ours_that_an_older_one_lacks_is_our_package_missing():
    assert missing_module(named("RayTaskError", "No module named 'muster.engines.ray.connect'")) == "muster"


def test_the_selector_of_an_empty_first_bundle_goes_with_it():
    gold, silver = {"tier": "gold"}, {"tier": "silver"}
    for bundles, selectors, handed_on in (
        ([{}, {"CPU": 1}], [{}, gold], [gold]),
        ([{}, {"CPU": 1}], [gold], [gold]),
        ([{"CPU": 1}, {"CPU": 1}], [gold, silver], [gold, silver]),
    ):
        request = PlacementGroupFactory(bundles, bundle_label_selector=selectors)
        assert selecting(request, request.options[1]) == {"bundle_label_selector": handed_on}
    assert selecting(SimpleNamespace(bundles=[1], head_bundle_is_empty=True), {"name": "g"}) == {"name": "g"}
