"""Define the types of identifiers, and make fresh ones; the only file allowed to call `uuid`."""

from __future__ import annotations

import uuid
from typing import NewType, Protocol

InstanceId = NewType("InstanceId", str)  # muster's record of a machine
CloudId = NewType("CloudId", str)  # the provider's name of a machine
NodeId = NewType("NodeId", str)  # the runtime's name of a node, hex
RequestId = NewType("RequestId", str)  # one effect handed to a port; repeats are harmless


class IdSource(Protocol):
    """Gives ids that were never given before, also by earlier processes of the same cluster."""

    def fresh(self, prefix: str) -> str: ...


class RandomIds:
    """Gives ids that are unique in the world."""

    def fresh(self, prefix: str) -> str:
        return f"{prefix}-{uuid.uuid4().hex[:12]}"


class CountingIds:
    """Gives predictable ids to tests and the simulator; `epoch` separates restarts."""

    def __init__(self, epoch: int = 0) -> None:
        self._epoch = epoch
        self._count = 0

    def fresh(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}-{self._epoch}.{self._count:06d}"
