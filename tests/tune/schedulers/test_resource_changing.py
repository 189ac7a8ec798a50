"""Who is given what, and when: ResourceChangingScheduler and its allocation functions, moved by hand."""

import logging
import math
import re
from pathlib import Path

import pytest

from muster import tune
from muster.base.resources import Resources
from muster.errors import TuneError
from muster.trials.model import Trial
from muster.trials.placement_group import PlacementGroupFactory as Pgf
from muster.trials.plugins import ControllerView, PluginRequest
from muster.trials.states import TrialState as S
from muster.trials.trial_index import TrialIndex
from muster.tune import schedulers
from muster.tune.execution.assemble import scheduler_of
from muster.tune.schedulers import ASHAScheduler, FIFOScheduler, ResourceChangingScheduler
from muster.tune.schedulers.resource_changing_scheduler import (
    DistributeResources,
    DistributeResourcesToTopJob,
)

ONE_CPU = Pgf([{"CPU": 1}])


class Hand:
    """Trials t0, t1, ... that run; a pause is carried out at once, with a checkpoint."""

    def __init__(self, allocate, capacity, base=None, count=4, needs=ONE_CPU):
        self.scheduler = ResourceChangingScheduler(base, allocate)
        self.scheduler.set_search_properties("score", "max")
        self.index = TrialIndex(capacity)
        self.view = ControllerView(self.index, None)
        self.needs = needs
        for _ in range(count):
            self.start(self.add())

    def add(self):
        trial = Trial("f", trial_id=f"t{len(self.index.order)}", placement_group_factory=self.needs)
        self.index.add(trial)
        self.scheduler.on_trial_add(self.view, trial)
        return trial

    def start(self, trial):
        for state in (S.PENDING, S.STARTING, S.RUNNING):
            self.index.move(trial, state)

    def trial(self, number):
        return self.index.order[number]

    def report(self, number, score=0.0, time=1, **more):
        """The decision; a trial that was paused for a change rests, and is chosen once more."""
        trial = self.trial(number)
        result = {"training_iteration": time, "score": score, **more}
        decision = self.scheduler.on_trial_result(self.view, trial, result)
        trial.last_result = result
        wishes = self.view.take()
        if decision == "PAUSE":
            self.rest(trial)
        return decision, [wish for wish, _ in wishes]

    def rest(self, trial):
        trial.intent = S.PAUSED
        self.index.move(trial, S.STOPPING)
        self.index.move(trial, S.PAUSED)

    def go_on(self):
        """Start what is chosen, as long as it fits; the names."""
        started = []
        while self.index.pending or self.index.paused:
            trial = self.scheduler.choose_trial_to_run(self.view)
            assert self.scheduler.choose_trial_to_run(self.view) is trial
            if trial is None or not self.index.fits(trial):
                break
            self.start(trial)
            started.append(trial.trial_id)
        self.view.take()
        return started

    def round(self, *numbers, **more):
        """Each reports and continues; what they have afterwards."""
        for number in numbers:
            self.report(number, **more)
            self.go_on()
        return [self.trial(number).placement_group_factory.bundles for number in numbers]

    def end(self, number):
        trial = self.trial(number)
        self.scheduler.on_trial_complete(self.view, trial, trial.last_result)
        self.index.move(trial, S.TERMINATED)

    @property
    def used(self):
        return self.index.used.to_floats()


def cpus(*amounts):
    return [[{"CPU": float(amount)}] for amount in amounts]


@pytest.mark.conformance("C-177")
def test_free_cpus_are_shared_evenly():
    hand = Hand(DistributeResources(), {"CPU": 8})
    assert hand.round(0, 1) == cpus(2, 2)
    assert hand.round(2, 3) == cpus(2, 2)
    hand.end(3)
    assert hand.round(0) == cpus(3)
    hand.end(2)
    assert hand.round(0) == cpus(4)
    hand.end(1)
    assert hand.round(0) == cpus(8)
    assert hand.used == {"CPU": 8.0}


