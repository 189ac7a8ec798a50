"""Find the orphaned machines of a cluster, and terminate them; for `muster gc`.

A machine is found by the cluster's name in its tags. It is owned when a head that runs has a live record of
it. What the head says is asked by the caller; nothing is ended here that was not named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from enum import Enum

from msgspec import Struct

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import PublishedStatus
from muster.base.clock import Clock
from muster.base.ids import CloudId, IdSource
from muster.cluster.model import CloudInstance, NodeKind
from muster.cluster.ports import CloudProvider
from muster.cluster.states import ON_CLOUD
from muster.config.schema import ClusterConfig, NodeTypeConfig
from muster.errors import ClusterError, LedgerLocked
from muster.providers.background_calls import ListingLate
from muster.providers.teardown import EndedMachines, WorkerTeardown
from muster.stores.ledger.store import SqliteInstanceStore

END_S = 300.0  # clouds take a minute or two
LISTING_S = 120.0


class HeadState(Enum):
    """What is known of a cluster's head."""

    RUNS = "runs"
    SILENT = "cannot be asked"
    NONE = "there is none"


class HeadAnswer(Struct, frozen=True, kw_only=True):
    """What became of asking the head; `owned` is set when it runs."""

    state: HeadState
    detail: str  # for the user
    owned: frozenset[CloudId] = frozenset()
    head_id: str = ""  # of its machine; "": the provider does not list it


class UnownedMachine(Struct, frozen=True, kw_only=True):
    """One that costs money for nobody."""

    cloud_id: CloudId
    node_type: str
    kind: str
    request_id: str = ""
    ip: str = ""
    price_per_hour: float | None = None  # None: the cluster file has none


class UnownedMachines(Struct, frozen=True, kw_only=True):
    """What `muster gc` shows of one cluster."""

    cluster_name: str
    head: HeadAnswer
    machines: tuple[UnownedMachine, ...]
    owned: int  # machines that the head has records of
    silent: Mapping[str, str] = {}  # hosts that could not be asked, and why

    @property
    def price_per_hour(self) -> float | None:
        """Return what all of them cost; None when a price is not known."""
        prices = [one.price_per_hour for one in self.machines]
        return None if None in prices else sum(price or 0.0 for price in prices)


def answer_of(status: PublishedStatus | None, *, is_alive: bool, where: str, head_id: str = "") -> HeadAnswer:
    """Return what a monitor's status file says; `is_alive`: the monitor that wrote it still runs."""
    if not is_alive:
        return HeadAnswer(state=HeadState.SILENT, detail=f"the monitor {where} does not run")
    if status is None:
        return HeadAnswer(
            state=HeadState.SILENT, detail=f"the monitor {where} has not published a status yet"
        )
    owned = frozenset(i.cloud_id for i in status.instances if i.cloud_id and i.state in ON_CLOUD)
    detail = f"the monitor {where} runs"
    return HeadAnswer(state=HeadState.RUNS, detail=detail, owned=owned, head_id=head_id)


def without_record(listed: Mapping[CloudId, CloudInstance]) -> HeadAnswer:
    """Return what follows from the provider's list alone, where no command has left how to ask a head."""
    heads = [machine for machine in listed.values() if machine.kind is NodeKind.HEAD]
    if not heads:
        return HeadAnswer(state=HeadState.NONE, detail="no head is listed or known here")
    names = ", ".join(f"{one.cloud_id} ({one.external_ip or one.internal_ip})" for one in heads)
    return HeadAnswer(
        state=HeadState.SILENT, detail=f"a head is listed that was not started from here: {names}"
    )


def listed_machines(provider: CloudProvider, clock: Clock) -> Mapping[CloudId, CloudInstance]:
    """Return the provider's list, and wait for a slow one. Raises ListingLate when time is up."""
    give_up = clock.monotonic() + LISTING_S
    while True:
        try:
            return provider.list_instances()  # which waits for some seconds
        except ListingLate:
            if clock.monotonic() >= give_up:
                raise


def not_asked(silent: Mapping[str, str]) -> str:
    """Return a sentence about these hosts; why each is silent was logged when it was looked at."""
    count = f"{len(silent)} host{'s' if len(silent) != 1 else ''}"
    return f"{count} could not be asked, and what runs there is not known: {', '.join(silent)}"


def unowned(
    config: ClusterConfig, listed: Mapping[CloudId, CloudInstance], head: HeadAnswer
) -> UnownedMachines:
    """Return the listed machines that no running head has a record of; a running head is its own.

    A head that was replaced is listed. Machines whose tags cannot be read are left out: whose they are is not
    known.
    """
    ours = [machine for machine in listed.values() if machine.kind is not NodeKind.UNMANAGED]
    if head.state is HeadState.RUNS:
        heads = [one.cloud_id for one in ours if one.kind is NodeKind.HEAD]
        known = {*head.owned, *(one for one in heads if head.head_id in ("", one))}
        ours = [machine for machine in ours if machine.cloud_id not in known]
    found = tuple(_shown(config, machine) for machine in sorted(ours, key=lambda one: one.cloud_id))
    return UnownedMachines(
        cluster_name=config.cluster_name, head=head, machines=found, owned=len(listed) - len(found)
    )


def _shown(config: ClusterConfig, machine: CloudInstance) -> UnownedMachine:
    known = config.available_node_types.get(machine.node_type, NodeTypeConfig())
    came = [
        one for one in known.offers if one.zone in ("", machine.zone) and one.market.value == machine.market
    ]
    prices = [one.price_per_hour for one in came if one.price_per_hour is not None]
    return UnownedMachine(
        cloud_id=machine.cloud_id,
        node_type=machine.node_type,
        kind="head" if machine.kind is NodeKind.HEAD else "worker",
        request_id=machine.request_id or "",
        ip=machine.external_ip or machine.internal_ip,
        price_per_hour=prices[0] if prices else known.price_per_hour,
    )


class MachineEnder:
    """Ends named machines of one cluster."""

    def __init__(
        self, provider: CloudProvider, home: ClusterHome, clock: Clock, ids: IdSource, *, is_forced: bool
    ) -> None:
        self._provider, self._home, self._clock, self._ids = provider, home, clock, ids
        self._is_forced = is_forced

    def run(self, machines: Sequence[UnownedMachine], report: Callable[[str], None]) -> EndedMachines:
        """End them and looks until none is listed. The ledger is held meanwhile, so that no monitor starts.

        Raises ClusterError when a monitor of this computer has it, unless forced.
        """
        wanted: Collection[CloudId] = frozenset(one.cloud_id for one in machines)
        teardown = WorkerTeardown(self._provider, self._clock, self._ids, known=(), only=wanted)
        with ExitStack() as held:
            self._hold_ledger(held)
            return teardown.run(report, END_S)

    def _hold_ledger(self, held: ExitStack) -> None:
        if not self._home.ledger.is_file():
            return
        try:
            held.enter_context(SqliteInstanceStore(self._home.ledger, clock=self._clock, wait_s=1.0))
        except LedgerLocked as error:
            if not self._is_forced:
                raise ClusterError(f"terminated nothing: a monitor has just started ({error})") from error
