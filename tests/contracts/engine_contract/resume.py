"""Tests checkpoints, resuming from them, and reuse of processes; part of EngineContract."""

from __future__ import annotations

from pathlib import Path

from tests.contracts.engine_contract.fixture import Driver, EngineFixture

from muster.trials.events import (
    CheckpointSaved,
    SaveTrial,
    StopTrial,
    TrialExited,
    TrialFailureKind,
    TrialReported,
    TrialStarted,
)
from muster.trials.model import CheckpointRef
from muster.trials.ports import Engine


class ResumePromises(EngineFixture):
    """ResumePromises test that no state of a trial is in its process alone."""

    def test_a_reported_checkpoint_is_in_place_under_its_number(self, driver: Driver, tmp_path: Path) -> None:
        driver.start("a", "saves", {"steps": 2})
        driver.to_exit("a")
        made = [event.checkpoint for event in driver.of("a", TrialReported)]
        assert [(ref.index, Path(ref.path)) for ref in made] == [
            (0, tmp_path / "a" / "checkpoint_000000"),
            (1, tmp_path / "a" / "checkpoint_000001"),
        ]
        assert driver.results("a", "checkpoint_dir_name") == ["checkpoint_000000", "checkpoint_000001"]
        assert [ref.metrics["step"] for ref in made] == [0, 1]
        assert sorted(p.name for p in (tmp_path / "a").iterdir()) == [
            "checkpoint_000000",
            "checkpoint_000001",
        ]

    def test_a_trial_goes_on_from_a_checkpoint(self, engine: Engine, driver: Driver) -> None:
        driver.start("a", "saves", {"steps": 5})
        driver.to_report("a")
        driver.go_on("a")
        ref = driver.to_report("a", count=2).checkpoint
        engine.submit(StopTrial(trial_id="a"))
        driver.to_exit("a", answer=False)
        driver.events.clear()
        assert ref is not None
        driver.start("a", "saves", {"steps": 5}, checkpoint=ref, checkpoint_index=ref.index)
        assert driver.to_exit("a").is_done
        assert driver.results("a", "step") == [2, 3, 4]
        assert driver.results("a", "training_iteration") == [3, 4, 5]
        assert driver.results("a", "iterations_since_restore") == [1, 2, 3]
        assert [event.checkpoint.index for event in driver.of("a", TrialReported)] == [2, 3, 4]

    def test_a_missing_checkpoint_fails_the_start(self, driver: Driver, tmp_path: Path) -> None:
        gone = CheckpointRef(path=str(tmp_path / "nowhere"), index=3)
        driver.start("a", "saves", {"steps": 5}, checkpoint=gone, checkpoint_index=3)
        failure = driver.to_exit("a").failure
        assert failure is not None
        assert (failure.kind, driver.of("a", TrialStarted)) == (TrialFailureKind.START, [])
        assert "nowhere" in failure.message

    def test_a_class_saves_when_asked_and_goes_on(self, engine: Engine, driver: Driver) -> None:
        for kind in (False, True):
            name = f"files-{kind}"
            driver.start(name, "Steps", {"as_files": kind})
            driver.to_report(name)
            engine.submit(SaveTrial(trial_id=name))
            driver.poll_until(lambda name=name: bool(driver.of(name, CheckpointSaved)), answer=False)  # type: ignore[misc]
            (saved,) = driver.of(name, CheckpointSaved)
            assert (saved.checkpoint.index, saved.checkpoint.metrics["steps"], saved.message) == (0, 1, "")
            engine.submit(StopTrial(trial_id=name))
            driver.to_exit(name, answer=False)
            again = f"again-{kind}"
            driver.start(again, "Steps", {"as_files": kind}, checkpoint=saved.checkpoint)
            assert driver.to_report(again).result["steps"] == 2
            engine.submit(StopTrial(trial_id=again))
            driver.to_exit(again, answer=False)

    def test_a_lost_checkpoint_fails_the_trial(self, engine: Engine, driver: Driver) -> None:
        driver.start("a", "Steps", {"loses_files": True})
        driver.to_report("a")
        engine.submit(SaveTrial(trial_id="a"))
        failure = driver.to_exit("a", answer=False).failure
        assert failure is not None and failure.kind is TrialFailureKind.USER_ERROR

    def test_a_function_saves_only_by_reporting(self, engine: Engine, driver: Driver) -> None:
        driver.start("a", "counts")
        driver.start("b", "saves", {"steps": 2})
        for name, expected in (("a", None), ("b", 0)):
            driver.to_report(name)
            engine.submit(SaveTrial(trial_id=name))
            driver.poll_until(lambda name=name: bool(driver.of(name, CheckpointSaved)), answer=False)  # type: ignore[misc]
            (saved,) = driver.of(name, CheckpointSaved)
            assert (saved.checkpoint and saved.checkpoint.index) == expected

    def test_a_stopped_class_is_cleaned_up(self, engine: Engine, driver: Driver, tmp_path: Path) -> None:
        driver.start("a", "Steps", {"cleaned": str(tmp_path / "cleaned")})
        driver.to_report("a")
        engine.submit(StopTrial(trial_id="a"))
        driver.to_exit("a", answer=False)
        assert (tmp_path / "cleaned").exists()

    def test_without_reuse_every_trial_has_a_fresh_process(self, driver: Driver) -> None:
        for name in ("a", "b", "c"):
            driver.start(name, "counts_calls")
            driver.to_exit(name)
        assert [driver.results(name, "calls") for name in ("a", "b", "c")] == [[1], [1], [1]]
        assert [event.reused for event in driver.events if isinstance(event, TrialStarted)] == [False] * 3

    def test_functions_are_reused_in_one_process(self, driver: Driver) -> None:
        for name in ("a", "b", "c"):
            driver.start(name, "counts_calls", may_reuse=True)
            assert driver.to_exit(name).reusable
        assert [driver.results(name, "calls") for name in ("a", "b", "c")] == [[1], [2], [3]]
        started = [event for event in driver.events if isinstance(event, TrialStarted)]
        assert [event.reused for event in started] == [False, True, True]
        assert len({event.location["pid"] for event in started}) == 1

    def test_a_failed_trials_process_is_not_reused(self, driver: Driver) -> None:
        driver.start("a", "fails", may_reuse=True)
        assert not driver.to_exit("a").reusable
        driver.start("b", "counts", may_reuse=True)
        driver.to_exit("b")
        assert [event.reused for event in driver.of("b", TrialStarted)] == [False]

    def test_a_class_is_reset_for_the_next_trial(self, engine: Engine, driver: Driver) -> None:
        for name, x in (("a", 1), ("b", 2)):
            driver.start(name, "Steps", {"x": x}, may_reuse=True)
            driver.to_report(name)
            engine.submit(StopTrial(trial_id=name, keep_process=True))
            assert driver.to_exit(name, answer=False).reusable
        rows = [(e.result["steps"], e.result["x"], e.result["resets"]) for e in driver.of("b", TrialReported)]
        assert rows == [(1, 2, 1)]
        assert driver.results("b", "training_iteration") == [1]

    def test_a_class_that_refuses_to_be_reset_fails_the_trial(self, engine: Engine, driver: Driver) -> None:
        driver.start("a", "Steps", may_reuse=True)
        driver.to_report("a")
        engine.submit(StopTrial(trial_id="a", keep_process=True))
        driver.to_exit("a", answer=False)
        driver.start("b", "Steps", {"may_reset": False}, may_reuse=True)
        gone: TrialExited = driver.to_exit("b")
        assert gone.failure is not None
        assert gone.failure.kind is TrialFailureKind.RESET_REFUSED