@pytest.mark.conformance("C-178")
def test_units_of_cpus_and_gpus():
    hand = Hand(
        DistributeResources(increase_by={"cpu": 2, "GPU": 2}),
        {"CPU": 8, "GPU": 8},
        needs=Pgf([{"CPU": 2, "GPU": 2}]),
    )
    assert [hand.report(number) for number in range(4)] == [("CONTINUE", [])] * 4
    hand.end(3)
    hand.end(2)
    assert hand.round(0, 1) == [[{"CPU": 4.0, "GPU": 4.0}]] * 2
    hand.end(1)
    assert hand.round(0) == [[{"CPU": 8.0, "GPU": 8.0}]]


@pytest.mark.conformance("C-179")
def test_no_more_than_so_many_units():
    hand = Hand(DistributeResources(increase_by={"CPU": 1}, increase_by_times=2), {"CPU": 8}, count=1)
    assert hand.round(0) == cpus(3)
    assert hand.report(0, time=2) == ("CONTINUE", [])


@pytest.mark.conformance("C-180")
@pytest.mark.parametrize("allocate", [DistributeResources(), DistributeResourcesToTopJob()])
def test_a_trial_with_too_much_shrinks_when_others_wait(allocate):
    hand = Hand(allocate, {"CPU": 4}, count=1)
    assert hand.round(0) == cpus(4)
    for _ in range(3):
        hand.add()
    assert hand.go_on() == []  # no room
    assert hand.report(0, time=2) == ("PAUSE", [PluginRequest.KEEP_STEPS])
    assert hand.go_on() == ["t0", "t1", "t2", "t3"]
    assert [trial.placement_group_factory.bundles for trial in hand.index.order] == cpus(1, 1, 1, 1)


def test_only_as_much_is_given_back_as_others_need():
    hand = Hand(DistributeResources(), {"CPU": 8}, count=1)
    hand.round(0)
    hand.add()
    assert hand.round(0) == cpus(7)
    assert hand.used == {"CPU": 8.0}


def test_two_trials_do_not_give_back_the_same():
    hand = Hand(DistributeResources(), {"CPU": 8}, count=2)
    assert hand.round(0, 1) == cpus(4, 4)
    hand.add()
    hand.report(0, time=2)
    assert hand.report(1, time=2) == ("CONTINUE", [])
    hand.go_on()
    assert [trial.placement_group_factory.bundles for trial in hand.index.order] == cpus(3, 4, 1)


@pytest.mark.conformance("C-181")
def test_bundles_are_added_and_taken_away_and_the_head_stays():
    needs = Pgf([{}, {"CPU": 1}, {"CPU": 1, "GPU": 1}], strategy="SPREAD")
    hand = Hand(DistributeResources(add_bundles=True), {"CPU": 8, "GPU": 4}, count=2, needs=needs)
    worker = {"CPU": 1.0, "GPU": 1.0}
    assert hand.round(0, 1) == [[{"CPU": 1.0}, worker, worker]] * 2
    hand.end(1)
    assert hand.round(0) == [[{"CPU": 1.0}, worker, worker, worker, worker]]
    assert hand.trial(0).placement_group_factory.described() == ([{}, {"CPU": 1.0}, *[worker] * 4], "SPREAD")
    hand.add()
    assert hand.round(0) == [[{"CPU": 1.0}, worker, worker, worker]]


@pytest.mark.conformance("C-182")
def test_only_the_best_trial_grows():
    hand = Hand(DistributeResourcesToTopJob(), {"CPU": 8})
    for number in range(4):
        hand.trial(number).last_result = {"score": number}
    assert hand.report(0, score=0) == ("CONTINUE", [])
    assert hand.round(3, score=3) == cpus(5)
    hand.end(0)
    assert hand.report(2, score=2.5) == ("CONTINUE", [])
    assert hand.round(2, score=4) == cpus(2)  # now it is the best; the other keeps what it has
    assert hand.trial(3).placement_group_factory.bundles == cpus(5)[0]


