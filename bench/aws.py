"""Count the calls to AWS: for 1,000 machines that are launched, and for each tick after that, ours and Ray's.

Both against a moto server over HTTP, on this computer; the server counts. Ours is the provider as the
monitor uses it, Ray's its own provider under its own monitor.
"""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Mapping
from typing import Any

from bench import table
from bench.options import Options
from muster.base.ids import RequestId

MANY, QUICK = 1000, 100
TICKS, TICK_S = 60, 5.0  # as Ray's loop, and as ours while nothing changes
SETTLED_S = 61.0
IMAGE = "ami-03cf127a"


def run(options: Options) -> dict[str, float]:
    """Launch machines with both, one after the other, on an empty server each."""
    warnings.simplefilter("ignore")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    from tests.providers.aws.ec2_server import Ec2Server

    many = QUICK if options.quick else MANY
    server = Ec2Server()
    before = dict(os.environ)
    os.environ.update(server.environment)
    try:
        sides = {"ours": ours(server, many)}
        if options.with_peer:
            server.reset()
            sides["ray"] = rays(server, many)
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.close()
    figures = compared(sides, many)
    show(sides, many)
    return figures


def ours(server: Any, many: int) -> dict[str, float]:
    """Launch as the monitor does: a request for all machines, and a list per tick."""
    from muster.base.clock import ManualClock
    from muster.config.to_spec import NodeLaunch
    from muster.providers.aws import wire
    from muster.providers.aws.provider import AwsParts, AwsProvider
    from muster.providers.background_calls import inline_pools

    wire.READ_S = 900.0  # moto takes long to list so many, on a busy computer longer
    table.progress(f"aws: ours, {many} machines")
    clock = ManualClock()
    launch = NodeLaunch(node_type="worker", node_config={"InstanceType": "m5.large", "ImageId": IMAGE})
    parts = AwsParts(clock=clock, pools=inline_pools())
    port = AwsProvider({"region": "us-east-1"}, "ours", lambda: {"worker": launch}, parts)
    began = server.faults.calls.total()
    port.launch(RequestId("r-1"), {"worker": many})
    found = len(port.list_instances())
    if found != many or port.poll_launch_failures():
        raise RuntimeError(f"{found} of {many} machines were launched")
    launched = server.faults.calls.total() - began
    clock.advance(SETTLED_S)
    before = server.faults.calls.total()
    for _ in range(TICKS):
        clock.advance(TICK_S)
        port.list_instances()
    return {"launch": float(launched), "tick": (server.faults.calls.total() - before) / TICKS}


def rays(server: Any, many: int) -> dict[str, float]:
    """Let Ray's monitor buy the same; what its bootstrap would fill in is given."""
    import boto3

    from bench.peer import aws

    client = boto3.client("ec2")
    subnets = [one["SubnetId"] for one in client.describe_subnets()["Subnets"][:2]]
    group = client.create_security_group(GroupName="peer", Description="peer")["GroupId"]
    client.create_key_pair(KeyName="peer")
    head = {"ray-cluster-name": "peer", "ray-node-type": "head", "ray-user-node-type": "head"}
    head |= {"ray-node-status": "up-to-date", "Name": "ray-peer-head", "ray-launch-config": "x"}
    tags = [{"Key": key, "Value": value} for key, value in head.items()]
    client.run_instances(
        ImageId=IMAGE,
        InstanceType="m5.large",
        MinCount=1,
        MaxCount=1,
        SubnetId=subnets[0],
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    machine = {
        "InstanceType": "m5.large",
        "ImageId": IMAGE,
        "KeyName": "peer",
        "SubnetIds": subnets,
        "SecurityGroupIds": [group],
    }
    return aws.counted(
        many, server.environment, machine, server.faults.calls.total, lambda: server.count() - 1
    )


def compared(sides: Mapping[str, Mapping[str, float]], many: int) -> dict[str, float]:
    """Return the figures; the ratio is the smaller of that of launches and that of ticks.

    With fewer machines the look-ups of the first launch weigh more: such figures have a name of their own.
    """
    mine, size = sides["ours"], "" if many == MANY else f".{many}"
    figures = {f"calls_per_tick.{many}": mine["tick"], f"calls_per_launch{size}": mine["launch"] / many}
    if "ray" in sides:
        rays_ = sides["ray"]
        launch, tick = rays_["launch"] / mine["launch"], rays_["tick"] / mine["tick"]
        figures |= {
            f"ray_calls_per_tick.{many}": rays_["tick"],
            f"ray_calls_per_launch{size}": rays_["launch"] / many,
            f"calls_ratio{size}": min(launch, tick),
            f"calls_ratio_launch{size}": launch,
            f"calls_ratio_tick{size}": tick,
        }
    return figures


def show(sides: Mapping[str, Mapping[str, float]], many: int) -> None:
    rows = [
        (name, f"{one['launch']:.0f}", f"{one['launch'] / many:.3f}", f"{one['tick']:.2f}")
        for name, one in sides.items()
    ]
    table.show(f"Calls to AWS for {many} machines", ("", "until launched", "per machine", "per tick"), rows)
