"""Run one seed on a rack: the real RackProvider over hosts that hang, break, start again and are shared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from unittest import mock

from msgspec.structs import replace
from tests.simulation.checkers import Check
from tests.simulation.cluster import FaultyCluster
from tests.simulation.options import draw_options
from tests.simulation.rack.cloud import CLUSTER, RackCatalogue, RackCloud, RackMachine
from tests.simulation.rack.hosts import SimHost, holder_text
from tests.simulation.rack.installer import RackInstaller
from tests.simulation.run import Report, SeedRun

from muster.base.rng import Seed, Stream
from muster.cluster.controller import ClusterController
from muster.cluster.model import ClusterSpec, NodeKind
from muster.providers.rack import hosts as decisions
from muster.providers.v1.tags import TAG_MUSTER_HEAD
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import CloudMachine
from muster.sim.cluster.options import RunOptions

QUARANTINE_S = (5.0, 60.0)  # instead of minutes, as all time limits of a run
FAULTS: Mapping[str, tuple[float, float]] = {
    "session_lost_before": (0.005, 0.08),  # per command: the connection breaks, and nothing was done
    "session_lost_after": (0.005, 0.08),  # per command: it ran, and its answer is lost
    "host_late": (0.01, 0.1),  # per command: it takes longer, perhaps too long
    "host_hangs": (0.002, 0.03),  # per command: the caller gives it up, and it runs much later
    "copy_breaks": (0.02, 0.2),  # per copy: half of the file arrives, then the connection breaks
    "command_fails": (0.01, 0.1),  # per command of a set-up
    "answer_cut": (0.002, 0.03),  # per command: only half of the answer arrives
    "release_stuck": (0.02, 0.3),  # per release: processes do not end
    "host_off": (0.01, 0.08),  # per tick: a host starts again, and is off for a while
    "host_unreachable": (0.01, 0.08),  # per tick: nobody reaches a host for a while; what runs there runs on
    "host_taken": (0.02, 0.15),  # per tick: another cluster has a free host for a while
    "host_listed_change": (0.02, 0.15),  # per tick: a host is not on the list for a while
    "host_refuses": (0.005, 0.05),  # per tick: a host does not know the user for a while
    "host_busy": (0.005, 0.05),  # per tick: somebody else's Ray runs on a free host for a while
    "disk_full": (0.005, 0.05),  # per tick: nothing can be written on a host for a while
    "lock_stale": (0.01, 0.1),  # per tick: a free host has a lock from before its last start
    "lock_orphaned": (0.005, 0.03),  # per tick: a free host has a lock of this cluster that nobody knows
    "lock_foreign": (0.005, 0.05),  # per tick: a free host has a lock that muster has not written
    "clock_skewed": (0.01, 0.1),  # per tick: the clock of a host is wrong from now on
    "lock_forged": (0.005, 0.05),  # per tick: another user of a free host writes a lock there
}


def draw_rack_options(seed: Seed) -> RunOptions:
    """Draw the options of this seed: muster sets hosts up, and prices are known in half of the runs."""
    options, draw = draw_options(seed), seed.derive("sim.rack.hosts")
    options.spec = spec = on_rack(draw, options.spec)
    is_exact = draw.random() < 0.5
    hosts = {t.name: t.max_nodes if is_exact else draw.randint(0, 6) for t in spec.node_types[1:]}
    options.catalogue = RackCatalogue(types=options.catalogue.types, prices=options.catalogue.prices)
    options.catalogue.hosts = hosts
    options.shown |= {"hosts": hosts, "cloud": "rack"}
    return options


def on_rack(draw: Stream, spec: ClusterSpec) -> ClusterSpec:
    is_priced = draw.random() < 0.5
    head, *workers = spec.node_types
    bare = [
        replace(t, offers=(), resize=None, price_per_hour=t.price_per_hour if is_priced else None)
        for t in workers
    ]
    return replace(spec, node_types=(head, *bare), install_runtime=True)


class RackCluster(FaultyCluster):
    """The simulated cluster on a rack."""

    cloud_class = RackCloud
    forgets_hosts = True
    cloud: RackCloud
    installer: RackInstaller

    def __init__(self, seed: Seed, options: RunOptions, faults: Faults) -> None:
        draw = seed.derive("sim.rack.faults")
        for kind, (low, high) in FAULTS.items():
            is_on, rate = draw.random() < 0.5, draw.uniform(low, high)
            if is_on and faults.rates:
                faults.rates[kind] = round(rate, 4)
        # Muster starts its nodes itself, with their ids, and the file names the head's host.
        for kind in ("node_without_ip", "node_with_other_id", "head_replaced"):
            faults.rates.pop(kind, None)
        super().__init__(seed, options, faults)
        self.cloud.on_started = self.join
        self.installer = RackInstaller(self.world, self.crash_points, self.cloud)

    def _start_controller(self) -> ClusterController:
        controller = super()._start_controller()
        self.installer.reconnect()
        return controller

    def tick(self) -> None:
        counts = self.cloud.counted()
        head, *workers = self.spec.spec.node_types
        types = [replace(known, existing=counts.get(known.name, 0)) for known in workers]
        self.spec.spec = replace(self.spec.spec, node_types=(head, *types))
        super().tick()
        if self.controller is None and self.cloud.loop is not None:
            self.cloud.loop.close()  # the process is gone, and all that it did at the time

    def lose_head(self, ticks_ago: int) -> None:
        assert self.cloud.loop is not None
        if self.copies:
            self.cloud.loop.close()
        super().lose_head(ticks_ago)

    def join(self, machine: CloudMachine) -> None:
        super().join(machine)
        if isinstance(machine, RackMachine) and self.runtime.node_on(machine) is not None:
            machine.on.nodes.add(machine.cloud_id)


class RackRun(SeedRun):
    """One seed on a rack."""

    cluster_class = RackCluster
    command_options = " --cloud rack"
    cluster: RackCluster

    def draw_options(self) -> RunOptions:
        return draw_rack_options(self.seed)

    def checks(self) -> tuple[Check, ...]:
        return (*super().checks(), nodes_run_on_hosts_of_this_cluster)

    def to_end(self, until_tick: int | None = None) -> Report:
        with mock.patch.object(decisions, "QUARANTINE_S", QUARANTINE_S):
            report = super().to_end(until_tick)
        if report.ok and until_tick is None:
            report.violations.extend(locks_that_are_left(self.cluster))
        return report

    def _inject_faults(self) -> None:
        super()._inject_faults()
        faults, cloud, world = self.faults, self.cluster.cloud, self.cluster.world
        for kind in FAULTS:
            workers = [host for host in cloud.hosts.values() if not host.is_head]
            if workers and kind in _CHANGES and faults.hit(kind):
                host, for_s = faults.stream(kind).choice(workers), faults.between(kind, 20, 300)
                if kind in _OF_FREE and (host.lock or host.nodes or world.time < host.off_until):
                    continue
                _CHANGES[kind](self.cluster, host, for_s)


def _take(cluster: RackCluster, host: SimHost, for_s: float) -> None:
    _lock(cluster, host, holder_text("other", f"o-{cluster.world.time:g}", host.boot), for_s)


def _lock(cluster: RackCluster, host: SimHost, text: str, for_s: float) -> None:
    host.lock = text

    def free() -> None:
        if host.lock == text:
            host.lock = ""

    cluster.world.after(for_s, free)


def _forge(cluster: RackCluster, host: SimHost, for_s: float) -> None:
    """A user of the host says that it is this cluster's, and that another head runs the cluster now."""
    name, fields = f"{host.ip}-forged", {"node_type": host.node_type, "tags": {TAG_MUSTER_HEAD: "10.6.6.6:1"}}
    whose = cluster.faults.stream("lock_forged").choice((CLUSTER, "other"))
    host.lock = text = holder_text(whose, name, host.boot, **fields)
    host.owner = "nobody"

    def remove() -> None:
        if host.lock == text:
            host.lock = host.owner = ""

    cluster.world.after(for_s, remove)


