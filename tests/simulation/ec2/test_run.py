"""Run seeds on the simulated EC2: nothing doubled or leaked, limits held, notices acted on."""

from __future__ import annotations

import os

import pytest
from click.testing import CliRunner
from tests.series import length
from tests.simulation.__main__ import simulation
from tests.simulation.ec2.run import FAULTS, Ec2Run
from tests.simulation.run import SeedRun, sweep

from muster.cluster import controller
from muster.cluster.reconcile import RULES, reconcile
from muster.cluster.rules.notices import notices

SEEDS = length(24, 500)
# Seeds that once broke a property, and why.
FOUND = {
    2084: "a drain under notice was ended before the deadline that the cloud had given",
    2101: "the same",
    2113: "a refused drain under notice was not repeated at once; a terminate never sent was believed",
    51265: "a node that restarted on a machine which no list had shown answered no request any more",
    2234: "a stopped machine of an older launch config was started and ended as outdated, forever",
    7026: "the notice of an earlier life of a machine drained it again after every start",
    60423: "a notice that was taken back cleared the failed set-up of its pool",
    7037: "a cancelled notice brought a node back beside its replacement, above the maximum",
    7288: "a stopped machine that was started for a request of the same tick was not taken for its answer",
    9275: "a new head set up a machine of an old request, on which a node without an id was busy",
    53392: "(the checker) the end of a machine's first life was taken for the end of its second",
    101: "a stopped machine whose start had no answer counted as stopped for good, and was never terminated",
    1575: "a launch without an answer was reported as failed, while its machine came and no list showed it",
    10206: "a launch without an answer was repeated by other means, or from its first target again",
    2110: "(the checker) a node on a machine that no list shows may be on any machine without an address",
    3223: "a node was back after maintenance without id and ip: its machine was terminated under its tasks",
    11151: "the clock was set back: the notice of an earlier life of a machine drained it after every start",
    310147: "a cancelled machine that an unmatched node held left room for another, above the maximum",
    340302: "a machine that had lost a node of another machine was terminated under its own",
    350105: "a node that named a machine died: the unmatched node on that machine no longer held it",
    7000165: "a node with the id of an occupied machine did not hold its own, whose ip no list had shown",
    950174: "(the checker) a node that no record follows, with a cloned id, may be on any machine",
    950248: "a node was moved to its own machine: the node of the machine that it left did not hold that one",
    360060: "without a list the record had no ip: a dead node with a cloned id was taken for its own",
    7100118: "(the checker) a cancelled machine that serves takes room of its offer",
    7100244: "a machine of a request for two types was adopted with the tag of the other one",
    8100025: "(the checker) a machine that is only held for an unmatched node tries no set-up",
    8100541: "a node with the ip and the type of another machine was put on the machine that it named",
    8100874: "a node with the id of somebody's machine did not hold its own, whose ip was not known",
    8101250: "a node was taken to have lived next to one of another machine, which had the id of its own",
    8101728: "(the checker) what a new head had forgotten was not counted as forgotten",
    8101730: "of two nodes with one id, the one without the machine's ip came first and got it",
    8101757: "a node of another machine was drained: the machine that it named was ended under its own",
    8200038: "a node of another type and ip was put on an adopted machine, and took its own from it",
    8200051: "a node of another type was put on a machine whose ip only its dead node had shown",
    9300292: "(the checker) a gap in the lists does not bring the end of the wait for a machine by itself",
    150000060: "a launch without a fleet was repeated with one by a new process: four machines too many",
    150300004: "a time-out ended the pause of a failed set-up: the type was launched again",
    150300060: "a node with a cloned id was put on the machine it named: its own, without a known ip, ended",
    230000122: "a cancelled notice, a refused drain: the node served again beside its replacement",
    420000053: "a node of another type was drained: a machine without a known ip was ended under its own",
    5051: "what was leaving when the head was lost counted against the limits beside its replacement",
}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_property_and_all_faults_were_there():
    seeds = sorted({*range(SEEDS), *FOUND})
    reports = list(sweep(seeds, os.cpu_count() or 1, Ec2Run))
    assert {report.replay: report.violations for report in reports if report.violations} == {}
    injected = {kind for report in reports for kind in report.faults}
    assert set(FAULTS) <= injected


@pytest.mark.slow
def test_two_runs_of_one_seed_are_equal_and_another_cloud_is_another_run():
    report = Ec2Run(17).to_end()
    assert Ec2Run(17).to_end() == report
    assert SeedRun(17).to_end().trace_hash != report.trace_hash


def test_the_check_notices_when_nodes_under_notice_go_on_serving(monkeypatch):
    deaf = tuple(rule for rule in RULES if rule is not notices)
    monkeypatch.setattr(controller, "reconcile", lambda snapshot: reconcile(snapshot, deaf))
    (text,) = Ec2Run(5).to_end().violations
    assert "is under notice, and its record still serves" in text


@pytest.mark.slow
def test_the_command_runs_and_replays_a_seed_on_ec2():
    done = CliRunner().invoke(simulation, ["run", "--seed", "3", "--cloud", "ec2"])
    assert done.exit_code == 0, done.output
    assert "cloud" in done.output
    assert Ec2Run(3).to_end(until_tick=2).replay == (
        "python -m tests.simulation replay --seed 3 --until-tick 2 --cloud ec2"
    )
