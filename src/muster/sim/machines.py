"""What the simulated cloud sells and has sold: machines, calls, and the bill, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field

from muster import errors
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance, FailureKind, NodeKind, NodeType

REFUSALS: dict[FailureKind, type[errors.ProviderError]] = {
    FailureKind.CAPACITY: errors.CapacityExhausted,
    FailureKind.QUOTA: errors.QuotaExceeded,
    FailureKind.PERMISSION: errors.ProviderDenied,
    FailureKind.THROTTLED: errors.Throttled,
    FailureKind.CONFIG: errors.ProviderMisconfigured,
    FailureKind.UNKNOWN: errors.ProviderError,
}


@dataclass
class Machine:
    """One machine as it truly is, whatever the listing says. It costs money from creation to end."""

    cloud_id: CloudId
    node_type: str
    price_per_hour: float
    created_at: float
    kind: NodeKind = NodeKind.WORKER
    request_id: RequestId | None = None
    launch_hash: str = ""
    up: bool = False
    leaving: bool = False  # a terminate arrived
    ended_at: float | None = None
    ended_how: str = ""
    listed_from: float = 0.0
    hidden_until: float = 0.0
    listed_until: float = 0.0  # an ended machine may stay on the list for a while

    @property
    def exists(self) -> bool:
        return self.ended_at is None

    def cost(self, now: float) -> float:
        """What it has cost so far, to the second."""
        end = now if self.ended_at is None else self.ended_at
        return (end - self.created_at) * self.price_per_hour / 3600

    def is_listed(self, now: float) -> bool:
        if now < self.listed_from or now < self.hidden_until:
            return False
        return self.exists or now < self.listed_until

    def shown(self) -> CloudInstance:
        return CloudInstance(
            cloud_id=self.cloud_id,
            node_type=self.node_type,
            kind=self.kind,
            is_running=self.up and self.exists,
            request_id=self.request_id,
            launch_hash=self.launch_hash,
            internal_ip=f"10.0.{int(self.cloud_id[2:]) // 256}.{int(self.cloud_id[2:]) % 256}",
        )


@dataclass
class LaunchCall:
    """One launch call as it arrived; `refused` is set when the caller was told so at once."""

    at: float
    request_id: RequestId
    shape: dict[str, int]
    refused: FailureKind | None = None


@dataclass
class Catalogue:
    """What is on sale: types, today's prices, how long they boot, and how many there are."""

    types: dict[str, NodeType]
    prices: dict[str, float]
    boot_s: tuple[float, float] = (10.0, 40.0)
    capacity: dict[str, int] = field(default_factory=dict)  # per type, of this cluster; absent: any number
    quota: int | None = None  # all machines of the account
    api_s: float = 1.0  # from a launch call to the machine, or to the refusal
    shutdown_s: tuple[float, float] = (1.0, 8.0)
