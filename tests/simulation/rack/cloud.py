"""The real RackProvider over simulated hosts: a machine is a lock of this cluster on a host."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

import msgspec
from tests.simulation.provider_cloud import ProviderCloud
from tests.simulation.rack.hosts import SimHost, SimRunner, holder_text
from tests.simulation.rack.virtual_loop import VirtualLoop

from muster.base.ids import CloudId, CountingIds, RequestId
from muster.base.rng import Stream
from muster.cluster.model import NodeKind, Offer
from muster.config.to_spec import NodeLaunch
from muster.providers.rack.connections import HostMemory, Rack
from muster.providers.rack.host_list import RackHost
from muster.providers.rack.hosts import TakenHost
from muster.providers.rack.provider import RackProvider
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.world import World

CLUSTER = "simulated"
INITIALIZE, PREPARE, START = "initialize the disk", "install the packages", "ray start"
FILE = "/opt/data"
NEEDED = frozenset({FILE, INITIALIZE, PREPARE})


@dataclass
class RackCatalogue(Catalogue):
    """What is in the rack: so many hosts of each type."""

    hosts: dict[str, int] = field(default_factory=dict)


@dataclass
class RackMachine(CloudMachine):
    """A host while this cluster has its lock."""

    on: SimHost = field(default_factory=lambda: SimHost("", ""))

    @property
    def ip(self) -> str:
        return self.on.ip

    def answers(self, now: float) -> bool:
        return now >= self.on.off_until


@dataclass
class MemoryFile:
    """The file of taken hosts: it survives the monitor, and is lost with the head."""

    text: bytes = b"[]"


@dataclass
class SimMemory(HostMemory):
    """One process's access to the file.

    When Python collects the coroutines of a killed process, it runs their `finally` blocks, at any later
    time. A closed loop marks that process as killed, so those blocks write nothing.
    """

    file: MemoryFile
    loop: VirtualLoop

    def read(self) -> list[TakenHost]:
        return msgspec.json.decode(self.file.text, type=list[TakenHost])

    def write(self, taken: Iterable[TakenHost]) -> None:
        if not self.loop.is_closed:
            self.file.text = msgspec.json.encode(list(taken))


class RackCloud(ProviderCloud):
    """A SimCloud whose port is the real RackProvider."""

    sells: RackCatalogue

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.hosts: dict[str, SimHost] = {}
        self.memory_file = MemoryFile()
        self.loop: VirtualLoop | None = None
        self.on_started: Callable[[CloudMachine], None] = lambda machine: None
        self.problems: list[str] = []  # of set-ups
        self._lives = self._heads = 0
        for number, (name, count) in enumerate(self.sells.hosts.items()):
            for place in range(1, count + 1):
                ip = f"10.1.{number}.{place}"
                self.hosts[ip] = SimHost(ip, name, empties_locks=draw.random() < 0.5)
        self.reconnect()

    def reconnect(self) -> None:
        """Start a new provider; of the old one nothing runs any more, but its commands do."""
        if self.loop is not None:
            self.loop.close()
        self._lives += 1
        self.loop = loop = VirtualLoop(self._world)
        rack = Rack(
            hosts=self._listed_hosts,
            make_runner=lambda host: self.runner(host.ip, loop),  # type: ignore[arg-type,return-value]
            lock_dir="/tmp",
            clock=self._world,
            memory=SimMemory(self.memory_file, loop),
            launcher="simulated",
        )
        ids = CountingIds(epoch=self._lives)
        self.provider = RackProvider(CLUSTER, rack, self._on_sale, ids, loop=loop)

    def runner(self, ip: str, loop: VirtualLoop, cloud_id: str = "") -> SimRunner:
        host, executed = self.hosts[ip], self._executed
        return SimRunner(host, self._world, self._faults, self._draw, loop, executed, cloud_id)

    def _listed_hosts(self) -> dict[str, RackHost]:
        now = self._world.time
        return {ip: host.listed for ip, host in self.hosts.items() if now >= host.unlisted_until}

    def counted(self) -> dict[str, int]:
        """Return how many hosts of each type are on the list now."""
        listed = [host.node_type for host in self._listed_hosts().values() if not host.is_head]
        return {name: listed.count(name) for name in self.sells.types}

    def _on_sale(self) -> dict[str, NodeLaunch]:
        return {
            name: NodeLaunch(node_type=name, launch_hash=kind.launch_hash)
            for name, kind in self.sells.types.items()
        }

    # -- what happens on the hosts ------------------------------------------------------------------

    def _executed(self, host: SimHost, verb: str, words: Mapping[str, str], is_answered: bool) -> None:
        """Keep the machines as the locks are. One whose taker got no answer is a lock to be released."""
        if verb == "release":
            machine = self.machines.get(CloudId(words["ID"]))
            if machine is not None and machine.exists:
                super().end(machine, "terminated")
        elif verb == START:
            self._start(host, CloudId(words["ID"]), words["DONE"].splitlines())
        elif verb == "take" and is_answered:
            holder = host.holder
            is_written = holder is not None and f'"{holder.cloud_id}"' in words["HOLDER"]
            if holder is not None and is_written and holder.cloud_id not in self.machines:
                request = RequestId(holder.request_id)
                self.add(host, CloudId(holder.cloud_id), None if self._is_forgotten(request) else request)

    def _start(self, host: SimHost, cloud_id: CloudId, done: Iterable[str]) -> None:
        """Ray starts on a host: its node joins where the lock is a machine."""
        if missing := NEEDED - host.done[cloud_id] - set(done):
            self.problems.append(f"Ray was started on {host.ip} without {', '.join(sorted(missing))}")
        host.nodes.add(cloud_id)
        machine = self.machines.get(cloud_id)
        if machine is not None and machine.exists:
            self.on_started(machine)

    def _is_forgotten(self, request: RequestId) -> bool:
        """Return whether the request had a machine that a later process cannot know of.

        It has ended meanwhile: locks keep no history. Or a new head, which has no file of taken hosts, got
        no answer from its host.
        """
        machines = [m for m in self.machines.values() if m.request_id == request]
        if self._heads > 1 and any(m.exists and self._is_silent(m.ip) for m in machines):
            return True
        return self._lives > 2 and not all(m.exists for m in machines)

    def _is_silent(self, ip: str) -> bool:
        state = self.provider.control.states.get(ip)
        return state is None or state.report is None or bool(state.problem)

    def add(self, host: SimHost, cloud_id: CloudId, request: RequestId | None) -> RackMachine:
        """Add the machine of a lock that was written just now."""
        known = self.sells.types.get(host.node_type)
        machine = RackMachine(
            cloud_id=cloud_id,
            node_type=host.node_type,
            price_per_hour=self.sells.prices.get(host.node_type, 0.0),
            created_at=self._world.time,
            kind=NodeKind.HEAD if host.is_head else NodeKind.WORKER,
            request_id=request,
            launch_hash=known.launch_hash if known else "",
            up=True,
            on=host,
        )
        self.machines[cloud_id] = machine
        self.sizes.add(cloud_id, known)
        return machine

    def create(
        self,
        node_type: str,
        kind: NodeKind = NodeKind.WORKER,
        request: RequestId | None = None,
        offer: Offer | None = None,
    ) -> CloudMachine:
        """Take the head's host, as `muster up` does from another computer."""
        self._heads += 1
        host = SimHost(f"10.9.0.{self._heads}", node_type, is_head=True)
        self.hosts[host.ip] = host
        cloud_id = CloudId(f"{host.ip}-head")
        fields = {"is_head": True, "node_type": node_type}
        host.lock = holder_text(CLUSTER, cloud_id, host.boot, **fields)
        return self.add(host, cloud_id, None)

    def on(self, host: SimHost) -> RackMachine | None:
        """Return the machine that a host is now."""
        machines = (m for m in self.alive() if isinstance(m, RackMachine) and m.on is host)
        return next(machines, None)

    def end(self, machine: CloudMachine, how: str) -> None:
        """A machine ends with its lock; anything else is a host that starts again."""
        assert isinstance(machine, RackMachine)
        if how == "lost":  # the head, with all of its files
            del self.hosts[machine.on.ip]
            self.memory_file.text = b"[]"
            super().end(machine, how)
        elif machine.exists:
            self.reboot(machine.on, 20.0)

    def reboot(self, host: SimHost, off_s: float) -> None:
        machine = self.on(host)
        host.boots += 1
        host.off_until = max(host.off_until, self._world.time + off_s)
        host.nodes.clear()
        if host.empties_locks:
            host.lock = host.owner = ""
        if machine is not None:
            super().end(machine, "rebooted")

    def end_shortages(self) -> None:
        super().end_shortages()
        for host in self.hosts.values():
            now = self._world.time
            host.off_until = host.refuses_until = host.full_until = host.unlisted_until = host.rays_until = (
                now
            )
            if host.holder is None or host.holder.cluster != CLUSTER:
                host.lock = host.owner = ""
