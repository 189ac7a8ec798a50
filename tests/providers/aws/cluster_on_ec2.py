"""A cluster on the EC2 server: the real controller, planner, ledger and adapter; only the runtime is played.

Time is virtual: what the provider waits for is waited at once. Each machine that EC2 lists as running has a
node, which is idle unless the test says otherwise.
"""

from __future__ import annotations

import itertools

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds, NodeId
from muster.base.resources import Resources
from muster.base.rng import Ambient, Seed
from muster.cluster.controller import ClusterController
from muster.cluster.model import Demand, NodeReport, NodeStatus, RuntimeReport
from muster.cluster.ports import NoticeReport, Ports
from muster.config.document import Document
from muster.config.to_spec import node_launches, to_spec
from muster.providers.aws.provider import AwsParts, AwsProvider
from muster.providers.background_calls import inline_pools
from muster.providers.kind import parse_config
from muster.providers.v1.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND, TAG_RAY_USER_NODE_TYPE
from muster.stores.ledger.memory import MemoryInstanceStore

IMAGE = "ami-03cf127a"
FILE = f"""
cluster_name: NAME
provider: {{type: aws, region: us-east-1, disable_node_updaters: true}}
max_workers: 20
idle_timeout_minutes: 1
upscaling_speed: 100
head_node_type: head
available_node_types:
  head:
    resources: {{CPU: 2}}
    node_config: {{InstanceType: m5.large, ImageId: {IMAGE}}}
  small:
    resources: {{CPU: 4}}
    max_workers: 20
    node_config: {{InstanceType: m5.xlarge, ImageId: {IMAGE}}}
    offers:
      - {{zone: us-east-1a, market: spot, price_per_hour: 0.06}}
      - {{zone: us-east-1b, market: spot, price_per_hour: 0.07}}
      - {{zone: us-east-1a, market: on-demand, price_per_hour: 0.20}}
  other:
    resources: {{CPU: 4}}
    max_workers: 20
    node_config: {{InstanceType: m6i.xlarge, ImageId: {IMAGE}}}
    offers:
      - {{zone: us-east-1a, market: on-demand, price_per_hour: 0.30}}
"""

_numbers = itertools.count(1)


class _Runtime:
    """Every running machine has a node; `busy` machines are not idle."""

    def __init__(self, cluster) -> None:
        self.cluster, self.version = cluster, 0
        self.wanted = 0  # requests of 4 CPUs; each runs on a worker of its own
        self.idle_s = 0.0

    def read(self):
        self.version += 1
        nodes = tuple(self._nodes())
        waiting = self.wanted - sum(not one.is_head for one in nodes)
        demands = (Demand(shape=Resources.of({"CPU": 4}), count=waiting),) if waiting > 0 else ()
        return RuntimeReport(version=self.version, nodes=nodes, demands=demands)

    def _nodes(self):
        spec = self.cluster.spec
        for node_id, machine in self.cluster.provider.listing.living().items():
            if machine.state != "running" or f"n-{node_id}" in self.cluster.drainer.drained:
                continue
            name = machine.tags[TAG_RAY_USER_NODE_TYPE]
            total = spec.node_type(name).resources
            is_head = machine.tags[TAG_RAY_NODE_KIND] == NODE_KIND_HEAD
            is_idle = self.idle_s > 0 and not is_head
            yield NodeReport(
                node_id=NodeId(f"n-{node_id}"),
                cloud_id=node_id,
                node_type=name,
                status=NodeStatus.IDLE if is_idle else NodeStatus.RUNNING,
                is_head=is_head,
                total=total,
                available=total if is_idle else Resources.of({}),
                idle_s=self.idle_s if is_idle else 0.0,
                ip=machine.internal_ip,
            )

    def publish(self, version, report):
        pass


class _Drainer:
    """Whoever is asked drains at once: the node is gone at the next tick, so its machine is ended."""

    def __init__(self) -> None:
        self.drained = set()

    def drain(self, action):
        self.drained.add(action.node_id)

    def poll(self):
        return ()


class _Notices:
    """What the watchers on the machines have read."""

    def __init__(self) -> None:
        self.given = ()

    def read(self):
        return NoticeReport(notices=self.given)


class _Spec:
    def __init__(self, spec) -> None:
        self.spec = spec

    def current(self):
        return self.spec, ""


class ClusterOnEc2:
    """One cluster; `restart` is another process that takes over with the same ledger."""

    def __init__(self, text: str = FILE, **provider) -> None:
        self.name = f"life-{next(_numbers)}"
        self.config = parse_config(Document(text.replace("NAME", self.name), "c1.yaml"))
        self.spec = to_spec(self.config)
        self.clock = ManualClock(10_000.0)
        self.ids = CountingIds()
        self.store = MemoryInstanceStore(clock=self.clock)
        self.settings = {**self.config.provider.settings(), **provider}
        self.runtime, self.drainer, self.notices = _Runtime(self), _Drainer(), _Notices()
        self.restart()

    def restart(self) -> None:
        launches = node_launches(self.config)
        parts = AwsParts(clock=self.clock, pools=inline_pools())
        self.provider = AwsProvider(self.settings, self.name, lambda: launches, parts, installs_runtime=True)
        ports = Ports(
            provider=self.provider,
            nodes=self.runtime,
            drainer=self.drainer,
            installer=None,
            store=self.store,
            spec=_Spec(self.spec),
            notices=self.notices,
        )
        self.controller = ClusterController(ports, Ambient(clock=self.clock, ids=self.ids, seed=Seed(1)))

    def start_head(self) -> str:
        tags = {TAG_RAY_NODE_KIND: NODE_KIND_HEAD, TAG_RAY_USER_NODE_TYPE: "head"}
        return next(iter(self.provider.create("head", node_launches(self.config)["head"], tags)))

    def ask(self, count: int) -> None:
        self.runtime.wanted = count

    def tick(self, times: int = 1, seconds: float = 1.0):
        for _ in range(times):
            self.clock.advance(seconds)
            result = self.controller.tick()
        return result

    def workers(self) -> list[tuple[str, str, str]]:
        """Return type, zone and market of every worker that EC2 has, in order."""
        found = self.provider.listing.refresh().values()
        return sorted(
            (one.tags[TAG_RAY_USER_NODE_TYPE], one.zone, "spot" if one.is_spot else "on-demand")
            for one in found
            if one.tags[TAG_RAY_NODE_KIND] != NODE_KIND_HEAD
        )
