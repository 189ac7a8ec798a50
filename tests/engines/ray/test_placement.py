from __future__ import annotations

from types import SimpleNamespace

from muster.engines.ray.actor_handle import ActorPlacement
from muster.trials.placement_group import PlacementGroupFactory


def place(**facts) -> ActorPlacement:
    made = ActorPlacement(1, PlacementGroupFactory([{"CPU": 1}]), None)
    made.asked_at, made.assigned_at = 3.0, 7.0
    for name, value in facts.items():
        setattr(made, name, value)
    return made


def test_a_place_is_taken_from_the_moment_its_actor_is_asked_for():
    assert place().began_at is None
    assert place(run="a trial's").began_at == 3.0
    assert place(worker=SimpleNamespace(run="a trial's")).began_at == 7.0
    assert place(worker=SimpleNamespace(run=None)).began_at is None