def test_when_the_best_has_enough_the_next_one_grows_and_nan_is_worst():
    hand = Hand(DistributeResourcesToTopJob(increase_by_times=2, mode="min", metric="loss"), {"CPU": 8})
    for number, loss in enumerate([math.nan, 0.5, 0.1, "?"]):
        hand.trial(number).last_result = {"loss": loss}
    assert hand.report(1, loss=0.5) == ("CONTINUE", [])
    assert hand.round(2, loss=0.1) == cpus(3)
    assert hand.round(1, loss=0.5) == cpus(3)
    assert hand.report(0, loss=math.nan) == ("CONTINUE", [])


def test_a_reserve_is_not_given_away():
    hand = Hand(DistributeResources(reserve_resources={"CPU": 3}), {"CPU": 8}, count=1)
    assert hand.round(0) == cpus(5)
    more = Hand(DistributeResources(reserve_resources={"CPU": 30}), {"CPU": 8}, count=1)
    assert more.report(0) == ("CONTINUE", [])


def test_gpus_are_what_trials_with_gpus_gain_and_fractions_are_not_cut_across_gpus():
    one = Hand(DistributeResources(), {"CPU": 8, "GPU": 4}, count=1, needs=Pgf([{"CPU": 1, "GPU": 1}]))
    assert one.round(0) == [[{"CPU": 1.0, "GPU": 4.0}]]
    part = Pgf([{"CPU": 1, "GPU": 0.6}])
    two = Hand(DistributeResources(add_bundles=True), {"CPU": 8, "GPU": 2}, count=1, needs=part)
    assert two.round(0) == [[{"CPU": 1.0, "GPU": 0.6}] * 2]  # three are 1.8 in sum, and need three GPUs


def test_fractions_add_up_exactly():
    needs = Pgf([{"CPU": 0.1}])
    hand = Hand(DistributeResources(increase_by={"CPU": 0.1}), {"CPU": 1}, count=3, needs=needs)
    assert hand.round(0, 1, 2) == cpus(0.4, 0.4, 0.2)
    hand.end(2)
    assert hand.round(0, 1) == cpus(0.5, 0.5)
    assert hand.index.used == Resources.of(CPU=1)


def test_the_first_iteration_is_waited_for():
    hand = Hand(DistributeResources(), {"CPU": 8})
    assert hand.report(0, time=0) == ("CONTINUE", [])


def test_a_stop_or_pause_of_the_base_scheduler_stands():
    hand = Hand(DistributeResources(), {"CPU": 8}, ASHAScheduler(max_t=3), count=1)
    assert hand.report(0, time=3) == ("STOP", [])


def test_a_trial_that_grew_is_started_before_trials_that_wait():
    hand = Hand(DistributeResources(), {"CPU": 4}, count=1)
    assert hand.report(0, time=2) == ("PAUSE", [PluginRequest.KEEP_STEPS])
    hand.add()  # the searcher gave one meanwhile
    assert hand.go_on() == ["t0"]
    assert hand.used == {"CPU": 4.0}
    hand.report(0, time=3)
    assert hand.go_on() == ["t0", "t1"]
    assert hand.used == {"CPU": 4.0}


@pytest.mark.parametrize(("others", "left"), [(1, 3), (3, 1)])
def test_a_trial_goes_on_with_what_it_had_when_others_took_what_it_was_to_get(others, left):
    hand = Hand(DistributeResources(), {"CPU": 4}, count=1)
    trial = hand.trial(0)
    assert hand.scheduler.on_trial_result(hand.view, trial, {"training_iteration": 1}) == "PAUSE"
    for _ in range(others):  # before its process has ended
        hand.start(hand.add())
    hand.rest(trial)
    assert hand.go_on() == ["t0"]
    assert trial.placement_group_factory.bundles == [{"CPU": 1.0}]
    assert hand.index.capacity.minus(hand.index.used) == Resources.of(CPU=left - 1)


def test_nothing_is_promised_twice():
    hand = Hand(lambda *_: Pgf([{"CPU": 3}]), {"CPU": 4}, count=2)
    assert hand.report(0, time=2) == ("PAUSE", [PluginRequest.KEEP_STEPS])
    assert hand.report(1) == ("CONTINUE", [])
    assert hand.go_on() == ["t0"]
    assert hand.report(1, time=2) == ("CONTINUE", [])  # a trial is not stopped for what is not free