def _orphan(cluster: RackCluster, host: SimHost, for_s: float) -> None:
    name = f"{host.ip}-orphan-{cluster.world.time:g}"
    host.lock = holder_text(CLUSTER, name, host.boot, node_type=host.node_type)


def _stale(cluster: RackCluster, host: SimHost, for_s: float) -> None:
    whose = cluster.faults.stream("lock_stale").choice((CLUSTER, "other"))
    host.lock = holder_text(whose, f"{host.ip}-stale", "an earlier start", node_type=host.node_type)


def _until(field: str) -> object:
    def change(cluster: RackCluster, host: SimHost, for_s: float) -> None:
        setattr(host, field, max(getattr(host, field), cluster.world.time + for_s))

    return change


def _skew(cluster: RackCluster, host: SimHost, for_s: float) -> None:
    host.skew_s = for_s * 1000 - 100_000


_CHANGES: dict[str, object] = {
    "host_off": lambda cluster, host, for_s: cluster.cloud.reboot(host, for_s),
    "host_unreachable": _until("off_until"),
    "host_taken": _take,
    "host_listed_change": _until("unlisted_until"),
    "host_refuses": _until("refuses_until"),
    "host_busy": _until("rays_until"),
    "disk_full": _until("full_until"),
    "lock_stale": _stale,
    "lock_orphaned": _orphan,
    "lock_foreign": lambda cluster, host, for_s: _lock(cluster, host, "do not touch", for_s),
    "lock_forged": _forge,
    "clock_skewed": _skew,
}
_OF_FREE = ("host_taken", "host_busy", "lock_stale", "lock_orphaned", "lock_foreign", "lock_forged")


def nodes_run_on_hosts_of_this_cluster(cluster: FaultyCluster) -> Iterator[str]:
    """Check that a host has at most one machine, and that a node's host is locked for it."""
    assert isinstance(cluster, RackCluster)
    yield from cluster.cloud.problems
    machines = [m for m in cluster.cloud.alive() if isinstance(m, RackMachine)]
    for machine in machines:
        holder = machine.on.holder
        if holder is None or holder.cloud_id != machine.cloud_id:
            yield f"{machine.cloud_id} exists, and the lock of its host is {machine.on.lock!r}"
        if machine.on.nodes - {machine.cloud_id}:
            yield f"{machine.ip} runs processes of {machine.on.nodes}, and is {machine.cloud_id}"
    for node in cluster.runtime.live_nodes():
        machine = node.machine
        is_worker = isinstance(machine, RackMachine) and machine.kind is NodeKind.WORKER
        if is_worker and machine.exists and machine.cloud_id not in machine.on.nodes:
            yield f"{machine.cloud_id} has a node, and no process on its host"


def locks_that_are_left(cluster: RackCluster) -> Iterator[str]:
    """Check, once all is at rest, that no lock of this cluster is on a host that is not its machine."""
    for host in cluster.cloud.hosts.values():
        holder = host.holder
        if holder is not None and holder.cluster == CLUSTER and cluster.cloud.on(host) is None:
            yield f"host {host.ip} keeps the lock of {holder.cloud_id}"
        if holder is None and host.nodes:
            yield f"host {host.ip} runs processes of {host.nodes} without a lock"
