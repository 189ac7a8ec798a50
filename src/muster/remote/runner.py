"""Define how commands run on one machine; SSH, containers and a provider's own runner implement it.

Called by the updater, the on-premise provider and the launcher. Everything is a coroutine of one event loop,
so that a machine that hangs holds up no other one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Protocol

from msgspec import Struct

OnOutput = Callable[[bytes], None]  # gets what a command prints, as it comes
COMMAND_S = 120.0
SYNC_S = 3600.0


class RunWhere(Enum):
    """On which side of a container a command runs."""

    AUTO = "auto"  # in the container where there is one
    HOST = "host"
    CONTAINER = "docker"  # Ray's word


class Host(Struct, frozen=True, kw_only=True):
    """How one machine is reached over SSH."""

    ip: str
    user: str = ""
    port: int = 22
    private_key: str = ""  # a file; empty: what the user's own ssh takes
    proxy_command: str = ""  # with {instance_id}, {region} and {ip} filled in already
    strict_host_keys: bool = True  # pinned on first use
    known_hosts: str = ""  # the file that holds the pins; empty: none is kept
    instance_id: str = ""


class CommandRunner(Protocol):
    """Runs commands on one machine and moves files to and from it.

    Raises Unreachable (worth another try) when the machine does not answer, CommandFailed when it did and the
    command ended with another code than 0, TimeoutError after `timeout_s`. A cancelled call ends the command
    here and, as far as SSH can, there.
    """

    async def run(
        self,
        command: str,
        *,
        timeout_s: float = COMMAND_S,
        environment: Mapping[str, str] = {},
        secrets: Mapping[str, str] = {},
        where: RunWhere = RunWhere.AUTO,
        on_output: OnOutput | None = None,
    ) -> str:
        """Run a line of bash and return what it wrote to standard output.

        `environment` is set for the command. So is `secrets`, which travels on standard input and is in no
        process's arguments, no log and no error.
        """
        ...

    async def sync_up(
        self,
        source: str,
        target: str,
        *,
        exclude: Sequence[str] = (),
        filters: Sequence[str] = (),
        timeout_s: float = SYNC_S,
    ) -> None:
        """Copy a file or a directory to the machine; a directory's contents go into `target`.

        The directory that the target is in is made there.
        """
        ...

    async def sync_down(self, source: str, target: str, *, timeout_s: float = SYNC_S) -> None:
        """Copy from the machine; as in rsync, `/` at the end of `source` means a directory's contents."""
        ...

    async def prepare(self, *, as_head: bool, file_mounts: Mapping[str, str], is_synced: bool) -> bool:
        """Start the container, where there is one; returns whether set-up must be done again in it."""
        return False

    def shell(self, command: str = "", *, forward: Sequence[tuple[int, int]] = ()) -> list[str]:
        """Return the arguments of a process that is the user's terminal there; `forward`: (here, there)."""
        ...

    async def close(self) -> None:
        """End the connection, where there is one; the next command makes a new one."""
        return
