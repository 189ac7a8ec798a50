"""What ran, from what waited and what was in use: the inference, on moments made by hand."""

from __future__ import annotations

from muster.base.resources import Resources
from muster.cluster.model import Demand
from muster.sim.backtest.work import WorkFinder
from muster.stores.history.past import PastGang, PastMoment

ONE, TWO = Demand(shape=Resources.of(CPU=1)), Demand(shape=Resources.of(CPU=2))
GPU = Demand(shape=Resources.of(CPU=1, GPU=1))


def moment(at, waiting=None, used=None, **more):
    amounts = {name: Resources.of(each) for name, each in (used or {}).items()}
    return PastMoment(at, waiting=waiting or {}, used=amounts, **more)


def found(*moments, until=None):
    finder = WorkFinder()
    for each in moments:
        finder.step(each)
    return finder.finish(moments[-1].at if until is None else until)


def lives(trace):
    """Return (shape, arrived, started, ended) of every request."""
    return [(str(one.like.shape), one.arrived, one.started, one.ended) for one in trace.works]


def test_a_request_that_waits_runs_and_ends():
    trace = found(
        moment(0, {TWO: 1}, {"m": {}}),
        moment(30, {}, {"m": {"CPU": 2}}),
        moment(90, {}, {"m": {}}),
    )
    assert lives(trace) == [("CPU: 2", 0, 30, 90)]
    assert (trace.works[0].is_arrival_seen, trace.works[0].is_end_seen) == (True, True)
    assert trace.waits_s() == [30]


def test_a_request_that_never_waited_arrives_when_its_use_begins():
    trace = found(moment(0, {}, {"m": {}}), moment(5, {}, {"m": {"CPU": 1}}), moment(9, {}, {"m": {}}))
    assert lives(trace) == [("CPU: 1", 5, 5, 9)]
    assert (trace.unexplained, trace.works[0].is_arrival_seen) == (1, False)


def test_a_rise_is_split_into_the_requests_that_wait_no_longer():
    trace = found(
        moment(0, {TWO: 2, GPU: 1}, {"m": {}}), moment(10, {TWO: 1}, {"m": {"CPU": 3, "GPU": 1}}), until=20
    )
    assert sorted(lives(trace), key=str) == [
        ("CPU: 1, GPU: 1", 0, 10, 20),
        ("CPU: 2", 0, 10, 20),
        ("CPU: 2", 0, None, None),
    ]


def test_one_that_takes_the_place_of_an_equal_one_ends_the_oldest():
    trace = found(
        moment(0, {ONE: 1}, {"m": {"CPU": 1}}),
        moment(40, {}, {"m": {"CPU": 1}}),
        moment(70, {}, {"m": {}}),
    )
    assert lives(trace) == [("CPU: 1", 0, 0, 40), ("CPU: 1", 0, 40, 70)]


def test_use_and_waiting_may_be_reported_some_seconds_apart_in_either_order():
    late = found(
        moment(0, {TWO: 1}, {"m": {}}),
        moment(10, {}, {"m": {}}),
        moment(13, {}, {"m": {"CPU": 2}}),
        moment(50, {}, {"m": {}}),
    )
    soon = found(
        moment(0, {TWO: 1}, {"m": {}}),
        moment(10, {TWO: 1}, {"m": {"CPU": 2}}),
        moment(13, {}, {"m": {"CPU": 2}}),
        moment(50, {}, {"m": {}}),
    )
    assert (lives(late), lives(soon)) == ([("CPU: 2", 0, 13, 50)], [("CPU: 2", 0, 10, 50)])


def test_begins_and_ends_at_once_are_told_apart():
    """Two small ones end and one with a GPU begins between two looks: one CPU less, one GPU more."""
    trace = found(
        moment(0, {ONE: 2}, {"m": {}}),
        moment(10, {GPU: 1}, {"m": {"CPU": 2}}),
        moment(20, {}, {"m": {"CPU": 1, "GPU": 1}}),
        moment(30, {}, {"m": {}}),
    )
    assert sorted(lives(trace), key=str) == [
        ("CPU: 1", 0, 10, 20),
        ("CPU: 1", 0, 10, 20),
        ("CPU: 1, GPU: 1", 10, 20, 30),
    ]


def test_work_of_a_lost_node_is_the_same_work_when_it_waits_again():
    trace = found(
        moment(0, {TWO: 1}, {"m": {}}),
        moment(10, {}, {"m": {"CPU": 2}}),
        moment(50, {TWO: 1}, {}),
        moment(80, {}, {"n": {"CPU": 2}}),
        moment(130, {}, {"n": {}}),
    )
    assert lives(trace) == [("CPU: 2", 0, 80, 130)]
    assert trace.interruptions == 1


def test_requests_that_all_vanish_without_any_use_were_withdrawn():
    trace = found(moment(0, {TWO: 5}, {"m": {}}), moment(60, {}, {"m": {}}))
    assert lives(trace) == [("CPU: 2", 0, None, 60)] * 5
    assert trace.withdrawn == 5


def test_a_gang_starts_with_the_label_of_its_nodes_and_ends_with_it():
    gang = PastGang("PACK", ((ONE, 2),))
    trace = found(
        moment(0, {}, {"m": {}, "n": {}}, gangs={"g": gang}),
        moment(20, {ONE: 0}, {"m": {"CPU": 1}, "n": {"CPU": 1}}, placed={"g": ("m", "n")}),
        moment(70, {}, {"m": {}, "n": {}}),
    )
    assert [(one.arrived, one.started, one.ended, one.is_end_seen) for one in trace.gangs] == [
        (0, 20, 70, True)
    ]
    assert trace.works == []


def test_the_use_of_a_gang_may_be_reported_some_seconds_after_its_labels():
    gang = PastGang("PACK", ((ONE, 2),))
    trace = found(
        moment(0, {}, {"m": {}}, gangs={"g": gang}),
        moment(20, {}, {"m": {}}, placed={"g": ("m",)}),
        moment(23, {}, {"m": {"CPU": 2}}, placed={"g": ("m",)}),
        moment(70, {}, {"m": {"CPU": 2}}),
        moment(74, {}, {"m": {}}),
    )
    assert [(one.started, one.ended) for one in trace.gangs] == [(20, 70)]
    assert trace.works == []


def test_a_gap_ends_what_was_known():
    trace = found(
        moment(0, {}, {"m": {"CPU": 1}}),
        moment(10, {}, {"m": {"CPU": 1}}),
        moment(5000, {}, {"m": {"CPU": 1}}, is_after_gap=True),
        moment(5010, {}, {"m": {}}),
    )
    assert lives(trace) == [("CPU: 1", 0, 0, 10), ("CPU: 1", 5000, 5000, 5010)]


def test_a_constraint_is_kept_with_its_time():
    trace = found(moment(0), moment(5, constraints={ONE: 3}), moment(9))
    assert trace.constraints == [(5, {ONE: 3}), (9, {})]
