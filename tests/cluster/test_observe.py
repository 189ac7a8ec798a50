"""The observer: one look at every port; whatever a port answers, there is a snapshot."""

from __future__ import annotations

import dataclasses

import pytest
from tests.cluster.fakes import START, Stage
from tests.cluster.worlds import CPU, HEAD_MACHINE, HEAD_NODE, machine, node, spec
from tests.mistakes.views import assert_view
from tests.support.builders import demand, gang

from muster.base.forecast import ComingWork, Forecast
from muster.base.resources import Resources
from muster.cluster.model import (
    Constraint,
    DrainFailure,
    InstallFailure,
    LaunchFailure,
    NodeKind,
    NodeReport,
    NodeStatus,
    Notice,
    NoticeKind,
    ResizeFailure,
    RuntimeReport,
    TerminateFailure,
)
from muster.cluster.observe import FailureInbox, Observer
from muster.cluster.ports import ForecastReport, NoticeReport
from muster.cluster.snapshot import ProviderTraits, Quarantined
from muster.cluster.states import ResizeStatus
from muster.errors import ConfigError, StoreError


def observer(stage):
    return Observer(stage.ports, stage.ambient, FailureInbox())


def look(stage):
    return observer(stage).observe()[0]


def notes(seen):
    return [note.source for note in seen.quarantined]


def test_a_healthy_world_is_seen_whole():
    stage = Stage()
    stage.runtime.demands = [demand()]
    seen, ledger = observer(stage).observe()
    assert (seen.tick_id, seen.now, seen.version) == ("t-0.000001", START, ledger.version)
    assert (seen.spec, seen.cloud, seen.traits) == (spec(), {"c-head": HEAD_MACHINE}, ProviderTraits())
    assert seen.runtime == RuntimeReport(version=1, nodes=(HEAD_NODE,), demands=(demand(),))
    assert (seen.instances, seen.quarantined) == ({}, ())


def test_each_look_has_its_own_tick_id_and_time():
    stage = Stage()
    eye = observer(stage)
    eye.observe()
    stage.clock.advance(5)
    stage.clock.jump(-4_000)  # somebody sets the clock: no timeout may fire or wait for it
    seen, _ = eye.observe()
    assert (seen.tick_id, seen.now) == ("t-0.000002", START + 5)


@pytest.mark.parametrize(
    ("port", "method", "source"),
    [
        ("provider", "list_instances", "provider list"),
        ("provider", "traits", "provider traits"),
        ("provider", "poll_launch_failures", "launch failures"),
        ("provider", "poll_terminate_failures", "terminate failures"),
        ("runtime", "read", "runtime"),
        ("drainer", "poll", "drain failures"),
        ("installer", "poll", "install failures"),
        ("spec", "current", "config"),
        ("notices", "read", "notices"),
    ],
)
@pytest.mark.parametrize(
    "answer", [RuntimeError("down"), 7, "text", object()], ids=["raises", "number", "text", "object"]
)
def test_a_port_that_fails_or_answers_nonsense_is_noted_and_the_others_are_read(port, method, source, answer):
    stage = Stage()
    getattr(stage, port).answers[method] = answer
    seen = look(stage)
    assert set(notes(seen)) == {source}
    assert (seen.cloud is None) == (method == "list_instances")
    assert (seen.runtime is None) == (source == "runtime")
    assert (seen.notices is None) == (source == "notices")


def test_an_error_is_noted_with_its_type_and_text():
    stage = Stage()
    stage.provider.answers["list_instances"] = TimeoutError("30 s")
    assert look(stage).quarantined == (Quarantined(source="provider list", message="TimeoutError: 30 s"),)


def test_an_invalid_edit_keeps_the_last_good_config_and_is_said():
    stage = Stage()
    eye = observer(stage)
    eye.observe()
    edited = spec(CPU, max_nodes=3)
    stage.spec.answers["current"] = (edited, "cluster.yaml:7: max_workers: not a number")
    seen, _ = eye.observe()
    assert seen.spec == edited  # the source says which spec is the last good one
    (note,) = seen.quarantined
    assert note.message.endswith(f": {stage.spec.answers['current'][1]}")
    for broken in (ConfigError("gone", file="cluster.yaml"), None, (None, ""), ("spec",), {"a": 1}):
        stage.spec.answers["current"] = broken
        seen, _ = eye.observe()
        assert seen.spec == edited


def test_a_provider_that_cannot_say_what_it_is_like_is_what_it_was():
    stage = Stage()
    eye = observer(stage)
    stage.provider.answers["traits"] = ProviderTraits(read_only=True)
    eye.observe()
    stage.provider.answers["traits"] = OSError("reset")
    assert eye.observe()[0].traits == ProviderTraits(read_only=True)


