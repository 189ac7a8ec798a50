"""Check trials on the nodes of a simulated cluster: room, speed, drains, losses, and what they cost."""

from __future__ import annotations

from muster.base.ids import CloudId
from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, NodeType
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.options import HEAD_TYPE, RunOptions, head_type
from muster.sim.joint.cloud import JointCluster
from muster.sim.joint.engine import JointEngine
from muster.sim.tune.engine import Costs
from muster.sim.tune.trial import FunctionCurve
from muster.trials.events import CapacityChanged, ContinueTrial, StartTrial, StopTrial
from muster.trials.model import CheckpointRef
from muster.trials.placement_group import PlacementGroupFactory

GPU = NodeType(name="gpu", resources=Resources.of(CPU=4, GPU=1), max_nodes=4, price_per_hour=1.0)
FAST = NodeType(name="fast", resources=Resources.of(CPU=8, GPU=2), max_nodes=4, price_per_hour=3.0)
COSTS = Costs(start_s=1.0, restore_s=20.0, save_s=5.0, checkpoint_every=1)
CURVE = FunctionCurve(lambda config, t: {"loss": 1.0 / t}, seconds=60.0)


def cluster():
    spec = ClusterSpec(head_node_type=HEAD_TYPE, node_types=(head_type(), GPU, FAST))
    sells = Catalogue(types={t.name: t for t in spec.node_types}, prices={})
    return JointCluster(Seed(1), RunOptions(spec=spec, catalogue=sells), Faults.none())


def join(made, node_type=GPU):
    number = len(made.runtime.nodes) + 1
    machine = CloudMachine(CloudId(f"m-{number}"), node_type.name, 1.0, made.world.time, up=True)
    return made.runtime.join(machine, node_type)


def engine(made, costs=COSTS):
    speeds = {"gpu": 1.0, "fast": 2.0}
    built = JointEngine(made, "e", CURVE, costs=costs, speed_of=speeds.__getitem__)
    (first,) = built.poll(0.0)
    assert isinstance(first, CapacityChanged)
    return built


def start(trial_id="a", checkpoint=None):
    return StartTrial(
        trial_id=trial_id,
        trial_name=trial_id,
        trainable_name="f",
        config={},
        resources=PlacementGroupFactory([{"CPU": 1, "GPU": 1}]),
        trial_dir=f"/simulated/{trial_id}",
        experiment_name="e",
        checkpoint=checkpoint,
    )


def next_events(built, made, timeout_s=1e6):
    return [(type(e).__name__, e.trial_id, round(made.world.time, 3)) for e in built.poll(timeout_s)]


def only_exit(built):
    (event,) = [e for e in built.poll(1e6) if type(e).__name__ == "TrialExited"]
    return event.trial_id, None if event.failure is None else event.failure.kind.value


def test_a_trial_is_a_pending_gang_until_a_node_has_room():
    made = cluster()
    built = engine(made)
    built.submit(start())
    assert [gang.gang_id for gang in made.runtime.pending_gangs()] == ["e-a-1"]
    made.world.after(30.0, lambda: join(made))
    assert next_events(built, made) == [("TrialStarted", "a", 31.0)]
    assert made.runtime.pending_gangs() == []


def test_a_step_takes_its_time_at_the_speed_of_the_node_and_its_save():
    made = cluster()
    join(made, FAST)
    built = engine(made)
    built.submit(start())
    assert next_events(built, made) == [("TrialStarted", "a", 1.0)]
    assert next_events(built, made) == [("TrialReported", "a", 1.0 + 60.0 / 2.0 + 5.0)]


def test_without_a_timeout_poll_passes_no_time():
    made = cluster()
    join(made)
    built = engine(made)
    built.submit(start())
    assert (built.poll(0.0), made.world.time, built.has_news) == ([], 0.0, False)


def test_a_trial_that_waits_is_withdrawn_when_it_is_stopped():
    made = cluster()
    built = engine(made)
    built.submit(start())
    built.submit(StopTrial(trial_id="a"))
    assert only_exit(built) == ("a", None)
    assert (made.runtime.gangs, built.is_idle) == ({}, True)


def test_a_node_that_dies_ends_its_trial_and_its_unsaved_work_counts_as_repeated():
    made = cluster()
    node = join(made)
    built = engine(made)
    built.submit(start())
    made.world.after(41.0, lambda: made.runtime.kill_node(node))
    next_events(built, made)
    assert only_exit(built) == ("a", "node-lost")
    assert (built.work.losses, built.work.repeated_s, made.runtime.gangs) == (1, 40.0, {})


def test_a_trial_on_a_draining_node_leaves_with_its_next_checkpoint_and_loses_nothing():
    made = cluster()
    node = join(made)
    built = engine(made)
    built.submit(start())
    next_events(built, made)
    made.world.after(10.0, lambda: made.drains.begin(node, 120.0))
    assert next_events(built, made) == [("TrialReported", "a", 66.0)]
    built.submit(ContinueTrial(trial_id="a"))
    assert only_exit(built) == ("a", "preempted")
    assert (built.work.losses, built.work.repeated_s, node.alive) == (0, 0.0, False)


def test_a_trial_that_saves_only_on_request_is_saved_before_it_leaves():
    made = cluster()
    node = join(made)
    built = engine(made, Costs(save_s=5.0))
    built.submit(start())
    next_events(built, made)
    made.drains.begin(node, 90.0)
    next_events(built, made)
    built.submit(ContinueTrial(trial_id="a"))
    saved, exited = built.poll(1e6)
    assert (saved.checkpoint.metrics["training_iteration"], exited.failure.kind.value) == (1, "preempted")
    assert made.world.time == 65.0


def test_a_step_that_does_not_fit_is_lost_at_the_deadline():
    made = cluster()
    node = join(made)
    built = engine(made)
    built.submit(start())
    next_events(built, made)
    made.drains.begin(node, 30.0)
    assert only_exit(built) == ("a", "preempted")
    assert (made.world.time, built.work.repeated_s) == (31.0, 30.0)


def test_a_trial_that_has_not_begun_leaves_a_draining_node_at_once():
    made = cluster()
    node = join(made)
    built = engine(made)
    known = CheckpointRef(path="/simulated/a/checkpoint_000000", index=0, metrics={"training_iteration": 3})
    built.submit(start(checkpoint=known))
    made.world.after(10.0, lambda: made.drains.begin(node, 120.0))
    assert (only_exit(built), made.world.time) == (("a", "preempted"), 10.0)


def test_a_process_does_nothing_more_once_its_machine_is_gone_which_is_noticed_later():
    made = cluster()
    machine = made.cloud.create("gpu")
    machine.up = True
    node = made.runtime.join(machine, GPU)
    built = engine(made)
    built.submit(start())
    next_events(built, made)
    made.world.after(63.0, lambda: made.cloud.end(machine, "preempted"))
    assert only_exit(built) == ("a", "node-lost")
    assert (made.world.time, built.work.repeated_s, node.alive) == (74.0, 63.0, False)


def test_two_engines_share_nodes_in_the_order_of_their_requests():
    made = cluster()
    join(made)
    first, second = engine(made), JointEngine(made, "f", CURVE, costs=COSTS)
    first.submit(start("a"))
    second.submit(start("b"))
    assert (first.node_of("a"), second.node_of("b")) == ("n-0002", None)
    next_events(first, made)
    first.submit(StopTrial(trial_id="a"))
    first.poll(1e6)
    assert second.node_of("b") == "n-0002"
