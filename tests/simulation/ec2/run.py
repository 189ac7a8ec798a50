"""Run one seed on the simulated EC2: the faults of every run, those of EC2, and notices about machines.

The rates of the faults have a stream of their own, so that the runs of other clouds stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace as replaced

from msgspec.structs import replace
from tests.simulation.checkers import Check
from tests.simulation.cluster import FaultyCluster
from tests.simulation.ec2.cloud import Ec2Cloud
from tests.simulation.options import draw_options
from tests.simulation.run import SeedRun

from muster.base.ids import CloudId
from muster.base.rng import Seed
from muster.cluster.controller import Ports
from muster.cluster.model import NodeKind, Notice, NoticeKind, NoticePolicy, health_key
from muster.cluster.ports import NoticeReport
from muster.cluster.snapshot import Quarantined
from muster.cluster.states import InstanceState
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import RunOptions
from muster.sim.cluster.world import World

_S = InstanceState
FAULTS: Mapping[str, tuple[float, float]] = {
    "throttled": (0.005, 0.05),  # per call: for a while, most calls are refused
    "call_breaks": (0.01, 0.1),  # per call: no answer, and no effect
    "fleet_says_nothing": (0.1, 0.6),  # per override that has too few: the answer lacks its error
    "describe_late": (0.05, 0.6),  # per machine: calls do not know it for its first while
    "template_gone": (0.02, 0.2),  # per fleet: somebody has removed all launch templates
    "profile_unknown": (0.02, 0.2),  # per fleet: for a while, EC2 does not know the instance profile
    "start_refused": (0.1, 0.6),  # per stopped machine: there is no room for it now
    "pool_small": (0.02, 0.2),  # per tick: one (type, zone, market) has few machines or none for a while
    "interrupted": (0.01, 0.08),  # per tick: a notice for a machine, which goes at its deadline
    "notice_cancelled": (0.1, 0.5),  # per notice: the cloud takes it back, and the machine stays
    "rebalance": (0.005, 0.04),  # per tick: a notice without a deadline
    "maintenance": (0.005, 0.04),  # per tick: a notice, and a machine that is restarted at its deadline
    "notice_unknown": (0.005, 0.04),  # per tick: for a machine that nobody knows
    "notice_damaged": (0.01, 0.1),  # per look: one entry cannot be read, or has no usable time
    "notices_unreadable": (0.01, 0.1),  # per look
}


def add_rates(seed: Seed, faults: Faults) -> None:
    """Draw about half of the faults of EC2; a run without any faults stays without."""
    draw = seed.derive("sim.ec2.faults")
    for kind, (low, high) in FAULTS.items():
        on, rate = draw.random() < 0.5, draw.uniform(low, high)
        if on and faults.rates:
            faults.rates[kind] = round(rate, 4)


def draw_ec2_options(seed: Seed) -> RunOptions:
    """Draw the options of this seed; short pauses after notices."""
    options = draw_options(seed)
    policy = NoticePolicy(
        ahead_s=seed.derive("sim.ec2").choice((60.0, 600.0)),
        rebalance_s=seed.derive("sim.ec2.rebalance").choice((None, 60.0)),
        pool_pause_s=40.0,
    )
    plain = tuple(replace(one, resize=None) for one in options.spec.node_types)  # EC2 resizes none in place
    options.spec = replace(options.spec, notices=policy, node_types=plain)
    options.shown |= {"cloud": "ec2"}
    return options


class SimNotices:
    """Implements the NoticeSource port; a notice stays, as on a real board."""

    def __init__(self, world: World, crash_points: CrashPoints, faults: Faults) -> None:
        self.crash_points = crash_points
        self.current: dict[CloudId, Notice] = {}
        self.read_last: tuple[Notice, ...] | None = None  # by the tick under way
        self._world, self._faults = world, faults

    @crash_point("notices.read")
    def read(self) -> NoticeReport:
        self.read_last = None
        if self._faults.hit("notices_unreadable"):
            raise ConnectionError("simulated: the notices cannot be read")
        self.read_last = tuple(self.current.values())
        if not self._faults.hit("notice_damaged"):
            return NoticeReport(notices=self.read_last)
        bad = Notice(cloud_id=CloudId("i-0001"), kind=NoticeKind.REBALANCE, deadline=float("nan"))
        note = Quarantined(source="notice i-0002", message="simulated: not JSON")
        return NoticeReport(notices=(bad, *self.read_last), damaged=(note,))

    def announce(self, cloud_id: CloudId, kind: NoticeKind, in_s: float | None) -> None:
        """Add a notice, or make one that is there another."""
        now = self._world.now()
        deadline = None if in_s is None else now + in_s
        self.current[cloud_id] = Notice(
            cloud_id=cloud_id, kind=kind, deadline=deadline, source="simulated", at=now
        )

    def take_back(self, cloud_id: CloudId) -> None:
        if cloud_id in self.current:
            self.current[cloud_id] = replace(self.current[cloud_id], is_cancelled=True)


class Ec2Cluster(FaultyCluster):
    """The simulated cluster on EC2, with a board of notices."""

    cloud_class = Ec2Cloud
    cloud: Ec2Cloud

    def __init__(self, seed: Seed, options: RunOptions, faults: Faults) -> None:
        crash_points, world = CrashPoints(), World()
        add_rates(seed, faults)
        self.notices = SimNotices(world, crash_points, faults)
        super().__init__(seed, options, faults, crash_points=crash_points, world=world)
        self.cloud.keeps_stopped = seed.derive("sim.ec2.stopped").random() < 0.5
        self.cloud.api.denies_fleets = bool(faults.rates) and seed.derive("sim.ec2.rights").random() < 0.1

    def ports(self) -> Ports:
        return replaced(super().ports(), notices=self.notices)

    def rest(self) -> None:
        super().rest()
        self.notices.read_last = None


class Ec2Run(SeedRun):
    """One seed on EC2."""

    cluster_class = Ec2Cluster
    command_options = " --cloud ec2"
    cluster: Ec2Cluster

    def draw_options(self) -> RunOptions:
        return draw_ec2_options(self.seed)

    def checks(self) -> tuple[Check, ...]:
        return (*super().checks(), nodes_under_notice_do_not_serve)

    def _inject_faults(self) -> None:
        super()._inject_faults()
        faults, cluster = self.faults, self.cluster
        offers = cluster.spec.offers()
        if offers and faults.hit("pool_small"):
            draw = faults.stream("pool_small")
            known, offer = draw.choice(offers)
            for_s = faults.between("pool_small", 20, 300)
            cluster.cloud.api.stock.limit(health_key(known.name, offer.name), draw.randint(0, 2), for_s)
        if faults.hit("notice_unknown"):
            cluster.notices.announce(CloudId("i-unknown"), NoticeKind.INTERRUPTION, 60.0)
        for kind in ("interrupted", "rebalance", "maintenance"):
            workers = [m for m in cluster.cloud.alive() if m.kind is NodeKind.WORKER and m.up]
            if workers and faults.hit(kind):
                self._announce(kind, faults.stream(kind).choice(workers))

    def _announce(self, kind: str, machine: CloudMachine) -> None:
        """A machine gets one notice in its life, but an interruption may follow whatever came before."""
        notices, faults, name = self.cluster.notices, self.faults, machine.cloud_id
        if name in notices.current and kind != "interrupted":
            return
        if kind == "rebalance":
            notices.announce(name, NoticeKind.REBALANCE, None)
            return
        in_s = faults.between(kind, 20, 120 if kind == "interrupted" else 400)
        meant = NoticeKind.INTERRUPTION if kind == "interrupted" else NoticeKind.MAINTENANCE
        notices.announce(name, meant, in_s)
        if faults.hit("notice_cancelled"):
            after_s = faults.between("notice_cancelled", 1, in_s)
            self.cluster.world.after(after_s, lambda: notices.take_back(name))
        else:
            self.cluster.world.after(in_s, lambda: self._come_true(kind, machine))

    def _come_true(self, kind: str, machine: CloudMachine) -> None:
        if kind == "interrupted":
            self.cluster.cloud.end(machine, "preempted")
        else:
            self.cluster.restart_node(machine, 20.0)


def nodes_under_notice_do_not_serve(cluster: FaultyCluster) -> Iterator[str]:
    """Check that a tick which read an interruption that is due leaves no record of the machine in service.

    One that no list has shown is left alone, and one that is newer than the notice: it may be another life.
    """
    if not isinstance(cluster, Ec2Cluster) or cluster.store.committed is None:
        return
    if cluster.runtime.report_read is None:
        return
    plan, policy = cluster.store.committed, cluster.spec.spec.notices
    due = {
        notice.cloud_id: cluster.world.now() - (notice.at or 0.0)
        for notice in cluster.notices.read_last or ()
        if notice.kind is NoticeKind.INTERRUPTION and not notice.is_cancelled and notice.deadline is not None
        if 0 < notice.deadline - cluster.world.now() <= policy.ahead_s
    }
    for record in cluster.store.live.values() if due else ():
        is_serving = record.state is _S.RAY_RUNNING and record.cloud_id in due and not record.provisional
        if (
            is_serving
            and record.node_id
            and plan.at - record.history[0].at >= due[record.cloud_id or CloudId("")]
        ):
            yield f"{record.cloud_id} is under notice, and its record still serves"
