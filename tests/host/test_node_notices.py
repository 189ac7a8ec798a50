"""What the clouds announce about a machine, read over real HTTP and reported once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from argparse import Namespace
from collections.abc import Iterator

import pytest
from tests.host.metadata_server import (
    EVENTS,
    MAINTENANCE,
    NAME,
    PREEMPTED,
    REBALANCE,
    SCHEDULED,
    SPOT,
    MetadataService,
    metadata_service,
)

from muster.host import node_notices
from muster.host.node_notices import (
    Aws,
    Azure,
    Gcp,
    Metadata,
    NoticeWatch,
    gathered,
    moment,
    most_urgent,
    same,
)

AT = 1_505_722_920.0  # 2017-09-18T08:22:00Z
TERMINATE = {"action": "terminate", "time": "2017-09-18T08:22:00Z"}
RETIREMENT = {"NotBefore": "18 Sep 2017 08:22:00 GMT", "Code": "instance-retirement", "State": "active"}


@pytest.fixture
def service() -> Iterator[MetadataService]:
    with metadata_service() as made:
        yield made


def notice(kind, deadline, source):
    return {"kind": kind, "deadline": deadline, "source": source}


def test_aws_announces_nothing_until_it_does(service):
    aws = Aws(Metadata(service.address))
    assert aws.read() == []
    service.put(SPOT, TERMINATE)
    service.put(REBALANCE, {"noticeTime": "2017-09-18T08:20:00Z"})
    service.put(SCHEDULED, [RETIREMENT, {**RETIREMENT, "State": "canceled"}])
    assert aws.read() == [
        notice("interruption", AT, "aws: spot terminate"),
        notice("rebalance", None, "aws: rebalance recommendation"),
        notice("maintenance", AT, "aws: instance-retirement"),
    ]


def test_an_aws_token_that_is_refused_is_renewed(service):
    aws = Aws(Metadata(service.address))
    aws.read()
    service.token = "token-2"
    service.put(SPOT, TERMINATE)
    assert [one["kind"] for one in aws.read()] == ["interruption"]


@pytest.mark.parametrize("damaged", ["not json", 500, {"action": "stop"}, [1]])
def test_a_damaged_answer_hides_no_interruption_and_is_not_taken_for_nothing(service, damaged):
    aws = Aws(Metadata(service.address))
    service.put(SCHEDULED, damaged)
    with pytest.raises(Exception):  # noqa: B017 - whatever it is: nothing may be concluded
        aws.read()
    service.put(SPOT, TERMINATE)
    assert [one["kind"] for one in aws.read()] == ["interruption"]


def test_gcp_is_waited_for_and_answers_at_once_when_the_machine_is_preempted(service):
    service.put(PREEMPTED, "FALSE")
    service.put(MAINTENANCE, "NONE")
    gcp = Gcp(Metadata(service.address))
    assert gcp.read() == []
    service.put(PREEMPTED, "TRUE")
    (found,) = gcp.read()
    assert (found["kind"], found["source"]) == ("interruption", "gcp: preempted")
    assert gcp.read() == [found]  # its deadline is that of the first look


def test_gcp_maintenance_that_ends_the_machine_counts_and_a_migration_does_not(service):
    service.put(PREEMPTED, "FALSE")
    gcp = Gcp(Metadata(service.address))
    service.put(MAINTENANCE, "TERMINATE_ON_HOST_MAINTENANCE")
    assert [one["kind"] for one in gcp.read()] == ["maintenance"]
    gcp = Gcp(Metadata(service.address))
    service.put(MAINTENANCE, "MIGRATE_ON_HOST_MAINTENANCE")
    assert gcp.read() == []


def azure_event(kind, names, **changes):
    event = {"EventId": "e1", "EventType": kind, "Resources": names, "EventStatus": "Scheduled"}
    return {**event, "NotBefore": "Mon, 18 Sep 2017 08:22:00 GMT", **changes}


def test_azure_lists_events_of_other_machines_too(service):
    service.put(NAME, "vm-1")
    mine, other = azure_event("Preempt", ["vm-1"]), azure_event("Preempt", ["vm-2"])
    paused, done = azure_event("Freeze", ["vm-1"]), azure_event("Reboot", ["vm-1"], EventStatus="Completed")
    service.put(EVENTS, {"Events": [other, paused, done]})
    azure = Azure(Metadata(service.address))
    assert azure.read() == []
    service.put(EVENTS, {"Events": [other, mine]})
    assert azure.read() == [notice("interruption", AT, "azure: Preempt")]


def test_an_azure_event_that_has_begun_has_no_time_and_keeps_the_first(service):
    service.put(NAME, "vm-1")
    service.put(EVENTS, {"Events": [azure_event("Redeploy", ["vm-1"], NotBefore="", EventStatus="Started")]})
    azure = Azure(Metadata(service.address))
    (first,), (second,) = azure.read(), azure.read()
    assert first == second
    assert first["kind"] == "maintenance"


def test_a_service_that_is_not_there_is_an_error_and_no_proxy_is_asked(monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with metadata_service() as service:
        assert Aws(Metadata(service.address)).read() == []
    with pytest.raises(OSError, match="refused"):
        Aws(Metadata(service.address)).read()


def test_the_certain_end_counts_first_then_what_comes_first():
    soon = moment("2999-01-01T00:00:00Z")
    far, end = notice("maintenance", soon, ""), notice("interruption", soon + 9, "")
    risk = notice("rebalance", None, "")
    assert most_urgent([far, risk, end]) is end
    assert most_urgent([far, risk]) is risk
    assert most_urgent([notice("maintenance", 5.0, ""), risk])["deadline"] == 5.0
    assert most_urgent([]) is None


def test_times_of_every_service_are_read():
    texts = ("2017-09-18T08:22:00Z", "18 Sep 2017 08:22:00 GMT", "Mon, 18 Sep 2017 08:22:00 GMT")
    assert [moment(text) for text in texts] == [AT] * 3


def test_a_failure_without_a_certain_end_is_raised():
    def broken():
        raise OSError("away")

    with pytest.raises(OSError, match="away"):
        gathered(lambda: [notice("rebalance", None, "")], broken)


def test_two_readings_of_one_time_are_the_same_notice():
    one = notice("interruption", 10.0, "")
    assert same(one, notice("interruption", 10.4, "x"))
    assert not same(one, notice("interruption", 20.0, ""))
    assert not same(one, None)
    assert same(None, None)


@pytest.fixture
def told(tmp_path, monkeypatch):
    """A stand-in for Ray's Python, which writes down what the head is told."""
    (tmp_path / "ray").write_text("")
    noted = f'{{ echo "$3 $4"; cat; echo; }} > "$0.$$" && cat "$0.$$" >> {tmp_path}/told'  # in one write
    (tmp_path / "python3").write_text(f"#!/bin/sh\n{noted}\n")
    for name in ("ray", "python3"):
        (tmp_path / name).chmod(0o755)

    def read():
        file = tmp_path / "told"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(where, json.loads(value)) for where, value in zip(lines[::2], lines[1::2], strict=True)]

    read.ray = str(tmp_path / "ray")
    return read


