"""Providers that raise, hang, or return anything: each line has a result, and nothing is left."""

from __future__ import annotations

import json
import threading

import pytest
from tests.mistakes.views import assert_line
from tests.providers.contract.live import QUICK, by_name, named, run, subjects

from muster.base.clock import SystemClock
from muster.config.document import Document
from muster.errors import ConfigError
from muster.providers.contract import live as live_module
from muster.providers.contract.live import RefusalFile, clusters_of, live_provider, load_refusals
from muster.providers.contract.run import CHECKS, ContractRun, cost_bound, end_clusters
from muster.providers.contract.subject import Check, CheckSizes
from muster.providers.kind import parse_config
from muster.testing.faulty_cloud import FaultyCloud

CLOUD = "muster.testing.faulty_cloud.FaultyCloud"
SOME = by_name(
    "as_many_nodes_as_asked_for_are_listed_when_create_returns",
    "no_two_living_nodes_have_the_same_address",
    "running_and_terminated_agree_with_the_list",
    "tags_given_to_create_are_read_at_once",
    "terminating_again_and_terminating_strangers_succeeds",
)
LISTED = by_name("as_many_nodes_as_asked_for_are_listed_when_create_returns")
TAGS = by_name("tags_are_merged_and_read_at_once")
CALLS = (
    "non_terminated_nodes",
    "is_running",
    "node_tags",
    "internal_ip",
    "create_node",
    "set_node_tags",
    "terminate_node",
)


def faults(*entries):
    return json.dumps(list(entries))


def living(state):
    """The machines that really exist, of all clusters."""
    cloud = json.loads(state.read_text())["machines"]
    return [name for name, one in cloud.items() if one["state"] == "running"]


@pytest.fixture
def state(tmp_path):
    return tmp_path / "cloud.json"


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("value", [None, 7, ["x", None]], ids=repr)
def test_garbage_breaks_no_run_and_leaves_nothing(call, value, state):
    given = faults({"fault": "returns", "call": call, "value": value, "after": 2, "times": 6})
    report = run(CLOUD, checks=SOME, state=state, faults=given)
    assert [result.name for result in report.results] == [check.name for check in SOME]
    assert (report.left, living(state)) == ({}, [])


@pytest.mark.parametrize(
    ("call", "value", "says"),
    [
        ("non_terminated_nodes", None, "non_terminated_nodes({}) returned None"),
        ("create_node", 7, "returned 7"),
        ("node_tags", None, "node_tags('machine-8') returned None"),
        ("internal_ip", 7, "internal_ip('machine-4') returned 7"),
        ("is_running", None, "is_running('machine-7') returned None"),
    ],
)
def test_garbage_is_a_broken_line_that_says_what_was_returned(call, value, says, state):
    report = run(
        CLOUD, checks=SOME, state=state, faults=faults({"fault": "returns", "call": call, "value": value})
    )
    told = [(result.saw, result.promise) for result in report.results if says in result.saw]
    assert told != []
    assert f"{call} " in told[0][1] or call == "create_node"


@pytest.mark.parametrize("call", CALLS)
def test_what_is_raised_is_told_and_nothing_is_left(call, state):
    given = faults({"fault": "fail", "call": call, "kind": "connection", "times": 1, "of": 3})
    report = run(CLOUD, state=state, checks=[*SOME, *TAGS], faults=given)
    assert named(report, "failed") != []
    assert any(f"{call} " in result.saw and "(connection)" in result.saw for result in report.results)
    assert (report.left, living(state)) == ({}, [])


def test_a_provider_that_ends_the_program_does_not_end_the_run():
    report = run("tests.providers.contract.test_run.Quits", checks=LISTED)
    assert report.results[0].saw.startswith("SystemExit: 3")


class Quits(FaultyCloud):
    def create_node(self, node_config, tags, count):
        raise SystemExit(3)


@pytest.mark.slow
def test_a_list_that_fails_two_of_three_times_keeps_no_machine_alive(state):
    given = faults({"fault": "fail", "call": "non_terminated_nodes", "times": 2, "of": 3})
    report = run(CLOUD, state=state, faults=given)
    assert (report.left, living(state)) == ({}, [])