def test_a_machine_that_shrank_gives_a_grown_trial_its_base():
    hand = Hand(DistributeResources(), {"CPU": 8}, count=1)
    hand.round(0)
    hand.rest(hand.trial(0))
    hand.index.capacity = Resources.of(CPU=2)
    assert hand.go_on() == ["t0"]
    assert hand.used == {"CPU": 1.0}


def test_paused_trials_do_not_keep_others_small_unless_they_are_wanted():
    class Pauses(FIFOScheduler):
        wants: Trial | None = None

        def on_trial_result(self, tune_controller, trial, result):
            return "PAUSE" if trial.trial_id == "t1" else "CONTINUE"

        def choose_trial_to_run(self, tune_controller):
            return self.wants

    base = Pauses()
    hand = Hand(DistributeResources(), {"CPU": 4}, base, count=2)
    assert hand.report(1) == ("PAUSE", [])
    assert hand.report(0) == ("CONTINUE", [])  # it is not known yet who starts next
    hand.go_on()
    assert hand.round(0) == cpus(4)
    base.wants = hand.trial(1)
    assert hand.go_on() == []
    assert hand.round(0) == cpus(3)
    assert hand.trial(1).state is S.RUNNING


def test_a_trial_that_could_not_be_saved_goes_on_and_is_asked_less_often(caplog):
    hand = Hand(DistributeResources(), {"CPU": 4}, count=1)
    trial = hand.trial(0)
    asked = []
    for time in range(1, 12):
        result = {"training_iteration": time, "score": 0.0}
        if hand.scheduler.on_trial_result(hand.view, trial, result) == "PAUSE":
            asked.append(time)  # the answer to the save has no checkpoint: it runs on
    assert asked == [1, 3, 6, 11]
    assert caplog.text.count("has no checkpoint of its last step") == 1
    result = {"training_iteration": 12, "score": 0.0, "checkpoint_dir_name": "checkpoint_000000"}
    assert hand.scheduler.on_trial_result(hand.view, trial, result) == "PAUSE"


def test_a_retry_after_a_change_has_its_base_again():
    hand = Hand(DistributeResources(), {"CPU": 4}, count=1)
    hand.round(0)
    trial = hand.trial(0)
    hand.scheduler.on_trial_error(hand.view, trial)
    hand.index.move(trial, S.PENDING)
    hand.scheduler.on_trial_add(hand.view, trial)
    assert trial.placement_group_factory == hand.needs


