"""The executor: committed effects reach their ports once; what a port refuses comes back as data."""

from __future__ import annotations

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import S, past, record
from tests.mistakes.views import assert_line
from tests.support.builders import amounts

from muster.cluster.controller import Executor, is_wanted
from muster.cluster.model import (
    DrainFailure,
    FailureKind,
    IdlePolicy,
    InstallFailure,
    LaunchFailure,
    ResizeFailure,
    StopCause,
    TerminateFailure,
)
from muster.cluster.observe import FailureInbox
from muster.cluster.plan import Drain, EndCluster, Install, Launch, Plan, Resize, ResizeNode, Terminate
from muster.cluster.states import ResizeRecord
from muster.errors import (
    CapacityExhausted,
    ProviderDenied,
    ProviderError,
    ProviderMisconfigured,
    QuotaExceeded,
    StoreError,
    Throttled,
)

KINDS = (DrainFailure, InstallFailure, LaunchFailure, ResizeFailure, TerminateFailure)

LAUNCH = Launch(request_id="r-1", shape={"cpu": 2, "gpu": 1}, instance_ids=("a", "b", "g"))
TERMINATE = Terminate(request_id="t-1", cloud_ids=("c-x", "c-y"), instance_ids=("x", "y"))
DRAIN = Drain(request_id="d-1", instance_id="d", node_id="n-d", cause=StopCause.IDLE, deadline_s=0.0)
INSTALL = Install(request_id="s-1", instance_id="i", cloud_id="c-i", node_type="cpu")
RESIZE = Resize(request_id="z-1", instance_id="z", cloud_id="c-z", desired=amounts({"CPU": 8}))
COUNT = ResizeNode(
    request_id="zn-1", instance_id="z", cloud_id="c-z", node_id="n-z", desired=amounts({"CPU": 8})
)
END = EndCluster(request_id="e-1", policy=IdlePolicy.SUSPEND)
ALL = (LAUNCH, TERMINATE, DRAIN, INSTALL, RESIZE)
RECORDS = {
    r.instance_id: r
    for r in (
        *(record(name, S.REQUESTED) for name in ("a", "b", "g")),
        *(record(name, S.TERMINATING) for name in ("x", "y")),
        record("d", S.RAY_STOP_REQUESTED),
        record("i", S.RAY_INSTALLING),
        record("z", S.RAY_RUNNING),
    )
}


class Outbox:
    """A store that only remembers what left the outbox."""

    def __init__(self):
        self.gone = []

    def handed_over(self, request_ids):
        self.gone.append(list(request_ids))


@pytest.fixture
def stage():
    return Stage(store=Outbox())


def run(stage, actions=ALL, records=RECORDS):
    inbox = FailureInbox()
    Executor(stage.ports, inbox).execute(actions, records)
    return inbox


def test_a_drain_that_is_under_way_stays_in_the_outbox(stage):
    """Whoever is killed before the runtime was asked finds the drain there, and asks."""
    stage.drainer.under_way = lambda request_id: request_id == "d-1"
    run(stage)
    assert stage.store.gone == [["r-1", "t-1", "s-1", "z-1"]]


def test_an_installation_that_is_under_way_stays_in_the_outbox(stage):
    """Whoever is killed while a machine is set up finds the installation there, and continues with it."""
    stage.installer.under_way = lambda request_id: request_id == "s-1"
    run(stage)
    assert stage.store.gone == [["r-1", "t-1", "d-1", "z-1"]]


def test_each_effect_reaches_its_port_in_order_and_leaves_the_outbox(stage):
    inbox = run(stage)
    assert stage.provider.calls == [
        ("launch", "r-1", {"cpu": 2, "gpu": 1}),
        ("terminate", "t-1", ("c-x", "c-y")),
        ("resize", "z-1", "c-z", {"CPU": 8.0}),
    ]
    assert stage.drainer.calls == [("drain", DRAIN)]
    assert stage.installer.calls == [("start", INSTALL)]
    assert stage.store.gone == [["r-1", "t-1", "d-1", "s-1", "z-1"]]
    assert not any(inbox.of(kind) for kind in KINDS)


