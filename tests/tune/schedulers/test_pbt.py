"""PopulationBasedTraining over the real core in virtual time."""

from __future__ import annotations

import logging
import math
import pickle

import pytest
from tests.series import length
from tests.tune.schedulers.pbt_world import Chaos, World

from muster.errors import TuneError
from muster.trials.model import CheckpointPolicy, Trial
from muster.trials.plugins import ControllerView
from muster.trials.restore import replay, restore, snapshot
from muster.trials.trial_index import TrialIndex
from muster.tune.schedulers import PopulationBasedTraining
from muster.tune.schedulers.pbt_explore import Population
from muster.tune.search.space import choice, sample_from, uniform

LRS = [0.1, 0.2, 0.5, 0.9]


def pbt(**changes):
    asked = {
        "time_attr": "training_iteration",
        "metric": "score",
        "mode": "max",
        "perturbation_interval": 4,
        "hyperparam_mutations": {"lr": uniform(0.1, 1.0)},
        "seed": 1,
        **changes,
    }
    return PopulationBasedTraining(**asked)


def world(scheduler=None, lrs=LRS, **changes):
    return World(scheduler or pbt(), lrs, **changes)


# What happens to a population


@pytest.mark.conformance("C-165")
def test_the_worst_goes_on_from_the_best_with_a_changed_value_and_a_tag_that_says_so():
    seen = world(pbt(perturbation_factors=(1.2, 0.8), resample_probability=0, synch=True), end=8).run()
    worst = seen.trials[0]
    assert [start for start in seen.starts if start[0] == worst.trial_id] == [
        (worst.trial_id, 0, {"lr": 0.1}),
        (worst.trial_id, 4, {"lr": worst.config["lr"]}),
    ]
    assert worst.config["lr"] in (0.9 * 1.2, 0.9 * 0.8)
    assert worst.experiment_tag == f"0_lr=0.1000@perturbed[lr={worst.config['lr']:.4f}]"
    assert worst.last_result["score"] == pytest.approx(4 * 0.9 + 4 * worst.config["lr"])
    assert [trial.config["lr"] for trial in seen.trials[1:]] == LRS[1:]
    assert seen.state.plugins.scheduler.debug_string() == "PopulationBasedTraining: 1 checkpoints, 1 perturbs"


@pytest.mark.conformance("C-165")
def test_without_synch_only_the_best_save_and_the_worst_are_exchanged():
    seen = world(pbt(resample_probability=0), lrs=[0.1, 0.2, 0.4, 0.8, 1.6, 3.2], end=12).run()
    assert {trial.status for trial in seen.trials} == {"TERMINATED"}
    perturbed = [t.experiment_tag.partition("@")[0] for t in seen.trials if "@perturbed" in t.experiment_tag]
    assert perturbed
    for trial in seen.trials:
        if "@perturbed" in trial.experiment_tag:
            assert trial.last_result["score"] > 12 * 0.4  # at least as good as a middle one from scratch


@pytest.mark.conformance("C-170")
@pytest.mark.parametrize(("synch", "expected"), [(True, [43.0, 43.0]), (False, [43.0, 43.0])])
def test_a_bad_trial_reaches_the_best_value_by_copying_it(synch, expected):
    # 20 of lr 1 and then 23 of lr 1: what the better one has on its own.
    scheduler = pbt(
        synch=synch,
        quantile_fraction=0.5,
        perturbation_interval=20,
        hyperparam_mutations={"lr": [1.0]},
        resample_probability=0,
    )
    seen = world(scheduler, lrs=[0.0, 1.0], end=43).run()
    assert [trial.last_result["score"] for trial in seen.trials] == expected


def test_nobody_is_exploited_with_a_fraction_of_zero():
    for synch in (True, False):
        seen = world(pbt(quantile_fraction=0, synch=synch), cpus=2).run()
        assert [trial.config["lr"] for trial in seen.trials] == LRS
        assert [trial.last_result["training_iteration"] for trial in seen.trials] == [20] * 4


