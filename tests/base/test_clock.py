"""Time as a dependency: the manual clock, and wall-clock readings that survive jumps and restarts."""

from __future__ import annotations

from muster.base.clock import ManualClock, SteadyClock, SystemClock, ahead_s


def test_a_manual_clock_moves_only_when_told_to():
    clock = ManualClock(100.0)
    assert (clock.now(), clock.monotonic()) == (100.0, 0.0)
    clock.sleep(5)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (107.5, 7.5)


def test_a_jump_moves_the_wall_clock_alone():
    clock = ManualClock(100.0)
    clock.jump(-50)
    assert (clock.now(), clock.monotonic()) == (50.0, 0.0)


def test_a_steady_clock_starts_at_the_wall_clock_and_ignores_jumps():
    clock = ManualClock(1_000.0)
    clock.advance(1)
    steady = SteadyClock(clock)
    clock.jump(86_400)
    assert steady.now() == 1_001.0
    clock.advance(10)
    clock.jump(-200_000)
    assert steady.now() == 1_011.0


def test_a_steady_clock_never_starts_before_its_floor():
    clock = ManualClock(1_000.0)
    steady = SteadyClock(clock, floor=5_000.0)
    assert steady.now() == 5_000.0
    clock.advance(3)
    assert steady.now() == 5_003.0


def test_a_floor_in_the_past_changes_nothing():
    assert SteadyClock(ManualClock(1_000.0), floor=10.0).now() == 1_000.0


def test_a_steady_clock_is_moved_forward_and_never_back():
    clock = ManualClock(1_000.0)
    steady = SteadyClock(clock)
    steady.not_before(900.0)
    assert steady.now() == 1_000.0
    steady.not_before(4_600.0)
    clock.advance(1)
    assert steady.now() == 4_601.0


def test_a_clock_knows_how_far_it_is_ahead_of_the_wall_clock():
    clock = ManualClock(1_000.0)
    steady = SteadyClock(clock)
    clock.jump(-20)
    assert (ahead_s(steady), ahead_s(clock)) == (20.0, 0.0)


def test_the_steady_clock_of_this_machine_starts_at_its_wall_clock():
    assert abs(SteadyClock().now() - SystemClock().now()) < 5


def test_the_system_clock_goes_forward():
    clock = SystemClock()
    before = clock.monotonic()
    clock.sleep(0.001)
    assert clock.monotonic() > before
    assert clock.now() > 1_600_000_000
