"""Checks parity beyond the recorded workloads: generated problems on which Ray and ours must buy the same."""

from __future__ import annotations

from bench import table
from bench.options import Options
from bench.ours.planner import plan, unserved
from bench.peer import planner as peer
from bench.peer.process import PeerProcess
from bench.workloads import unseen
from muster.cluster.model import Objective

PROBLEMS = 40
QUICK_PROBLEMS = 10


def parity_figures(options: Options, ray: PeerProcess) -> dict[str, float]:
    """Returns how many of the problems were planned differently from Ray."""
    count = QUICK_PROBLEMS if options.quick else PROBLEMS
    table.progress(f"planner: {count} problems that are in no file")
    differing = [number for number in range(count) if differs(number, ray)]
    for number in differing:
        table.note(f"unseen problem {number}: our launches or unserved requests differ from Ray's")
    return {"parity_unseen.problems": count, "parity_unseen.mismatches": len(differing)}


def differs(number: int, ray: PeerProcess) -> bool:
    """Returns whether launches or the number of unserved requests differ."""
    workload = unseen(number)
    theirs = ray.call(peer.schedule, workload)
    if theirs is None:
        raise RuntimeError(f"unseen problem {number}: Ray did not finish a problem of 40 nodes")
    ours = plan(workload, Objective.UTILIZATION).value
    return (theirs.value.launch, theirs.value.unserved) != (dict(ours.launch), unserved(ours))
