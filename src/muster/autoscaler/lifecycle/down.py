"""Stop a cluster of any kind: its monitor first, then workers, then the head, then the files.

Called by `muster down` and by an `up` that failed. Idempotent. A head that does not answer keeps nothing: the
machines are the provider's, which lists and terminates them.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from muster.autoscaler.backup import backups_of, forget_line
from muster.autoscaler.lifecycle.here import end_monitor, running_monitor
from muster.autoscaler.lifecycle.open import OpenCluster, machines_of
from muster.autoscaler.status_files import HeadRecord
from muster.base.clock import Clock
from muster.base.ids import CloudId
from muster.base.untrusted import error_text
from muster.cluster.model import NodeKind
from muster.cluster.states import InstanceState
from muster.errors import ClusterError, ConfigError, MusterError, StoreError
from muster.providers.kind import HeadPolicy
from muster.providers.machines import Machine
from muster.providers.process.head import stop_everything
from muster.providers.teardown import NO_MACHINES, EndedMachines, WorkerTeardown
from muster.remote.ledger_copy import copy_command
from muster.remote.runner import CommandRunner
from muster.remote.service import HEAD_FILE, remove_service
from muster.stores.ledger.history import Spend
from muster.stores.ledger.store import SqliteInstanceStore, close_ledger

WORKERS_S = 300.0  # clouds take a minute or two
HEAD_S = 60.0
COMING_S = 10.0  # a machine that was requested and not seen yet may turn up for so long


@dataclass(frozen=True, kw_only=True)
class DownOptions:
    """What a user may choose for one `down`."""

    workers_only: bool = False
    keep_min_workers: bool = False
    purge: bool = False

    @property
    def keeps_head(self) -> bool:
        return self.workers_only or self.keep_min_workers


@dataclass(frozen=True, kw_only=True)
class StoppedCluster:
    """What `down` stopped; `left` has a reason for each machine or node that is left."""

    monitor_pid: int | None = None  # of a monitor on this computer; None: none ran
    nodes: tuple[str, ...] = ()  # on this computer
    workers: tuple[str, ...] = ()
    head: str = ""
    left: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    spend: Spend | None = None
    silent: Mapping[str, str] = field(default_factory=dict)  # hosts that could not be asked, and why

    @property
    def nothing(self) -> bool:
        return self.monitor_pid is None and not (self.nodes or self.workers or self.head or self.left)


class ClusterDown:
    """One call of `down`."""

    def __init__(self, session: OpenCluster, options: DownOptions | None = None) -> None:
        self.session, self.options = session, options or DownOptions()
        self._notes: list[str] = []
        record = session.record()
        # A shadow's ledger names what muster would have launched; the machines are another autoscaler's.
        self._has_machines = session.kind.has_machines and not session.home.shadow.exists()
        # A head that was started by hand, with a monitor by hand, is the user's.
        is_head_ours = record.head is not None or session.kind.head is HeadPolicy.HERE
        self._is_by_hand = self._has_machines and not is_head_ours and record.monitor is not None

    async def run(self) -> StoppedCluster:
        """Stop the cluster. Raises ClusterError, before anything is done, for an unusable provider."""
        self._check_provider()
        heads = await asyncio.to_thread(self._heads)
        is_last = not self.options.keeps_head
        pid = await self._quiet(heads) if is_last else None
        stopped = (
            await asyncio.to_thread(stop_everything, self.session.home.nodes, self._clock)
            if is_last and self.session.home.nodes.is_dir()
            else None
        )
        ended = await asyncio.to_thread(self._end_workers) if self._has_machines else NO_MACHINES
        left = dict(ended.left)
        if stopped is not None:
            left |= {node: f"processes {', '.join(map(str, pids))}" for node, pids in stopped.left.items()}
        if is_last:
            left |= await self._end_heads()
        if self._has_machines:
            left |= await asyncio.to_thread(self.session.port.settle, is_last=is_last)
        return StoppedCluster(
            monitor_pid=pid,
            nodes=() if stopped is None else stopped.nodes,
            workers=ended.ended,
            head=heads[0].ip if heads and is_last else "",
            left=left,
            spend=self._forget() if is_last and not left else None,
            notes=tuple(self._notes),
            silent=await asyncio.to_thread(self.session.port.silent_hosts) if self._has_machines else {},
        )

    @property
    def _clock(self) -> Clock:
        return self.session.context.clock

    def _check_provider(self) -> None:
        if not self._has_machines:
            return
        try:
            self.session.port  # noqa: B018 - built now
        except ConfigError as error:
            left = machines_of(self.session.home)
            shown = f"these machines may still run: {', '.join(left)}" if left else "the ledger names none"
            raise ClusterError(
                "nothing was stopped: the provider that must end them cannot be used", fix=f"{shown}; {error}"
            ) from error

    def _heads(self) -> list[Machine]:
        if not self._has_machines or self._is_by_hand:
            return []
        self.session.context.report("", "looking for machines")
        head = self.session.head()
        return [] if head is None else [head]

    # -- monitors ---------------------------------------------------------------------------------

    async def _quiet(self, heads: list[Machine]) -> int | None:
        """Stop the monitor, which would replace what is stopped; return its process id on this computer."""
        for head in heads:
            await self._quiet_head(head)
        if running_monitor(self.session.home) is None:
            return None
        self.session.context.report("", "stopping the monitor")
        return await asyncio.to_thread(end_monitor, self.session.home, self._clock)

    async def end_earlier_head(self, head: Machine) -> str:
        """Stop a head that another host follows; its ledger stays here for that one.

        Return why it could not be stopped, or "".
        """
        session = self.session
        if not await asyncio.to_thread(session.port.answers, head.node_id):
            return "it does not answer"
        session.context.report(head.ip, "stopping an earlier head")
        await self._quiet_head(head, is_followed=True)
        return await self._end_head(head)

    async def _quiet_head(self, head: Machine, *, is_followed: bool = False) -> None:
        """Stop the monitor on the head, and take a copy of its ledger."""
        session, record = self.session, self.session.head_record()
        session.context.report(head.ip, "stopping the monitor")
        try:
            runner = session.runner(head.node_id)
            await self._within(runner.run("true", timeout_s=HEAD_S))
            await self._within(remove_service(runner, session.config.cluster_name))
            if not record.python:
                return  # it was not set up, so it has no ledger
            if is_followed:
                # The next head starts from it; that of a head that is followed already would mislead.
                if not record.shares_home and record.node_id == head.node_id:
                    await session.pull_ledger(runner)
                return
            await self._forget_copies(runner, record.python)
            if not record.shares_home:
                await self._copy_ledger(runner, record)
        except (MusterError, TimeoutError, asyncio.TimeoutError) as error:
            self._notes.append(f"the head did not answer ({error_text(error)}), so its files stay there")

    async def _within(self, work: object) -> object:
        return await asyncio.wait_for(work, HEAD_S)  # type: ignore[arg-type]

    async def _copy_ledger(self, runner: CommandRunner, record: HeadRecord) -> None:
        """The history stays on this computer, so that `muster why` can still show it."""
        with contextlib.suppress(MusterError, TimeoutError, asyncio.TimeoutError):
            line = copy_command(record.python, record.home)
            if "none" not in str(await self._within(runner.run(line))).split()[-1:]:
                draft = f"{record.home}/.ledger.pulled"
                await self._within(runner.sync_down(draft, str(self.session.home.ledger)))

    async def _forget_copies(self, runner: CommandRunner, python: str) -> None:
        """Copies of the ledger are for a head that is lost; one of a cluster that was ended would mislead."""
        line = forget_line(self.session.config, python)
        if line:
            with contextlib.suppress(MusterError, TimeoutError, asyncio.TimeoutError):
                await self._within(runner.run(line))

    # -- machines ---------------------------------------------------------------------------------

    async def _end_heads(self) -> dict[str, str]:
        """Stop the heads that the provider lists, replaced ones included; return what is left, and why."""
        if not self._has_machines:
            return {}
        heads = [] if self._is_by_hand else await asyncio.to_thread(self.session.port.machines, NodeKind.HEAD)
        if not self._is_by_hand:
            await asyncio.to_thread(self._end_unlisted, NodeKind.HEAD)
        left = {one.node_id: problem for one in heads if (problem := await self._end_head(one))}
        try:
            await asyncio.to_thread(self.session.port.clean_up)
        except Exception as error:  # noqa: BLE001 - the machines are gone already
            self._notes.append(f"the provider's own clean-up failed: {error_text(error)}")
        session, purge = self.session, self.session.kind.purge
        if self.options.purge and not left and purge is not None:
            report = lambda step: session.context.report("", step)  # noqa: E731 - for one call
            remaining = await asyncio.to_thread(purge, session.port, session.config, report)
            self._notes += [f"could not be removed: {line}" for line in remaining]
        return left

    async def _end_head(self, head: Machine) -> str:
        """Return why the head could not be stopped, or ""."""
        port = self.session.port
        self.session.context.report(head.ip, "stopping the head")
        try:
            await asyncio.to_thread(port.terminate_machines, [head.node_id])
            for _ in range(int(WORKERS_S)):
                listed = await asyncio.to_thread(port.machines, NodeKind.HEAD)
                if head.node_id not in [one.node_id for one in listed]:
                    return ""
                await asyncio.sleep(1.0)
        except Exception as error:  # noqa: BLE001 - reported, with what is left
            return error_text(error)
        return "still listed"

    def _end_unlisted(self, kind: NodeKind) -> None:
        """End what the provider names for a teardown alone; nothing shows whether it is gone."""
        port = self.session.port
        try:
            node_ids = port.left_to_tear_down(kind)
            if node_ids:
                port.terminate_machines(node_ids)
        except Exception as error:  # noqa: BLE001 - what is listed is ended all the same
            self._notes.append(f"not all machines for teardown could be ended: {error_text(error)}")

    def _end_workers(self) -> EndedMachines:
        context, quiet_s = self.session.context, self.session.kind.quiet_s
        types = self.session.config.available_node_types.items() if self.options.keep_min_workers else ()
        keep = {name: entry.min_workers for name, entry in types}
        self._end_unlisted(NodeKind.WORKER)
        with self._held_ledger() as (known, is_coming):
            teardown = WorkerTeardown(self.session.port, context.clock, context.ids, known=known, keep=keep)
            report = lambda text: context.report("", text)  # noqa: E731 - for one call
            return teardown.run(report, WORKERS_S, COMING_S if is_coming else quiet_s)

    @contextmanager
    def _held_ledger(self) -> Iterator[tuple[list[CloudId], bool]]:
        """Hold a ledger of this computer, so that no monitor starts; yield workers, and if more may come."""
        if self.session.record().head is not None or not self.session.home.ledger.is_file():
            yield [], False
            return
        with SqliteInstanceStore(self.session.home.ledger, clock=self._clock) as store:
            records = store.load().instances.values()
            known = [one.cloud_id for one in records if one.cloud_id and one.kind is not NodeKind.HEAD]
            yield known, any(one.state is InstanceState.REQUESTED for one in records)

    # -- files here -------------------------------------------------------------------------------

    def _forget(self) -> Spend | None:
        """Remove what this computer keeps of a cluster that is down; its history stays unless purged."""
        session, home = self.session, self.session.home
        spend = close_ledger(home.ledger, self._clock, session.context.ids)
        self._last_copy()
        files = [home.cluster, home.status, home.pulled, home.path / "hosts.json"]
        for path in files if self._is_by_hand else [*files, home.token]:  # a head by hand keeps its token
            path.unlink(missing_ok=True)
        shutil.rmtree(home.backups, ignore_errors=True)  # of a cluster that is down nothing is found again
        is_on_head = session.file.name == Path(HEAD_FILE).name  # by `exec --stop --tmux`: nothing stays there
        if self.options.purge or is_on_head:
            shutil.rmtree(home.path, ignore_errors=True)
        for folder in (home.path.parent, home.path.parent.parent) if is_on_head else ():
            with contextlib.suppress(OSError):
                folder.rmdir()  # unless something else is in it
        return spend

    def _last_copy(self) -> None:
        """The newest copy of a ledger of this computer must not name machines that were terminated."""
        home = self.session.home
        if self.session.record().head is not None or not self.session.file.is_file():
            return
        try:
            backups = backups_of(self.session.config)
            if backups is not None and self.options.purge:
                backups.forget()
            elif backups is not None and home.ledger.is_file():
                backups.write(home.ledger)
        except (ConfigError, StoreError) as error:
            self.session.context.report("", f"the copies of the ledger are as they were: {error}")
