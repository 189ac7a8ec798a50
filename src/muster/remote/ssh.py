"""Run commands on one machine with OpenSSH's own `ssh` and `rsync`, all over one shared connection.

`SshRunner` is what the updater, the launcher and the on-premise provider use. It must not block: each command
is a subprocess of the running event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import os
import shlex
import shutil
import stat
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from muster.errors import RemoteError
from muster.remote.process import CommandOutput, execute
from muster.remote.runner import COMMAND_S, SYNC_S, CommandRunner, Host, OnOutput, RunWhere
from muster.remote.ssh_command import (
    check_host,
    explain_command,
    explain_ssh,
    home_relative,
    own_words,
    remote_line,
    remote_path,
    rsync_arguments,
    secrets_input,
    selection,
    shown,
    socket_name,
    ssh_arguments,
    ssh_options,
    terminal_arguments,
    upload_paths,
)
from muster.remote.ssh_command import end_line as end_line_of

SSH_FAILED = 255
LONGEST_SOCKET = 70  # a path of a socket has 104 characters, of which ssh needs some while it makes it
END_S = 5.0
_command_numbers = itertools.count(1)


def control_directory() -> Path:
    """Return this process's private directory for the sockets of shared connections; removed at exit."""
    made = _control_directory(os.getpid())  # a forked child has its own: its parent's goes with the parent
    if not made.is_dir():  # somebody cleaned up
        made.mkdir(mode=0o700)
    return made


@lru_cache(maxsize=1)
def _control_directory(owner: int) -> Path:
    base = tempfile.gettempdir()
    made = Path(tempfile.mkdtemp(prefix="muster-", dir="/tmp" if len(base) > LONGEST_SOCKET - 30 else base))

    def remove() -> None:
        if os.getpid() == owner:  # a forked child is not the owner
            shutil.rmtree(made, ignore_errors=True)

    atexit.register(remove)
    return made


