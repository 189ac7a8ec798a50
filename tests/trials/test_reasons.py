"""Why a trial was stopped, paused, promoted or copied is a fact, in words, and a restore changes nothing."""

from __future__ import annotations

from copy import deepcopy

import pytest
from tests.mistakes.views import assert_view
from tests.trials.scripted import Noted, ScriptedEngine
from tests.tune.schedulers.pbt_world import World

from muster.stores.experiment.codec import ExperimentLocation, pack
from muster.stores.experiment.summary import Digest
from muster.trials.events import TrialDecided
from muster.trials.experiment import ExperimentState
from muster.trials.model import FailurePolicy
from muster.trials.plugins import Plugins
from muster.trials.restore import restore
from muster.trials.template import Settings, TrialTemplate
from muster.tune.schedulers import (
    ASHAScheduler,
    FIFOScheduler,
    HyperBandScheduler,
    MedianStoppingRule,
    PopulationBasedTraining,
)
from muster.tune.search.basic_variant import BasicVariantGenerator
from muster.tune.search.space import grid_search
from muster.tune.stopper import (
    CombinedStopper,
    ExperimentPlateauStopper,
    FunctionStopper,
    MaximumIterationStopper,
    TimeoutStopper,
    TrialPlateauStopper,
)

STEPS = 9


def steps_of(config, start):
    for step in range(start, STEPS):
        if config["x"] == 13 and step == 2:
            yield ValueError("unlucky")
            return
        yield {"score": config["x"] * (step + 1)}


def run(scheduler, *, stopper=None, criterion=None, xs=(3, 1, 2, 0), fail_fast=False):
    """Run four trials whose score is x per step; returns the state, and all facts."""
    template = TrialTemplate(
        trainable_name="f", param_space={"x": grid_search(list(xs))}, stopping_criterion=criterion or {}
    )
    engine = ScriptedEngine(steps_of, {"CPU": 2})

    def fresh():
        search = BasicVariantGenerator(random_state=1, id_prefix="ab")
        search.add_configurations([template])
        settings = Settings(
            name="e", experiment_dir="/x", max_pending=4, failure=FailurePolicy(fail_fast=fail_fast)
        )
        return ExperimentState(
            settings,
            Plugins(search=search, scheduler=scheduler(), stopper=deepcopy(stopper), hooks=Noted()),
            capacity=engine.capacity(),
        )

    state, facts = fresh(), []
    for _ in range(400):
        for event in engine.poll(0.0):
            for command in state.handle(event):
                engine.submit(command)
        for command in state.advance(engine.now):
            engine.submit(command)
        facts.extend(state.facts.take())
        if state.is_finished:
            break
    again = fresh()
    restore(again, None, facts, template.make)
    assert (again.facts.count, again.facts.warnings) == (len(facts), [])
    return facts


def reasons(facts):
    return [(f.trial_id[-1], f.decision, f.reason) for f in facts if isinstance(f, TrialDecided)]


def assert_reasons(name, found):
    assert_view(f"reasons/{name}", "\n".join(": ".join(each) for each in found))


def test_asha_names_the_rung_the_value_and_the_cut():
    found = reasons(run(lambda: ASHAScheduler(metric="score", mode="max", max_t=9, reduction_factor=3)))
    assert_reasons("asha", found)


def test_values_of_a_metric_to_minimize_are_shown_as_they_were_reported():
    found = reasons(
        run(lambda: ASHAScheduler(metric="score", mode="min", max_t=9, reduction_factor=3), xs=(1, 3))
    )
    assert_reasons("asha_min", found)


def test_asha_by_promotion_says_who_waits_and_who_goes_on():
    found = reasons(
        run(
            lambda: ASHAScheduler(metric="score", mode="max", max_t=9, reduction_factor=3, type="promotion"),
            xs=(3, 1, 2, 0, 5, 4),
        )
    )
    assert_reasons("asha_promotion", found)
    assert {decision for _, decision, _ in found} == {"paused", "promoted", "stopped"}