def test_a_lost_reply_leaves_nothing_although_no_id_was_returned(state):
    report = run(CLOUD, state=state, faults=faults({"fault": "reply_lost"}))
    assert "TimeoutError: " in report.results[0].saw
    assert (report.left, living(state)) == ({}, [])


@pytest.mark.slow
def test_a_call_that_hangs_is_given_up_and_what_may_be_left_is_named():
    sizes = CheckSizes(starts_within_s=0.2, call_limit_s=0.2)
    given = faults({"fault": "hang", "call": "create_node"})
    report = run(CLOUD, checks=[*LISTED, *CHECKS[2:4]], sizes=sizes, faults=given)
    assert_line("providers", "contract, call that hangs", report.results[0].saw)
    assert [result.status for result in report.results] == ["failed", "not run", "not run"]
    (left,) = report.left.values()
    assert_line("providers", "contract, create call that hangs", left.why)


@pytest.mark.slow
def test_machines_that_cannot_be_ended_are_named_with_the_reason_and_nothing_more_is_made(state):
    sizes = CheckSizes(starts_within_s=0.2, call_limit_s=0.1)
    given = faults({"fault": "fail", "call": "terminate_node", "kind": "permission"})
    report = run(CLOUD, checks=[*LISTED, *CHECKS[2:4]], sizes=sizes, state=state, faults=given)
    ((left),) = report.left.values()
    assert sorted(left.node_ids) == sorted(living(state)) == ["machine-1", "machine-2", "machine-3"]
    assert "terminate_node" in left.why and "(permission)" in left.why
    assert named(report, "not run") == [check.name for check in CHECKS[2:4]]
    assert not report.kept


def test_what_a_killed_run_has_left_is_found_by_the_name_of_the_run_and_ended(state):
    make = subjects(CLOUD, state=state)
    subject = make()
    provider = subject.provider()
    subject.create(provider, 3)
    subject.close()  # and no machine is ended: the process is dead
    run_of_it = provider.cluster_name.rpartition("-")[0]
    assert len(living(state)) == 3
    assert end_clusters(make(), clusters_of(run_of_it)) == {}
    assert living(state) == []


@pytest.mark.parametrize("hidden_for", [0, 1, 4, 20])
def test_machines_of_others_are_left_alone_also_where_a_provider_shows_them(hidden_for, monkeypatch):
    monkeypatch.setattr(ShowsOthers, "lists", -hidden_for)
    theirs = FaultyCloud({}, "theirs")
    theirs.create_node({}, {"ray-node-name": "ray-theirs-worker"}, 2)
    before = theirs.machines()
    report = run("tests.providers.contract.test_run.ShowsOthers")
    assert (theirs.machines(), report.left, report.kept) == (before, {}, False)


def test_nothing_is_created_where_a_new_cluster_shows_machines_of_others(monkeypatch):
    monkeypatch.setattr(ShowsOthers, "lists", 0)
    monkeypatch.setattr(ShowsOthers, "create_node", lambda *order: 1 / 0)
    FaultyCloud({}, "theirs").create_node({}, {"ray-node-name": "ray-theirs-worker"}, 1)
    report = run("tests.providers.contract.test_run.ShowsOthers")
    assert "lists ['theirs/machine-1'" in report.results[0].saw
    assert {result.status for result in report.results[1:]} == {"not run"}


class ShowsOthers(FaultyCloud):
    """Lists the machines of another cluster, too, after a while, and could end them."""

    lists = 0

    def non_terminated_nodes(self, tag_filters):
        ShowsOthers.lists += 1
        others = list(FaultyCloud({}, "theirs").machines()) if ShowsOthers.lists > 0 else []
        return [*super().non_terminated_nodes(tag_filters), *(f"theirs/{one}" for one in others)]

    def node_tags(self, node_id):
        if node_id.startswith("theirs/"):
            return FaultyCloud({}, "theirs").node_tags(node_id.removeprefix("theirs/"))
        return super().node_tags(node_id)

    def terminate_node(self, node_id):
        if node_id.startswith("theirs/"):
            return FaultyCloud({}, "theirs").terminate_node(node_id.removeprefix("theirs/"))
        return super().terminate_node(node_id)


