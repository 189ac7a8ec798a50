from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.cli.cluster_samples import AT, BUSY, COMING, HEAD, IDLE, published
from tests.mistakes.views import assert_view
from tests.support.builders import amounts, instance

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import write_status
from muster.base.clock import ManualClock
from muster.cli.main import cli
from muster.cli.status.view import PageSize
from muster.cli.why import DEMAND, GANG, MACHINE, NODE_TYPE, Known, WhySubject, answer, find_subject, why_page
from muster.cluster.model import NodeReport, Offer, StatusChange, StopCause
from muster.cluster.plan import Plan, Reason, Subject, Verdict
from muster.cluster.states import InstanceState
from muster.cluster.status import OfferStatus
from muster.errors import ClusterError
from muster.stores.ledger.store import SqliteInstanceStore

_S = InstanceState
ENDED = "t-111111111111-i1"
GANG_ID = "4f00d1" + "0" * 30


def ended_record():
    steps = (
        (_S.QUEUED, 0, "wanted for 2 requests"),
        (_S.REQUESTED, 1, "asked for"),
        (_S.ALLOCATED, 3, "process 4711"),
        (_S.RAY_RUNNING, 9, ""),
        (_S.RAY_STOP_REQUESTED, 129, "idle for 31 of 30 s"),
        (_S.TERMINATED, 131, "gone from the list"),
    )
    history = tuple(StatusChange(state, AT + after, said) for state, after, said in steps)
    return instance(
        ENDED,
        _S.TERMINATED,
        node_type="big",
        history=history,
        price_per_hour=0.18,
        cloud_id="big-0",
        node_id="dd",
        internal_ip="10.0.0.7",
    )


def known(**changes) -> Known:
    given = {
        "cluster": "laptop",
        "now": AT + 1,
        "published": published(),
        "problem": "",
        "node_types": ("big", "gpu"),
    }
    return Known(**{**given, "records": (ended_record(),), **changes})


def page(meant: WhySubject, seen: Known, width: int = 80) -> list[str]:
    from rich.console import Console

    console = Console(width=width, highlight=False, markup=False, emoji=False, force_terminal=False)
    with console.capture() as kept:
        for part in why_page(answer(meant, seen), PageSize(width=width)):
            console.print(part)
    return [line.rstrip() for line in kept.get().splitlines()]


@pytest.fixture
def clock_utc(monkeypatch: pytest.MonkeyPatch):
    import time

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_story_of_an_ended_machine_reads_as_written_here(clock_utc):
    assert_view("cli/why_ended", "\n".join(page(WhySubject(kind=MACHINE, key=ENDED), known())))


def test_a_live_machine_has_its_verdict_and_who_waits_for_it(clock_utc):
    live = {record.instance_id: record for record in published().instances}
    idle = page(WhySubject(kind=MACHINE, key=IDLE), known(records=(live[IDLE],)))
    assert_view("cli/why_idle", "\n".join(idle))
    coming = page(WhySubject(kind=MACHINE, key=COMING), known(records=(live[COMING],)))
    assert_view("cli/why_coming", "\n".join(coming))


def test_all_that_waits_is_told_with_the_verdict_of_every_type():
    assert_view("cli/why_demand", "\n".join(page(WhySubject(kind=DEMAND, key=""), known())))


def test_nothing_that_waits_is_said_so():
    seen = known(published=None)
    assert_view("cli/why_nothing", "\n".join(page(WhySubject(kind=DEMAND, key=""), seen)))


def test_a_node_type_has_its_verdict_and_its_newest_machines():
    lines = page(WhySubject(kind=NODE_TYPE, key="big"), known())
    assert "  big   type-at-maximum" in lines
    assert f"{ENDED}: TERMINATED, $0.0064" in lines


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("big", WhySubject(kind=NODE_TYPE, key="big")),
        ("big-1", WhySubject(kind=MACHINE, key=IDLE)),
        ("bbbb", WhySubject(kind=MACHINE, key=BUSY)),
        ("t-99", WhySubject(kind=MACHINE, key=COMING)),
        (ENDED, WhySubject(kind=MACHINE, key=ENDED)),
        ("4f0", WhySubject(kind=GANG, key=GANG_ID)),
        ("gpu", WhySubject(kind=NODE_TYPE, key="gpu")),
        ("demand", WhySubject(kind=DEMAND, key="")),
        ("10.0.0.7", WhySubject(kind=MACHINE, key=ENDED)),
    ],
)
def test_a_word_means_a_name_or_the_beginning_of_one(word: str, meant: WhySubject):
    assert find_subject(word, known()) == meant


