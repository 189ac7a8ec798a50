"""Run one seed on a simulated Slurm: the faults of every run, and those of a controller and its queue."""

from __future__ import annotations

from dataclasses import replace as replaced

from msgspec.structs import replace
from tests.simulation.cluster import FaultyCluster
from tests.simulation.options import draw_options
from tests.simulation.run import SeedRun
from tests.simulation.slurm.cloud import FAULTS, SlurmCloud

from muster.base.rng import Seed
from muster.cluster.controller import Ports
from muster.cluster.model import NodeKind
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import RunOptions

# The controller invents, forgets and omits nothing; a submission is accepted as a whole; and the node's own
# program names its job, so that no node lacks an id or has another's.
IMPOSSIBLE = (
    *("list_late", "list_omits", "list_ghost", "list_garbage", "list_only_head", "list_omits_passing"),
    *("list_twice", "type_tag_wrong", "joins_first", "launch_dropped", "unit_refused", "unit_dropped"),
    *("node_without_id", "node_without_ip", "node_with_other_id"),
)


def draw_slurm_options(seed: Seed) -> RunOptions:
    """Draw the options of this seed: no offers, nothing is resized, jobs bring the runtime."""
    options = draw_options(seed)
    types = tuple(replace(known, offers=(), resize=None) for known in options.spec.node_types)
    options.spec = replace(options.spec, node_types=types, install_runtime=False)
    options.catalogue.ids_ignore_case = False
    options.shown |= {"cloud": "slurm"}
    return options


class SlurmCluster(FaultyCluster):
    """The simulated cluster on Slurm."""

    cloud_class = SlurmCloud
    cloud: SlurmCloud

    def __init__(self, seed: Seed, options: RunOptions, faults: Faults) -> None:
        draw = seed.derive("sim.slurm.faults")
        for kind, (low, high) in FAULTS.items():
            on, rate = draw.random() < 0.5, draw.uniform(low, high)
            if on and faults.rates:
                faults.rates[kind] = round(rate, 4)
        for kind in IMPOSSIBLE:
            faults.rates.pop(kind, None)
        super().__init__(seed, options, faults)

    def tick(self) -> None:
        super().tick()
        if self.controller is None:
            self.cloud.stop()

    def lose_head(self, ticks_ago: int) -> None:
        super().lose_head(ticks_ago)
        if self.controller is None:
            self.cloud.stop()

    def ports(self) -> Ports:
        return replaced(super().ports(), notices=self.cloud)


class SlurmRun(SeedRun):
    """One seed on Slurm."""

    cluster_class = SlurmCluster
    command_options = " --cloud slurm"
    cluster: SlurmCluster

    def draw_options(self) -> RunOptions:
        return draw_slurm_options(self.seed)

    def _inject_faults(self) -> None:
        super()._inject_faults()
        cloud = self.cluster.cloud
        workers = [m for m in cloud.alive() if m.kind is NodeKind.WORKER and m.up and not m.leaving]
        if workers and self.faults.hit("requeued"):
            cloud.requeue(self.faults.stream("requeued").choice(workers))

    def _apply_fault(self, kind: str, machine: CloudMachine) -> None:
        """A job that is preempted with a grace has less time left; muster reads that and drains its node."""
        if kind == "preempted_with_notice":
            self.cluster.cloud.grace(machine, 30.0)
        else:
            super()._apply_fault(kind, machine)
