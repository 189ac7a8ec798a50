"""Check resources, lost machines, and how many trials wait or run."""

from __future__ import annotations

import math

import pytest
from tests.trials.scripted import First, Stage, steps, trials

from muster.trials.events import TrialFailure, TrialFailureKind
from muster.trials.model import FailurePolicy
from muster.trials.plugins import CONTINUE, PAUSE
from muster.trials.restore import restore, snapshot
from muster.trials.template import TrialTemplate
from muster.tune import PlacementGroupFactory as Pgf
from muster.tune.config import RunConfig
from muster.tune.execution.assemble import search_of, settings_of
from muster.tune.search import BasicVariantGenerator, ConcurrencyLimiter, Repeater, Searcher
from muster.tune.tune_config import TuneConfig


class Ones(Searcher):
    def suggest(self, trial_id):
        return {"x": 1}

    def on_trial_complete(self, trial_id, result=None, error=False):
        pass


@pytest.mark.conformance("C-028")
@pytest.mark.parametrize(
    ("make", "told", "expected"),
    [
        (BasicVariantGenerator, {}, 200),
        (lambda: BasicVariantGenerator(max_concurrent=3), {"CPUs": 1000}, 1100),
        (BasicVariantGenerator, {"CPUs": 150}, 200),
        (BasicVariantGenerator, {"CPUs": 1000, "TUNE_MAX_PENDING_TRIALS_PG": "7"}, 7),
        (Ones, {"CPUs": 1000}, 1),
        (Ones, {}, 1),
        (lambda: ConcurrencyLimiter(Ones(), max_concurrent=3), {}, 3),
        (lambda: Repeater(ConcurrencyLimiter(Ones(), max_concurrent=4), repeat=2), {}, 4),
        (Ones, {"TUNE_MAX_PENDING_TRIALS_PG": "auto"}, 1),
        (Ones, {"TUNE_MAX_PENDING_TRIALS_PG": "7"}, 7),
        (BasicVariantGenerator, {"TUNE_MAX_PENDING_TRIALS_PG": "7"}, 7),
    ],
)
def test_how_many_trials_may_wait(make, told, expected):
    tune = TuneConfig(search_alg=make(), metric="x", mode="max")
    _, ahead = search_of(tune, TrialTemplate(trainable_name="f", num_samples=9), told.get("CPUs", 0))
    assert settings_of(tune, RunConfig(name="e"), "/x", ahead, told).max_pending == expected


@pytest.mark.parametrize(("told", "expected"), [(None, 600.0), ("30", 30.0), ("0", math.inf)])
def test_how_long_a_trial_may_take_to_stop_while_others_run(told, expected):
    environment = {} if told is None else {"TUNE_FORCE_TRIAL_CLEANUP_S": told}
    settings = settings_of(TuneConfig(), RunConfig(name="e"), "/x", 1, environment)
    assert (settings.force_cleanup_s, settings.stop_grace_s) == (expected, 10.0)


@pytest.mark.conformance("C-031")
@pytest.mark.parametrize(
    ("needs", "capacity"),
    [
        (Pgf([{"CPU": 1}, {"CPU": 1}]), {"CPU": 3}),
        (Pgf([{}, {"CPU": 2}]), {"CPU": 3}),
        (Pgf([{"CPU": 1, "licence": 1}]), {"CPU": 4, "licence": 1}),
    ],
)
def test_bundles_and_custom_resources_that_leave_room_for_one(needs, capacity):
    stage = Stage(steps(3), trials(2, placement_group_factory=needs), capacity=capacity).run()
    assert (set(stage.statuses.values()), stage.engine.most_at_once) == ({"TERMINATED"}, 1)


@pytest.mark.conformance("C-032")
def test_three_quarters_of_a_gpu_are_not_shared():
    needs = Pgf([{"CPU": 1, "GPU": 0.75}])
    capacity = {"CPU": 8, "GPU": 2}
    stage = Stage(steps(3), trials(5, placement_group_factory=needs), capacity=capacity).run()
    assert (set(stage.statuses.values()), stage.engine.most_at_once) == ({"TERMINATED"}, 2)


