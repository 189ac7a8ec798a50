"""Money on a real cluster: machines that the cloud takes, machines that empty themselves, and budgets.

The whole way each time: the cluster file, nodes on this computer, the monitor, the store of the head, a tuner
with trials. Nothing is written into the store by a test.
"""

from __future__ import annotations

import re
import time
import urllib.request

import pytest
from bench.live_cluster import wait_for
from tests.e2e.test_1_tuner import Experiment
from tests.e2e.tuning import MOVED_STEPS, PAID_STEPS, STEPS, WAITS_AT
from tests.host.metadata_server import EVENTS, NAME, PREEMPTED, SPOT, metadata_service

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]
CONFIG = """
cluster_name: e2e
provider: {{type: process}}
head_node_type: head
max_workers: {most}
idle_timeout_minutes: 0.034
upscaling_speed: 10
muster:
  monitor: {{interval_s: 0.5, max_interval_s: 1.0}}
  budget: {{total: {total}, per_hour: 400}}
{more}
available_node_types:
  head: {{resources: {{CPU: 0}}, price_per_hour: 0}}
  paid: {{resources: {{CPU: {places}, place: {places}}}, max_workers: {most}, price_per_hour: 36}}
"""
ROOM = "  room: {resources: {CPU: 3, place: 3}, max_workers: 1, price_per_hour: 30}\n"  # for all of them
CLOUDS = {"aws": "aws: spot terminate", "gcp": "gcp: preempted", "azure": "azure: Preempt"}


def use(stage, total, **keys):
    """Edit the file, and wait until the monitor goes by it; the total tells one edit from the other."""
    stage.cluster.edit(CONFIG.format(total=total, **keys))
    wait_for(stage.cluster.published, lambda told: f"of ${total}," in told.status.budget, "the edit counts")


def steps_of(stage, what, number):
    """The steps that a trial has taken so far, each with its node."""
    file = stage.cluster.folder / "experiments" / f"{what}-notes" / f"{number}.txt"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [(int(step), node) for step, node in map(str.split, lines)]


def wait_for_step(stage, what, number, count):
    """Return where the trial took its newest step, once it has taken so many."""
    steps = wait_for(
        lambda: steps_of(stage, what, number), lambda seen: len(seen) >= count, f"trial {number} runs"
    )
    return steps[-1][1]


def announce(service, cloud, machine, seconds):
    """As the metadata service of the cloud does on the machine."""
    at = time.gmtime(time.time() + seconds)
    if cloud == "aws":
        action = {"action": "terminate", "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", at)}
        service.put(SPOT, action, machine=machine)
    elif cloud == "gcp":
        service.put(PREEMPTED, "TRUE", machine=machine)
    else:
        until = time.strftime("%a, %d %b %Y %H:%M:%S GMT", at)
        preempt = {"EventId": "1", "EventType": "Preempt", "Resources": ["vm"], "NotBefore": until}
        service.put(NAME, "vm", machine=machine)
        service.put(EVENTS, {"Events": [preempt]}, machine=machine)


def test_the_notices_of_three_clouds_move_trials_without_a_lost_step(stage):
    """Three machines, each with the watcher of another cloud and a metadata service of its own."""
    notices = "  notices: {{source: {}, address: '{}'}}"
    with metadata_service() as service:
        use(stage, 101, most=1, places=1, more=notices.format("aws", service.address_of_each))
        with Experiment(stage, "taken") as experiment:
            for count, cloud in enumerate(CLOUDS, 1):
                more = notices.format(cloud, service.address_of_each)
                stage.cluster.edit(CONFIG.format(total=101, most=count, places=1, more=more))
                clouds = wait_for(lambda: asking(service), is_of(count), f"a machine asks as on {cloud}")
            old = [wait_for_step(stage, "taken", number, WAITS_AT + 1) for number in range(3)]
            machines = [stage.cloud_id_of(node) for node in old]
            stage.cluster.edit(CONFIG.format(total=101, most=4, places=1, more=more) + ROOM)
            for machine in machines:
                announce(service, clouds[machine], machine, 100)
            outcome = experiment.outcome()
        stage.wait_for_quiet()
    assert (sorted(clouds.values()), outcome["errors"]) == (sorted(CLOUDS), [])
    for number, rows in enumerate(outcome["rows"]):
        told = f"interruption, {CLOUDS[clouds[machines[number]]]}, True"
        assert [row[0] for row in rows] == list(range(STEPS))
        assert [step for step, _ in steps_of(stage, "taken", number)] == list(range(STEPS))
        assert [row[2] for row in rows] == [""] * WAITS_AT + [told] + [""] * (STEPS - WAITS_AT - 1)
        assert {row[1] for row in rows[: WAITS_AT + 1]} == {old[number]}
        assert not {row[1] for row in rows[WAITS_AT + 1 :]} & set(old)