@pytest.mark.parametrize(
    "entry",
    [None, "machine", machine("other"), machine("odd", kind="worker"), machine("odd", node_type=None)],
)
def test_a_machine_that_cannot_be_read_is_noted_and_still_counts_as_listed(entry):
    """Its record must not end because of one bad line; kind UNMANAGED keeps it from being adopted."""
    stage = Stage()
    stage.provider.machines |= {"c-odd": entry, "c-good": machine("good")}
    seen = look(stage)
    assert notes(seen) == ["machine c-odd"]
    assert list(seen.cloud) == ["c-head", "c-odd", "c-good"]
    assert (seen.cloud["c-odd"].kind, seen.cloud["c-odd"].is_running) == (NodeKind.UNMANAGED, False)
    assert seen.cloud["c-good"] == machine("good")


def test_machines_without_a_name_are_left_out():
    stage = Stage()
    stage.provider.machines[None] = machine("odd")
    assert list(look(stage).cloud) == ["c-head"]


@pytest.mark.parametrize(
    "changes",
    [
        {"status": None},
        {"status": "RUNNING"},
        {"total": {"CPU": 1}},
        {"available": None},
        {"total": Resources({"CPU": -5})},
        {"total": Resources({"CPU": 0.5})},
        {"idle_s": "long"},
    ],
)
def test_a_node_that_makes_no_sense_is_noted_and_still_counts_as_listed(changes):
    stage = Stage()
    stage.runtime.nodes += [node("odd", **changes), node("good")]
    seen = look(stage)
    assert notes(seen) == ["node"]
    assert seen.runtime.nodes == (
        HEAD_NODE,
        NodeReport(node_id="n-odd", status=NodeStatus.UNSPECIFIED),
        node("good"),
    )


def test_entries_that_are_not_what_they_should_be_are_left_out_one_by_one():
    stage = Stage()
    good = (demand(), gang(), Constraint(demands=(demand(),)))
    stage.runtime.answers["read"] = RuntimeReport(
        version=1,
        nodes=("node", HEAD_NODE, None, NodeReport(node_id=None)),
        demands=({"CPU": 1}, good[0], demand(count=None), demand(Resources({"CPU": -1}))),
        gangs=(None, good[1], gang(options=((None,),)), gang(options=None)),
        constraints=(3, good[2], Constraint(demands=None), Constraint(demands=(4,))),
    )
    seen = look(stage)
    assert (seen.runtime.nodes, seen.runtime.demands) == ((HEAD_NODE,), good[:1])
    assert (seen.runtime.gangs, seen.runtime.constraints) == (good[1:2], good[2:])
    assert notes(seen).count("demand") == notes(seen).count("gang") == notes(seen).count("constraint") == 3


@pytest.mark.parametrize("field", ["nodes", "demands", "gangs", "constraints"])
def test_a_list_that_is_none_is_an_empty_list_and_noted(field):
    stage = Stage()
    stage.runtime.answers["read"] = RuntimeReport(**{"nodes": (HEAD_NODE,), field: None})
    seen = look(stage)
    assert getattr(seen.runtime, field) == ()
    assert notes(seen) == [field.removesuffix("s")]


def test_a_report_without_a_version_cannot_be_used():
    stage = Stage()
    stage.runtime.answers["read"] = RuntimeReport(version=None)
    assert (look(stage).runtime, notes(look(stage))) == (None, ["runtime"])


def test_a_report_older_than_one_already_seen_is_ignored_for_a_while():
    stage = Stage()
    eye = observer(stage)
    stage.runtime.answers["read"] = RuntimeReport(version=9, nodes=(HEAD_NODE,))
    eye.observe()
    stage.runtime.answers["read"] = RuntimeReport(version=8)
    assert eye.observe()[0].runtime is None
    stage.clock.advance(spec().timeouts.listing_grace_s + 1)  # the runtime was restarted and counts again
    assert eye.observe()[0].runtime.version == 8
    assert eye.observe()[0].runtime.version == 8


def test_failures_are_collected_until_they_are_part_of_a_decision():
    stage = Stage()
    inbox = FailureInbox()
    eye = Observer(stage.ports, stage.ambient, inbox)
    launch = LaunchFailure(request_id="r", node_type="cpu")
    stage.provider.answers["poll_launch_failures"] = (launch, "nonsense")
    stage.provider.answers["poll_terminate_failures"] = (TerminateFailure(cloud_id="c"),)
    stage.drainer.answers["poll"] = (DrainFailure(instance_id="d"),)
    stage.installer.answers["poll"] = (InstallFailure(instance_id="i"),)
    seen, _ = eye.observe()
    assert seen.launch_failures == (launch,)
    assert notes(seen) == ["launch failures"]
    again, _ = eye.observe()  # nothing was committed in between
    assert again.launch_failures == (launch,)
    assert again.terminate_failures == (TerminateFailure(cloud_id="c"),)
    assert again.drain_failures == (DrainFailure(instance_id="d"),)
    assert again.install_failures == (InstallFailure(instance_id="i"),)
    inbox.offer(1)
    inbox.clear()
    last, _ = eye.observe()
    assert (last.launch_failures, last.terminate_failures) == ((), ())


