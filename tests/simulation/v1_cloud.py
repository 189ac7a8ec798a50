"""Put the simulated cloud behind the v1 interface, to test V1Adapter under every fault and every kill.

`SimNodeProvider` is a v1 provider over a SimCloud's machines; `V1SimCloud` is that SimCloud with the adapter
around the provider, all in one thread. A controller that is started again gets a new adapter. The cloud lists
a new machine up to ten minutes late, and create calls wait in the adapter.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tests.simulation.checkers import STAYING, Check
from tests.simulation.cluster import FaultyCluster
from tests.simulation.provider_cloud import LatePool, ProviderCloud
from tests.simulation.run import SeedRun

from muster.base.ids import CloudId, RequestId
from muster.base.rng import Stream
from muster.cluster.model import CloudInstance, FailureKind, NodeKind, Offer
from muster.config.to_spec import NodeLaunch
from muster.providers.background_calls import inline_pools
from muster.providers.node_provider import NodeLaunchException, NodeProvider
from muster.providers.v1 import tags as t
from muster.providers.v1.adapter import V1Adapter
from muster.sim.cluster.cloud import KINDS, REFUSALS
from muster.sim.cluster.crash_points import CrashPoints, crash_point
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.machines import Catalogue, CloudMachine
from muster.sim.cluster.options import RunOptions
from muster.sim.cluster.world import World

LATEST_LISTING_S = 600.0
LONGEST_WAIT_S = 400.0  # of a create call in the adapter
_KIND_TAGS = {NodeKind.HEAD: t.NODE_KIND_HEAD, NodeKind.WORKER: t.NODE_KIND_WORKER, NodeKind.UNMANAGED: "?"}


class SimNodeProvider(NodeProvider):
    """Shows the machines of a SimCloud by v1 names; faults happen inside its calls."""

    buys_offers = True

    def __init__(self, cloud: V1SimCloud, cluster_name: str = "simulated") -> None:
        super().__init__({"type": "sim", "disable_node_updaters": cloud.installs_runtime}, cluster_name)
        self.crash_points = cloud.crash_points
        self._cloud = cloud
        self._seen: dict[str, CloudInstance] = {}  # the newest listing; calls for a single node read it

    @crash_point("v1.non_terminated_nodes")
    def non_terminated_nodes(self, tag_filters: dict[str, str]) -> list[str]:
        with self._cloud.lock:
            self._seen = {str(key): machine for key, machine in self._cloud.list_now().items()}
            return [n for n in self._seen if tag_filters.items() <= self.node_tags(n).items()]

    def is_running(self, node_id: str) -> bool:
        machine = self._cloud.machines.get(CloudId(node_id))
        return machine is not None and machine.up and machine.exists

    def is_terminated(self, node_id: str) -> bool:
        machine = self._cloud.machines.get(CloudId(node_id))
        return machine is None or not machine.exists

    def node_tags(self, node_id: str) -> dict[str, str]:
        return self._cloud.tags_of(CloudId(node_id), self._seen.get(node_id))

    def set_node_tags(self, node_id: str, tags: dict[str, str]) -> None:
        with self._cloud.lock:
            self._cloud.written.setdefault(CloudId(node_id), {}).update(tags)

    def internal_ip(self, node_id: str) -> str | None:
        machine = self._cloud.machines.get(CloudId(node_id))
        shown = machine.shown() if machine is not None else self._seen.get(node_id)
        return shown.internal_ip if shown is not None else None

    def external_ip(self, node_id: str) -> str | None:
        return None

    @crash_point("v1.create_node")
    def create_node(
        self, node_config: dict[str, Any], tags: dict[str, str], count: int
    ) -> dict[str, Any] | None:
        with self._cloud.lock:
            return self._cloud.sell(tags, count, node_config.get("offer"))

    @crash_point("v1.terminate_node")
    def terminate_node(self, node_id: str) -> None:
        with self._cloud.lock:
            self._cloud.release(CloudId(node_id))


class V1SimCloud(ProviderCloud):
    """A SimCloud whose port is V1Adapter over its own v1 provider."""

    def __init__(
        self, world: World, crash_points: CrashPoints, faults: Faults, draw: Stream, sells: Catalogue
    ) -> None:
        super().__init__(world, crash_points, faults, draw, sells)
        self.lock = threading.RLock()
        self.written: dict[CloudId, dict[str, str]] = {}
        self.is_connected: Callable[[], bool] = lambda: True  # whether the controller's process lives
        self._pool = LatePool(world, faults)
        self.reconnect()

    def reconnect(self) -> None:
        self._pool.is_dead = True
        self._pool = LatePool(self._world, self._faults, LONGEST_WAIT_S, self.is_connected)
        self.provider = V1Adapter(
            SimNodeProvider(self),
            self._on_sale,
            cluster_name="simulated",
            pools=replace(inline_pools(), launch=self._pool),
            clock=self._world,
        )

    def deliver(
        self, node_type: str, request_id: RequestId | None, offer: Offer | None = None
    ) -> CloudMachine:
        """Create a machine; one that is listed late may be so by ten minutes."""
        machine = super().deliver(node_type, request_id, offer)
        if machine.listed_from > machine.created_at:
            late_s = self._faults.between("list_late", 5, LATEST_LISTING_S)
            machine.listed_from = machine.created_at + late_s
        return machine

    def _on_sale(self) -> dict[str, NodeLaunch]:
        return {
            name: NodeLaunch(node_type=name, launch_hash=kind.launch_hash)
            for name, kind in self.sells.types.items()
        }

    # -- what the v1 provider asks of it ------------------------------------------------------------

    def tags_of(self, cloud_id: CloudId, seen: CloudInstance | None) -> dict[str, str]:
        """Return the tags of a machine; KeyError for a machine that was never listed."""
        machine = self.machines.get(cloud_id)
        shown = machine.shown() if machine is not None else seen
        if shown is None:
            raise KeyError(cloud_id)
        return {
            t.TAG_RAY_NODE_KIND: _KIND_TAGS[shown.kind],
            t.TAG_RAY_USER_NODE_TYPE: shown.node_type,
            t.TAG_RAY_LAUNCH_CONFIG: shown.launch_hash,
            t.TAG_RAY_LAUNCH_REQUEST: t.request_tag(shown.request_id or RequestId("")),
            **self.written.get(cloud_id, {}),
            **(
                {}
                if machine is None or machine.listed_type is None
                else {t.TAG_RAY_USER_NODE_TYPE: shown.node_type}
            ),
        }

    def sell(
        self, tags: Mapping[str, str], count: int, terms: Mapping[str, Any] | None = None
    ) -> dict[str, Any] | None:
        """Handle one create call: all, some or no machines, reported correctly, wrongly or not at all."""
        faults, offer = self._faults, None if terms is None else Offer(**terms)
        if faults.hit("launch_refused"):
            kind = faults.stream("launch_refused").choice(KINDS)
            raise REFUSALS[kind](f"simulated: refused ({kind.value})")
        if faults.hit("launch_broken"):
            raise ConnectionError("simulated: the create call broke")
        if faults.hit("launch_dropped"):
            return None
        made: dict[str, Any] = {}
        for _ in range(count):
            refused = self.refusal(tags[t.TAG_RAY_USER_NODE_TYPE], offer)
            if refused is FailureKind.UNKNOWN:
                break  # fewer than requested, without an error
            if refused is not None:
                raise NodeLaunchException(refused.value, "simulated: no more of these")
            if faults.hit("unit_dropped"):
                continue
            request = t.request_of(tags.get(t.TAG_RAY_LAUNCH_REQUEST))
            machine = self.deliver(tags[t.TAG_RAY_USER_NODE_TYPE], request, offer)
            self.written[machine.cloud_id] = dict(tags)
            made[machine.cloud_id] = {}
        if faults.hit("launch_reply_lost"):
            raise TimeoutError("simulated: the reply to the create call was lost")
        return made

    def release(self, cloud_id: CloudId) -> None:
        """Handle one terminate call: gone at once, refused, dropped, or gone after a while."""
        machine, faults = self.machines.get(cloud_id), self._faults
        if faults.hit("terminate_refused"):
            kind = faults.stream("terminate_refused").choice(KINDS)
            raise REFUSALS[kind]("simulated: terminate refused")
        if faults.hit("terminate_unit_refused"):
            raise RuntimeError("simulated: this machine cannot be terminated now")
        if machine is not None and machine.exists and not machine.answers(self._world.time):
            raise RuntimeError("simulated: the host is off")
        if machine is None or not machine.exists or faults.hit("terminate_lost"):
            return
        if faults.hit("terminate_slow"):
            self._world.after(
                faults.between("terminate_slow", 10, 90), lambda: self.end(machine, "terminated")
            )
            return
        self.end(machine, "terminated")


class V1SimulatedCluster(FaultyCluster):
    """The simulated cluster, launched through the adapter."""

    cloud_class = V1SimCloud
    cloud: V1SimCloud

    def _connect(self) -> None:
        self.cloud.is_connected = lambda: self.controller is not None
        super()._connect()


class NoTypeExceedsItsMaximum:
    """NoTypeExceedsItsMaximum counts the machines that exist, listed or not, except those on their way out.

    A limit that was lowered holds for later launches. A head that starts from an older ledger does not know
    what was launched since, nor does a controller know the time after its clock was set forward: only what
    is launched later is counted then.
    """

    def __init__(self) -> None:
        self._most: Counter[str] = Counter()

    def __call__(self, cluster: FaultyCluster) -> Iterator[str]:
        for known in cluster.spec.spec.node_types:
            self._most[known.name] = max(self._most[known.name], known.max_nodes)
        ahead = [change.at for change in cluster.clock_changes if change.ahead_s > 0]
        since = max((*cluster.restored_at, *ahead), default=-1.0)
        gone = {cloud_id for _, cloud_id in cluster.cloud.terminated}
        leaving = (r for r in cluster.store.live.values() if r.cancelled or r.state not in STAYING)
        gone |= {record.cloud_id for record in leaving if record.cloud_id}
        staying = (m for m in cluster.cloud.alive() if m.kind is NodeKind.WORKER and m.created_at > since)
        for name, count in Counter(m.node_type for m in staying if m.cloud_id not in gone).items():
            if count > self._most[name]:
                yield f"{count} machines of {name} exist, its maximum is {self._most[name]}"


class V1Run(SeedRun):
    """One seed with every machine launched through the adapter."""

    cluster_class = V1SimulatedCluster
    command_options = " --cloud v1"

    def draw_options(self) -> RunOptions:
        options = super().draw_options()
        options.calm_s += 4 * LATEST_LISTING_S  # for machines that come when nobody expects them any more
        return options

    def checks(self) -> tuple[Check, ...]:
        return (*super().checks(), NoTypeExceedsItsMaximum())