def asking(service):
    """The machines that have asked their metadata service, with the cloud as on which they ask."""
    roots = {"latest": "aws", "computeMetadata": "gcp", "metadata": "azure"}
    return {machine: roots[root] for machine, root in (path.split("/")[1:3] for path in list(service.asked))}


def is_of(count):
    return lambda found: len(found) == count


def test_a_half_empty_node_is_emptied_into_another_and_its_trial_goes_on(stage):
    """Of four trials on two nodes one of each node ends; those that are left need one node."""
    use(stage, 102, most=2, places=2, more="  consolidation: conservative")
    notes = stage.cluster.folder / "experiments" / "emptied-notes"
    with Experiment(stage, "emptied") as experiment:
        homes = [wait_for_step(stage, "emptied", number, 2) for number in range(4)]
        stay = {node: number for number, node in enumerate(homes)}  # the last trial of each node
        assert len(stay) == 2
        for number in set(range(4)) - set(stay.values()):
            (notes / f"end-{number}").touch()
        moved = wait_for(lambda: moved_of(stage, stay), bool, "a trial takes a step on another node")
        one = wait_for(stage.watch.now, lambda snapshot: len(snapshot.workers) == 1, "one node is left")
        (kept,) = [node.node_id for node in one.workers]
        (emptied,) = set(stay) - {kept}
        why_kept = stage.cluster.muster("why", kept, "e2e").stdout
        (notes / "hurry").touch()
        outcome = experiment.outcome()
    why = stage.cluster.muster("why", emptied, "e2e").stdout
    stage.wait_for_quiet()
    assert (moved, outcome["errors"]) == ([stay[emptied]], [])
    for number in stay.values():
        assert [row[0] for row in outcome["rows"][number]] == list(range(MOVED_STEPS))
        assert [step for step, _ in steps_of(stage, "emptied", number)] == list(range(MOVED_STEPS))
        assert outcome["rows"][number][-1][1] == kept
    assert "its 1 trials go into the free room of other nodes: saves $" in why
    assert "not emptied: " in why_kept


def moved_of(stage, stay):
    """The trials that have taken a step elsewhere than on their first node."""
    nodes = {number: {node for _, node in steps_of(stage, "emptied", number)} for number in stay.values()}
    return [number for number, seen in nodes.items() if len(seen) > 1]


def test_a_budget_of_cents_ends_an_experiment_which_goes_on_with_more(stage):
    """At the prices that the monitor publishes; what the cluster costs is in its status and metrics."""
    use(stage, 103, most=1, places=2, more="")
    with Experiment(stage, "budget") as experiment:
        wait_for_step(stage, "budget", 0, 1)
        status = stage.cluster.muster("status", "e2e").stdout
        port = stage.cluster.published().metrics_port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            metrics = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if "{" in line)
        outcome = experiment.outcome()
    stage.wait_for_quiet()
    first, more = outcome["first"], outcome["more"]
    assert (first["ended_by"], first["errors"], more["ended_by"], more["errors"]) == ("budget", [], "", [])
    assert 0.0 < first["cost"] <= 0.03
    assert first["cost"] < more["cost"] < 1.0
    reached = len(first["rows"][0])
    assert 0 < reached < PAID_STEPS
    assert [row[0] for row in first["rows"][0]] == list(range(reached))
    assert [row[0] for row in more["rows"][0]] == list(range(PAID_STEPS))
    assert "spend     $36.00 per hour, $" in status
    amount = r"\$[0-9.]+"
    budget = rf"budget +{amount} spent and {amount} reserved of \$103, {amount} left, \$36.00 of \$400"
    assert re.search(budget, status)
    known = {name.partition("{")[0]: float(value) for name, value in metrics.items()}
    assert (known["muster_price_per_hour"], known["muster_spend_total"] > 0) == (36.0, True)
    assert 0 < known["muster_budget_reserved"] < known["muster_budget_left"] < 103
