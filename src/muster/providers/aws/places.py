"""SubnetTable finds where machines can be put; SoldOut remembers where EC2 had none a moment ago."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from muster.base.clock import Clock
from muster.errors import ProviderMisconfigured
from muster.providers.aws.calls import AwsCalls

FRESH_S = 300.0
# EC2 has machines again within minutes; an hour, as others wait, is too long. Where it has none again and
# again, the planner doubles this and remembers it in the ledger.
SOLD_OUT_S = 180.0


class Subnet(Struct, frozen=True, kw_only=True):
    """One network of one zone."""

    subnet_id: str
    zone: str
    vpc: str
    free: int  # addresses
    is_public: bool  # machines get a public address by default
    cidr: str = ""


class SubnetTable:
    """Reads subnets once in a while; those of a cluster change rarely."""

    def __init__(
        self, calls: AwsCalls, clock: Clock, *, zones: Sequence[str], use_internal_ips: bool
    ) -> None:
        self._calls, self._clock = calls, clock
        self._zones, self._is_inside = tuple(zones), use_internal_ips
        self._known: dict[tuple[str, ...], tuple[float, list[Subnet]]] = {}
        self._lock = threading.Lock()

    def of(self, ids: Sequence[str]) -> list[Subnet]:
        """Return these subnets, in this order; without ids those of the default VPC that can be used."""
        key, now = tuple(ids), self._clock.monotonic()
        with self._lock:
            read_at, known = self._known.get(key, (float("-inf"), []))
        if now - read_at <= FRESH_S:
            return known
        found = self._named(key) if ids else self._default()
        with self._lock:
            self._known[key] = now, found
        return found

    def _named(self, ids: Sequence[str]) -> list[Subnet]:
        found = {one.subnet_id: one for one in self._read(SubnetIds=list(ids))}
        missing = [one for one in ids if one not in found]
        if missing:
            raise ProviderMisconfigured(
                f"there is no subnet {missing[0]} in {self._calls.region}: check SubnetIds"
            )
        return [found[one] for one in ids]

    def _default(self) -> list[Subnet]:
        """As `ray up`: in the given zones, with public addresses unless internal ones are used."""
        is_default = [{"Name": "is-default", "Values": ["true"]}]
        vpcs = list(self._calls.pages("describe_vpcs", "Vpcs", Filters=is_default))
        if not vpcs:
            raise ProviderMisconfigured(
                f"there is no default VPC in {self._calls.region}: give SubnetIds in node_config"
            )
        filters = [
            {"Name": "vpc-id", "Values": [vpcs[0]["VpcId"]]},
            {"Name": "state", "Values": ["available"]},
        ]
        found = [one for one in self._read(Filters=filters) if one.is_public or self._is_inside]
        usable = [one for one in found if not self._zones or one.zone in self._zones]
        if not usable:
            where = f" in {', '.join(self._zones)}" if self._zones else ""
            kind = "subnet" if self._is_inside else "subnet with public addresses"
            raise ProviderMisconfigured(
                f"the default VPC of {self._calls.region} has no {kind}{where}: give SubnetIds in"
                " node_config, another provider.availability_zone, or provider.use_internal_ips"
            )
        order = {zone: rank for rank, zone in enumerate(self._zones)}
        return sorted(usable, key=lambda one: (order.get(one.zone, 0), one.zone, one.subnet_id))

    def _read(self, **parameters: Any) -> list[Subnet]:  # noqa: ANN401 - of describe_subnets
        return [
            Subnet(
                subnet_id=item["SubnetId"],
                zone=item.get("AvailabilityZone", ""),
                vpc=item.get("VpcId", ""),
                free=int(item.get("AvailableIpAddressCount", 0)),
                is_public=bool(item.get("MapPublicIpOnLaunch")),
                cidr=item.get("CidrBlock", ""),
            )
            for item in self._calls.pages("describe_subnets", "Subnets", **parameters)
        ]


class PurchaseTarget(Struct, frozen=True, kw_only=True):
    """Where and how one machine can be launched: an override of a fleet."""

    machine_type: str
    subnet: Subnet
    market: str
    offer: str = ""  # the name of the offer that it belongs to; "": none
    rank: int = 0  # the lower, the sooner

    @property
    def stock(self) -> str:
        """Return the name of the stock that it is launched from."""
        return f"{self.machine_type} {self.subnet.zone} {self.market}"


class SoldOut:
    """Remembers stocks and subnets that had nothing, for a few minutes."""

    def __init__(self, clock: Clock, pause_s: float = SOLD_OUT_S) -> None:
        self.clock, self.pause_s = clock, pause_s
        self._until: dict[str, float] = {}
        self._lock = threading.Lock()

    def note(self, target: PurchaseTarget, code: str) -> None:
        """A subnet without addresses says nothing about the machines of its zone."""
        key = target.subnet.subnet_id if code == "InsufficientFreeAddressesInSubnet" else target.stock
        with self._lock:
            self._until[key] = self.clock.monotonic() + self.pause_s

    def left_s(self, target: PurchaseTarget) -> float:
        """Return for how long a target is left alone; 0: it can be tried."""
        now = self.clock.monotonic()
        with self._lock:
            until = max(self._until.get(target.stock, 0.0), self._until.get(target.subnet.subnet_id, 0.0))
        return max(0.0, until - now) if until else 0.0

    def usable(self, targets: Iterable[PurchaseTarget]) -> list[PurchaseTarget]:
        return [target for target in targets if not self.left_s(target)]