@pytest.mark.conformance("C-172")
def test_burn_in_keeps_everything_as_it_is_and_leaves_no_trial_waiting():
    for synch in (True, False):
        early = world(pbt(burn_in_period=21, synch=synch), cpus=2).run()
        assert [trial.config["lr"] for trial in early.trials] == LRS
        late = world(pbt(burn_in_period=10, synch=synch), cpus=2).run()
        assert min(step for _, step, config in late.starts if config["lr"] not in LRS) >= 10


@pytest.mark.conformance("C-167")
def test_the_most_behind_runs_next():
    seen = world(pbt(), cpus=1, end=8)
    seen.run()
    assert [(name[-1], step) for name, step, _ in seen.starts][:8] == [
        ("0", 0), ("1", 0), ("2", 0), ("3", 0), ("0", 4), ("1", 4), ("2", 4), ("3", 4)
    ]  # fmt: skip


@pytest.mark.conformance("C-168")
def test_a_perturbation_starts_the_interval_anew():
    scheduler = pbt(perturbation_interval=4)
    view = ControllerView(TrialIndex({"CPU": 2}), None)
    trial = Trial("f", trial_id="a", config={"lr": 1.0})
    scheduler.on_trial_add(view, trial)
    counted = []
    for time in range(1, 13):
        scheduler.on_trial_result(view, trial, {"training_iteration": time, "score": 0.0})
        counted.append(scheduler._population.members["a"].last_perturbation_time)
    assert counted == [0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12]


@pytest.mark.conformance("C-175")
def test_trials_without_the_mutated_values_are_given_some():
    seen = world(
        pbt(hyperparam_mutations={"lr": uniform(0.1, 1.0), "deep": {"n": [1, 2]}}), lrs=[0, 1], space={}
    )
    seen.step()
    (trial,) = seen.trials
    assert 0.1 <= trial.config["lr"] <= 1.0
    assert trial.config["deep"]["n"] in (1, 2)
    assert trial.evaluated_params == {"lr": trial.config["lr"], "deep/n": trial.config["deep"]["n"]}


def test_a_trial_that_exploits_keeps_its_old_score_until_it_reports_again():
    population = Population()
    for name, score in (("a", 1.0), ("b", 2.0), ("c", math.nan), ("d", -math.inf)):
        population.join(name, name)
        population.note(name, 5.0, score)
    assert population.quantiles(0.25) == (["d"], ["b"])
    population.set_time("d", 9.0)
    assert population.quantiles(0.25) == (["d"], ["b"])
    assert [population.place(name, 0.5) for name in "abcd"] == [0, 1, 0, -1]


@pytest.mark.conformance("C-174")
@pytest.mark.parametrize(
    ("scores", "fraction", "expected"),
    [
        ([1], 0.5, ([], [])),
        ([1, 2], 0.25, ([0], [1])),
        ([1, 2, 3], 0.5, ([0], [2])),
        ([3, 1, 2, 4, 5], 0.25, ([1, 2], [3, 4])),
        ([1, 1, 1, 1], 0.5, ([0, 1], [2, 3])),
        ([1, 2, 3, 4], 0.0, ([], [])),
    ],
)
def test_quantiles_are_equally_large_and_share_nobody(scores, fraction, expected):
    population = Population()
    for number, score in enumerate(scores):
        population.join(number, "")
        population.note(number, 1.0, float(score))
    assert population.quantiles(fraction) == expected


@pytest.mark.conformance("C-173")
def test_what_is_kept_of_a_population_does_not_grow_with_time():
    population = Population()
    for name in "abc":
        population.join(name, name)
    for time in range(1, 5000):
        for name in "abc":
            population.note(name, float(time), float(time))
    assert len(population._by_time) < 100
    assert population.least_time() == 4999.0
    assert population.most_behind(lambda name: name != "a", math.inf) == "b"


def test_changing_the_copy_in_place_does_not_change_the_one_that_was_copied():
    def explore(config):
        config["deep"]["list"].append(1)
        return config

    donor = Trial("f", trial_id="d", config={"lr": 0.5, "deep": {"list": []}})
    assert pbt(custom_explore_fn=explore)._new_config(donor, donor)["deep"] == {"list": [1]}
    assert donor.config == {"lr": 0.5, "deep": {"list": []}}


