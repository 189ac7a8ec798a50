"""Ec2Cloud is a SimCloud whose port is the real AwsProvider over a faulty EC2, all in one thread.

A controller that is started again gets a new provider: its outbox repeats the requests, and tokens and tags
show what was launched for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.simulation.ec2.api import CLUSTER, TYPE, CallClock, FaultyEc2
from tests.simulation.provider_cloud import LatePool, ProviderCloud

from muster.base.clock import Clock
from muster.base.ids import CloudId, RequestId
from muster.base.rng import Stream
from muster.cluster.model import Offer
from muster.config.to_spec import NodeLaunch
from muster.host.call_threads import InlinePool
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.provider import AwsParts, AwsProvider
from muster.providers.background_calls import CallPools
from muster.sim.cluster.crash_points import CrashPoints
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.world import World

SOLD_OUT_S = 15.0  # shorter than in life, as all timeouts of a run are
LATE_S = 60.0  # a new machine is described at the latest after this


@dataclass
class WorldClock(Clock):
    """The world's time; what a launch waits passes for its calls alone, as the loop does not wait for it."""

    world: World
    of_calls: CallClock

    def now(self) -> float:
        return self.world.now()

    def monotonic(self) -> float:
        return self.world.time

    def sleep(self, seconds: float) -> None:
        self.of_calls.sleep(seconds)


class Ec2Cloud(ProviderCloud):
    """The machines of one region, and the provider that launches them."""

    id_prefix = "i"
    keeps_stopped = False

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.api = FaultyEc2(world, crash_points, faults, self)
        self.retired: list[CloudMachine] = []  # earlier lives of machines that were stopped and started
        self._terms: dict[str, Offer] = {}  # by type and name: what is paid for an offer
        self._pool = LatePool(world, faults)
        self.reconnect()

    def reconnect(self) -> None:
        self._pool.is_dead = True  # its process is gone
        self._pool = LatePool(self._world, self._faults)
        self.provider = AwsProvider(
            {"region": "sim-1", "cache_stopped_nodes": self.keeps_stopped},
            CLUSTER,
            self._node_launches,
            AwsParts(
                clock=WorldClock(self._world, self.api.clock),
                calls=AwsCalls("sim-1", self.api.clock, wire=self.api),
                sold_out_s=SOLD_OUT_S,
                pools=CallPools(launch=self._pool, terminate=InlinePool(), new_listing=InlinePool),
            ),
            installs_runtime=self.installs_runtime,
        )

    def _node_launches(self) -> dict[str, NodeLaunch]:
        spot = {"InstanceMarketOptions": {"MarketType": "spot"}}
        return {
            name: NodeLaunch(
                node_type=name,
                node_config={"InstanceType": f"{TYPE}{name}", **(spot if one.market == "spot" else {})},
                launch_hash=one.launch_hash,
            )
            for name, one in self.sells.types.items()
        }

    def launch(self, request_id: RequestId, shape: Mapping[str, int], offers: Sequence[Offer] = ()) -> None:
        self._terms |= {f"{node_type} {offer.name}": offer for node_type in shape for offer in offers}
        super().launch(request_id, shape, offers)

    # -- the region below the calls -----------------------------------------------------------------

    def sold(self, node_type: str, request_id: RequestId | None, offer: Offer) -> CloudMachine:
        machine = self.deliver(node_type, request_id, self._terms.get(f"{node_type} {offer.name}"))
        if self._faults.hit("describe_late"):
            late_s = self._faults.between("describe_late", 2, LATE_S)
            machine.listed_from = max(machine.listed_from, self._world.time + late_s)
        return machine

    def stopped(self, machine: CloudMachine) -> None:
        self.end(machine, "stopped")

    def started(self, machine: CloudMachine, request_id: RequestId | None) -> None:
        """The machine has a new life under its id; the old one is kept for the bill."""
        self.retired.append(machine)
        again = self.create(machine.node_type, request=request_id, offer=machine.offer)
        del self.machines[again.cloud_id]
        again.cloud_id, again.launch_hash = machine.cloud_id, machine.launch_hash
        self.machines[machine.cloud_id] = again
        self.boot(again, round(self._draw.uniform(*self.sells.boot_s), 1))

    def start_ending(self, cloud_id: CloudId) -> None:
        self._start_ending(cloud_id)

    def bill(self) -> float:
        return super().bill() + sum(machine.cost(self._world.time) for machine in self.retired)

    def end_shortages(self) -> None:
        super().end_shortages()
        self.api.stock.end_shortages()
        self.api.denies_fleets = False
