"""Run tuners and the autoscaler together: to the end, on spot, several at once, and twice the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from msgspec.structs import replace as struct_replace
from tests.mistakes.views import assert_line

from muster.autoscaler.monitor import TickInterval
from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, LaunchLimits, NodeType, Objective, Offer
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue
from muster.sim.cluster.options import HEAD_TYPE, RunOptions, head_type
from muster.sim.joint.cloud import JointCluster, SpotModel, SpotPool, SpotSeries
from muster.sim.joint.run import JointRun, StuckWorld
from muster.sim.joint.tuner import JointExperiment
from muster.sim.tune.engine import Costs
from muster.sim.tune.experiment import SimulatedExperiment
from muster.sim.tune.problems import PROBLEMS
from muster.trials.placement_group import PlacementGroupFactory
from muster.trials.template import Limits
from muster.tune.schedulers import ASHAScheduler

POOL = "gpu a/spot"
OFFERS = (
    Offer(market="on-demand", price_per_hour=1.0),
    Offer(zone="a", market="spot", price_per_hour=0.3),
)


def cluster(seed=1, series=((8, 1),), offers=OFFERS):
    gpu = NodeType(name="gpu", resources=Resources.of(CPU=4, GPU=1), max_nodes=8, offers=offers)
    spec = ClusterSpec(
        head_node_type=HEAD_TYPE,
        node_types=(head_type(), gpu),
        idle_timeout_s=300.0,
        objective=Objective.COST,
        limits=LaunchLimits(upscaling_speed=10.0),
    )
    prices = {"gpu on-demand": 1.0, POOL: 0.3}
    sells = Catalogue(types={"gpu": gpu}, prices=prices, reports_offers=True)
    made = JointCluster(Seed(seed), RunOptions(spec=spec, catalogue=sells, tick_s=10.0), Faults.none())
    made.cloud.model = SpotModel(noticed_share=0.8)
    made.cloud.open_pools(Seed(seed), [SpotPool(POOL, SpotSeries(60.0, series), 0.0)])
    return made


def experiment(trials=12, seed=1, gpus=1):
    problem = PROBLEMS["power_law"]
    return SimulatedExperiment(
        curve=problem.curve(seed),
        space=problem.space(),
        metric=problem.metric,
        mode=problem.mode,
        num_samples=trials,
        make_scheduler=lambda: ASHAScheduler(max_t=9, grace_period=1, reduction_factor=3),
        resources=PlacementGroupFactory([{"CPU": 1, "GPU": gpus}]),
        costs=Costs(save_s=5.0, restore_s=20.0, checkpoint_every=1),
        max_failures=-1,
        seed=seed,
    )


def joint(made=None, limits=None, **more):
    asked = JointExperiment(name="e", experiment=replace(experiment(**more), limits=limits or Limits()))
    return JointRun(made or cluster(), [asked])


def test_an_experiment_runs_to_its_end_and_its_machines_are_gone_afterwards():
    run = joint()
    result = run.run()
    state = run.tuners[0].run.state
    assert {trial.status for trial in state.trials.values()} == {"TERMINATED"}
    assert (len(state.trials), run.cluster.runtime.gangs) == (12, {})
    assert [m for m in run.cluster.cloud.alive() if m.node_type == "gpu"] == []
    assert 0.0 < result.cost < 2.0
    assert 0.0 < result.busy_s < result.node_s
    assert result.lost_share == 0.0


def test_ticks_of_a_monitor_follow_what_happens_and_rest_in_between():
    made = cluster()
    asked = JointExperiment(name="e", experiment=experiment())
    run = JointRun(made, [asked], interval=TickInterval(10.0, 60.0))
    ticks = []
    run.after_tick = lambda: ticks.append(made.world.time)
    result = run.run()
    pauses = [later - earlier for earlier, later in pairwise(ticks)]
    assert min(pauses) >= 10.0 - 1e-6
    assert 10.0 < max(pauses) <= 60.0
    assert abs(result.cost / joint().run().cost - 1.0) < 0.2


def test_a_tuner_that_knows_the_limit_asks_for_no_more_than_the_cluster_may_hold():
    most = []
    for knows in (False, True):
        asked = JointExperiment(name="e", experiment=experiment(trials=20), knows_limit=knows)
        run = JointRun(cluster(), [asked])
        waiting = []
        run.after_tick = lambda run=run, waiting=waiting: waiting.append(len(run.cluster.runtime.gangs))
        run.run()
        most.append(max(waiting))
    assert most == [20, 8]


def test_a_place_that_no_trial_takes_over_is_kept_for_a_while_and_given_back_with_the_last_trial():
    asked = experiment()
    busy = []
    for linger_s in (0.0, 30.0):
        lingers = replace(asked, costs=struct_replace(asked.costs, linger_s=linger_s))
        run = JointRun(cluster(), [JointExperiment(name="e", experiment=lingers)])
        held = []
        run.after_tick = lambda run=run, held=held: held.append(
            len(run.cluster.runtime.gangs) - len(run.tuners[0].engine.placements())
        )
        run.run()
        busy.append((max(held) > 0, held[-1], run.cluster.runtime.gangs))
    assert busy == [(False, 0, {}), (True, 0, {})]


def test_the_first_trial_on_a_node_takes_longer_to_start_and_the_next_one_does_not():
    asked = experiment(trials=20)
    took = []
    for first_s in (0.0, 100.0):
        slow = replace(asked, costs=struct_replace(asked.costs, first_s=first_s), make_scheduler=lambda: None)
        run = JointRun(cluster(), [JointExperiment(name="e", experiment=replace(slow, max_t=3))])
        result = run.run()
        took.append((result.machines, result.busy_s))
    (machines, usual_s), (again, slow_s) = took
    assert machines == again
    assert slow_s - usual_s == pytest.approx(100.0 * machines, abs=1.0)


def test_two_runs_of_one_seed_are_equal():
    assert joint().run() == joint().run()


def test_machines_that_are_taken_cost_little_work_and_no_trial():
    run = joint(cluster(series=((8, 3), (2, 2), (8, 3), (1, 2))))
    result = run.run()
    state = run.tuners[0].run.state
    assert result.taken > 0
    assert {trial.status for trial in state.trials.values()} == {"TERMINATED"}
    assert sum(result.moves) >= result.losses
    assert result.lost_share < 0.1


def test_experiments_that_share_a_cluster_all_end():
    first = JointExperiment(name="a", experiment=experiment(6))
    second = replace(first, name="b", start_s=400.0)
    run = JointRun(cluster(), [first, second])
    result = run.run()
    assert result.best["a"] == result.best["b"]
    assert run.tuners[1].ended_at > run.tuners[0].ended_at


def test_a_forecast_is_on_the_board_before_the_first_tick_and_says_so_when_all_is_over():
    run = joint()
    seen = []
    run.after_tick = lambda: seen.append(run.cluster.board.newest.get("e"))
    run.run()
    assert sum(work.count for work in seen[0].coming) == 12
    assert (seen[-1].trials, seen[-1].coming, seen[-1].is_complete, seen[-1].done) == ((), (), True, 1.0)


def test_a_world_without_machines_for_the_trials_is_stuck_and_says_what_to_do():
    with pytest.raises(StuckWorld) as stuck:
        joint(gpus=2).run(limit_s=600.0)
    assert_line("sim", "trials that fit nowhere", str(stuck.value))


def test_a_deadline_is_in_seconds_from_the_start_and_the_autoscaler_is_told():
    run = joint(limits=Limits(deadline=4000.0))
    begun_at = run.world.now()
    seen = []
    run.after_tick = lambda: seen.append(run.cluster.board.newest.get("e"))
    run.run()
    assert {one.deadline for one in seen} == {begun_at + 4000.0}
    assert run.tuners[0].run.state.ended_by == ""


def test_an_experiment_is_over_by_its_deadline():
    run = joint(limits=Limits(deadline=300.0))
    run.run()
    (tuner,) = run.tuners
    assert tuner.run.state.ended_by == "deadline"
    assert 150.0 < tuner.ended_at <= 300.0


def test_an_experiment_ends_by_its_budget_and_the_places_of_its_trials_cost_no_more():
    whole = joint()
    whole.run()
    run = joint(limits=Limits(cost_budget=0.5 * whole.tuners[0].engine.held_usd()))
    run.run()
    (tuner,) = run.tuners
    assert tuner.run.state.ended_by == "budget"
    budget = run.tuners[0].run.experiment.limits.cost_budget
    assert tuner.engine.held_usd() == pytest.approx(tuner.run.state.spend.spent(run.world.now()))
    assert 0.5 * budget < tuner.engine.held_usd() <= budget
