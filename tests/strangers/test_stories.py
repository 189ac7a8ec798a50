"""The shortest stories behind violations that drawn worlds have shown."""

from __future__ import annotations

import pytest
from msgspec.structs import replace
from tests.strangers.run import Story
from tests.strangers.truth import Machine, Work

from muster.base.resources import Resources
from muster.cluster.budget_policy import Budget
from muster.cluster.model import Backoff, ClusterSpec, Demand, LaunchLimits, NodeType, Objective, Timeouts
from muster.errors import Throttled

HEAD = NodeType(name="head", resources=Resources.of(CPU=0), max_nodes=1, price_per_hour=0.1)
W = NodeType(name="w", resources=Resources.of(CPU=4), max_nodes=3, price_per_hour=1.0)
FOREVER_S = 1e6


def begin(*types: NodeType, **more: object) -> Story:
    """A cluster with a head, no worker, and a cloud without faults."""
    limits = Timeouts(request_s=300.0, allocate_s=200.0, install_s=200.0, terminating_s=60.0)
    given = {"idle_timeout_s": 60.0, "timeouts": limits, "backoff": Backoff(max_s=60.0), **more}
    story = Story(0, spec=ClusterSpec(head_node_type="head", node_types=(HEAD, *(types or (W,))), **given))
    steps(story, 1)
    return story


def steps(story: Story, count: int, *faults: str, seconds: float = 10.0) -> None:
    """Let time pass while these faults strike at every occasion."""
    story.world.faults = dict.fromkeys(faults, 1.0)
    for _ in range(count):
        story.step(seconds)
    story.world.faults = {}


def start(story: Story, *, cpus: float = 4, count: int = 1, duration_s: float = FOREVER_S) -> None:
    """A user starts tasks."""
    shape = Resources.of(CPU=cpus)
    for _ in range(count):
        story.world.works.append(Work(story.world.fresh("w"), (shape,), duration_s, story.world.t))


def edit(story: Story, **changes: object) -> None:
    """A user edits the only worker type."""
    spec = story.world.spec
    types = tuple(replace(one, **changes) if one.name == "w" else one for one in spec.node_types)
    story.world.spec = replace(spec, node_types=types)


def workers(story: Story) -> list[Machine]:
    return [machine for machine in story.world.machines if not machine.is_head]


def remaining(story: Story) -> int:
    return sum(machine.exists for machine in workers(story))


def violations(story: Story) -> list[str]:
    return sorted(story.watch.found)


def test_a_cluster_without_faults_serves_and_shrinks() -> None:
    story = begin()
    start(story, count=3, duration_s=100.0)
    steps(story, 60)
    assert (violations(story), len(workers(story)), remaining(story)) == ([], 3, 0)


def test_a_launch_that_was_lost_is_not_repeated_for_cancelled_records() -> None:
    story = begin()
    start(story)
    steps(story, 1, "launch-call-lost")
    edit(story, max_nodes=0)
    steps(story, 5)
    assert (violations(story), len(workers(story))) == ([], 0)


def test_a_repeated_launch_that_is_turned_away_may_have_happened() -> None:
    story = begin()
    story.world.stream("refusals").choice = lambda kinds: Throttled  # type: ignore[method-assign]
    start(story)
    steps(story, 1, "launch-reply-lost")
    machine = workers(story)[0]
    machine.listed_from = machine.boots_at = story.world.t + 60.0
    steps(story, 1, "launch-refused")
    steps(story, 20)
    assert (violations(story), len(workers(story))) == ([], 1)


def test_a_request_that_nothing_needs_any_more_is_not_repeated() -> None:
    story = begin()
    start(story)
    steps(story, 1, "launch-swallowed")
    story.world.works.clear()
    steps(story, 40)
    assert (violations(story), len(workers(story))) == ([], 0)


def test_a_machine_that_waits_for_its_launch_is_withdrawn_when_nothing_needs_it_any_more() -> None:
    """Worlds 7200066 and 7200069: the launch limit held it back until nothing was wanted."""
    story = begin(limits=LaunchLimits(max_concurrent=1))
    start(story, count=2)
    steps(story, 1, "launch-swallowed")
    story.world.works.clear()
    steps(story, 40)
    assert (violations(story), len(workers(story))) == ([], 0)


def test_a_cancelled_machine_on_which_an_unknown_node_may_work_counts_against_the_limit() -> None:
    story = begin(replace(W, max_nodes=1))
    start(story)
    steps(story, 15, "node-without-both")
    edit(story, max_nodes=0)
    steps(story, 2)
    edit(story, max_nodes=1)
    start(story)
    steps(story, 3)
    assert (violations(story), remaining(story)) == ([], 1)


def test_a_node_of_a_cloned_image_keeps_its_machine() -> None:
    story = begin()
    start(story)
    steps(story, 15)
    start(story, count=2)
    steps(story, 60, "node-cloned-id")
    assert (violations(story), remaining(story)) == ([], 3)


def test_a_machine_that_is_listed_twice_is_one_machine() -> None:
    story = begin()
    start(story)
    steps(story, 60, "listed-twice")
    assert (violations(story), remaining(story)) == ([], 1)


