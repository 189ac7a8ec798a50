from __future__ import annotations

import json
import re
from types import SimpleNamespace

import pytest

from muster.engines.ray.capacity import (
    CapacityHistory,
    ClusterCapacity,
    Growth,
    expected_starts,
    late_ones,
    typical,
    why_unplaceable,
)
from muster.engines.ray.cluster_watcher import ClusterView, DrainingNodes, read_cluster, read_draining
from muster.session.session import PreemptionInfo
from muster.trials.placement_group import PlacementGroupFactory

ONE = PlacementGroupFactory([{"CPU": 1}])
NODES = [{"CPU": 2.0, "GPU": 1.0}, {"CPU": 4.0}]


def group(*bundles, strategy="PACK", **options):
    return PlacementGroupFactory(list(bundles), strategy, **options)


class QuietGcs:
    """Answers as a GCS does where no autoscaler has written anything."""

    def kv_get(self, key, namespace=None):
        return None

    def drain_deadlines(self):
        return {"ab": 1200.0}

    def cloud_ids(self):
        return {"ab": "i-1"}


class NoticedGcs(QuietGcs):
    """Has a notice of the cloud about the machine, damaged or not."""

    def __init__(self, text):
        self.text = text

    def kv_get(self, key, namespace=None):
        return self.text if key == "notice/i-1" else None


def test_a_view_has_the_nodes_that_are_to_go():
    node = {"NodeID": "ab", "Alive": True, "Resources": {"CPU": 2.0, "node:1.2.3.4": 1.0}}
    groups = {"p1": {"bundles_to_node_id": {0: "ab", 1: "ef"}}, "p2": {"bundles_to_node_id": {0: "ef"}}}
    ray = SimpleNamespace(
        nodes=lambda: [node, {"NodeID": "cd", "Alive": False, "Resources": {}}],
        util=SimpleNamespace(placement_group_table=lambda: groups),
    )
    view = read_cluster(ray, QuietGcs(), now=1000.0)
    by_hand = PreemptionInfo(1200.0, "drain", "Ray drains the node", "ab")
    assert (view.nodes, view.has_autoscaler) == ([{"CPU": 2.0}], False)
    assert (view.draining, view.alive, view.groups) == ({"ab": by_hand}, {"ab"}, {"p1": ["ab"]})


NOTICE = {"cloud_id": "i-1", "kind": "interruption", "deadline": 1205.0, "source": "AWS", "at": 1000.0}


@pytest.mark.parametrize(
    ("text", "kind", "source"),
    [
        (json.dumps(NOTICE), "interruption", "AWS"),
        (json.dumps({**NOTICE, "is_cancelled": True}), "drain", "Ray drains the node"),
        ("{", "drain", "Ray drains the node"),
    ],
)
def test_the_notice_of_a_cloud_explains_a_drain(text, kind, source):
    expected = {"ab": PreemptionInfo(1200.0, kind, source, "ab")}
    assert read_draining(NoticedGcs(text.encode())) == expected


def test_a_node_that_is_emptied_says_so_unless_a_cloud_takes_it():
    told = read_draining(NoticedGcs(b"{"), ["ab"])["ab"]
    assert (told.kind, told.source.split()[0]) == ("consolidation", "muster")
    assert read_draining(NoticedGcs(json.dumps(NOTICE).encode()), ["ab"])["ab"].kind == "interruption"


def draining(*infos, alive=("ab", "cd")):
    return ClusterView([], draining={info.node_id: info for info in infos}, alive=frozenset(alive))


SOON, LATER = PreemptionInfo(1060.0, node_id="ab"), PreemptionInfo(1200.0, node_id="cd")


def test_every_drain_is_told_once_and_the_first_node_to_go_counts():
    nodes = DrainingNodes()
    (line,) = nodes.update(draining(SOON), 1000.0)
    assert re.search(r"^node ab .* 60 s \(drain: \)$", line)
    assert len(nodes.update(draining(SOON, LATER), 1000.0)) == 1
    assert nodes.update(draining(LATER, SOON), 1001.0) == []
    assert (nodes.earliest(["cd", "ab"]), nodes.earliest(["cd"]), nodes.earliest(["ef"])) == (
        SOON,
        LATER,
        None,
    )


