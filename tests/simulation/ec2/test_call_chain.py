"""A reader who follows one launch from the loop to EC2 passes through few functions and few shapes."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.simulation.ec2.test_api import SPOT_A, ec2

import muster
from muster.cluster.controller import Executor
from muster.cluster.model import LaunchFailure
from muster.cluster.observe import FailureInbox
from muster.cluster.plan import Launch
from muster.cluster.ports import Ports
from muster.config.to_spec import NodeLaunch
from muster.providers.aws import fleet, launcher, machine_config, places, provider

SOURCE = str(Path(muster.__file__).parent)
MOST_FUNCTIONS = 12  # from Executor._call to the wire, both included
MOST_SHAPES = 6
# A place in a network, what tests replace, which keys boto3 knows, and defaults of settings.
NOT_OF_A_PURCHASE = {"Subnet", "AwsParts", "LaunchKeys", "MachineDefaults"}


def chain_to(frame) -> list[str]:
    """Return the functions of muster below `Executor._call`, without simulated ones."""
    found = []
    while frame is not None:
        code = frame.f_code
        if code.co_filename.startswith(SOURCE) and "/sim/" not in code.co_filename:
            found.append(f"{Path(code.co_filename).stem}.{code.co_name}:{code.co_firstlineno}")
        if code is Executor._call.__code__:
            break
        frame = frame.f_back
    return list(dict.fromkeys(reversed(found)))


def test_a_launch_passes_through_few_functions_from_the_executor_to_the_wire(monkeypatch):
    _, cloud = ec2()
    chains, send = [], type(cloud.api).send

    def watched(wire, service, operation, parameters):
        if operation == "create_fleet":
            chains.append(chain_to(sys._getframe()))
        return send(wire, service, operation, parameters)

    monkeypatch.setattr(type(cloud.api), "send", watched)
    ports = Ports(provider=cloud.provider, nodes=None, drainer=None, installer=None, store=None, spec=None)
    launch = Launch(request_id="r-1", shape={"cpu-4": 2}, instance_ids=("a", "b"), offers=(SPOT_A,))
    Executor(ports, FailureInbox())._call(launch)
    (chain,) = chains
    chain += ["call_threads.ThreadPool._work", "wire.BotoWire.send"]  # in place of what is simulated
    assert len(cloud.alive()) == 2
    assert len(chain) <= MOST_FUNCTIONS, "\n".join(chain)


def test_one_purchase_has_few_shapes():
    """Count the structs and dataclasses that the modules of a purchase define or get."""
    modules = (fleet, launcher, machine_config, places, provider)
    own = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and value.__module__ == module.__name__ and _is_a_shape(value)
    }
    shapes = {Launch.__name__, NodeLaunch.__name__, LaunchFailure.__name__, *own} - NOT_OF_A_PURCHASE
    assert len(shapes) <= MOST_SHAPES, sorted(shapes)


def _is_a_shape(value: type) -> bool:
    return hasattr(value, "__struct_fields__") or hasattr(value, "__dataclass_fields__")
