"""What the tests of this directory share: cheap commands in the place of Ray, and clean endings."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from muster.base.clock import Clock, SystemClock
from muster.base.ids import RandomIds, RequestId
from muster.config.to_spec import NodeLaunch
from muster.providers.kind import ProviderContext
from muster.providers.process.launch_queue import NodeProgram
from muster.providers.process.provider import ProcessProvider
from muster.providers.process.ray_command import NodeSize
from muster.providers.process.records import NodeRecord

CLOCK = SystemClock()
AT_A_TIME = 2
LAUNCHES = {
    name: NodeLaunch(node_type=name, resources={"CPU": 1.0, **resources}, launch_hash="hash")
    for name, resources in {"small": {}, "huge": {"memory": 1e15}, "wide": {"CPU": 4096.0}}.items()
}


def until(holds: Callable[[], Any], seconds: float = 30.0, pause_s: float = 0.01) -> bool:
    give_up = CLOCK.monotonic() + seconds
    while not holds():
        if CLOCK.monotonic() > give_up:
            return False
        CLOCK.sleep(pause_s)
    return True


def shell(script: str, **more: Any) -> NodeProgram:
    """A node that runs a line of shell."""
    return NodeProgram(command=lambda record, ports: ["/bin/sh", "-c", script], **more)


def make_provider(
    home: Path, program: NodeProgram, clock: Clock = CLOCK, grace_s: float = 0.5, **inherited: str
) -> ProcessProvider:
    surroundings = ProviderContext(
        cluster_name="c",
        home=home,
        address="",
        clock=clock,
        ids=RandomIds(),
        environment={"PATH": "/usr/bin:/bin", **inherited},
    )
    return ProcessProvider(
        surroundings, lambda: LAUNCHES, program=program, grace_s=grace_s, at_a_time=AT_A_TIME
    )


def create(
    provider: ProcessProvider, count: int = 1, *, node_type: str = "small", request: str = ""
) -> list[str]:
    """Launch nodes, and return those that are new."""
    before = provider.list_instances()
    provider.launch(RequestId(request or RandomIds().fresh("r")), {node_type: count})
    return [one for one in provider.list_instances() if one not in before]


def record(cloud_id: str = "node-1", **changes: object) -> NodeRecord:
    """A node that exists on paper only."""
    plain = NodeRecord(
        cloud_id=cloud_id,
        cluster_name="c",
        node_type="small",
        tags={"a": "1"},
        size=NodeSize(resources={"CPU": 2.0}, labels={"tier": "x"}),
        temp_dir="/nowhere",
        created_at=1.0,
    )
    return replace(plain, **changes)