# Donors that are slow, or go


@pytest.mark.conformance("C-171")
def test_exploiting_a_trial_whose_save_takes_long_waits_for_it_without_holding_up_others():
    chaos = Chaos(slowest_save=30, slowest_step=3)
    for seed in range(30):
        for synch in (True, False):
            seen = world(pbt(synch=synch), chaos=chaos, seed=seed).run()
            assert {trial.status for trial in seen.trials} == {"TERMINATED"}


def test_when_nobody_can_save_everybody_goes_on_and_it_is_said(caplog):
    for synch in (True, False):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            seen = world(pbt(synch=synch), chaos=Chaos(saves_nothing=1.0), end=13).run()
        assert [trial.config["lr"] for trial in seen.trials] == LRS
        assert "checkpoint" in caplog.text
        assert {trial.status for trial in seen.trials} == {"TERMINATED"}


def test_a_donor_that_ends_meanwhile_gives_the_checkpoint_from_when_it_was_chosen():
    """Else the copy would have nothing left to train."""
    policy = CheckpointPolicy(at_end=True)
    for seed in range(40):
        scheduler = pbt(synch=True, quantile_fraction=0.5, hyperparam_mutations={"lr": [1.0]})
        chaos = Chaos(slowest_save=9)
        seen = world(scheduler, lrs=[0.0, 1.0], end=9, policy=policy, seed=seed, chaos=chaos).run()
        assert [trial.last_result["training_iteration"] for trial in seen.trials] == [9, 9]
        assert [trial.last_result["score"] for trial in seen.trials] == [9.0, 9.0]


def test_a_checkpoint_that_another_trial_goes_on_from_is_not_given_up():
    policy = CheckpointPolicy(num_to_keep=1, frequency=1)
    for seed in range(20):
        seen = world(pbt(), chaos=Chaos(slowest_save=3, slowest_step=4), seed=seed, policy=policy, cpus=3)
        while seen.step():
            state = seen.state
            borrowed = state.index.borrowed
            kept = {c.path for trial in state.index.live.values() for c in trial.checkpoints}
            gone = {one.ref.path for one in state.facts.checkpoints_to_delete} - borrowed - kept
            seen.deleted |= gone
            assert not borrowed & seen.deleted


# Synchronous hangs, each of which must end by itself


@pytest.mark.slow
@pytest.mark.parametrize(
    "chaos",
    [
        Chaos(fails=0.05),
        Chaos(is_nan=0.5),
        Chaos(is_nan=1.0),
        Chaos(never_reports=0.5),
        Chaos(never_reports=1.0),
        Chaos(returns=0.1),
    ],
)
@pytest.mark.parametrize("retries", [0, 2])
def test_a_synchronous_population_ends_whatever_its_members_do(chaos, retries):
    for seed in range(10):
        for cpus in (1, 2, 4):
            scheduler = pbt(synch=True, perturbation_interval=3)
            seen = world(scheduler, chaos=chaos, seed=seed, cpus=cpus, retries=retries).run()
            assert {trial.status for trial in seen.trials} <= {"TERMINATED", "ERROR"}


def test_the_barrier_opens_when_the_trial_that_all_wait_for_ends():
    class LastFails(World):
        def _go_on(self, name, process):
            if name.endswith("3") and process.step == 2:
                self.chaos = Chaos(fails=1.0)
            super()._go_on(name, process)
            self.chaos = Chaos()

    seen = LastFails(pbt(synch=True), LRS, end=12)
    seen.run()
    assert [trial.status for trial in seen.trials] == ["TERMINATED"] * 3 + ["ERROR"]
    assert [trial.last_result["training_iteration"] for trial in seen.trials] == [12, 12, 12, 2]
    assert seen.trials[0].config["lr"] != 0.1


