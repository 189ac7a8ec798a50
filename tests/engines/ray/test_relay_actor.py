from __future__ import annotations

import socket
import subprocess
import sys

import cloudpickle
import pytest

from muster.engines.ray import relay_actor

HIDING = "import sys, pickle; sys.modules['muster'] = None; print(pickle.load(sys.stdin.buffer).__name__)"


def test_a_head_without_the_package_can_make_a_relay():
    cloudpickle.register_pickle_by_value(relay_actor)
    try:
        carried = cloudpickle.dumps(relay_actor.RelayActor)
    finally:
        cloudpickle.unregister_pickle_by_value(relay_actor)
    done = subprocess.run(
        [sys.executable, "-c", HIDING], input=carried, capture_output=True, timeout=60, check=True
    )
    assert done.stdout == b"RelayActor\n"


@pytest.mark.slow
def test_strangers_take_few_descriptors_of_a_relay_whose_driver_does_not_answer(monkeypatch):
    import ray

    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    relay = relay_actor.RelayActor()
    most = relay_actor._MOST_NEW
    strangers = [socket.create_connection(relay.address(), timeout=20) for _ in range(most + 100)]
    numbers = []
    while len(numbers) < most:
        numbers += [number for number, data in relay.pull(5.0) if data == b""]
    assert relay.pull(0.3) == []  # the others wait in the kernel
    relay.push([(number, b"a challenge") for number in numbers[:50]])
    relay.push([(number, None) for number in numbers[50:]])
    while len(numbers) < most + 100:
        numbers += [number for number, data in relay.pull(5.0) if data == b""]
    assert strangers[0].recv(64) == b"a challenge"
    for each in strangers:
        each.close()
