from __future__ import annotations

import json
import os
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.cli.cluster_samples import AT, GANG_IDS, IDLE, published, with_tuner
from tests.mistakes.views import assert_view
from tests.support.builders import amounts, demand, selector

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import ClusterRecord, HeadRecord, write_record, write_status
from muster.base.clock import SystemClock
from muster.base.codec import encode_plain
from muster.cli.main import cli
from muster.cli.status.report import build_report
from muster.cli.status.view import PageSize, status_page
from muster.cli.why import Known, find_subject
from muster.cluster.model import NodeReport, NodeStatus, Offer, RuntimeReport
from muster.cluster.plan import Reason, Subject, Verdict
from muster.cluster.status import OfferStatus
from muster.errors import RemoteError
from muster.host.processes import identify


def page(report, width=80, **frame) -> list[str]:
    from rich.console import Console

    console = Console(width=width, highlight=False, markup=False, emoji=False, force_terminal=False)
    with console.capture() as kept:
        for part in status_page(report, PageSize(width=width, **frame)):
            console.print(part)
    return [line.rstrip() for line in kept.get().splitlines()]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`home("name")`: a cluster that is up, its monitor being this process, looked at just now."""
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "UTC")

    def make(name: str = "laptop", *, up: bool = True, pid: int | None = None, **changes) -> ClusterHome:
        made = ClusterHome.of(name, tmp_path / "clusters")
        made.path.mkdir(parents=True)
        if up:
            monitor = replace(identify(os.getpid()), pid=pid or os.getpid())
            facts = {"config": "laptop.yaml", "address": "127.0.0.1:6399", "monitor": monitor}
            write_record(made, ClusterRecord(cluster_name=name, **facts))
        else:
            made.ledger.touch()
        seen = {"cluster_name": name, "at": SystemClock().now(), **changes}
        write_status(made, published(**seen))
        return made

    return make


def text(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def missing(shown: str, *wanted: str) -> list[str]:
    return [word for word in wanted if word not in shown]


def status(*words: str):
    return CliRunner().invoke(cli, ["status", *words])


def test_the_page_of_a_cluster_reads_as_written_here(monkeypatch: pytest.MonkeyPatch):
    report = replace(build_report(published(recent_failures=()), now=AT + 1), address="127.0.0.1:6399")
    assert_view("cli/status", text(page(report)))


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("wrap", [True, False])
def test_no_line_is_wider_than_the_page(width: int, wrap: bool):
    assert max(len(line) for line in page(build_report(published(), now=AT), width, wrap=wrap)) <= width


def test_a_wide_page_has_the_sentence_beside_its_verdict():
    assert_view("cli/status_wide", text(page(build_report(published(), now=AT), 150)))


def test_verbose_adds_memory_and_every_node_type():
    quiet, verbose = (page(build_report(published(), now=AT), verbose=v) for v in (False, True))
    assert [line for line in quiet if "memory" in line or "type-chosen" in line] == []
    assert_view("cli/status_verbose", text(verbose))


def test_more_rows_than_fit_are_counted():
    assert_view("cli/status_cut", text(page(build_report(published(), now=AT), machines=1, requests=3)))


def test_what_is_wrong_stands_above_everything_else():
    seen = published(config_problem="laptop.yaml:3: max_worker: did you mean 'max_workers'?", runtime=None)
    assert_view("cli/status_problems", text(page(build_report(seen, now=AT, problem="the monitor is gone"))))


def test_a_node_that_muster_did_not_start_is_shown_and_a_dead_one_is_not():
    stranger = NodeReport(
        node_id="ee" * 28, node_type="", total=amounts({"CPU": 8}), available=amounts({"CPU": 8})
    )
    dead = NodeReport(node_id="dd" * 28, status=NodeStatus.DEAD)
    report = build_report(published(instances=(), runtime=RuntimeReport(nodes=(stranger, dead))), now=AT)
    (row,) = report.nodes
    assert (row.node_id[:2], row.state, row.instance_id) == ("ee", "busy", "")
    assert row.detail.endswith("muster")


def test_what_ray_adds_to_resources_for_itself_is_left_out():
    total = {"CPU": 2, "node:127.0.0.1": 1, "CPU_group_0_abc": 1, "bundle_group_abc": 1000, "tpu": 1}
    node = NodeReport(node_id="aa" * 28, total=amounts(total), available=amounts(total))
    report = build_report(published(instances=(), runtime=RuntimeReport(nodes=(node,))), now=AT)
    assert set(report.usage) == {"CPU", "tpu"}


def test_label_selectors_are_part_of_what_a_demand_asks_for():
    wanted = demand({"GPU": 1}, selectors=(selector(zone=("a", "b")), selector(tier="hot")))
    verdict = Verdict(subject=Subject.DEMAND, subject_id="0", reason=Reason.INFEASIBLE)
    base = published(runtime=RuntimeReport(demands=(wanted,)))
    report = build_report(replace(base, status=replace(base.status, verdicts=(verdict,))), now=AT)
    assert_view("cli/status_selectors", text(row.shape for row in report.pending))


def test_the_only_cluster_that_is_up_needs_no_name(home):
    home("laptop")
    home("old", up=False)
    shown = status()
    assert (shown.exit_code, shown.output.splitlines()[0].split()[:2]) == (0, ["laptop", "127.0.0.1:6399"])


def test_of_several_clusters_one_must_be_named(home):
    made = home("laptop")
    home("other")
    shown = status()
    assert shown.exit_code == 2
    assert shown.output.startswith("error: ")
    assert missing(shown.output, str(made.path.parent), "laptop (up), other (up)") == []
    assert status("other").exit_code == 0


def test_an_unknown_cluster_is_told_with_the_nearest_name(home):
    made = home("laptop")
    near, far = status("labtop"), status("zzz")
    assert (near.exit_code, far.exit_code) == (2, 2)
    assert missing(near.output, "'labtop'", str(made.path.parent), "'laptop'?\n") == []
    assert missing(far.output, "'zzz'", str(made.path.parent), " laptop (up)\n") == []


def test_without_any_cluster_the_first_step_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    shown = status()
    assert shown.exit_code == 2
    assert missing(shown.output, f" {tmp_path}/clusters; ", "examples/laptop.yaml`") == []


def test_a_monitor_that_is_gone_is_told_and_exits_with_3(home):
    made = home(pid=2**22 + 1)
    shown = status()
    assert shown.exit_code == 3
    problem = shown.output.split("\n", 1)[1]
    assert missing(problem, f"(pid {2**22 + 1})", "laptop.yaml`") == []
    assert str(made.monitor_log) in "".join(shown.output.split())


def test_a_monitor_that_has_not_looked_for_long_is_told(home):
    home(at=SystemClock().now() - 60)
    shown = status()
    assert shown.exit_code == 3
    assert " 60 s: " in " ".join(shown.output.split())


def test_a_cluster_that_is_down_is_told_so(home):
    home("old", up=False).status.unlink()
    shown = status()
    assert shown.exit_code == 2
    assert missing(shown.output, "error: old ", " FILE`", " TYPE old`") == []


def test_a_monitor_that_was_started_by_hand_needs_no_record(home):
    home("by-hand", up=False)
    assert status().exit_code == 0


def test_a_head_that_is_gone_is_told(home):
    made = home()
    made.nodes.mkdir()
    shown = status()
    assert shown.exit_code == 3
    assert missing(shown.output, " head ", "laptop.yaml`") == []
    assert "pid" not in shown.output


def test_json_has_every_row_and_the_same_exit_code(home):
    home()
    shown = status("laptop", "--json")
    told = json.loads(shown.output)
    assert (shown.exit_code, told["format"], told["cluster"], told["problem"]) == (0, 1, "laptop", "")
    assert told["states"] == {"ALLOCATED": 1, "RAY_RUNNING": 3}
    assert told["usage"]["CPU"] == {"used": 1.5, "total": 4.0}
    idle = next(row for row in told["nodes"] if row["instance_id"] == IDLE)
    assert (idle["state"], idle["reason"], idle["price_per_hour"]) == (
        "idle",
        "kept-not-idle-long-enough",
        0.18,
    )


def test_a_damaged_status_file_is_one_line(home):
    made = home()
    made.status.write_text("{half", encoding="utf-8")
    shown = status()
    assert shown.exit_code == 2
    assert shown.output.startswith(f"error: {made.status}: ")
    assert shown.output.count("\n") == 1


def test_watching_needs_a_terminal(home):
    home()
    shown = status("--watch")
    assert (shown.exit_code, shown.output.count("\n")) == (2, 1)
    assert missing(shown.output, "error: --watch ", " --json") == []


def test_the_page_of_a_cluster_with_a_tuner_reads_as_written_here():
    """Nothing of placement groups, no cut id, and every reason, at 80 columns."""
    assert_view("cli/status_of_a_tuner", text(page(build_report(with_tuner(), now=AT + 1))))


@pytest.mark.parametrize("width", [50, 60, 70, 80, 100, 160, 200])
@pytest.mark.parametrize("wrap", [True, False])
def test_at_every_width_a_user_can_give_each_shown_id_to_why(width: int, wrap: bool):
    seen = with_tuner()
    known = Known(cluster="research", now=AT, published=seen, problem="")
    lines = page(build_report(seen, now=AT), width, wrap=wrap)
    assert max(map(len, lines)) <= width
    words = " ".join(lines).split()
    machines = [word for word in words if word.startswith("t-")]
    gangs = [after for word, after in pairwise(words) if word == "gang"]
    assert [find_subject(word, known).key for word in machines] == sorted(
        r.instance_id for r in seen.instances
    )
    assert [find_subject(word, known).key for word in gangs] == list(GANG_IDS)
    assert not [word for word in words if "_group_" in word or word.startswith(("node:", "accelerator"))]


@pytest.mark.parametrize(("columns", "widest"), [("120", 120), ("60", 60), ("", 80), ("many", 80), ("0", 80)])
def test_in_a_pipe_the_page_is_as_wide_as_columns_says(home, monkeypatch, columns: str, widest: int):
    monkeypatch.setenv("COLUMNS", columns)
    home()
    title = status().output.splitlines()[0]
    assert len(title) == widest
    assert CliRunner().invoke(cli, ["why", "demand"]).exit_code == 0


OFFERS = (
    OfferStatus(
        node_type="gpu", zone="a", market="spot", price_per_hour=0.3, machines=2, max_machines=4,
        blocked_until=AT + 30, kind="capacity", message="none left",
    ),
    OfferStatus(
        node_type="gpu", zone="b", market="on-demand", price_per_hour=None, machines=0, max_machines=None
    ),
)  # fmt: skip


def offered():
    seen = published()
    launched = replace(seen.instances[1], offer=Offer(zone="a", market="spot"))
    status = replace(seen.status, offers=OFFERS)
    failures = (replace(seen.recent_failures[0], offer="a/spot"),)
    records = (seen.instances[0], launched, *seen.instances[2:])
    return build_report(replace(seen, status=status, instances=records, recent_failures=failures), now=AT)


def test_offers_are_shown_with_their_machines_and_why_they_are_not_bought_from():
    assert_view("cli/status_offers", text(page(offered(), width=100)))
    assert len([line for line in page(offered(), width=100, verbose=True) if "on-demand" in line]) == 1


def test_the_json_of_a_machine_has_zone_and_market():
    row = json.loads(encode_plain(offered()))["nodes"][1]
    assert (row["zone"], row["market"]) == ("a", "spot")


@pytest.mark.parametrize("reason", [Reason.RESIZE_FAILED, Reason.STUCK])
@pytest.mark.parametrize("is_first", [True, False])
def test_what_is_wrong_with_a_machine_is_not_hidden_by_why_it_is_kept(reason, is_first):
    base = published()
    machine = base.instances[-1].instance_id
    wrong = Verdict(subject=Subject.NODE, subject_id=machine, reason=reason, detail="deferred")
    kept = replace(wrong, reason=Reason.KEPT_BUSY, detail="")
    both = (wrong, kept) if is_first else (kept, wrong)
    report = build_report(replace(base, status=replace(base.status, verdicts=both)), now=AT)
    assert any(f"{reason.value}: deferred" in line for line in page(report, width=200))


def test_a_machine_that_is_removed_after_all_shows_why_it_goes():
    base = published()
    machine = base.instances[-1].instance_id
    wrong = Verdict(subject=Subject.NODE, subject_id=machine, reason=Reason.STUCK, detail="it is slow")
    gone = replace(wrong, reason=Reason.REMOVED_IDLE, detail="idle for 10 min")
    report = build_report(replace(base, status=replace(base.status, verdicts=(wrong, gone))), now=AT)
    assert any(f"removed-idle: {gone.detail}" in line for line in page(report, width=200))


def test_all_clusters_are_one_table_with_their_spend(home, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    home("laptop")
    home("old", up=False)
    done = CliRunner().invoke(cli, ["status", "--all"])
    assert done.exit_code == 0
    assert_view("cli/status_all", text(line.rstrip() for line in done.stdout.splitlines()))
    found = json.loads(CliRunner().invoke(cli, ["status", "--all", "--json"]).stdout)
    assert [(one["cluster"], one["state"]) for one in found["clusters"]] == [
        ("laptop", "up"),
        ("old", "down"),
    ]
    assert (found["price_per_hour"], found["spent"]) == (0.46, 2 * 0.01234)


def test_a_cluster_elsewhere_is_asked_and_one_that_does_not_answer_hides_no_other(
    home, monkeypatch, tmp_path
):
    home("laptop")
    for name in ("far", "lost", "odd"):
        made = ClusterHome.of(name, tmp_path / "clusters")
        made.path.mkdir()
        head = HeadRecord(ip="10.0.0.1", node_id="i-1", home="/srv/u", python="python3")
        write_record(made, ClusterRecord(cluster_name=name, config=f"{name}.yaml", head=head))

    async def head_status(file):
        if file == "lost.yaml":
            raise RemoteError("no route to host")
        if file == "odd.yaml":
            raise ValueError("nobody expected this")
        return published(cluster_name="far", at=SystemClock().now()), None, True

    monkeypatch.setattr("muster.cli.gc.head_status", head_status)
    done = CliRunner().invoke(cli, ["status", "--all", "--json"])
    found = {one["cluster"]: one for one in json.loads(done.stdout)["clusters"]}
    assert {name: one["state"] for name, one in found.items()} == {
        "far": "up",
        "laptop": "up",
        "lost": "not known",
        "odd": "not known",
    }
    assert {found[name]["price_per_hour"] for name in ("lost", "odd")} == {None}  # 0 would be a claim
    assert {found[name]["spent"] for name in ("lost", "odd")} == {None}
    assert (found["lost"]["detail"], done.exit_code) == ("no route to host", 3)


def test_all_takes_no_name(home):
    done = CliRunner().invoke(cli, ["status", "--all", "laptop"])
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
