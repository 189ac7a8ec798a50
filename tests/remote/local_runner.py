"""A command runner that runs bash on this machine, for tests of what is sent to a host."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping

from muster.errors import CommandFailed
from muster.remote.runner import COMMAND_S, RunWhere


class LocalRunner:
    """Its home is a directory of the test; `commands` has every line that was run."""

    def __init__(self, home, environment: Mapping[str, str] = {}) -> None:
        self.home, self.commands = home, []
        self.environment = {**os.environ, "HOME": str(home), **environment}

    async def run(
        self,
        command: str,
        *,
        timeout_s: float = COMMAND_S,
        environment: Mapping[str, str] = {},
        secrets: Mapping[str, str] = {},
        where: RunWhere = RunWhere.AUTO,
        on_output=None,
    ) -> str:
        self.commands.append(command)
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            env={**self.environment, **environment, **secrets},
            cwd=self.home,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        out, err = await asyncio.wait_for(process.communicate(), timeout_s)
        if process.returncode:
            lines = (out + err).decode().splitlines()
            raise CommandFailed(f"failed: {lines}", exit_code=process.returncode, last_lines=lines[-5:])
        return out.decode()

    async def sync_up(self, source, target, *, exclude=(), filters=()) -> None:
        copy = shutil.copytree if os.path.isdir(source) else shutil.copy2
        copy(source, os.path.join(self.home, target))

    async def sync_down(self, source, target) -> None:
        shutil.copy2(os.path.join(self.home, source), target)

    async def prepare(self, *, as_head, file_mounts, is_synced) -> bool:
        return False

    def shell(self, command="", *, forward=()) -> list[str]:
        return ["bash", "-c", command]
