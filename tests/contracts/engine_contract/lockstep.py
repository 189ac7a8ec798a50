"""Tests lock-step, stopping, errors and capacity; part of EngineContract."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.contracts.engine_contract.fixture import Driver, EngineFixture

from muster.trials.events import (
    ContinueTrial,
    SaveTrial,
    StopTrial,
    TrialExited,
    TrialFailureKind,
    TrialReported,
    TrialStarted,
)
from muster.trials.ports import Engine


class LockstepPromises(EngineFixture):
    """LockstepPromises test one answer per report, and one exit per start."""

    def test_a_trial_runs_to_its_end(self, driver: Driver) -> None:
        driver.start("a", "counts", {"steps": 3})
        gone = driver.to_exit("a")
        assert [type(event) for event in driver.events] == [
            TrialStarted,
            TrialReported,
            TrialReported,
            TrialReported,
            TrialExited,
        ]
        assert driver.results("a", "step") == [0, 1, 2]
        assert (gone.failure, gone.is_done, gone.reusable) == (None, True, False)

    def test_no_progress_without_continue(self, driver: Driver) -> None:
        driver.start("a", "counts", {"steps": 2})
        driver.to_report("a")
        assert driver.quiet_for(0.3) == []
        driver.go_on("a")
        assert driver.to_report("a", count=2).result["step"] == 1
        assert driver.quiet_for(0.3) == []

    def test_automatic_keys_come_after_reported_ones_in_rays_order(self, driver: Driver) -> None:
        driver.start("a", "counts", {"steps": 1})
        result = driver.to_report("a").result
        assert list(result) == [
            "step",
            "timestamp",
            "checkpoint_dir_name",
            "done",
            "training_iteration",
            "trial_id",
            "date",
            "time_this_iter_s",
            "time_total_s",
            "pid",
            "hostname",
            "node_ip",
            "config",
            "time_since_restore",
            "iterations_since_restore",
        ]
        assert (result["trial_id"], result["config"], result["done"]) == ("a", {"steps": 1}, False)

    def test_stop_while_it_waits_is_an_exit_without_error(self, engine: Engine, driver: Driver) -> None:
        driver.start("a", "counts", {"steps": 100})
        driver.to_report("a")
        engine.submit(StopTrial(trial_id="a"))
        gone = driver.to_exit("a", answer=False)
        assert (gone.failure, gone.is_done) == (None, False)
        assert driver.results("a", "step") == [0]

    def test_stop_while_it_works_ends_it_after_the_grace(self, engine: Engine, driver: Driver) -> None:
        driver.start("a", "waits")
        driver.to_report("a")
        driver.go_on("a")
        engine.submit(StopTrial(trial_id="a", grace_s=0.1))
        assert driver.to_exit("a").failure is None

    def test_stop_before_it_has_resources_is_an_exit_too(self, engine: Engine, driver: Driver) -> None:
        driver.start("a", "counts", resources={"CPU": 2})
        driver.start("b", "counts", resources={"CPU": 2})
        engine.submit(StopTrial(trial_id="b"))
        gone = driver.to_exit("a", "b")
        assert (gone.failure, gone.is_done, driver.of("b", TrialStarted)) == (None, False, [])

    def test_a_user_error_is_an_event_with_its_traceback(self, driver: Driver) -> None:
        driver.start("a", "fails")
        failure = driver.to_exit("a").failure
        assert failure is not None
        assert failure.kind is TrialFailureKind.USER_ERROR
        assert failure.message.splitlines()[-1] == "ValueError: this is what the user did wrong"
        assert "in fails" in failure.traceback
        assert failure.exception is not None

    def test_a_long_traceback_is_cut_to_twenty_lines(self, driver: Driver) -> None:
        driver.start("a", "fails_deep")
        failure = driver.to_exit("a").failure
        assert failure is not None
        assert len(failure.message.splitlines()) == 20
        assert failure.message.splitlines()[-1] == "RuntimeError: deep down"
        assert len(failure.traceback.splitlines()) > 20

    def test_one_trial_may_fail_while_another_goes_on(self, driver: Driver) -> None:
        driver.start("a", "fails")
        driver.start("b", "counts", {"steps": 5})
        assert driver.to_exit("a", "b").is_done
        assert driver.results("b", "step") == [0, 1, 2, 3, 4]

    def test_an_unknown_trainable_fails_its_trial(self, driver: Driver) -> None:
        driver.start("a", "nobody")
        failure = driver.to_exit("a").failure
        assert failure is not None
        assert "nobody" in failure.message

    def test_commands_to_unknown_trials_are_ignored(self, engine: Engine, driver: Driver) -> None:
        for command in (ContinueTrial(trial_id="x"), SaveTrial(trial_id="x"), StopTrial(trial_id="x")):
            engine.submit(command)
        assert driver.quiet_for(0.2) == []
        driver.start("a", "counts", {"steps": 1})
        driver.to_exit("a")
        engine.submit(ContinueTrial(trial_id="a"))
        engine.submit(StopTrial(trial_id="a"))
        assert driver.quiet_for(0.2) == []

    @pytest.mark.parametrize(
        ("value", "expected"),
        [({"loss": 2}, [("loss", 2)]), (1.5, [("_metric", 1.5)]), (None, []), (0, []), ({}, [])],
    )
    def test_returned_values_are_reported(self, driver: Driver, value: object, expected: object) -> None:
        driver.start("a", "returns", {"value": value})
        assert driver.to_exit("a").is_done
        found = [next(iter(event.result.items())) for event in driver.of("a", TrialReported)]
        assert found == expected

    def test_yielded_values_are_reported_one_by_one(self, driver: Driver) -> None:
        driver.start("a", "yields", {"values": [1, {"_metric": 2}, 3.5]})
        assert driver.to_exit("a").is_done
        assert driver.results("a", "_metric") == [1, 2, 3.5]

    def test_a_returned_string_is_an_error(self, driver: Driver) -> None:
        driver.start("a", "returns", {"value": "text"})
        failure = driver.to_exit("a").failure
        assert failure is not None
        assert "ValueError" in failure.message

    def test_capacity_is_never_exceeded(self, driver: Driver) -> None:
        names = [f"t{k}" for k in range(6)]
        for name in names:
            driver.start(name, "counts", {"steps": 2})
        # The first trial shall not be over before the second is up: a process may take seconds to come.
        driver.poll_until(
            lambda: sum(isinstance(each, TrialStarted) for each in driver.events) == 2, answer=False
        )
        for report in [each for each in driver.events if isinstance(each, TrialReported)]:
            driver.go_on(report.trial_id)
        driver.to_exit(*names)
        running, most = 0, 0
        for event in driver.events:
            running += isinstance(event, TrialStarted)
            running -= isinstance(event, TrialExited)
            most = max(most, running)
        assert (running, most) == (0, 2)

    def test_trials_start_in_the_order_in_which_they_came(self, driver: Driver) -> None:
        names = [f"t{k}" for k in range(4)]
        for name in names:
            driver.start(name, "counts", {"steps": 1}, resources={"CPU": 2})
        driver.to_exit(*names)
        started = [event.trial_id for event in driver.events if isinstance(event, TrialStarted)]
        assert started == names

    def test_a_big_trial_is_not_starved_by_small_ones(self, driver: Driver) -> None:
        driver.start("first", "counts", {"steps": 2})
        driver.start("big", "counts", {"steps": 1}, resources={"CPU": 2})
        for k in range(4):
            driver.start(f"small{k}", "counts", {"steps": 1})
        driver.to_exit("first", "big", *(f"small{k}" for k in range(4)))
        started = [event.trial_id for event in driver.events if isinstance(event, TrialStarted)]
        assert started[:2] == ["first", "big"]

    def test_what_can_never_fit_fails_at_once_and_says_why(self, driver: Driver) -> None:
        driver.start("a", "counts", resources={"CPU": 3})
        failure = driver.to_exit("a").failure
        assert failure is not None
        assert failure.kind is TrialFailureKind.START
        assert "CPU: 3" in failure.message
        assert "CPU: 2" in failure.message

    def test_capacity_tells_what_there_is(self, engine: Engine) -> None:
        assert engine.capacity()["CPU"] == 2.0

    def test_closing_twice_is_fine(self, engine: Engine, driver: Driver, tmp_path: Path) -> None:
        driver.start("a", "waits")
        driver.to_report("a")
        engine.close()
        engine.close()