def test_nothing_to_do_writes_nothing(stage):
    run(stage, actions=())
    assert stage.store.gone == []


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (CapacityExhausted("no"), FailureKind.CAPACITY),
        (QuotaExceeded("no"), FailureKind.QUOTA),
        (Throttled("no"), FailureKind.THROTTLED),
        (ProviderDenied("no"), FailureKind.PERMISSION),
        (ProviderMisconfigured("no"), FailureKind.CONFIG),
        (ProviderError("no"), FailureKind.UNKNOWN),
        (type("Homemade", (ProviderError,), {"kind": "surprise"})("no"), FailureKind.UNKNOWN),
    ],
)
def test_a_refused_launch_comes_back_as_one_failure_per_machine(stage, error, kind):
    stage.provider.answers["launch"] = error
    inbox = run(stage)
    unit = {"request_id": "r-1", "kind": kind, "message": "no"}
    assert list(inbox.of(LaunchFailure)) == [
        LaunchFailure(node_type=name, **unit) for name in ("cpu", "cpu", "gpu")
    ]
    # It stays in the outbox with its records, and the others went on.
    assert stage.store.gone == [["t-1", "d-1", "s-1", "z-1"]]


def test_a_refused_termination_comes_back_as_one_failure_per_machine(stage):
    stage.provider.answers["terminate"] = Throttled("slow down")
    failure = {"kind": FailureKind.THROTTLED, "message": "slow down"}
    expected = [TerminateFailure(cloud_id=c, **failure) for c in ("c-x", "c-y")]
    assert list(run(stage).of(TerminateFailure)) == expected
    assert stage.store.gone == [["r-1", "d-1", "s-1", "z-1"]]


@pytest.mark.conformance("IN-1", "IN-3")
def test_an_installation_changes_no_record_whether_it_has_begun_or_ended_well():
    stage = Stage()
    installing = record("i", S.RAY_INSTALLING, history=past((S.ALLOCATED, 1), (S.RAY_INSTALLING, 2)))
    stage.store.commit(stage.store.load().version, Plan(tick_id="t-1", at=1.0, writes=(installing,)))
    before = stage.store.load()
    inbox = run(stage, actions=(INSTALL,), records=before.instances)
    after = stage.store.load()
    assert stage.installer.calls == [("start", INSTALL)]
    assert (after.instances, after.version) == (before.instances, before.version)
    assert (list(inbox.of(InstallFailure)), stage.installer.poll()) == ([], ())


@pytest.mark.conformance("IN-2")
def test_refused_drains_and_installations_come_back(stage):
    stage.drainer.answers["drain"] = ProviderError("busy")
    stage.installer.answers["start"] = ProviderError("no key")
    inbox = run(stage)
    assert list(inbox.of(DrainFailure)) == [DrainFailure(instance_id="d", message="busy")]
    assert list(inbox.of(InstallFailure)) == [InstallFailure(instance_id="i", message="no key")]


def test_a_refused_resize_is_over(stage, caplog):
    """No record waits for it, so it must not be repeated forever; the planner asks again if it wants to."""
    stage.provider.answers["resize"] = ProviderError("too big")
    stage.resizer.answers["resize"] = ProviderError("no")
    inbox = run(stage, actions=(RESIZE, COUNT))
    assert stage.store.gone == [["z-1", "zn-1"]]
    of_machine, of_node = caplog.messages
    assert_line("cluster", "refused resize", of_machine)
    assert_line("cluster", "refused resize of the node", of_node)
    assert list(inbox.of(ResizeFailure)) == [
        ResizeFailure(cloud_id="c-z", message="too big"),
        ResizeFailure(cloud_id="c-z", message="no", is_of_node=True),
    ]


def test_a_node_counts_its_size_through_the_runtime(stage):
    run(stage, actions=(COUNT,))
    assert (stage.resizer.calls, stage.store.gone) == ([("resize", COUNT)], [["zn-1"]])


@pytest.mark.conformance("KI-13")
def test_a_cluster_that_cannot_be_ended_now_is_no_error_of_the_loop(stage, caplog):
    stage.provider.answers["end_idle_cluster"] = ProviderDenied("verb delete of rayclusters is missing")
    run(stage, actions=(END,))
    assert stage.store.gone == [["e-1"]]
    (warning,) = caplog.messages
    assert_line("cluster", "cluster not ended", warning)


def test_the_end_of_a_cluster_that_an_earlier_tick_decided_is_void(stage):
    """A driver may have come since."""
    Executor(stage.ports, FailureInbox()).execute((END,), {}, decided=())
    assert (stage.provider.calls, stage.store.gone) == ([], [["e-1"]])
    Executor(stage.ports, FailureInbox()).execute((END,), {}, decided=("e-1",))
    assert stage.provider.calls == [("end_idle_cluster", "e-1", IdlePolicy.SUSPEND)]