def test_hyperband_says_where_a_trial_stood_in_its_bracket():
    found = reasons(
        run(
            lambda: HyperBandScheduler(metric="score", mode="max", max_t=9, reduction_factor=3),
            xs=tuple(range(12)),
        )
    )
    assert_reasons("hyperband", found)
    assert {decision for _, decision, _ in found} == {"paused", "promoted", "stopped"}


def test_the_median_rule_names_the_median_and_how_many_it_is_of():
    found = reasons(
        run(
            lambda: MedianStoppingRule(
                "training_iteration", metric="score", mode="max", grace_period=1, min_samples_required=1
            )
        )
    )
    assert_reasons("median", found)


def test_pbt_says_from_whom_a_trial_was_copied_and_what_changed():
    world = World(
        PopulationBasedTraining(
            time_attr="training_iteration",
            metric="score",
            mode="max",
            perturbation_interval=3,
            hyperparam_mutations={"lr": [0.1, 0.2, 0.4, 0.8]},
            seed=1,
        ),
        [0.1, 0.2, 0.4, 0.8],
        end=12,
    )
    world.run()
    copies = [f for f in world.facts if isinstance(f, TrialDecided) and f.decision == "copied"]
    assert copies
    assert all("abcde_0000" in f.reason and "25 %" in f.reason for f in copies)
    assert any("lr 0." in f.reason and " -> " in f.reason for f in copies)


@pytest.mark.parametrize(
    ("name", "stopper"),
    [
        ("maximum_iteration", MaximumIterationStopper(2)),
        (
            "trial_plateau",
            TrialPlateauStopper("score", std=100, num_results=2, grace_period=2),
        ),
        (
            "function",
            CombinedStopper(
                MaximumIterationStopper(5), FunctionStopper(lambda _, result: result["score"] > 3)
            ),
        ),
        (
            "experiment_plateau",
            ExperimentPlateauStopper("score", std=100, top=2),
        ),
    ],
)
def test_a_stopper_says_what_it_stops_for(name, stopper):
    assert_reasons(name, reasons(run(FIFOScheduler, stopper=stopper, xs=(3, 2))))


def test_a_time_budget_says_how_long_it_was():
    assert "90 s" in TimeoutStopper(90).why()


def test_a_criterion_is_named_with_its_limit():
    found = reasons(run(FIFOScheduler, criterion={"score": 4}, xs=(2,)))
    assert_reasons("criterion", found)


def test_a_trial_that_ends_with_the_experiment_names_the_trial_that_failed():
    found = reasons(run(FIFOScheduler, xs=(13, 1), fail_fast=True))
    ((trial, decision, why),) = found
    assert (trial, decision) == ("1", "stopped")
    assert all(word in why.split() for word in ("ab_00000", "fail_fast"))


def test_a_scheduler_of_the_users_own_need_not_explain_itself():
    class Strict(FIFOScheduler):
        def on_trial_result(self, tune_controller, trial, result):
            return self.STOP

    assert_reasons("users_scheduler", reasons(run(Strict, xs=(1,))))


def test_readers_find_the_last_decision_and_a_paused_trial_is_paused():
    place = ExperimentLocation("/x")
    digest = Digest("t")
    facts = run(
        lambda: ASHAScheduler(metric="score", mode="max", max_t=9, reduction_factor=3, type="promotion"),
        xs=(3, 1),
    )
    last = next(i for i, fact in enumerate(facts) if isinstance(fact, TrialDecided))
    exits = (i for i, f in enumerate(facts) if type(f).__name__ == "TrialExited" and i > last)
    for fact in facts[: next(exits) + 1]:
        if getattr(fact, "trial_id", "") == facts[last].trial_id:
            digest.note(pack(fact, place))
    found = digest.summary(place)
    assert (found.status, found.decision, found.returned) == ("PAUSED", "paused", False)
    assert found.reason == facts[last].reason
    assert "1/3" in found.reason
