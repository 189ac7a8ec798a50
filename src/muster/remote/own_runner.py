"""Adapt a provider's own command runner, which blocks, to the contract; every call is a separate thread.

The provider's `get_command_runner` returns an object with Ray's method names: `run`, `run_rsync_up`,
`run_rsync_down`, `run_init` and `remote_shell_command_str`. It is duck typed, and may raise anything.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from muster.base.untrusted import error_text
from muster.errors import MusterError, RemoteError
from muster.host.call_threads import in_thread
from muster.remote.runner import COMMAND_S, SYNC_S, CommandRunner, OnOutput, RunWhere
from muster.remote.ssh_command import checked_names, explain_command, secrets_input, upload_paths

T = TypeVar("T")


class OwnRunner(CommandRunner):
    """Implements CommandRunner over a provider's own runner of one machine.

    A command that takes too long is left to itself: there is no way to end it. Secrets go to the machine as a
    file that only the user may read, and that the command removes before it does anything else.
    """

    def __init__(self, theirs: Any, name: str) -> None:  # noqa: ANN401 - duck typed
        self._theirs, self._name = theirs, name

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
        """Run a line of bash and return what their runner returns of its output."""
        shown, given = command, secrets_input(secrets).rstrip(b"\0")
        if given:
            command = await self._with_secrets(command, given)
        options: dict[str, Any] = {"timeout": max(1, int(timeout_s)), "with_output": True}
        options |= {"environment_variables": dict(checked_names(environment))} if environment else {}
        options |= {"run_env": where.value} if where is not RunWhere.AUTO else {}
        try:
            answer = await self._call("run", timeout_s, command, **options)
        except subprocess.CalledProcessError as error:
            said = _text(error.output) + _text(error.stderr)
            _pass_on(said, secrets, on_output)
            raise explain_command(
                self._name, shown, error.returncode, _hidden(said, secrets).splitlines()[-20:]
            ) from None
        text = _hidden(_text(answer), secrets)
        _pass_on(text, {}, on_output)
        return text

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
        local, target, directory = upload_paths(source, target, self._name)
        if directory:
            is_home = directory.startswith("~/")  # which the shell over there puts in its place
            quoted = "~/" + shlex.quote(directory[2:]) if is_home else shlex.quote(directory)
            await self.run(f"mkdir -p {quoted}")
        options = {"rsync_exclude": list(exclude), "rsync_filter": list(filters)}
        wanted = {name: value for name, value in options.items() if value}
        await self._copy("run_rsync_up", timeout_s, local, target, **({"options": wanted} if wanted else {}))

    async def sync_down(self, source: str, target: str, *, timeout_s: float = SYNC_S) -> None:
        """Copy from the machine; as in rsync, `/` at the end of `source` means a directory's contents."""
        local = os.path.abspath(os.path.expanduser(target))
        os.makedirs(os.path.dirname(local), exist_ok=True)
        await self._copy("run_rsync_down", timeout_s, source, local)

    async def prepare(self, *, as_head: bool, file_mounts: Mapping[str, str], is_synced: bool) -> bool:
        """Call their `run_init`, which starts the container where there is one."""
        options = {"as_head": as_head, "file_mounts": dict(file_mounts), "sync_run_yet": is_synced}
        return bool(await self._call("run_init", SYNC_S, **options))

    def shell(self, command: str = "", *, forward: Sequence[tuple[int, int]] = ()) -> list[str]:
        """Return the arguments of their terminal; only where that is `ssh` can ports be forwarded."""
        argv = shlex.split(str(self._method("remote_shell_command_str")()))
        ports = [part for here, there in forward for part in ("-L", f"{here}:localhost:{there}")]
        if ports and argv[:1] != ["ssh"]:
            raise RemoteError(
                f"the provider's own terminal on {self._name} forwards no ports: do without them"
            )
        return [*argv[:1], *ports, *argv[1:], *([command] if command else [])]

    async def _with_secrets(self, command: str, given: bytes) -> str:
        """Put the secrets into a file over there, and return the command that reads and removes it."""
        with tempfile.NamedTemporaryFile(prefix="muster-given-") as file:  # only for this user
            file.write(given)
            file.flush()
            there = f"~/.{os.path.basename(file.name)}"
            await self._copy("run_rsync_up", SYNC_S, file.name, there)
        return f". {there}; rm -f {there}\n{command}"

    async def _copy(self, method: str, timeout_s: float, *args: Any, **options: Any) -> None:  # noqa: ANN401 - theirs
        try:
            await self._call(method, timeout_s, *args, **options)
        except subprocess.CalledProcessError as error:
            said = (_text(error.output) + _text(error.stderr)).splitlines()[-20:]
            raise explain_command(self._name, method, error.returncode, said) from None

    async def _call(self, method: str, timeout_s: float, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - theirs
        function = self._method(method)
        call = partial(function, *args, **_taken(function, options))
        try:
            return await asyncio.wait_for(in_thread(call, name=f"{method} {self._name}"), timeout_s)
        except asyncio.TimeoutError:
            raise TimeoutError(
                f"{method} of the provider's own runner did not return within {timeout_s:g} s: "
                f"look at {self._name}"
            ) from None
        except (MusterError, subprocess.CalledProcessError):
            raise
        except Exception as error:
            raise RemoteError(
                f"{method} of the provider's own runner failed for {self._name} ({error_text(error)}): "
                "look at the machine and at the provider"
            ) from error

    def _method(self, name: str) -> Callable[..., Any]:
        found = getattr(self._theirs, name, None)
        if not callable(found):
            raise RemoteError(
                f"the provider's own command runner for {self._name} has no method {name}: add it"
            )
        method: Callable[..., Any] = found
        return method


def _taken(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a function takes: older runners lack some."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return dict(options)
    if any(one.kind is inspect.Parameter.VAR_KEYWORD for one in parameters):
        return dict(options)
    names = {one.name for one in parameters}
    return {name: value for name, value in options.items() if name in names}


def _text(answer: object) -> str:
    return answer.decode("utf-8", "replace") if isinstance(answer, bytes) else str(answer or "")


def _hidden(text: str, secrets: Mapping[str, str]) -> str:
    for secret in secrets.values():
        text = text.replace(secret, "***") if len(secret) > 3 else text
    return text


def _pass_on(text: str, secrets: Mapping[str, str], on_output: OnOutput | None) -> None:
    if on_output is not None and text:
        on_output(_hidden(text, secrets).encode("utf-8", "replace"))
