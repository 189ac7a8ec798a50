"""Find a cluster's GCS and its token, and whether Ray's own autoscaler runs that cluster already.

Called by `muster monitor`. Address and token are from the options, the environment, or the files of `muster
up`. The token is not copied, only where it lies, unless it was given by value.
"""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.lease import AlreadyMonitored
from muster.autoscaler.status_files import read_record
from muster.base.clock import Clock
from muster.cluster.ports import TickResult
from muster.errors import ClusterError
from muster.host.processes import command_of, table
from muster.runtimes.ray.client import GcsClient, host_and_port
from muster.runtimes.ray.publish import RAY_STATUS, autoscaler_reports

_NAMES = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")


@dataclass(frozen=True)
class HeadAddress:
    """The address of the head and how to authenticate; its text never shows the token."""

    address: str
    auth: Mapping[str, str] = field(default_factory=dict, repr=False)


def find_head_address(home: ClusterHome, address: str | None, environment: Mapping[str, str]) -> HeadAddress:
    """Return the head's address. Raises ClusterError when neither options nor files name one."""
    record = read_record(home)
    known = address or environment.get("RAY_ADDRESS") or (record.address if record is not None else "")
    if not known:
        raise ClusterError(
            "the head's address is not known: give --address HOST:PORT of its GCS, or set RAY_ADDRESS",
            fix=("for a cluster that `muster up` started, --home is enough"),
        )
    given = {name: environment[name] for name in _NAMES if environment.get(name)}
    if given:
        return HeadAddress(known, given)
    if record is not None and record.auth:
        return HeadAddress(known, dict(record.auth))
    if home.token.is_file():
        return HeadAddress(known, {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home.token)})
    return HeadAddress(known)


WATCH_S = 11.0  # Ray's autoscaler reports every five seconds
LOOK_S = 0.5
AGAIN_S = 30.0  # between two looks of a monitor that runs
_RAY_MONITOR = re.compile(r"ray/autoscaler/(_private|v2)/monitor\.py$")


def foreign_autoscaler(
    link: GcsClient, pause: Callable[[float], object], clock: Clock, *, own_version: int = 0
) -> str:
    """Return what shows that Ray's own autoscaler runs the cluster; "" when nothing does.

    Where the head's processes can be seen, its process is there or not. From elsewhere its reports to the GCS
    are watched: they change while it lives, whereas one that is gone has left its last. A report of at most
    `own_version`, the version of the ledger, is muster's. Nothing is written.
    """
    pid, is_head_here = ray_monitor(link.address)
    if pid is not None or is_head_here:
        return "" if pid is None else f"process {pid} of this computer"
    first = autoscaler_reports(link, own_version)
    give_up = clock.monotonic() + WATCH_S
    while first and clock.monotonic() < give_up:
        pause(LOOK_S)
        if autoscaler_reports(link, own_version) != first:
            return f"it has just reported to {link.address}"
    return ""


def ray_monitor(address: str) -> tuple[int | None, bool]:
    """Return the process of Ray's monitor for this GCS, and whether the GCS itself was seen here."""
    host, port = host_and_port(address)
    if not _is_here(host):
        return None, False
    of_monitor, of_gcs = re.compile(rf"--gcs-address=.*:{port}$"), f"--gcs_server_port={port}"
    found: int | None = None
    is_head_here = False
    for process in table():
        command = command_of(process.pid) if process.is_alive else []
        is_head_here = is_head_here or of_gcs in command
        if any(map(_RAY_MONITOR.search, command)) and any(map(of_monitor.match, command)):
            found = process.pid
    return found, is_head_here


def company(address: str, found: str) -> AlreadyMonitored:
    """Return the error for a cluster that Ray's own autoscaler runs: each would undo what the other does."""
    return AlreadyMonitored(
        f"Ray's own autoscaler runs the cluster at {address} ({found}): start its head with `ray start "
        "--head --no-monitor`, or only watch, with --shadow"
    )


class RivalAutoscaler:
    """Ends a monitor when Ray's own autoscaler is started beside it; a TickListener."""

    def __init__(self, link: GcsClient, clock: Clock) -> None:
        self._link, self._clock = link, clock
        self._due = clock.monotonic() + WATCH_S  # one that starts with the head may have been too young
        self._status: object = self  # as it was at the last look; at first like nothing it may be

    def on_tick(self, tick: TickResult) -> None:
        if tick.runtime is None or self._clock.monotonic() < self._due:
            return
        self._due = self._clock.monotonic() + AGAIN_S
        pid, _ = ray_monitor(self._link.address)
        if pid is not None:
            raise company(self._link.address, f"process {pid} of this computer")
        before, self._status = self._status, self._link.kv_get(RAY_STATUS)
        if before is not self and self._status != before:
            raise company(self._link.address, f"it has just reported to {self._link.address}")


def _is_here(host: str) -> bool:
    """Return whether an address is one of this computer's: only those can be listened on."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.bind(address)
    except OSError:
        return False
    return True