def test_a_poll_that_breaks_half_way_is_noted_and_its_first_half_counts():
    told = LaunchFailure(request_id="r", node_type="cpu")

    def broken():
        yield told
        raise OSError("reset")

    stage = Stage()
    stage.provider.answers["poll_launch_failures"] = broken
    seen = look(stage)
    assert (notes(seen), seen.launch_failures) == (["launch failures"], (told,))


def test_without_an_installer_nothing_is_polled_from_it():
    assert look(Stage(installer=False)).install_failures == ()


def test_only_the_ledger_can_keep_a_look_from_happening():
    class Broken:
        def load(self):
            raise StoreError("disk full")

    with pytest.raises(StoreError, match="disk full"):
        look(Stage(store=Broken()))


def test_deadlines_of_notices_are_in_the_time_of_the_snapshot_and_damaged_ones_are_noted():
    stage = Stage()
    eye = observer(stage)
    eye.observe()
    stage.clock.jump(1_000.0)  # the wall clock was wrong when the monitor started
    said = Notice(cloud_id="c-1", kind=NoticeKind.INTERRUPTION, deadline=START + 1_060.0)
    bad = Notice(cloud_id="c-2", kind=NoticeKind.REBALANCE, deadline=float("nan"))
    damaged = Quarantined(source="notice c-3", message="not JSON")
    stage.notices.answers["read"] = NoticeReport(notices=(said, bad), damaged=(damaged,))
    seen, _ = eye.observe()
    assert [(one.cloud_id, one.deadline) for one in seen.notices] == [("c-1", START + 60.0)]
    assert notes(seen) == ["notice c-3", "notice"]


def forecast(name, at, **fields):
    coming = (ComingWork(shape=Resources.of(CPU=1), count=4),)
    return Forecast(experiment=name, at=at, **{"coming": coming, **fields})


def test_forecasts_count_only_while_they_hold_and_the_others_are_named_with_the_reason():
    """A tuner that died, clocks that differ, and what cannot be: money is not spent on any of these."""
    stage = Stage()
    given = (
        forecast("good", START - 59.0),
        forecast("a little ahead", START + 29.0),
        forecast("dead", START - 61.0),
        forecast("over", START - 3_000.0, coming=(), is_complete=True),  # has said that it expects nothing
        forecast("ahead", START + 31.0),
        forecast("odd", START, deadline=float("nan")),
        forecast("many", START, coming=(ComingWork(shape=Resources.of(CPU=1), count=0),)),
    )
    source = Reads(ForecastReport(forecasts=given, damaged=(Quarantined(source="forecast x", message="no"),)))
    stage.ports = dataclasses.replace(stage.ports, forecasts=source)
    seen = look(stage)
    said = {note.source: note.message for note in seen.quarantined}
    assert [one.experiment for one in seen.forecasts] == ["good", "a little ahead"]
    assert [source.removeprefix("forecast ") for source in said] == ["x", "dead", "ahead", "odd", "many"]
    assert_view("cluster/forecasts_ignored", "\n".join(f"{source}: {text}" for source, text in said.items()))


class Reads:
    """A ForecastSource that has one answer."""

    def __init__(self, report):
        self.report = report

    def read(self):
        return self.report


def test_the_deadline_of_a_forecast_is_in_the_time_of_the_snapshot():
    stage = Stage()
    report = ForecastReport(forecasts=(forecast("e", START + 1_000.0, deadline=START + 4_600.0),))
    eye = Observer(dataclasses.replace(stage.ports, forecasts=Reads(report)), stage.ambient, FailureInbox())
    eye.observe()
    stage.clock.jump(1_000.0)  # the wall clock was wrong when the monitor started
    (one,) = eye.observe()[0].forecasts
    assert (one.at, one.deadline) == (START, START + 3_600.0)


def test_a_machine_is_resized_only_where_its_node_can_count_that():
    stage = Stage()
    stage.provider.answers["traits"] = ProviderTraits(resizable=True)
    assert look(stage).traits.resizable
    without = Observer(dataclasses.replace(stage.ports, resizer=None), stage.ambient, FailureInbox())
    assert not without.observe()[0].traits.resizable


def test_refused_resizes_are_polled_from_both_sides():
    stage = Stage()
    of_node = ResizeFailure(cloud_id="c-a", message="no raylet", is_of_node=True)
    of_machine = ResizeFailure(cloud_id="c-b", message="422")
    stage.resizer.answers["poll"] = (of_node,)
    stage.provider.poll_resize_failures = lambda: (of_machine, "nonsense")
    seen = look(stage)
    assert seen.resize_failures == (of_node, of_machine)
    assert [note.split()[0] for note in notes(seen)] == ["resize"]


@pytest.mark.parametrize(
    "resize",
    ["4 CPUs", ResizeStatus(current={"CPU": 1}, desired=Resources()), ResizeStatus(current=1, desired=1)],
)
def test_a_machine_whose_size_makes_no_sense_is_set_aside(resize):
    stage = Stage()
    stage.provider.machines["c-a"] = machine("a", resize=resize)
    seen = look(stage)
    assert notes(seen) == ["machine c-a"]
    assert seen.cloud["c-a"].resize is None