def test_a_drain_that_is_over_while_its_node_lives_is_taken_back():
    nodes = DrainingNodes()
    nodes.update(draining(SOON, LATER), 1000.0)
    lines = nodes.update(draining(alive=["ab"]), 1001.0)  # cd is dead: it was taken
    assert [line.split(":")[0] for line in lines] == ["node ab stays"]
    assert (nodes.earliest(["ab"]), nodes.earliest(["cd"])) == (None, LATER)


def test_a_deadline_that_has_passed_when_it_comes_is_none():
    """Clocks may differ: a trial is saved as soon as possible, and not ended at once."""
    nodes = DrainingNodes()
    (line,) = nodes.update(draining(SOON), 1100.0)
    assert re.search(r"^node ab .* 40 s .*\bclocks\b", line)
    assert nodes.earliest(["ab"]) == SOON._replace(deadline=None)


def status(mapping):
    return json.dumps({"autoscaler_report": {"active_nodes": {}, "node_type_mapping": mapping}}).encode()


@pytest.mark.parametrize(
    ("written", "grows"),
    [
        (None, False),
        (status({"0e5f": "node_0e5f"}), False),  # by the reporter of every head that has no cluster file
        (status({"0e5f": "head", "1a2b": "gpu"}), True),
        (b"of another kind", True),
        (b'{"autoscaler_report": null}', True),
    ],
)
def test_a_reporter_that_only_watches_is_no_autoscaler(written, grows):
    gcs = QuietGcs()
    gcs.kv_get = lambda key, namespace=None: written if key == "__autoscaling_status" else None
    ray = SimpleNamespace(nodes=list, util=SimpleNamespace(placement_group_table=dict))
    assert read_cluster(ray, gcs, now=1000.0).has_autoscaler is grows


def test_what_is_taken_is_counted_exactly():
    room = ClusterCapacity({"CPU": 1})
    third = group({"CPU": 0.1})
    for _ in range(10):
        assert room.fits(third)
        room.take(third)
    assert not room.fits(third)
    for _ in range(10):
        room.free(third)
    assert room.fits(group({"CPU": 1}))


def test_a_cluster_that_may_grow_has_room_that_is_not_there_yet():
    room = ClusterCapacity({})
    assert room.update({"CPU": 2}, {"CPU": 8, "GPU": 1})
    big = group({"CPU": 4, "GPU": 1})
    assert (room.fits(big), room.is_there(big), room.why_never(big)) == (True, False, None)
    assert re.findall(r"CPU: \d", room.why_never(group({"CPU": 9}))) == ["CPU: 9", "CPU: 8"]


def test_what_is_there_counts_even_if_the_autoscaler_knows_nothing_of_it():
    room = ClusterCapacity({})
    room.update({"CPU": 16}, {"CPU": 8})
    assert room.limit.to_floats() == {"CPU": 16.0}


def test_without_a_bound_everything_is_shown():
    room = ClusterCapacity({})
    room.update({"CPU": 2}, None, is_bounded=False)
    assert (room.fits(group({"CPU": 99})), room.why_never(group({"CPU": 99}))) == (True, None)


def test_an_update_tells_whether_anything_changed():
    room = ClusterCapacity({})
    assert room.update({"CPU": 2}, None)
    assert not room.update({"CPU": 2}, None)
    assert room.update({"CPU": 3}, None)


def test_idle_places_may_be_thought_away():
    room = ClusterCapacity({"CPU": 2})
    room.take(ONE)
    room.take(ONE)
    assert not room.fits(ONE)
    assert room.fits(ONE, without=[ONE])
    assert not room.fits(group({"CPU": 2}), without=[ONE])


def test_waiting_trials_take_the_places_of_those_that_end_first():
    assert expected_starts([5.0, 20.0], 10.0, 4) == [5.0, 15.0, 20.0, 25.0]
    assert expected_starts([], 10.0, 3) == []
    assert expected_starts([-3.0], 1.0, 2) == [0.0, 1.0]


