"""Check virtual time and the points at which a controller can die."""

from __future__ import annotations

import pytest

from muster.sim.cluster.crash_points import CrashPoints, Killed, crash_point
from muster.sim.cluster.world import World


def test_events_happen_at_their_own_moment_and_ties_in_the_order_they_were_made():
    world, seen = World(), []
    world.after(2.0, lambda: seen.append(("second", world.time)))
    world.after(1.0, lambda: seen.append(("first", world.time)))
    world.after(2.0, lambda: seen.append(("third", world.time)))
    world.advance(5.0)
    assert (seen, world.time) == ([("first", 1.0), ("second", 2.0), ("third", 2.0)], 5.0)


def test_an_event_may_make_another_within_the_same_step_of_time():
    world, seen = World(), []
    world.after(1.0, lambda: world.after(1.0, lambda: seen.append(world.time)))
    world.advance(3.0)
    assert seen == [2.0]


def test_setting_the_wall_clock_does_not_move_true_time():
    world = World(wall_start=100.0)
    world.advance(5.0)
    world.jump(-50.0)
    assert (world.now(), world.monotonic()) == (55.0, 5.0)


class Port:
    def __init__(self) -> None:
        self.crash_points = CrashPoints()
        self.done: list[str] = []

    @crash_point("port.work")
    def work(self) -> str:
        self.done.append("work")
        return "reply"


@pytest.mark.parametrize(("kill_after", "done"), [(0, []), (1, ["work"])])
def test_a_kill_comes_before_or_after_the_effect_and_only_once(kill_after, done):
    port = Port()
    port.crash_points.kill_after = kill_after
    with pytest.raises(Killed):
        port.work()
    assert port.done == done
    assert port.work() == "reply"


def test_killed_is_no_exception_that_a_controller_could_catch():
    assert not issubclass(Killed, Exception)