def refusal(word: str, seen: Known) -> str:
    with pytest.raises(ClusterError) as refused:
        find_subject(word, seen)
    return str(refused.value)


def test_an_unknown_word_gets_types_and_machines_by_what_people_call_them_and_the_nearest_names():
    near, far = refusal("bigg", known()), refusal("zzz", known())
    machines = f": {HEAD} (head), {BUSY} (small), {IDLE} (big), {COMING} (big), {ENDED} (big); "
    for said in (near, far):
        assert ": big, gpu, head, small; " in said
        assert machines in said
    assert ("'bigg'" in near, " 'big', 'big-1', 'big-2'? " in near) == (True, True)
    assert ("'zzz'" in far, "?" in far) == (True, False)


def test_only_so_many_machines_are_listed_and_live_ones_come_first():
    ended = tuple(replace(ended_record(), instance_id=f"t-{n:012}-i1") for n in range(9))
    assert f"{COMING} (big), t-000000000000-i1 (big), t-000000000001-i1 (big) and 7 more;" in refusal(
        "zzz", known(records=ended)
    )


def test_an_ambiguous_word_gets_the_choices_and_a_cluster_without_a_past_says_so():
    said = refusal("t-5f4", known())
    assert ("'t-5f4' " in said, f" '{BUSY}', '{IDLE}': " in said) == (True, True)
    empty = known(published=None, records=(), node_types=())
    assert (":" in refusal("x", known()), " yet" in refusal("x", empty)) == (True, True)


@pytest.mark.parametrize(
    ("steps", "stop_cause", "now"),
    [
        (("RAY_RUNNING", "RAY_STOPPED", "TERMINATED"), None, "now    gone, lost: its node is dead"),
        (("RAY_RUNNING", "RAY_STOP_REQUESTED", "TERMINATED"), StopCause.IDLE, "now    gone, removed: idle"),
        (
            ("RAY_RUNNING", "RAY_STOP_REQUESTED", "TERMINATED"),
            StopCause.NOTICE,
            "now    gone, removed: taken by the cloud",
        ),
        (("QUEUED", "TERMINATED"), None, "now    gone"),
    ],
)
def test_a_lost_machine_is_told_apart_from_an_idle_one(steps, stop_cause, now):
    said = {"RAY_STOPPED": "its node is dead"}
    history = tuple(StatusChange(_S[step], AT + n, said.get(step, "")) for n, step in enumerate(steps))
    gone = replace(ended_record(), history=history, stop_cause=stop_cause)
    assert page(WhySubject(kind=MACHINE, key=ENDED), known(records=(gone,)))[1] == now
    of_type = page(WhySubject(kind=NODE_TYPE, key="big"), known(records=(gone,)))
    word = now.removeprefix("now    gone")
    assert [line for line in of_type if line.startswith(f"{ENDED}: TERMINATED{word}, $")]


