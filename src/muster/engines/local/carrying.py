"""Carrier: who brings a trial's files where they are needed when its node has no directory in common with the
driver. The worker and its session call it; the local engine has none, and pays nothing for it.
"""

from __future__ import annotations

from typing import Protocol

from muster.engines.worker.protocol import Order


class Carrier(Protocol):
    """One per process; one trial at a time."""

    def settle(self, order: Order) -> Order:
        """Before a trial: its checkpoint is here, its directory is one of this node. Raises why not."""

    def make_way(self, name: str) -> None:
        """A checkpoint of this name is about to be made: what an earlier attempt left under it goes."""

    def keep(self, path: str) -> None:
        """A checkpoint is complete; the driver hears of it when this returns. Raises why it is not kept."""

    def finish(self) -> None:
        """The trial is over, however it ended. Never raises."""

    def own_threads(self) -> int:
        """How many threads of this process are its own, and not left behind by a trial."""