@pytest.mark.parametrize(
    ("port", "method", "action"),
    [
        ("provider", "launch", LAUNCH),
        ("provider", "terminate", TERMINATE),
        ("drainer", "drain", DRAIN),
        ("installer", "start", INSTALL),
        ("provider", "resize", RESIZE),
    ],
)
def test_an_unknown_outcome_stays_for_next_time_and_the_others_go_on(stage, port, method, action):
    getattr(stage, port).answers[method] = ConnectionError("reset")
    inbox = run(stage)
    assert stage.store.gone == [[a.request_id for a in ALL if a is not action]]
    assert not any(inbox.of(kind) for kind in KINDS)


def test_an_installation_without_installer_is_a_failure_a_person_can_read():
    stage = Stage(store=Outbox(), installer=False)
    inbox = run(stage, actions=(INSTALL,))
    assert list(inbox.of(InstallFailure)) == [
        InstallFailure(
            instance_id="i",
            message="the runtime is to be installed on machines, but no installer is configured",
        )
    ]


def test_effects_no_record_waits_for_are_dropped_without_a_call(stage):
    run(stage, records={})
    assert stage.provider.calls == stage.drainer.calls == stage.installer.calls == []
    assert stage.store.gone == [["r-1", "t-1", "d-1", "s-1", "z-1"]]


@pytest.mark.parametrize(
    ("leftover", "newer"),
    [
        (
            TERMINATE,
            Terminate(request_id="t-2", cloud_ids=("c-x", "c-y", "c-w"), instance_ids=("x", "y", "w")),
        ),
        (
            DRAIN,
            Drain(request_id="d-2", instance_id="d", node_id="n-d", cause=StopCause.IDLE, deadline_s=0.0),
        ),
        (RESIZE, Resize(request_id="z-2", instance_id="z", cloud_id="c-z", desired=amounts({"CPU": 4}))),
    ],
)
def test_a_leftover_that_was_decided_again_is_not_done_twice(stage, leftover, newer):
    run(stage, actions=(leftover, newer))
    calls = stage.provider.calls + stage.drainer.calls
    assert len(calls) == 1
    assert newer.request_id in repr(calls[0])
    assert stage.store.gone == [[leftover.request_id, newer.request_id]]


def test_a_leftover_decided_again_only_in_part_is_still_handed_over(stage):
    newer = Terminate(request_id="t-2", cloud_ids=("c-x",), instance_ids=("x",))
    run(stage, actions=(TERMINATE, newer))
    assert [call[1] for call in stage.provider.calls] == ["t-1", "t-2"]


def test_a_launch_is_wanted_only_by_the_attempt_it_was_made_for():
    first = record("a", S.REQUESTED)
    second = record("a", S.REQUESTED, history=past((S.REQUESTED, 1), (S.QUEUED, 2), (S.REQUESTED, 3)))
    again = Launch(request_id="r-1~2.t-5", shape={"cpu": 1}, instance_ids=("a",))
    assert is_wanted(LAUNCH, {"a": first})
    assert not is_wanted(LAUNCH, {"a": second})
    assert is_wanted(again, {"a": second})
    assert not is_wanted(again, {"a": first})
    assert not is_wanted(LAUNCH, {"a": record("a", S.REQUESTED, launch_request_id="r-9")})
    assert not is_wanted(LAUNCH, {"a": record("a", S.QUEUED, launch_request_id="r-1")})


def test_a_store_that_cannot_note_it_raises_after_everything_was_handed_over(stage):
    def refuse(_):
        raise StoreError("disk full")

    stage.store.handed_over = refuse
    with pytest.raises(StoreError, match="disk full"):
        run(stage)
    assert len(stage.provider.calls) == 3


@pytest.mark.parametrize(
    ("resize", "is_called"),
    [
        (ResizeRecord(desired=amounts({"CPU": 8}), since=1.0), True),
        (ResizeRecord(desired=amounts({"CPU": 5}), since=1.0), False),
        (ResizeRecord(failed_at=1.0, reason="refused"), False),
    ],
)
def test_a_resize_that_was_given_up_or_changed_does_not_happen_after_all(stage, resize, is_called):
    run(stage, actions=(RESIZE,), records={"z": record("z", S.RAY_RUNNING, resize=resize)})
    assert (bool(stage.provider.called("resize")), stage.store.gone) == (is_called, [["z-1"]])