@pytest.fixture
def ledger_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHome:
    """A real ledger in which a gang's verdict changed twice."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    home = ClusterHome.of("laptop", tmp_path / "clusters")
    home.path.mkdir(parents=True)
    with SqliteInstanceStore(home.ledger, clock=ManualClock(AT)) as store:
        version = store.load().version
        reasons = (Reason.WAITING_FOR_LAUNCH, Reason.WAITING_FOR_LAUNCH, Reason.WAITING_FOR_NODE)
        for tick, reason in enumerate(reasons):
            verdict = Verdict(subject=Subject.GANG, subject_id=GANG_ID, reason=reason, target="small")
            fresh = instance(
                f"t-{tick}-i1",
                _S.QUEUED,
                node_type="small",
                history=(StatusChange(_S.QUEUED, AT + tick, ""),),
            )
            made = Plan(tick_id=f"t-{tick}", at=AT + tick, writes=(fresh,), verdicts=(verdict,))
            version = store.commit(version, made)
    return home


def test_the_story_of_a_gang_tells_every_change_of_its_verdict_once(ledger_home):
    write_status(ledger_home, published())
    told = CliRunner().invoke(cli, ["why", GANG_ID[:7], "laptop", "--json"])
    assert told.exit_code == 0
    answer_told = json.loads(told.output)
    assert [(line["at"], line["what"]) for line in answer_told["story"]] == [
        (AT, "waiting-for-launch"),
        (AT + 2, "waiting-for-node"),
    ]
    assert [" small " in row["detail"] for row in answer_told["pending"]] == [True]


def test_the_ledger_alone_is_enough_after_the_cluster_is_gone(ledger_home):
    told = CliRunner().invoke(cli, ["why", "small"])
    assert told.exit_code == 0
    assert {"small", "laptop"} <= set(told.output.splitlines()[0].split())
    assert "QUEUED" in told.output


def test_an_unknown_subject_is_one_line_and_bad_input(ledger_home):
    told = CliRunner().invoke(cli, ["why", "smal1"])
    assert (told.exit_code, told.output.count("\n")) == (2, 1)
    machines = ": t-0-i1 (small), t-1-i1 (small), t-2-i1 (small); "
    assert [
        word for word in ("error: ", "'smal1'", ": small; ", machines, "'small'?") if word not in told.output
    ] == []


def test_a_short_id_means_what_is_there_now_before_what_is_past():
    past_one = replace(ended_record(), instance_id="t-99aa88bb77cc-i2")
    assert find_subject("t-99aa", known(records=(past_one,))) == WhySubject(kind=MACHINE, key=COMING)


def test_a_node_that_muster_did_not_start_has_an_answer_too():
    seen = published()
    stranger = NodeReport(node_id="ee" * 28, total=amounts({"CPU": 8}), available=amounts({"CPU": 8}))
    runtime = replace(seen.runtime, nodes=(*seen.runtime.nodes, stranger))
    everything = known(published=replace(seen, runtime=runtime))
    about = find_subject("eeeeeeeeeeee", everything)
    assert_view("cli/why_stranger", "\n".join(page(about, everything)))


def test_a_record_whose_machine_has_another_one_is_not_called_lost():
    steps = ((_S.ALLOCATED, AT, ""), (_S.TERMINATED, AT + 5, "its machine is the answer to another record"))
    ended = replace(ended_record(), history=tuple(StatusChange(*step) for step in steps))
    heir = replace(
        ended, instance_id="heir", history=(StatusChange(_S.RAY_RUNNING, AT + 5),), state=_S.RAY_RUNNING
    )
    about = WhySubject(kind=MACHINE, key=ENDED)
    assert page(about, known(records=(ended, heir)))[1] == "now    gone"
    assert page(about, known(records=(ended,)))[1].startswith("now    gone, lost: ")


def test_a_node_type_with_offers_shows_all_of_them_and_where_its_machines_came_from():
    row = {"node_type": "big", "market": "spot", "price_per_hour": 0.2, "machines": 0, "max_machines": None}
    offers = tuple(OfferStatus(zone=zone, **row) for zone in "ab")
    seen = replace(published(), status=replace(published().status, offers=offers))
    launched = replace(ended_record(), offer=Offer(zone="b", market="spot"))
    about, facts = WhySubject(kind=NODE_TYPE, key="big"), known(published=seen, records=(launched,))
    report = answer(about, facts)
    assert ([row.zone for row in report.offers], report.machines[0].market) == (["a", "b"], "spot")
    assert any("TERMINATED, b/spot" in line for line in page(about, facts))


def test_machines_with_the_same_steps_are_told_once(clock_utc):
    def ended(number: int):
        record = ended_record()
        shifted = tuple(replace(change, at=change.at + number) for change in record.history)
        return replace(record, instance_id=f"t-{number:012d}-i1", history=shifted)

    lost = replace(ended(10), history=ended(10).history[:-1], state=_S.RAY_STOP_REQUESTED)
    shown = page(WhySubject(kind=NODE_TYPE, key="big"), known(records=(*map(ended, range(9)), lost)))
    assert_view("cli/why_same_steps", "\n".join(shown))