def test_rays_published_allocation_function_runs_as_it_is():
    def example(tune_controller, trial, result, scheduler):
        base = scheduler._base_trial_resources
        if result["training_iteration"] < 1:
            return None
        if base is None:
            base = Pgf([{"CPU": 1, "GPU": 0}])
        least = base.required_resources.get("CPU", 0)
        total = tune_controller._resource_updater.get_num_cpus()
        assert tune_controller.trial_executor._resource_updater.get_num_gpus() == 0
        mine = max(least, total // len(tune_controller.get_live_trials()))
        return Pgf([{"CPU": mine, "GPU": 0}])

    hand = Hand(example, {"CPU": 8}, count=3)
    assert hand.round(0, 1, 2) == cpus(2, 2, 2)
    hand.end(2)
    assert hand.round(0, 1) == cpus(4, 4)


def test_no_function_changes_nothing_and_says_so(caplog):
    hand = Hand(None, {"CPU": 8}, count=1)
    assert hand.report(0) == ("CONTINUE", [])
    (record,) = caplog.records
    assert "resources_allocation_function" in record.getMessage()


def test_an_answer_that_is_more_than_there_is_changes_nothing_and_is_told_once(caplog):
    hand = Hand(lambda *_: {"cpu": 99}, {"CPU": 8}, count=1)
    assert [hand.report(0, time=time)[0] for time in (1, 2)] == ["CONTINUE"] * 2
    assert caplog.text.count("was to have (CPU: 99), but there is only (CPU: 8) in all") == 1


def test_slips_are_named():
    hand = Hand(lambda *_: 3, {"CPU": 8}, count=1)
    with pytest.raises(TuneError, match=r"resources_allocation_function .* returned 3; return a Placement"):
        hand.report(0)
    hand.needs = Pgf([{"CPU": 2}])
    with pytest.raises(RuntimeError, match="t1"):
        hand.add()
    two = Hand(DistributeResources(), {"CPU": 8}, count=1, needs=Pgf([{"CPU": 1}, {"CPU": 1}]))
    with pytest.raises(ValueError, match="add_bundles=True"):
        two.report(0)
    top = Hand(DistributeResourcesToTopJob(), {"CPU": 8}, count=1)
    top.scheduler = ResourceChangingScheduler(None, DistributeResourcesToTopJob())
    top.scheduler.on_trial_add(top.view, top.trial(0))
    with pytest.raises(ValueError, match=r"DistributeResourcesToTopJob .* needs a metric.*mode"):
        top.report(0)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: DistributeResources(increase_by={"CPU": -1}),
            r"DistributeResources: increase_by=.*between 0",
        ),
        (lambda: DistributeResources(increase_by={"CPU": 0}), r"increase_by={'CPU': 0} adds nothing"),
        (lambda: DistributeResources(reserve_resources=3), r"reserve_resources=3"),
        (lambda: DistributeResources(increase_by_times=1.5), r"increase_by_times=1.5 must be a whole number"),
        (lambda: DistributeResourcesToTopJob(mode="best"), r"mode is 'best'; it must be 'min' or 'max'"),
        (lambda: ResourceChangingScheduler(None, "evenly"), r"'evenly' cannot be called"),
        (
            lambda: scheduler_of(tune.TuneConfig(scheduler=ResourceChangingScheduler(), reuse_actors=True)),
            r"ResourceChangingScheduler cannot be used with TuneConfig\(reuse_actors=True\)",
        ),
    ],
)
def test_bad_parameters_are_refused(make, told):
    with pytest.raises(ValueError, match=told):
        make()


def test_metric_and_what_else_the_base_scheduler_offers_is_its_own():
    base = ASHAScheduler(metric="loss", mode="min")
    scheduler = ResourceChangingScheduler(base)
    assert (scheduler.metric, scheduler.mode) == ("loss", "min")
    assert not scheduler.set_search_properties("score", "max")
    assert scheduler.debug_string() == f"(ResourceChangingScheduler) {base.debug_string()}"
    with pytest.raises(AttributeError, match="no_such_thing"):
        scheduler.no_such_thing  # noqa: B018


def test_a_user_s_base_scheduler_is_saved_and_comes_back_with_its_trials(caplog):
    class Counts(FIFOScheduler):
        def __init__(self):
            self.seen = []

        def on_trial_result(self, tune_controller, trial, result):
            self.seen.append(trial)
            return "CONTINUE"

    with caplog.at_level(logging.ERROR):
        hand = Hand(None, {"CPU": 8}, Counts(), count=2)
    hand.report(1)
    again = ResourceChangingScheduler(Counts())
    again.restore_state(hand.scheduler.save_state(), hand.index.trials)
    assert again._base_scheduler.seen == [hand.trial(1)]
    assert again.base_trial_resources == hand.needs
    assert again.save_state() == hand.scheduler.save_state()


def test_the_blocks_of_the_guide_run():
    guide = Path(__file__).parents[3] / "docs" / "schedulers.md"
    names: dict = {}
    for block in re.findall(r"^```python\n(.*?)^```$", guide.read_text("utf-8"), re.MULTILINE | re.DOTALL):
        exec(block, names)
    assert scheduler_of(names["tune_config"]).metric == "loss"


def test_the_guide_names_every_scheduler():
    guide = (Path(__file__).parents[3] / "docs" / "schedulers.md").read_text("utf-8")
    others = ("TrialScheduler", "create_scheduler", "SCHEDULER_IMPORT")
    public = {name for name in schedulers.__all__ if name not in others}
    assert {name for name in public if f"`{name}" not in guide} == set()