class Doubles(First):
    """Doubles pauses each trial at its first result and gives it two CPUs before it resumes."""

    def on_trial_result(self, tune_controller, trial, result):
        if result["training_iteration"] > 1:
            return CONTINUE
        with pytest.raises(ValueError, match="t0"):
            trial.update_resources({"cpu": 2})
        return PAUSE

    def choose_trial_to_run(self, tune_controller):
        chosen = super().choose_trial_to_run(tune_controller)
        if chosen is not None and chosen.status == "PAUSED" and chosen.has_checkpoint():
            chosen.update_resources({"cpu": 2})
        return chosen


@pytest.mark.conformance("C-033")
def test_resources_may_change_at_a_pause_and_the_new_ones_are_held():
    stage = Stage(steps(3), trials(1), scheduler=Doubles())
    used = []
    while stage.step():
        used.append(stage.state.index.used.to_floats().get("CPU", 0.0))
    assert stage.statuses == {"t0": "TERMINATED"}
    assert [amount for n, amount in enumerate(used) if amount and used[n - 1 : n] != [amount]] == [1.0, 2.0]
    revived = Stage(steps(3), [])
    make = lambda trial_id, config, params, tag: trials(1)[0]  # noqa: E731
    restore(revived.state, snapshot(stage.state), [], make)
    assert revived.trial("t0").placement_group_factory == Pgf([{"CPU": 2}])


@pytest.mark.conformance("C-034")
def test_a_limit_of_one_waiting_trial():
    stage = Stage(steps(3), trials(4), max_pending=1)
    for _ in range(4):
        stage.step()
    counted = list(stage.statuses.values())
    assert (counted.count("RUNNING"), counted.count("PENDING"), len(counted)) == (2, 1, 3)


def lost(kind):
    return TrialFailure(kind=kind, message="the machine is gone")


@pytest.mark.conformance("C-035")
def test_a_lost_machine_is_a_failure_that_is_tried_again():
    seen = []

    def script(config, start):
        seen.append(start)
        return [{"loss": 1.0}, lost(TrialFailureKind.NODE_LOST)] if len(seen) == 1 else [{"loss": 0.5}]

    stage = Stage(script, trials(1, max_failures=1)).run()
    assert (stage.statuses, stage.trial("t0").num_failures) == ({"t0": "TERMINATED"}, 1)
    assert ("on_trial_recover", "t0") in stage.hooks.fired
    assert seen == [0, 0]  # it had no checkpoint


@pytest.mark.conformance("C-036", "C-037")
@pytest.mark.parametrize(
    ("kind", "is_flagged", "failures", "status"),
    [
        (TrialFailureKind.PREEMPTED, False, 0, "TERMINATED"),
        (TrialFailureKind.PREEMPTED, True, 1, "ERROR"),
        (TrialFailureKind.NODE_LOST, False, 1, "ERROR"),
        (TrialFailureKind.KILLED, True, 1, "ERROR"),
    ],
)
def test_preemption_is_no_failure_unless_configured(kind, is_flagged, failures, status):
    seen = []

    def script(config, start):
        seen.append(start)
        return [{"loss": 1.0}, lost(kind)] if len(seen) == 1 else [{"loss": 0.5}]

    stage = Stage(script, trials(1), failure=FailurePolicy(count_preemption=is_flagged)).run()
    assert (stage.statuses, stage.trial("t0").num_failures) == ({"t0": status}, failures)


@pytest.mark.conformance("C-039")
def test_unlike_requests_do_not_block_each_other_for_ever():
    asked = [{"CPU": 1}, {"CPU": 2}, {"CPU": 0.5}]
    mixed = trials(12)
    for number, trial in enumerate(mixed):
        trial.placement_group_factory = Pgf([asked[number % 3]])
    stage = Stage(steps(2), mixed).run()
    assert set(stage.statuses.values()) == {"TERMINATED"}
