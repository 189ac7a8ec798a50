"""Ends a cluster on other machines: its monitor first, then workers, then the head, then the files.

Called by `muster down` and by an `up` that failed. Idempotent. A head that does not answer keeps nothing: the
machines are the provider's, which lists and ends them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from muster.autoscaler.backup import forget_line
from muster.autoscaler.launch.head_file import HEAD_FILE, HEAD_PRICES, head_file
from muster.autoscaler.launch.head_setup import container_fields
from muster.autoscaler.launch.session import ClusterSession, LaunchRecord, Machine
from muster.autoscaler.launch.unowned import silent_hosts
from muster.base.foreign import error_text
from muster.base.ids import CloudId
from muster.cluster.model import CloudInstance
from muster.cluster.ports import CloudProvider
from muster.config.schema import ClusterConfig
from muster.errors import MusterError
from muster.providers.teardown import QUIET_S, WorkerTeardown
from muster.remote.ledger_copy import copy_command, pull_ledger
from muster.remote.runner import CommandRunner
from muster.remote.service import HeadService, remove_service
from muster.stores.ledger.close import close_ledger
from muster.stores.ledger.history import Spend

WORKERS_S = 300.0
HEAD_S = 60.0


@dataclass(frozen=True, kw_only=True)
class DownOptions:
    """DownOptions are what a user may choose for one `down`."""

    workers_only: bool = False
    keep_min_workers: bool = False
    purge: bool = False


@dataclass(frozen=True)
class TakenDown:
    """A TakenDown is what `down` ended; `left` has a reason for each machine that is left."""

    workers: tuple[str, ...] = ()
    head: str = ""
    left: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    spend: Spend | None = None
    silent: Mapping[str, str] = field(default_factory=dict)  # hosts that could not be asked, and why

    @property
    def nothing(self) -> bool:
        return not self.workers and not self.head and not self.left


@dataclass
class ClusterDown:
    """A ClusterDown is one call of `down`."""

    session: ClusterSession
    options: DownOptions = field(default_factory=DownOptions)

    def __post_init__(self) -> None:
        self._notes: list[str] = []

    async def run(self) -> TakenDown:
        session, options = self.session, self.options
        session.context.report("", "looking for machines")
        head = await asyncio.to_thread(session.head)
        if head is not None and not options.workers_only and not options.keep_min_workers:
            await self._quiet_head(head)
        ended = await self._end_workers()
        left = dict(ended.left)
        if options.workers_only or options.keep_min_workers:
            return TakenDown(workers=ended.ended, left=left, notes=tuple(self._notes))
        for one in await asyncio.to_thread(session.machines, "head"):  # one that was replaced, too
            problem = await self._end_head(one)
            if problem:
                left[one.node_id] = problem
        await self._clean_up_provider()
        if options.purge and not left:
            await self._purge_account()
        spend = None if left else self._forget()
        return TakenDown(
            workers=ended.ended,
            head="" if head is None else head.ip,
            left=left,
            notes=tuple(self._notes),
            spend=spend,
            silent=await asyncio.to_thread(silent_hosts, session.port),
        )

    # -- the head ---------------------------------------------------------------------------------

    async def end_earlier_head(self, head: Machine) -> str:
        """Ends the head of a rack that another host follows; its ledger stays here for that one.

        Returns why it could not be ended, or "".
        """
        session = self.session
        if not await asyncio.to_thread(session.node_provider.is_running, head.node_id):
            return "it does not answer"
        session.context.report(head.ip, "ending an earlier head")
        await self._quiet_head(head, is_followed=True)
        return await self._end_head(head)

    async def _quiet_head(self, head: Machine, *, is_followed: bool = False) -> None:
        """Stops the monitor, which would replace what is ended, and takes a copy of its ledger."""
        session = self.session
        session.context.report(head.ip, "stopping the monitor")
        record = session.record()
        try:
            runner = session.runner(head.node_id)
            await self._within(runner.run("true", timeout_s=HEAD_S))
            if record.head_home:
                service = HeadService(
                    cluster=record.cluster_name,
                    directory=record.head_home,
                    python=record.python or "python3",
                    command=(),
                    **container_fields(session.config),
                )
                await self._within(remove_service(runner, service))
                if is_followed:
                    await self._keep_ledger(runner, record, head)
                    return
                await self._forget_copies(runner, service.python)
                if not record.shares_home:
                    await self._copy_ledger(runner, record)
        except (MusterError, TimeoutError, asyncio.TimeoutError) as error:
            self._notes.append(f"the head did not answer ({error_text(error)}), so its files stay there")

    async def _within(self, work: object) -> object:
        return await asyncio.wait_for(work, HEAD_S)  # type: ignore[arg-type]

    async def _copy_ledger(self, runner: CommandRunner, record: LaunchRecord) -> None:
        """The history stays on this computer, so that `muster why` can still show it."""
        with contextlib.suppress(MusterError, TimeoutError, asyncio.TimeoutError):
            line = copy_command(record.python or "python3", record.head_home)
            if "none" not in str(await self._within(runner.run(line))).split()[-1:]:
                draft = f"{record.head_home}/.ledger.pulled"
                await self._within(runner.sync_down(draft, str(self.session.home.ledger)))

    async def _keep_ledger(self, runner: CommandRunner, record: LaunchRecord, head: Machine) -> None:
        """The next head starts from it; the one of a head that is followed already would mislead."""
        if record.shares_home or record.head_id != head.node_id:
            return
        with contextlib.suppress(MusterError, TimeoutError, asyncio.TimeoutError, OSError):
            await pull_ledger(
                runner,
                python=record.python or "python3",
                directory=record.head_home,
                cluster=record.cluster_name,
                target=self.session.home.backups,
            )

    async def _forget_copies(self, runner: CommandRunner, python: str) -> None:
        """Copies of the ledger are for a head that is lost; one of a cluster that was ended would mislead."""
        line = forget_line(self.session.config, python)
        if line:
            with contextlib.suppress(MusterError, TimeoutError, asyncio.TimeoutError):
                await self._within(runner.run(line))

    def _removal(self) -> str:
        """Returns the line that removes the cluster's files from a host; a cloud's machine goes with them."""
        record = self.session.record()
        home = "" if record.shares_home else record.head_home
        keys = head_file(self.session.data).keys
        paths = " ".join(f'"$HOME"/{shlex.quote(path[2:])}' for path in (HEAD_FILE, HEAD_PRICES, *keys))
        own = (
            f" {shlex.quote(home)}"
            if home.endswith(f"/.muster/clusters/{self.session.config.cluster_name}")
            else ""
        )
        empty = '"$HOME"/.muster/clusters "$HOME"/.muster'
        return f"rm -rf -- {paths}{own}; rmdir {empty} 2>/dev/null; true"

    async def _end_head(self, head: Machine) -> str:
        """Returns why the head could not be ended, or ""."""
        session = self.session
        session.context.report(head.ip, "ending the head")
        try:
            is_host = session.config.provider.type == "local"
            more = (self._removal(),) if is_host else ()  # before another cluster can have the host
            await asyncio.to_thread(session.node_provider.terminate_node, head.node_id, *more)
            for _ in range(int(WORKERS_S)):
                listed = await asyncio.to_thread(session.machines, "head")
                if head.node_id not in [one.node_id for one in listed]:
                    return ""
                await asyncio.sleep(1.0)
        except Exception as error:  # noqa: BLE001 - told, with what is left
            return error_text(error)
        return "still listed"

    # -- workers ----------------------------------------------------------------------------------

    async def _end_workers(self) -> EndedWorkers:
        session = self.session
        port = session.port
        if self.options.keep_min_workers:
            port = _Keeping(port, session.config)  # type: ignore[assignment]
        teardown = WorkerTeardown(
            port, session.context.clock, session.context.ids, known=(), patience_s=WORKERS_S
        )
        report = session.context.report
        done = await asyncio.to_thread(teardown.run, lambda text: report("", text), self._quiet_s())
        return EndedWorkers(tuple(done.ended), done.left)

    def _quiet_s(self) -> float:
        """A rack's hosts are asked directly; a cloud's list may be late."""
        return 0.5 if self.session.config.provider.type == "local" else QUIET_S

    async def _clean_up_provider(self) -> None:
        clean = getattr(self.session.node_provider, "cleanup_cluster_resources", None)
        if callable(clean):
            try:
                await asyncio.to_thread(clean)
            except Exception as error:  # noqa: BLE001 - the machines are gone already
                self._notes.append(f"the provider's own clean-up failed: {error_text(error)}")

    async def _purge_account(self) -> None:
        """Removes what `up` has made beside machines."""
        session = self.session
        if session.config.provider.type != "aws":
            return
        from muster.providers.aws.account import purge

        session.context.report("", "removing the security group, the key and the instance profile")
        left = await asyncio.to_thread(
            purge, session.bare_provider, session.config, lambda step: session.context.report("", step)
        )
        self._notes += [f"could not be removed: {line}" for line in left]

    def _forget(self) -> Spend | None:
        """Removes what this computer keeps of a cluster that is down; its history stays unless purged."""
        session, home = self.session, self.session.home
        spend = None
        if home.ledger.is_file():
            spend = close_ledger(home.ledger, session.context.clock, session.context.ids)
        for path in (
            home.launch,
            home.token,
            home.path / "hosts.json",
            home.cluster,
            home.status,
            home.pulled,
        ):
            path.unlink(missing_ok=True)
        shutil.rmtree(home.backups, ignore_errors=True)  # of a cluster that is down nothing is found again
        is_on_head = session.file.name == Path(HEAD_FILE).name  # by `exec --stop --tmux`: nothing stays there
        if self.options.purge or is_on_head:
            shutil.rmtree(home.path, ignore_errors=True)
        for folder in (home.path.parent, home.path.parent.parent) if is_on_head else ():
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless something else is in it
        return spend


@dataclass(frozen=True)
class EndedWorkers:
    """An EndedWorkers is which workers were ended, and why others were not."""

    ended: tuple[str, ...]
    left: Mapping[str, str]


class _Keeping:
    """A _Keeping hides as many workers of each type as the file always wants, so that they are not ended."""

    def __init__(self, port: CloudProvider, config: ClusterConfig) -> None:
        self._port = port
        self._least = {name: entry.min_workers for name, entry in config.available_node_types.items()}

    def list_instances(self) -> dict[CloudId, CloudInstance]:
        kept = dict(self._least)
        shown: dict[CloudId, CloudInstance] = {}
        for cloud_id, machine in sorted(self._port.list_instances().items()):
            if kept.get(machine.node_type, 0) > 0:
                kept[machine.node_type] -= 1
            else:
                shown[cloud_id] = machine
        return shown

    def __getattr__(self, name: str) -> object:
        return getattr(self._port, name)