def interrupted_while(state, second=False):
    """Run a line that is interrupted after it has made machines; `second`: while they are ended, too."""
    interrupts = ["again"] if second else []

    def show(subject):
        subject.create(subject.provider(), 3)
        raise KeyboardInterrupt

    def ending(text):
        if text.startswith("terminating") and interrupts:
            interrupts.pop()
            raise KeyboardInterrupt

    check = Check("a_line", show, lambda sizes: 3)
    make = subjects(CLOUD, state=state)
    return ContractRun(make, ending=ending, quiet_s=0.0).run([check, *LISTED])


def test_a_report_that_cannot_be_shown_ends_the_machines_all_the_same(state):
    def closed_pipe(*_):
        raise BrokenPipeError

    run_of_it = ContractRun(subjects(CLOUD, state=state), done=closed_pipe, ending=closed_pipe, quiet_s=0.0)
    with pytest.raises(BrokenPipeError):
        run_of_it.run(LISTED)
    assert living(state) == []


def test_a_provider_that_never_completes_the_file_is_given_up(monkeypatch):
    monkeypatch.setattr(
        FaultyCloud, "bootstrap_config", staticmethod(lambda config: threading.Event().wait(30))
    )
    live = live_provider(config(), None, None)
    with pytest.raises(ConfigError, match="bootstrap_config"):
        live.completed("muster-check-0a", CheckSizes(call_limit_s=0.1), SystemClock())


def broken(*_):
    raise ZeroDivisionError("no region")


@pytest.mark.parametrize(
    ("method", "answer", "says"),
    [
        ("__init__", broken, r"provider: FaultyCloud\(provider_config, cluster_name\) failed: ZeroDivision"),
        ("is_readonly", lambda self: True, "FaultyCloud is read-only: it makes no machines"),
    ],
)
def test_a_provider_that_cannot_be_made_or_only_reads_is_bad_input(monkeypatch, method, answer, says):
    monkeypatch.setattr(FaultyCloud, method, answer)
    with pytest.raises(ConfigError, match=says):
        live_provider(config(), None, None).completed("muster-check-0a", QUICK, SystemClock())


def test_an_interrupted_run_ends_its_machines_and_starts_nothing_more(state):
    report = interrupted_while(state)
    assert (report.interrupted, report.left, living(state)) == (True, {}, [])
    assert [result.status for result in report.results] == ["not run", "not run"]


def test_a_second_interrupt_leaves_them_and_names_them(state):
    report = interrupted_while(state, second=True)
    ((left),) = report.left.values()
    assert sorted(left.node_ids) == sorted(living(state))
    assert len(left.node_ids) == 3


@pytest.mark.slow
def test_a_call_that_comes_back_after_the_interrupt_is_waited_for(state):
    """The machines of a create call under way exist only after the run was interrupted."""
    gate = threading.Event()

    def show(subject):
        provider = subject.provider()
        made = provider.bare.create_node
        provider.bare.create_node = lambda *order: [gate.wait(20), made(*order)][1]
        tags = subject.tags(provider.cluster_name)
        threading.Thread(target=subject.call_create, args=(provider, tags, 2), daemon=True).start()
        while not subject.watch.made_any:
            subject.clock.sleep(0.01)
        threading.Timer(0.3, gate.set).start()
        raise KeyboardInterrupt

    report = ContractRun(subjects(CLOUD, state=state), quiet_s=0.0).run([Check("x", show, lambda sizes: 2)])
    assert gate.is_set()
    assert (report.left, living(state)) == ({}, [])


KINDS = ("capacity", "quota", "throttled", "permission", "config")


def refusals(**cases):
    return RefusalFile(**{kind: live_module.RefusalCase(**case) for kind, case in cases.items()})


def test_a_refusal_of_each_kind_is_understood():
    cases = {
        kind: {"provider": {"faults": [{"fault": "fail", "call": "create_node", "kind": kind}]}}
        for kind in KINDS
    }
    checks = by_name("a_refusal_is_understood_for_what_it_is")
    (result,) = run(CLOUD, checks=checks, refusals=refusals(**cases)).results
    assert result.status == "passed"
    assert [part.partition(":")[0] for part in result.saw.split("; ")] == list(KINDS)


