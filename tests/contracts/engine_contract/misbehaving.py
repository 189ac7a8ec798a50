"""Tests trainables that fork, print, ignore signals, vanish or report odd values; part of EngineContract."""

from __future__ import annotations

import math
import os
import signal
import sys
from pathlib import Path

import pytest
from tests.contracts.engine_contract.fixture import Driver, EngineFixture
from tests.mistakes.views import assert_line
from tests.support.trainables import Point

from muster.base.clock import SystemClock
from muster.trials.events import StopTrial, TrialExited, TrialFailureKind, TrialReported
from muster.trials.ports import Engine


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; one that is not reaped yet has."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return False


def ends(pid: int, within_s: float = 10.0) -> bool:
    """Return whether it has ended, or does in a moment: a killed process's connections close before that."""
    clock = SystemClock()
    give_up = clock.monotonic() + within_s
    while not is_gone(pid) and clock.monotonic() < give_up:
        clock.sleep(0.02)
    return is_gone(pid)


class HardPromises(EngineFixture):
    """HardPromises test that each misbehaviour has a clear event, and that nothing hangs."""

    def failure(self, driver: Driver, trial_id: str) -> tuple[TrialFailureKind, str]:
        found = driver.to_exit(trial_id).failure
        assert found is not None
        return found.kind, found.message

    def test_a_child_killed_from_outside(self, driver: Driver) -> None:
        driver.start("a", "waits")
        pid = driver.to_report("a").result["pid"]
        os.kill(pid, signal.SIGKILL)
        kind, message = self.failure(driver, "a")
        assert (kind, "(SIGKILL)" in message) == (TrialFailureKind.KILLED, True)

    def test_a_child_told_to_end_from_outside(self, driver: Driver) -> None:
        driver.start("a", "waits")
        pid = driver.to_report("a").result["pid"]
        driver.go_on("a")
        os.kill(pid, signal.SIGTERM)
        kind, message = self.failure(driver, "a")
        assert (kind, "(SIGTERM)" in message) == (TrialFailureKind.KILLED, True)

    def test_a_crash_in_c_code(self, driver: Driver) -> None:
        driver.start("a", "kills_itself", {"signal": int(signal.SIGSEGV)})
        kind, message = self.failure(driver, "a")
        assert (kind, "(SIGSEGV)" in message) == (TrialFailureKind.KILLED, True)

    def test_os_exit_without_a_word(self, driver: Driver) -> None:
        driver.start("a", "leaves")
        kind, message = self.failure(driver, "a")
        assert kind is TrialFailureKind.EXITED
        assert "exit code 3" in message

    def test_running_out_of_memory(self, driver: Driver) -> None:
        driver.start("a", "needs_memory")
        assert self.failure(driver, "a")[0] is TrialFailureKind.OUT_OF_MEMORY

    def test_a_time_limit(self, driver: Driver) -> None:
        driver.start("a", "waits", time_limit_s=0.3)
        kind, message = self.failure(driver, "a")
        assert kind is TrialFailureKind.TIME_LIMIT
        assert_line("engines", "time limit", message)

    def test_ignoring_sigterm_helps_nothing(self, engine: Engine, driver: Driver, tmp_path: Path) -> None:
        driver.start("a", "ignores_sigterm", {"flag": str(tmp_path / "flag")})
        pid = driver.to_report("a").result["pid"]
        driver.go_on("a")
        driver.poll_until((tmp_path / "flag").exists)
        engine.submit(StopTrial(trial_id="a", grace_s=0.1))
        assert driver.to_exit("a").failure is None
        assert ends(pid)

    def test_what_a_trial_forked_ends_with_it(self, driver: Driver) -> None:
        driver.start("a", "forks")
        result = driver.to_report("a").result
        driver.go_on("a")
        assert driver.to_exit("a").is_done
        driver.poll_until(lambda: is_gone(result["forked"]) and is_gone(result["started"]))

    @pytest.mark.skipif(not sys.platform.startswith("linux"), reason="orphans are adopted on Linux only")
    def test_what_has_left_its_session_ends_with_it(self, engine: Engine, driver: Driver) -> None:
        for trial_id in ("returns", "is stopped"):
            driver.start(trial_id, "leaves_its_session")
            left = driver.to_report(trial_id).result["left"]
            assert not any(map(is_gone, left))
            if trial_id == "returns":
                driver.go_on(trial_id)
            else:
                engine.submit(StopTrial(trial_id=trial_id, grace_s=0.1))
            driver.to_exit(trial_id)
            assert [ends(pid) for pid in left] == [True, True]

    def test_a_fork_of_a_trial_reports_through_the_trial(self, driver: Driver) -> None:
        driver.start("a", "reports_in_a_fork")
        assert driver.to_exit("a").is_done
        assert driver.results("a", "step") == [99, 0]

    def test_printing_much_goes_to_the_file(self, driver: Driver, tmp_path: Path) -> None:
        driver.start("a", "prints_much", {"megabytes": 50}, log_to_file=("stdout", "stderr"))
        driver.start("b", "counts", log_to_file=("stdout", "stderr"))
        driver.to_exit("a", "b")
        written = tmp_path / "a" / "stdout"
        assert written.stat().st_size == 50 * 2**20 + len("the end\n")
        assert (tmp_path / "a" / "stderr").read_text(encoding="utf-8") == "an error line\n"
        assert (tmp_path / "b" / "stdout").read_text(encoding="utf-8") == ""
        written.unlink()

    def test_both_streams_may_share_a_file(self, driver: Driver, tmp_path: Path) -> None:
        driver.start("a", "prints_much", {"megabytes": 0}, log_to_file=("log", "log"))
        driver.to_exit("a")
        lines = (tmp_path / "a" / "log").read_text(encoding="utf-8").splitlines()
        assert sorted(lines) == ["an error line", "the end"]

    def test_odd_numbers_arrive_as_they_are(self, driver: Driver) -> None:
        driver.start("a", "reports_odd_numbers")
        driver.to_exit("a")
        (event,) = driver.of("a", TrialReported)
        assert math.isnan(event.result["nan"])
        expected = {"inf": math.inf, "big": 2**80, "pair": (1, 2), "nested": {"a": [1.5]}}
        assert {key: event.result[key] for key in expected} == expected

    def test_objects_travel_by_pickle(self, driver: Driver) -> None:
        driver.start("a", "reports_object")
        assert driver.to_exit("a").is_done
        assert driver.results("a", "point") == [Point(2.0)]

    def test_objects_in_the_config_arrive(self, driver: Driver) -> None:
        driver.start("a", "returns", {"value": {"point": Point(3.0)}})
        assert driver.to_exit("a").is_done
        assert driver.results("a", "point") == [Point(3.0)]

    def test_an_unserialisable_result_is_named(self, driver: Driver) -> None:
        driver.start("a", "reports_unserialisable")
        kind, message = self.failure(driver, "a")
        assert kind is TrialFailureKind.UNPICKLABLE
        assert "'lock'" in message

    def test_an_unserialisable_config_fails_its_trial(self, engine: Engine, driver: Driver) -> None:
        import threading

        driver.start("a", "counts", {"lock": threading.Lock()})
        driver.start("b", "counts")
        assert driver.to_exit("b").is_done
        assert self.failure(driver, "a")[0] is TrialFailureKind.UNPICKLABLE

    def test_threads_of_the_trial_may_report(self, driver: Driver) -> None:
        driver.start("a", "reports_from_thread")
        assert driver.to_exit("a").is_done
        assert driver.results("a", "step") == [0]

    def test_close_with_trials_alive_leaves_no_process(
        self, engine: Engine, driver: Driver, tmp_path: Path
    ) -> None:
        flags = [tmp_path / "flag-a", tmp_path / "flag-b"]
        for name, flag in zip("ab", flags, strict=True):
            driver.start(name, "ignores_sigterm", {"flag": str(flag)})
        driver.poll_until(lambda: all(flag.exists() for flag in flags))
        pids = [driver.of(name, TrialReported)[0].result["pid"] for name in "ab"]
        engine.close()
        assert [ends(pid) for pid in pids] == [True, True]

    def test_each_start_has_exactly_one_exit(self, engine: Engine, driver: Driver) -> None:
        names = ["counts", "fails", "leaves", "needs_memory", "reports_unserialisable", "waits", "nobody"]
        for name in names:
            driver.start(name, name)
        driver.poll_until(lambda: bool(driver.of("waits", TrialReported)))
        engine.submit(StopTrial(trial_id="waits", grace_s=0.1))
        engine.submit(StopTrial(trial_id="waits", grace_s=0.1))
        driver.to_exit(*names)
        assert driver.quiet_for(0.2) == []
        exits = [event.trial_id for event in driver.events if isinstance(event, TrialExited)]
        assert sorted(exits) == sorted(names)