def test_members_beyond_the_next_meeting_get_a_later_one():
    """All at 10 when they should meet at 4: 8 would let nobody run."""
    scheduler = pbt(synch=True)
    index = TrialIndex({"CPU": 2})
    view = ControllerView(index, None)
    for name in ("a", "b"):
        trial = Trial("f", trial_id=name, config={"lr": 1.0})
        index.add(trial)
        scheduler.on_trial_add(view, trial)
        answer = scheduler.on_trial_result(view, trial, {"training_iteration": 10, "score": 1.0})
        assert answer == "PAUSE"
    assert scheduler.choose_trial_to_run(view) is index.trials["a"]
    assert scheduler._next_sync == 14


# Chance


@pytest.mark.slow
def test_random_populations_all_end():
    for seed in range(length(420, 2000)):
        chaos = Chaos(
            fails=0.03 * (seed % 3),
            returns=0.02 * (seed % 2),
            is_nan=0.1 * (seed % 4),
            saves_nothing=0.3 * (seed % 5 == 0),
            never_reports=0.1 * (seed % 7 == 0),
            slowest_step=1 + seed % 6,
            slowest_save=seed % 4,
        )
        scheduler = pbt(
            synch=bool(seed & 8),
            perturbation_interval=1 + seed % 3,
            quantile_fraction=(0.25, 0.5, 0.0)[seed % 3],
            seed=seed,
        )
        policy = CheckpointPolicy(num_to_keep=1 + seed % 2, frequency=seed % 3)
        seen = world(
            scheduler,
            lrs=[0.1 * (i + 1) for i in range(1 + seed % 4)],
            cpus=1 + seed % 3,
            end=5,
            chaos=chaos,
            seed=seed,
            retries=seed % 3,
            policy=policy,
        )
        seen.run()
        assert all(trial.is_finished() for trial in seen.trials)


# A restart


def at_every_step(make, **changes):
    original = world(make(), **changes)
    moments = []
    while True:
        continues = original.step()
        moments.append(original.moment())
        if not continues:
            return original, moments