class SshRunner(CommandRunner):
    """Implements CommandRunner over SSH.

    Runners of the same login share a connection. Host keys are pinned in `host.known_hosts` when they are
    first seen. A host that hangs is given up after 15 s without a sign of life.

    Example:
        >>> runner = SshRunner(Host(ip="10.0.0.12", user="ubuntu"))
        >>> runner.shell("htop")[-2:]
        ['10.0.0.12', 'bash --login -i -c htop']
    """

    def __init__(
        self, host: Host, *, login_shell: bool = False, guard: str = "", marks: Mapping[str, str] = {}
    ) -> None:
        """Take a line that every command runs first, and that may end it, and variables to find them by."""
        check_host(host)
        key = os.path.abspath(os.path.expanduser(host.private_key)) if host.private_key else ""
        pins = os.path.abspath(os.path.expanduser(host.known_hosts)) if host.known_hosts else ""
        self.host = msgspec.structs.replace(host, private_key=key, known_hosts=pins)
        self.login_shell, self._guard, self._marks = login_shell, guard, marks

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
        """Run a line of bash and return what it wrote to standard output."""
        self._check_files()
        name = f"{control_directory().name}-{next(_command_numbers)}"
        line = remote_line(
            f"{self._guard}\n{command}" if self._guard else command,
            environment=environment,
            has_secrets=bool(secrets),
            login_shell=self.login_shell,
            command_id=name,
            marks=self._marks,
        )
        output = CommandOutput(on_output, secrets, is_interactive=self.login_shell, command_id=name)
        with _log_file(name) as log:
            argv = ssh_arguments(self.host, line, socket=self._socket, log=str(log), connect_s=timeout_s)
            try:
                code = await execute(argv, output, timeout_s=timeout_s, given=secrets_input(secrets))
            except asyncio.TimeoutError:
                await self._end_there(name)
                short = command if len(command) <= 80 else command[:77] + "..."
                raise TimeoutError(
                    f"`{short}` did not end within {timeout_s:g} s on {shown(self.host)}: "
                    "look there what it waits for, or give it more time"
                ) from None
            except asyncio.CancelledError:
                await self._end_there(name)
                raise
            self._check(code, command, output, log)
        return output.text()

    async def sync_up(
        self,
        source: str,
        target: str,
        *,
        exclude: Sequence[str] = (),
        filters: Sequence[str] = (),
        timeout_s: float = SYNC_S,
    ) -> None:
        """Copy a file or a directory to the machine; a directory's contents go into `target`."""
        local, target, directory = upload_paths(source, target, shown(self.host))
        make = f"mkdir -p -- {shlex.quote(home_relative(directory))} && " if directory else ""
        await self._rsync(
            [*selection(exclude, filters), "--", local, remote_path(self.host, target)],
            f"{make}rsync",
            timeout_s,
        )

    async def sync_down(self, source: str, target: str, *, timeout_s: float = SYNC_S) -> None:
        """Copy from the machine; as in rsync, `/` at the end of `source` means a directory's contents."""
        local = os.path.abspath(os.path.expanduser(target)) + ("/" if target.endswith("/") else "")
        os.makedirs(os.path.dirname(local), exist_ok=True)
        await self._rsync(["--", remote_path(self.host, source), local], "rsync", timeout_s)

    def shell(self, command: str = "", *, forward: Sequence[tuple[int, int]] = ()) -> list[str]:
        """Return the arguments of a process that is the user's terminal there; `forward`: (here, there)."""
        line = f"bash --login -i -c {shlex.quote(command)}" if command else ""
        return terminal_arguments(self.host, line, socket=self._socket, forward=forward)

    async def close(self) -> None:
        """End the shared connection after the commands that use it; the next one makes a new one."""
        if not os.path.exists(self._socket):
            return
        argv = ["ssh", "-O", "stop", *ssh_options(self.host, socket=self._socket), "--", self.host.ip]
        with contextlib.suppress(asyncio.TimeoutError, OSError):
            await execute(argv, CommandOutput(), timeout_s=END_S)

    @property
    def _socket(self) -> str:
        return str(control_directory() / socket_name(self.host))

    async def _rsync(self, arguments: list[str], rsync_path: str, timeout_s: float) -> None:
        self._check_files()
        output = CommandOutput()
        with _log_file(f"rsync-{next(_command_numbers)}") as log:
            start = rsync_arguments(self.host, socket=self._socket, log=str(log), rsync_path=rsync_path)
            try:
                code = await execute([*start, *arguments], output, timeout_s=timeout_s)
            except asyncio.TimeoutError:
                raise TimeoutError(
                    f"copying {arguments[-2]} did not end within {timeout_s:g} s for {shown(self.host)}: "
                    "look at the network and the disks, or copy less"
                ) from None
            self._check(SSH_FAILED if code and own_words(_read(log)) else code, "rsync", output, log)

    def _check(self, code: int, command: str, output: CommandOutput, log: Path) -> None:
        """Raise what a code other than 0 means: ssh writes to `log` only when it was ssh that failed."""
        said = _read(log)
        if code == SSH_FAILED and own_words(said):
            raise explain_ssh(self.host, said)
        if code:
            raise explain_command(shown(self.host), command, code, output.last_lines())

    def _check_files(self) -> None:
        """Raise where ssh would ignore the key; what it says then is about something else."""
        if not self.host.private_key:
            return
        try:
            mode = os.stat(self.host.private_key).st_mode
        except OSError as problem:
            raise RemoteError(
                f"the key {self.host.private_key} for {shown(self.host)} cannot be read "
                f"({problem.strerror}): set auth.ssh_private_key to a file of this computer"
            ) from None
        if stat.S_IMODE(mode) & 0o077:
            raise RemoteError(
                f"others can read the key {self.host.private_key}, so ssh does not use it for "
                f"{shown(self.host)}: chmod 600 {shlex.quote(self.host.private_key)}"
            )

    async def _end_there(self, command_id: str) -> None:
        """End what a command started, when the machine can still be asked."""
        if not os.path.exists(self._socket):
            return  # it never got there
        with _log_file(f"end-{command_id}") as log, contextlib.suppress(asyncio.TimeoutError, OSError):
            line = end_line_of(command_id)
            argv = ssh_arguments(self.host, line, socket=self._socket, log=str(log), connect_s=END_S)
            await execute(argv, CommandOutput(), timeout_s=END_S)


@contextlib.contextmanager
def _log_file(name: str) -> Iterator[Path]:
    log = control_directory() / f"{name}.log"
    try:
        yield log
    finally:
        log.unlink(missing_ok=True)


def _read(log: Path) -> str:
    try:
        return log.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
