"""Check parity beyond the recorded workloads: generated problems on which Ray and ours must buy the same."""

from __future__ import annotations

import json
from contextlib import closing

from bench import table
from bench.options import Options
from bench.ours.planner import plan, unserved
from bench.peer import planner as peer
from bench.peer.process import PeerProcess
from bench.planner_gangs import unseen_gangs
from bench.workloads import Workload, unseen
from muster.cluster.model import Objective

PROBLEMS = 40
QUICK_PROBLEMS = 10
GANG_PROBLEMS = 150
QUICK_GANG_PROBLEMS = 20
RECORDED = 60


def parity_figures(options: Options, ray: PeerProcess) -> dict[str, float]:
    """Return how many of the problems were planned differently from Ray."""
    count = QUICK_PROBLEMS if options.quick else PROBLEMS
    table.progress(f"planner: {count} problems that are in no file")
    differing = [number for number in range(count) if differs(number, ray)]
    for number in differing:
        table.note(f"unseen problem {number}: our launches or unserved requests differ from Ray's")
    return {"parity_unseen.problems": count, "parity_unseen.mismatches": len(differing)}


def gang_parity_figures(options: Options, ray: PeerProcess) -> dict[str, float]:
    """Return how many problems with gangs were planned differently from Ray."""
    count = QUICK_GANG_PROBLEMS if options.quick else GANG_PROBLEMS
    table.progress(f"planner: {count} problems with gangs that are in no file")
    differing = [number for number in range(count) if gangs_differ(number, ray)]
    for number in differing:
        table.note(f"gang problem {number}: our launches, unserved gangs or nodes in use differ from Ray's")
    return {"parity_gangs.problems": count, "parity_gangs.mismatches": len(differing)}


def gangs_differ(number: int, ray: PeerProcess) -> bool:
    """Return whether launches, unserved requests and gangs, or the nodes that stay idle differ."""
    workload = unseen_gangs(number)
    theirs = ray.call(peer.schedule, workload)
    if theirs is None:
        raise RuntimeError(f"gang problem {number}: Ray did not finish a problem of 40 nodes")
    return gang_answer(workload) != answer_of(theirs.value)


GangAnswer = tuple[dict[str, int], int, tuple[str, ...], frozenset[str]]


def answer_of(plan: peer.PeerPlan) -> GangAnswer:
    return plan.launch, plan.unserved, tuple(sorted(plan.unserved_gangs)), plan.idle


def gang_answer(workload: Workload) -> GangAnswer:
    """Return what ours launches, leaves unserved, and would end because nothing was planned onto it."""
    ours = plan(workload, Objective.UTILIZATION).value
    lost = tuple(sorted(workload.gangs[gang.index].id for gang in ours.gangs if gang.unplaced))
    idle = frozenset(removal.instance_id for removal in ours.removals)
    return dict(ours.launch), unserved(ours), lost, idle


def differs(number: int, ray: PeerProcess) -> bool:
    """Return whether launches or the number of unserved requests differ."""
    workload = unseen(number)
    theirs = ray.call(peer.schedule, workload)
    if theirs is None:
        raise RuntimeError(f"unseen problem {number}: Ray did not finish a problem of 40 nodes")
    ours = plan(workload, Objective.UTILIZATION).value
    return (theirs.value.launch, theirs.value.unserved) != (dict(ours.launch), unserved(ours))


def main() -> None:
    """Record Ray's answers to the first gang problems, for tests that run without Ray."""
    with closing(PeerProcess()) as ray:
        plans = [ray.call(peer.schedule, unseen_gangs(number)).value for number in range(RECORDED)]
    answers = [answer_of(plan) for plan in plans]
    rows = [[launch, lost, list(gangs), sorted(idle)] for launch, lost, gangs, idle in answers]
    print("[" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "]")


if __name__ == "__main__":
    main()