@pytest.mark.parametrize("synch", [True, False])
def test_at_every_step_the_restored_population_stands_where_the_running_one_stood(synch):
    def make():
        return pbt(
            synch=synch, custom_explore_fn=lambda config: {**config, "seen": __import__("random").random()}
        )

    chaos = Chaos(fails=0.02, slowest_step=3, slowest_save=2)
    changes = {"chaos": chaos, "seed": 4, "cpus": 3, "retries": 3, "end": 14}
    original, moments = at_every_step(make, **changes)
    assert any("@perturbed" in trial.experiment_tag for trial in original.trials)
    for position in range(0, len(moments), 3):
        count, seen, search, scheduler = moments[position]
        for base in (None, moments[position // 2]):
            state = original.fresh(make())
            start, picture_then = 0, None
            if base is not None:
                start, picture_then, search_then, scheduler_then = base
                state.plugins.search.restore_state(search_then)
                state.plugins.scheduler.restore_state(scheduler_then)
            replay(state, picture_then, original.facts[start:count], original.template.make)
            assert state.facts.warnings == []
            assert {**snapshot(state), "iteration": 0} == {**seen, "iteration": 0}, f"step {position}"
            assert (state.plugins.search.save_state(), state.plugins.scheduler.save_state()) == (
                search,
                scheduler,
            )


@pytest.mark.parametrize("synch", [True, False])
def test_a_population_whose_processes_died_with_the_driver_runs_to_its_end(synch):
    original, moments = at_every_step(
        lambda: pbt(synch=synch), chaos=Chaos(slowest_save=3, slowest_step=2), cpus=3, end=10
    )
    for position in range(0, len(moments), 5):
        again = world(pbt(synch=synch), cpus=3, end=10)
        restore(again.state, None, original.facts[: moments[position][0]], again.template.make)
        again.run()
        assert {trial.status for trial in again.trials} == {"TERMINATED"}


# What is refused


@pytest.mark.parametrize(
    ("changes", "kind", "text"),
    [
        ({"hyperparam_mutations": {"lr": 3}}, TypeError, "lr"),
        ({"hyperparam_mutations": {"a": {"b": "x"}}}, TypeError, r"\['a'\]\['b'\] is 'x', a str"),
        ({"hyperparam_mutations": {"lr": []}}, ValueError, "an empty list"),
        ({"hyperparam_mutations": {"lr": sample_from(lambda spec: 1)}}, ValueError, "sample_from"),
        ({"hyperparam_mutations": None}, TuneError, "nothing to change"),
        ({"quantile_fraction": 0.6}, ValueError, "between 0 and 0.5"),
        ({"quantile_fraction": -0.1}, ValueError, "between 0 and 0.5"),
        ({"perturbation_interval": 0}, ValueError, "above 0"),
        ({"resample_probability": 2}, ValueError, "between 0 and 1"),
        ({"mode": "up"}, ValueError, "'min' or 'max'"),
    ],
)
def test_what_cannot_work_is_refused_at_once(changes, kind, text):
    with pytest.raises(kind, match=text):
        pbt(**changes)


@pytest.mark.conformance("C-164")
def test_a_search_algorithm_is_refused():
    from muster.tune.search import Searcher, SearchGenerator

    view = ControllerView(TrialIndex({"CPU": 1}), SearchGenerator(Searcher()))
    with pytest.raises(ValueError, match="TuneConfig"):
        pbt().on_trial_add(view, Trial("f", trial_id="a"))


@pytest.mark.conformance("C-164")
def test_a_result_without_metric_or_time_is_an_error_that_names_both(caplog):
    view, trial = ControllerView(TrialIndex({"CPU": 1}), None), Trial("f", trial_id="a", config={"lr": 1})
    with pytest.raises(RuntimeError, match=r"training_iteration.*score"):
        pbt().on_trial_result(view, trial, {"loss": 1})
    lenient = pbt(require_attrs=False)
    answers = [lenient.on_trial_result(view, trial, {"loss": 1}) for _ in range(3)]
    assert answers == ["CONTINUE"] * 3
    assert caplog.text.count("are ignored") == 1


def test_a_missing_metric_is_named_when_the_first_trial_comes():
    with pytest.raises(ValueError, match="PopulationBasedTraining"):
        pbt(metric=None).on_trial_add(ControllerView(TrialIndex({"CPU": 1}), None), Trial("f", trial_id="a"))


def test_strings_of_a_choice_become_neighbours_or_are_drawn_again():
    scheduler = pbt(hyperparam_mutations={"kind": choice(["a", "b", "c"])}, resample_probability=0)
    donor = Trial("f", trial_id="d", config={"kind": "b"})
    assert {scheduler._new_config(donor, donor)["kind"] for _ in range(20)} == {"a", "c"}


def test_scores_and_counters_can_be_read_and_reset():
    scheduler = pbt()
    seen = world(scheduler)
    while (
        max(t.last_result.get("training_iteration", 0) for t in seen.trials or [Trial("", trial_id="")]) < 5
    ):
        seen.step()
    assert scheduler.last_scores(seen.trials) == pytest.approx([4 * lr for lr in LRS], abs=1.0)
    scheduler.reset_stats()
    assert scheduler.debug_string() == "PopulationBasedTraining: 0 checkpoints, 0 perturbs"


def test_a_subclass_with_attributes_of_its_own_is_saved_as_a_whole():
    class Mine(PopulationBasedTraining):
        count = 0

    mine = Mine(metric="score", mode="max", custom_explore_fn=lambda config: config)
    mine.count = 7
    other = Mine(metric="score", mode="max", custom_explore_fn=lambda config: config)
    other.restore_state(mine.save_state())
    assert other.count == 7


def test_it_can_be_imported_from_where_ray_has_it():
    from muster.tune.schedulers import pbt as module

    assert module.PopulationBasedTrainingReplay.__name__ == "PopulationBasedTrainingReplay"
    with pytest.raises(AttributeError, match="PBT"):
        _ = module.PBT
    assert pickle.loads(pickle.dumps(pbt())).save_state() == pbt().save_state()