@pytest.mark.parametrize(
    ("remaining", "duration", "count", "late"),
    [
        ([10.0, 20.0], 50.0, 2, 0),  # both get a place before a machine would be there
        ([10.0, 20.0], 55.0, 4, 2),
        ([70.0], 100.0, 1, 1),
        ([], 5.0, 3, 3),  # nothing runs
        ([5.0], None, 3, 3),  # nothing is known
    ],
)
def test_only_those_that_would_still_wait_want_a_machine(remaining, duration, count, late):
    assert late_ones(remaining, duration, count, boot_s=60.0) == late


def test_near_the_end_of_a_search_no_machine_is_asked_for():
    growth = Growth(boot_s=60.0)
    growth.ended(30.0)
    assert not growth.wants_more([100.0, 110.0], waiting=2, shown=0, now=115.0)
    assert growth.wants_more([100.0, 110.0], waiting=20, shown=0, now=115.0)


def test_those_shown_already_are_not_asked_for_again():
    growth = Growth(boot_s=60.0)
    assert growth.wants_more([], waiting=2, shown=1, now=0.0)
    assert not growth.wants_more([], waiting=2, shown=2, now=0.0)


def test_a_measured_boot_time_counts():
    growth = Growth(boot_s=60.0)
    growth.ended(30.0)
    growth.booted(5.0)
    assert growth.wants_more([100.0], waiting=1, shown=0, now=115.0)


def test_no_machine_is_asked_for_that_would_come_after_the_time_budget():
    growth = Growth(boot_s=60.0)
    assert growth.wants_more(
        [], waiting=1, shown=0, now=0.0, left_s=10.0
    )  # 60 s is a guess, and nothing runs
    growth.booted(20.0)
    asked = [growth.wants_more([], waiting=9, shown=0, now=0.0, left_s=left) for left in (10.0, 20.0, 21.0)]
    assert asked == [False, False, True]


def test_a_guess_counts_once_a_trial_has_shown_that_it_can_do_without():
    growth = Growth(boot_s=60.0)
    growth.ended(5.0)
    assert not growth.wants_more([], waiting=9, shown=0, now=0.0, left_s=59.0)
    assert growth.wants_more([], waiting=9, shown=0, now=0.0, left_s=61.0)


def test_the_typical_duration_is_the_middle_one():
    assert (typical([]), typical([3.0]), typical([9.0, 1.0, 2.0])) == (None, 3.0, 2.0)


@pytest.mark.parametrize(
    ("request_", "why"),
    [
        (group({"CPU": 4}), None),
        (group({"CPU": 5}), "no node has CPU: 5"),
        (group({"CPU": 1}, {"CPU": 3, "GPU": 1}), "no node has CPU: 3, GPU: 1"),
        (group({"CPU": 2}, {"CPU": 2}, strategy="STRICT_PACK"), None),
        (
            group({"CPU": 3}, {"CPU": 2}, strategy="STRICT_PACK"),
            "no node has CPU: 5 (STRICT_PACK: all on one node)",
        ),
        (group({"CPU": 1}, {"CPU": 3}, strategy="STRICT_SPREAD"), None),
        (
            group({"CPU": 3}, {"CPU": 3}, strategy="STRICT_SPREAD"),
            "STRICT_SPREAD wants 2 nodes, one per bundle; not so many can hold one",
        ),
        (group({"CPU": 9}, bundle_label_selector=[{"zone": "a"}]), None),  # labels are not judged here
    ],
)
def test_what_no_node_could_ever_hold_is_named(request_, why):
    assert why_unplaceable(request_, NODES) == why


def test_a_node_that_went_away_is_remembered_for_a_while_because_it_may_come_back():
    memory = CapacityHistory(keep_s=300.0)
    memory.note(NODES, now=0.0)
    memory.note(NODES[::-1], now=10.0)  # in another order, and the same
    memory.note(NODES[1:], now=20.0)
    assert memory.most() == {"CPU": 6.0, "GPU": 1.0}
    assert why_unplaceable(group({"GPU": 1}), memory.nodes()) is None
    memory.note(NODES[1:], now=311.0)
    assert (memory.most(), memory.nodes()) == ({"CPU": 4.0}, [{"CPU": 4.0}])
    assert "GPU: 1" in why_unplaceable(group({"GPU": 1}), memory.nodes())
