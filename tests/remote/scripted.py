"""A command runner that answers from a script, and a provider's tags in a dict: for tests without hosts."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping

from muster.cluster.plan import Install
from muster.remote.runner import COMMAND_S, SYNC_S, CommandRunner, RunWhere
from muster.remote.steps import NodeSetup


class ScriptedRunner:
    """What it was asked to do is in `calls`; `answers` maps a call to errors to raise, one per try."""

    def __init__(self, answers: Mapping[str, list[Exception]] | None = None, *, takes_s: float = 0.0) -> None:
        self.calls: list[str] = []
        self.secrets: list[Mapping[str, str]] = []
        self.environments: dict[str, Mapping[str, str]] = {}
        self.needs_set_up = False
        self.is_closed = False
        self._answers = {call: list(errors) for call, errors in (answers or {}).items()}
        self._takes_s = takes_s

    async def _answer(self, call: str) -> None:
        self.calls.append(call)
        await asyncio.sleep(self._takes_s)
        if self._answers.get(call):
            raise self._answers[call].pop(0)

    async def run(
        self, command, *, timeout_s=COMMAND_S, environment=(), secrets=(), where=RunWhere.AUTO, on_output=None
    ) -> str:
        self.environments[command], self.secrets = environment, [*self.secrets, secrets]
        await self._answer(f"{where.value}: {command}")
        if on_output is not None:
            on_output(f"output of {command}\n".encode())
        return ""

    async def sync_up(self, source, target, *, exclude=(), filters=(), timeout_s=SYNC_S) -> None:
        await self._answer(f"copy {source} to {target}")

    async def sync_down(self, source, target, *, timeout_s=SYNC_S) -> None:
        raise AssertionError("the updater copies nothing from a machine")

    async def prepare(self, *, as_head, file_mounts, is_synced) -> bool:
        await self._answer("prepare")
        return self.needs_set_up

    def shell(self, command="", *, forward=()) -> list[str]:
        raise AssertionError("the updater has no terminal")

    async def close(self) -> None:
        self.is_closed = True


class Tags:
    """Implements InstallAccess: the tags of every machine, and all that were ever written."""

    def __init__(self, setup: NodeSetup, runner_of: Callable[[str], CommandRunner | None]) -> None:
        self.setup, self._runner_of = setup, runner_of
        self.now: dict[str, dict[str, str]] = defaultdict(dict)
        self.statuses: dict[str, list[str]] = defaultdict(list)
        self.gone: set[str] = set()

    def tags(self, node: str) -> Mapping[str, str]:
        return dict(self.now[node])

    def set_tags(self, node: str, tags: Mapping[str, str]) -> None:
        self.now[node].update(tags)
        self.statuses[node].append(tags["ray-node-status"])

    def is_gone(self, node: str) -> bool:
        return node in self.gone

    def setup_of(self, action: Install) -> NodeSetup:
        return self.setup

    def runner_of(self, cloud_id: str) -> CommandRunner | None:
        return self._runner_of(cloud_id)