def test_a_machine_without_its_type_tag_is_found_by_its_request() -> None:
    story = begin(replace(W, max_nodes=1))
    start(story)
    start(story)
    steps(story, 1, "tag-type-lost", "node-never")
    steps(story, 80)
    assert (violations(story), remaining(story)) == ([], 1)


def test_a_machine_with_the_type_tag_of_another_type_is_found_by_its_request() -> None:
    other = NodeType(name="v", resources=Resources.of(CPU=1), max_nodes=3, price_per_hour=1.0)
    story = begin(W, other)
    story.world.stream("tags").choice = lambda types: other  # type: ignore[method-assign]
    start(story, duration_s=600.0)
    steps(story, 40, "tag-type-changed")
    assert (violations(story), len(workers(story))) == ([], 1)
    steps(story, 60)
    assert (violations(story), remaining(story)) == ([], 0)


def test_a_machine_with_its_type_tag_in_another_case_is_found_by_its_request() -> None:
    story = begin()
    start(story, duration_s=600.0)
    steps(story, 40, "tag-type-case")
    assert (violations(story), len(workers(story))) == ([], 1)


def test_a_node_that_reports_its_id_in_another_case_is_on_its_machine() -> None:
    story = begin()
    start(story, duration_s=100.0)
    steps(story, 100, "node-id-case", "node-without-ip")
    assert (violations(story), remaining(story)) == ([], 0)


def test_a_node_that_nothing_identifies_keeps_one_machine() -> None:
    story = begin()
    start(story)
    steps(story, 20, "node-stays-unknown")
    start(story, count=2)
    steps(story, 20)
    for machine in workers(story)[1:]:
        story.world.kill_node(story.world.node_on(machine))
    story.world.works.clear()
    steps(story, 60)
    assert (violations(story), remaining(story)) == ([], 1)


def test_a_node_that_one_report_lacks_keeps_its_machine() -> None:
    story = begin()
    start(story, count=3)
    steps(story, 20)
    steps(story, 3, "report-half")
    steps(story, 5)
    assert (violations(story), len(workers(story))) == ([], 3)


def test_an_older_report_after_a_restart_ends_no_machine() -> None:
    story = begin()
    start(story)
    while not any(work.places for work in story.world.works):
        steps(story, 1)
    story.restart(5.0)
    steps(story, 1, "report-stale")
    steps(story, 5)
    assert (violations(story), remaining(story)) == ([], 1)


def test_a_clock_that_is_set_ahead_at_a_restart_buys_nothing_twice() -> None:
    story = begin(replace(W, max_nodes=1))
    start(story)
    steps(story, 1, "list-late")
    story.world.faults = {"clock-ahead": 1.0}
    story.restart(5.0)
    steps(story, 30)
    assert (violations(story), len(workers(story))) == ([], 1)


def test_a_clock_that_is_set_ahead_at_a_restart_ends_no_machine_that_boots() -> None:
    story = begin()
    start(story)
    steps(story, 3, "node-late")
    story.world.faults = {"clock-ahead": 1.0}
    story.restart(5.0)
    steps(story, 30)
    assert (violations(story), len(workers(story))) == ([], 1)


@pytest.mark.parametrize("seed", range(4))  # the runtime keeps its state, or not
@pytest.mark.parametrize("faults", [(), ("head-without-id",)])
def test_a_replaced_head_that_is_still_listed_stops_nothing(seed: int, faults: tuple[str, ...]) -> None:
    story = begin()
    story.world.stream("heads").seed(seed)
    start(story)
    steps(story, 20, *faults)
    story.world.faults = dict.fromkeys(faults, 1.0)
    story.replace_head()
    start(story)
    steps(story, 60, *faults)
    assert (violations(story), sum(work.waits for work in story.world.works)) == ([], 0)


def test_a_machine_that_somebody_started_counts_in_the_budget() -> None:
    story = begin(budget=Budget(per_hour=2.5))
    for _ in range(2):
        story.cloud.start_by_hand("w").listed_from = story.world.t + 10.0
    start(story, count=4)
    steps(story, 20)
    assert (violations(story), remaining(story)) == ([], 2)


@pytest.mark.slow
def test_a_type_whose_setups_fail_is_backed_off() -> None:
    story = begin(install_runtime=True)
    start(story)
    steps(story, 180, "install-fails")
    assert len(workers(story)) <= 20


@pytest.mark.parametrize("objective", [Objective.COST, Objective.UTILIZATION])
def test_a_constraint_beyond_the_limits_launches_nothing_twice(objective: Objective) -> None:
    story = begin(objective=objective)
    story.world.constraint = (Demand(shape=Resources.of(CPU=4), count=5),)
    steps(story, 60)
    assert (violations(story), len(workers(story))) == ([], remaining(story))


def test_machines_of_a_type_that_left_the_file_are_drained_and_terminated() -> None:
    story = begin(W, replace(W, name="v"))
    start(story, count=2)
    steps(story, 20)
    story.world.retired.append(W)
    story.world.spec = replace(story.world.spec, node_types=(HEAD, replace(W, name="v")))
    steps(story, 60)
    assert violations(story) == []
