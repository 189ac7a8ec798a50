"""What a rack adds to the promises of a provider: hosts that are off, taken, stale, removed, or not clean."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.mistakes.views import assert_line
from tests.providers.rack.local_hosts import BashRunner, Racks, workers
from tests.rack import wait_until

from muster.base.clock import ManualClock, SystemClock
from muster.cluster.model import FailureKind, NodeKind
from muster.config.to_spec import NodeLaunch
from muster.errors import CapacityExhausted, CommandFailed, ProviderError, ProviderMisconfigured
from muster.host.processes import find
from muster.providers.rack import host_lock
from muster.providers.rack.host_list import RackHost
from muster.providers.rack.hosts import FRESH_S, QUARANTINE_S, due


@pytest.fixture
def racks(tmp_path):
    made = Racks(tmp_path, workers(3, "big"), ManualClock(1e9))
    yield made
    made.close()


def create(provider, count=1, request="r-1", node_type="big"):
    """Take hosts, and return the ids of their nodes; raise the first failure."""
    before = set(provider.list_instances())
    provider.launch(request, {node_type: count})
    failures = []
    while provider.under_way(request):
        failures += provider.poll_launch_failures()
        SystemClock().sleep(0.005)
    if failures:
        refused = {FailureKind.CAPACITY: CapacityExhausted, FailureKind.CONFIG: ProviderMisconfigured}
        raise refused[failures[0].kind](failures[0].message)
    return [node for node in provider.list_instances() if node not in before]


def create_head(provider, node_type="head"):
    provider.create_head("up-1", NodeLaunch(node_type=node_type), {"ray-node-type": "head"})
    (head,) = provider.machines(NodeKind.HEAD)
    return head.node_id


def release(provider, node):
    provider.terminate_machines([node])


def addresses(provider):
    return sorted(machine.internal_ip for machine in provider.list_instances().values())


def refusal(provider, **given) -> str:
    with pytest.raises(CapacityExhausted) as caught:
        create(provider, **given)
    return str(caught.value)


def test_the_lock_on_the_host_names_cluster_request_and_launcher(racks):
    (node,) = create(racks.provider("mine"), request="r-7")
    held = json.loads(racks.lock("h0").read_text())
    assert (held["cluster"], held["request_id"]) == ("mine", "r-7")
    assert (held["cloud_id"], held["launcher"], held["taken_at"]) == (node, "me@here", 1e9)


def test_a_host_that_is_off_is_skipped_and_the_rest_is_used(racks):
    racks.off.add("h0")
    provider = racks.provider()
    create(provider, 2)
    assert addresses(provider) == ["h1", "h2"]
    assert_line("providers", "rack hosts off or in use", refusal(provider, request="r-2"))


def test_a_host_that_was_off_is_tried_again_after_its_quarantine(racks):
    racks.off.add("h0")
    provider = racks.provider()
    provider.list_instances()
    racks.off.clear()
    provider.list_instances()
    assert (
        due(provider.control.states.values(), racks.clock.monotonic()) == []
    )  # h0 is left alone, the others are fresh
    racks.clock.advance(max(QUARANTINE_S[0], FRESH_S))
    create(provider, 3)
    assert addresses(provider) == ["h0", "h1", "h2"]


def test_a_host_that_stays_off_is_asked_less_and_less_often(racks):
    racks.off.add("h0")
    provider = racks.provider()
    state = provider.reports()["h0"]
    waits = [state.blocked_until - racks.clock.monotonic()]
    for _ in range(8):
        waits.append(provider.reports()["h0"].blocked_until - racks.clock.monotonic())
    assert waits[:4] == [15, 30, 60, 120] and waits[-1] == QUARANTINE_S[1]


def test_two_clusters_never_have_the_same_host(racks):
    one, two = racks.provider("one"), racks.provider("two")
    create(one, 2)
    create(two, 1)
    assert (addresses(one), addresses(two)) == (["h0", "h1"], ["h2"])
    assert "'one' (me@here, " in refusal(two, request="r-2")


def test_of_two_clusters_that_want_the_same_host_at_once_one_gets_it(racks):
    racks.hosts = workers(1, "big")
    providers = [racks.provider(f"c{n}") for n in range(4)]
    for provider in providers:
        provider.list_instances()  # all have seen it free
    got = []

    def take(provider):
        with contextlib.suppress(CapacityExhausted):
            got.extend(create(provider))

    threads = [threading.Thread(target=take, args=(provider,)) for provider in providers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(got) == 1


def test_a_lock_of_an_earlier_start_of_the_host_is_taken_over_and_its_owner_loses_the_node(racks):
    racks.hosts = workers(1, "big")
    old, new = racks.provider("old"), racks.provider("new")
    create(old)
    lock = racks.lock("h0")
    lock.write_text(
        json.dumps({**json.loads(lock.read_text()), "boot": "another"}, separators=(",", ":")) + "\n"
    )
    create(new)
    racks.clock.advance(FRESH_S)
    old.reports()
    assert (addresses(old), addresses(new)) == ([], ["h0"])


def test_giving_back_a_host_that_another_cluster_has_by_now_touches_nothing(racks):
    provider = racks.provider()
    (node,) = create(provider)
    taken = (
        racks.lock("h0").read_text().replace(node, "another").replace('"cluster":"c"', '"cluster":"other"')
    )
    racks.lock("h0").write_text(taken)
    release(provider, node)
    assert racks.lock("h0").read_text() == taken
    assert addresses(provider) == []


def test_a_lock_that_muster_has_not_written_is_respected_and_shown(racks):
    racks.hosts = workers(1, "big")
    racks.write_lock("h0", "do not touch\n")
    assert_line("providers", "rack lock of a stranger", refusal(racks.provider()))


def test_a_host_on_which_somebody_elses_ray_runs_is_busy(racks, monkeypatch):
    racks.hosts = workers(1, "big")
    monkeypatch.setattr(BashRunner, "raylet", Path("/proc/self/comm").read_text(encoding="utf-8").strip())
    assert "h0: busy: " in refusal(racks.provider())


@pytest.mark.slow
def test_a_host_is_given_back_without_our_processes_and_without_rays_session(racks, tmp_path, monkeypatch):
    monkeypatch.setattr(host_lock, "STOP_S", 1)
    provider = racks.provider()
    (node,) = create(provider)
    session = tmp_path / "ray" / "session_2026"
    session.mkdir(parents=True)
    (tmp_path / "ray" / "session_latest").symlink_to(session)
    # A child without the mark, as one that has changed its title; the parent does not end when asked to.
    script = f"trap '' TERM; env -i sleep 1000 & echo $! > {tmp_path}/child; wait"
    command = ["bash", "-c", script, "x", f"--session_dir={session}"]
    ours = subprocess.Popen(
        command, env={**os.environ, "RAY_CLOUD_INSTANCE_ID": node}, start_new_session=True
    )
    other = subprocess.Popen(["sleep", "1000"], env={**os.environ, "RAY_CLOUD_INSTANCE_ID": f"{node}0"})
    try:
        wait_until((tmp_path / "child").exists, "the child runs")
        threading.Thread(target=ours.wait, daemon=True).start()  # as its init would
        release(provider, node)
        assert ours.poll() is not None and other.poll() is None
        child = find(int((tmp_path / "child").read_text(encoding="ascii")))
        assert child is None or not child.is_alive
        assert not racks.lock("h0").exists()
        assert not (tmp_path / "ray").exists()
    finally:
        other.kill()
        other.wait()


def test_a_host_that_cannot_be_reached_is_not_given_back_and_says_so(racks):
    provider = racks.provider()
    (node,) = create(provider)
    racks.off.add("h0")
    with pytest.raises(ProviderError, match="h0"):
        release(provider, node)
    assert addresses(provider) == ["h0"]
    racks.off.clear()
    release(provider, node)
    assert addresses(provider) == [] and not racks.lock("h0").exists()


def test_hosts_may_be_added_while_it_runs(racks):
    provider = racks.provider()
    create(provider, 3)
    racks.hosts = {**racks.hosts, "h9": RackHost(ip="h9", node_type="big")}
    create(provider, 1, request="r-2")
    assert addresses(provider) == ["h0", "h1", "h2", "h9"]


def test_a_host_that_left_the_list_stays_until_it_is_given_back_and_is_not_taken_again(racks):
    (node,) = create(racks.provider())
    racks.hosts = {ip: host for ip, host in racks.hosts.items() if ip != "h0"}
    restarted = racks.provider()
    assert addresses(restarted) == ["h0"]
    release(restarted, node)
    create(restarted, 2, request="r-2")
    assert addresses(restarted) == ["h1", "h2"]


def test_a_host_that_is_off_after_a_restart_is_still_listed_and_cannot_be_forgotten(racks):
    (node,) = create(racks.provider())
    racks.off.add("h0")
    restarted = racks.provider()
    assert (addresses(restarted), restarted.answers(node)) == (["h0"], False)
    with pytest.raises(ProviderError, match="h0"):
        release(restarted, node)


def test_hosts_that_say_nothing_are_known_as_such_unless_they_are_ours(racks):
    create(racks.provider())
    racks.off.update(("h0", "h2"))
    restarted = racks.provider()
    assert addresses(restarted) == ["h0"]
    ((host, reason),) = restarted.silent_hosts().items()
    assert host == "h2"
    assert_line("providers", "rack host off", reason)


def test_a_new_head_without_any_file_finds_the_hosts_of_its_cluster(racks, tmp_path):
    create(racks.provider(), 2)
    (tmp_path / "c.json").unlink()
    found = racks.provider()
    assert addresses(found) == ["h0", "h1"]
    assert {machine.request_id for machine in found.list_instances().values()} == {"r-1"}


def test_the_host_of_an_earlier_head_is_given_back_and_taken_as_a_worker(racks):
    racks.hosts = {"h0": RackHost(ip="h0", node_type="head", is_head=True)}
    create_head(racks.provider())
    racks.hosts = workers(1, "big") | {"h9": RackHost(ip="h9", node_type="head", is_head=True)}
    provider = racks.provider()
    (node,) = create(provider)
    held = json.loads(racks.lock("h0").read_text())
    assert (held["cloud_id"], held["is_head"]) == (node, False)
    assert list(provider.list_instances()) == [node]


def test_a_head_takes_its_host_again_after_a_reboot_unless_somebody_else_has_it(racks):
    runner, lock = BashRunner(racks.root / "h0"), racks.lock("h0")
    holder = host_lock.LockHolder(cluster="c", cloud_id="mine", launcher="x", taken_at=1.0)
    line = host_lock.retake_line("~/locks", holder)
    for _ in range(2):  # its lock was lost; it is there already
        asyncio.run(runner.run(line))
        assert json.loads(lock.read_text())["cloud_id"] == "mine"
    lock.write_text(lock.read_text().replace('"mine"', '"theirs"'))
    with pytest.raises(CommandFailed, match="another"):
        asyncio.run(runner.run(line))
    lock.write_text(lock.read_text().replace('"boot":"', '"boot":"earlier-'))
    asyncio.run(runner.run(line))
    assert json.loads(lock.read_text())["cloud_id"] == "mine"


def test_a_head_whose_place_another_one_has_taken_touches_no_host_while_that_one_answers(racks):
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        new = f"127.0.0.1:{gcs.getsockname()[1]}"
        racks.hosts = workers(2, "big")
        (node,) = create(racks.provider())
        racks.provider(head=new).set_tags(node, {"muster-head": new})
        earlier, again = racks.provider(head="10.0.0.1:6379"), racks.provider(head=new)
        for act in (
            lambda: create(earlier, request="r-2"),
            lambda: release(earlier, node),
            lambda: earlier.runner(None, node, None),
            lambda: earlier.set_tags(node, {"a": "b"}),
        ):
            with pytest.raises(ProviderMisconfigured, match=f"{new}"):
                act()
        assert again.internal_ip(node) == "h0"
    racks.clock.advance(FRESH_S)
    earlier.reports()
    release(earlier, node)
    assert not racks.lock("h0").exists()


def test_a_host_that_answers_again_and_is_given_back_can_be_taken_at_once(racks):
    racks.hosts = workers(1, "big")
    provider = racks.provider()
    (node,) = create(provider)
    racks.off.add("h0")
    provider.reports()  # it is left alone from now on
    racks.off.clear()
    release(provider, node)
    assert len(create(provider, request="r-2")) == 1


def test_only_the_heads_host_is_for_the_head_and_sizes_are_kept_apart(racks):
    racks.hosts = {
        "head": RackHost(ip="head", node_type="small", is_head=True),
        "a": RackHost(ip="a", node_type="small"),
        "b": RackHost(ip="b", node_type="big"),
    }
    provider = racks.provider()
    head = create_head(provider, "small")
    small, big = create(provider, node_type="small"), create(provider, request="r-2", node_type="big")
    assert [provider.internal_ip(node) for node in (head, *small, *big)] == ["head", "a", "b"]


def test_shell_metacharacters_in_tags_are_data(racks, tmp_path):
    provider = racks.provider()
    (node,) = create(provider)
    nasty = f"$(touch {tmp_path}/pwned) `id` '; \" \\ \n é"
    provider.set_tags(node, {"note": nasty})
    assert racks.provider().tags(node)["note"] == nasty
    assert not (tmp_path / "pwned").exists()


def test_a_banner_before_the_answer_changes_nothing(racks, monkeypatch):
    plain = BashRunner.run

    async def with_banner(self, command, **given):
        return "Welcome!\nlast login=never\n" + await plain(self, command, **given)

    monkeypatch.setattr(BashRunner, "run", with_banner)
    provider = racks.provider()
    release(provider, create(provider)[0])
    assert addresses(provider) == [] and not racks.lock("h0").exists()


def test_a_full_disk_on_a_host_is_a_reason_and_leaves_no_lock(racks, monkeypatch):
    racks.hosts = workers(1, "big")
    provider = racks.provider()
    report = provider.reports()["h0"].report
    assert report is not None and report.disk_bytes > 0
    assert_line("providers", "rack disk full", replace(report, disk_bytes=10_000_000).unusable("c"))


def test_the_head_alone_is_found_without_waiting_for_other_hosts(racks, monkeypatch):
    racks.hosts = {"head": RackHost(ip="head", node_type="big", is_head=True), **workers(2, "big")}
    create_head(racks.provider(), "big")
    asked = []
    plain = BashRunner.run

    async def noted(self, command, **given):
        asked.append(self.home.name)
        return await plain(self, command, **given)

    monkeypatch.setattr(BashRunner, "run", noted)
    provider = racks.provider()
    (head,) = provider.machines(NodeKind.HEAD)
    assert (provider.internal_ip(head.node_id), asked) == ("head", ["head"])


def test_a_host_that_hangs_holds_up_no_other(racks, monkeypatch):
    plain, answered, others = BashRunner.run, set(), asyncio.Event()

    async def hanging(self, command, **given):
        if self.home.name == "h0":  # until the others have answered: were they held up, nobody would
            await asyncio.wait_for(others.wait(), 60)
            raise TimeoutError
        said = await plain(self, command, **given)
        answered.add(self.home.name)
        if len(answered) == 2:
            others.set()
        return said

    monkeypatch.setattr(BashRunner, "run", hanging)
    provider = racks.provider()
    create(provider, 2)
    assert addresses(provider) == ["h1", "h2"]
    assert_line("providers", "rack host that hangs", refusal(provider, request="r-2"))


def test_hosts_are_taken_side_by_side(racks, monkeypatch):
    plain, together = BashRunner.run, asyncio.Event()
    taking = []

    async def counted(self, command, **given):
        if "HOLDER=" in command:  # only continues when all three are under way
            taking.append(self.home.name)
            if len(taking) == 3:
                together.set()
            await asyncio.wait_for(together.wait(), 60)
        return await plain(self, command, **given)

    monkeypatch.setattr(BashRunner, "run", counted)
    provider = racks.provider()
    create(provider, 3)
    assert addresses(provider) == ["h0", "h1", "h2"]


@pytest.mark.slow
def test_what_is_still_being_released_is_waited_for(racks, monkeypatch):
    """A lock from before a reboot is released in the background: nobody has asked for it."""
    monkeypatch.setattr(host_lock, "STOP_S", 1)
    first = racks.provider()
    (node,) = create(first)
    racks.write_lock("h0", re.sub('"boot":"[^"]*"', '"boot":"earlier"', racks.lock("h0").read_text()))
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    environment = {**os.environ, "RAY_CLOUD_INSTANCE_ID": node}
    process = subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.PIPE)
    try:
        process.stdout.readline()
        later = racks.provider()
        later.reports()
        assert (addresses(later), racks.lock("h0").exists()) == ([], True)
        assert later.settle(is_last=False) == {}
        assert not racks.lock("h0").parent.exists()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_a_release_that_is_repeated_waits_for_the_first_one(racks, monkeypatch):
    """As when a busy host answers too late: nobody may believe that the host is free before it is."""
    monkeypatch.setattr(host_lock, "STOP_S", 1)
    provider, runner = racks.provider(), BashRunner(racks.root / "h0")
    (node,) = create(provider)
    line = host_lock.release_line("~/locks", provider.control.node(node)[1])
    script = "trap '' TERM; echo ready; while :; do sleep 0.1; done"
    environment = {**os.environ, "RAY_CLOUD_INSTANCE_ID": node}
    process = subprocess.Popen(["bash", "-c", script], env=environment, stdout=subprocess.PIPE)

    async def twice():
        first = asyncio.ensure_future(runner.run(line))
        await asyncio.sleep(0.3)
        return [await runner.run(line), await first]

    try:
        process.stdout.readline()
        assert asyncio.run(twice()) == ["gone\n", "released\n"]
    finally:
        process.kill()
        process.communicate()
