from __future__ import annotations

import subprocess
import sys

import cloudpickle

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
