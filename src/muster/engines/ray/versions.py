"""Whether a node's Python and Ray go with the driver's. Pure; RayEngine asks when an actor has said hello.

Another muster is no mismatch: ours is sent there. Another Python may not read our pickles.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def mismatch(hello: Mapping[str, Any], *, python: str, ray: str) -> str | None:
    """What is wrong with the versions of that node, and what to do; None when nothing is."""
    there = str(hello["python"])
    if _minor(there) != _minor(python):
        return (
            f"the node {hello['hostname']} runs Python {there}, the driver {python}: give every node "
            f"Python {_minor(python)}, or start the driver with {_minor(there)}"
        )
    of_node = str(hello.get("ray", ray))  # a muster that is older than this does not say it
    if of_node != ray:
        return (
            f"the node {hello['hostname']} runs Ray {of_node}, the driver {ray}: install the same on both "
            f"(pip install ray=={ray})"
        )
    return None


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])