def test_a_refusal_that_is_read_as_another_kind_or_is_none_breaks_the_line():
    checks = by_name("a_refusal_is_understood_for_what_it_is")
    sold_out = {"provider": {"faults": [{"fault": "fail", "call": "create_node", "kind": "capacity"}]}}
    for case in (sold_out, {}):
        report = run(CLOUD, checks=checks, refusals=refusals(quota=case))
        assert named(report, "failed") == [checks[0].name]
        assert "quota" in report.results[0].promise


def test_the_cost_is_bounded_by_machines_price_and_the_limits_of_time():
    bound = cost_bound(LISTED, CheckSizes(several=2, call_limit_s=90.0), 0.5)
    assert (bound.machines, bound.at_once, bound.lives_s) == (2, 2, 720.0)
    assert (bound.machine_hours, bound.dollars) == (0.4, 0.2)
    assert cost_bound(LISTED, QUICK, None).dollars is None


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_no_line_makes_more_machines_than_it_says(check, state):
    run(CLOUD, checks=[check], state=state)
    made = json.loads(state.read_text())["next"] - 1 if state.exists() else 0
    assert made <= check.machines(QUICK)


CLUSTER = """
cluster_name: mine
provider: {type: external, module: muster.testing.faulty_cloud.FaultyCloud}
head_node_type: head
available_node_types: {head: {resources: {CPU: 0}}, small: {resources: {CPU: 1}}}
"""


def config(text=CLUSTER):
    from muster.providers.kind import parse_config

    return parse_config(Document(text, "mine.yaml"))


@pytest.mark.parametrize(
    ("module", "node_type", "says"),
    [
        ("nosuch.module.Class", None, "there is no module 'nosuch'"),
        ("muster.testing.faulty_cloud.FaultCloud", None, "did you mean 'FaultyCloud'"),
        ("json.JSONDecoder", None, "JSONDecoder lacks create_node"),
        (None, "smal", "available_node_types: has no type 'smal'; did you mean 'small'?"),
    ],
)
def test_a_class_or_type_that_is_not_there_is_named_before_anything_is_made(module, node_type, says):
    with pytest.raises(ConfigError, match=says.replace("?", r"\?")):
        live_provider(config(), module, node_type)


def test_the_class_of_the_command_line_takes_the_place_of_the_files():
    live = live_provider(
        config(CLUSTER.replace("external, module: muster.testing.faulty_cloud.FaultyCloud", "aws")),
        CLOUD,
        None,
    )
    assert (live.class_name, live.node_type) == (CLOUD, "small")
    settings = {"type": "external", "module": CLOUD, "cache_stopped_nodes": False}  # nothing is kept stopped
    assert live.config.provider.settings() == settings


def test_a_file_for_errors_is_checked_with_its_line(tmp_path):
    file = tmp_path / "errors.yaml"
    file.write_text("capacity:\n  node_config: {x: 1}\nquotas: {}\n")
    with pytest.raises(ConfigError, match=r"errors.yaml:3.*quotas"):
        load_refusals(file)


def test_only_clusters_of_checks_are_ended():
    assert clusters_of("muster-check-0a1b-7") == ["muster-check-0a1b-7"]
    assert clusters_of("muster-check-0a1b")[:2] == ["muster-check-0a1b-1", "muster-check-0a1b-2"]
    with pytest.raises(ConfigError) as refused:
        clusters_of("production")
    assert_line("providers", "contract, another cluster", str(refused.value))


@pytest.mark.parametrize(
    ("written", "price"),
    [
        ("price_per_hour: 0.5", 0.5),
        ("price_per_hour: 0.5, offers: [{zone: a}, {zone: b, market: spot, price_per_hour: 0.1}]", 0.5),
        ("offers: [{zone: a, price_per_hour: 2}, {zone: b, market: spot, price_per_hour: 0.1}]", 2.0),
        ("offers: [{zone: a, price_per_hour: 2}, {zone: b}]", None),
    ],
)
def test_the_bound_on_cost_takes_the_dearest_offer(written, price):
    text = f"""
cluster_name: mine
provider: {{type: external, module: muster.testing.faulty_cloud.FaultyCloud}}
head_node_type: head
available_node_types:
  head: {{resources: {{CPU: 0}}}}
  small: {{resources: {{CPU: 1}}, max_workers: 2, {written}}}
"""
    config = parse_config(Document(text, "mine.yaml"))
    assert live_provider(config, None, "small").price_per_hour == price