def given(service, told, cloud="aws"):
    return Namespace(cloud=cloud, address=service.address, id="i-1", head="h:1", ray=told.ray, pause_s=0.05)


def test_a_notice_is_reported_once_and_taken_back_when_the_cloud_does(service, told):
    watch = NoticeWatch(given(service, told))
    watch.look()
    service.put(SPOT, TERMINATE)
    watch.look()
    watch.look()
    service.put(SPOT, None)
    watch.look()
    watch.look()
    (first, reported), (_, back) = told()
    assert first == "h:1 notice/i-1"
    assert (
        reported.items()
        >= {
            "cloud_id": "i-1",
            "kind": "interruption",
            "deadline": AT,
            "is_cancelled": False,
        }.items()
    )
    assert (back["is_cancelled"], back["deadline"]) == (True, AT)


def test_a_notice_that_holds_is_reported_again_because_the_head_may_be_a_new_one(service, told, monkeypatch):
    watch = NoticeWatch(given(service, told))
    service.put(SPOT, TERMINATE)
    watch.look()
    watch.look()
    assert len(told()) == 1
    monkeypatch.setattr(node_notices, "REPEAT_S", 0.0)
    watch.look()
    (_, first), (_, again) = told()
    assert again["at"] >= first["at"]
    assert {**first, "at": 0} == {**again, "at": 0}


def test_a_variable_names_another_service_with_a_path_for_each_machine(service, told, monkeypatch):
    monkeypatch.setenv(node_notices.ADDRESS_VARIABLE, service.address_of_each)
    words = ["--cloud", "aws", "--head", "h:1", "--ray", told.ray]
    watches = [NoticeWatch(node_notices.parser().parse_args([*words, "--id", one])) for one in ("n-1", "n-2")]
    service.put(SPOT, TERMINATE, machine="n-2")
    for watch in watches:
        watch.look()
    assert [where for where, _ in told()] == ["h:1 notice/n-2"]


def test_a_report_that_fails_is_repeated(service, told, tmp_path):
    watch = NoticeWatch(given(service, told))
    service.put(SPOT, TERMINATE)
    good = (tmp_path / "python3").read_text()
    (tmp_path / "python3").write_text("#!/bin/sh\necho GCS is away >&2\nexit 1\n")
    with pytest.raises(OSError, match=r"h:1.*GCS"):
        watch.look()
    (tmp_path / "python3").write_text(good)
    watch.look()
    assert len(told()) == 1


@pytest.mark.slow
def test_the_watcher_runs_without_muster_and_a_later_one_takes_its_place(service, told):
    """Run as on a machine without muster: in isolated mode, from the file alone."""
    command = [sys.executable, "-I", "-S", node_notices.__file__, "--cloud", "aws", "--head", "h:1"]
    command += ["--address", service.address, "--pause-s", "0.05", "--ray", told.ray]
    environment = {"PATH": os.environ["PATH"], node_notices.MARK: f"test-{os.getpid()}"}
    first = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    wait_for(lambda: service.asked)
    second = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
    try:
        assert first.wait(60) == 0
        service.put(SPOT, TERMINATE)
        wait_for(told)
        assert second.poll() is None
    finally:
        for process in (first, second):
            process.kill()
            process.wait()


def wait_for(look):
    give_up = time.monotonic() + 60
    while not look():
        assert time.monotonic() < give_up
        time.sleep(0.02)
