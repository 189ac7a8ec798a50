"""Bring a cluster up on other machines: finds or makes the head, sets it up, and leaves a monitor there.

Called by `muster up`. Ended at any point it leaves a working cluster or none: what this call has made is
released, and a head that ran before is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from muster.autoscaler.lifecycle.down import ClusterDown
from muster.autoscaler.lifecycle.head import HeadSetup, HeadTarget, auth_of
from muster.autoscaler.lifecycle.head_file import HeadFile, head_file
from muster.autoscaler.lifecycle.open import OpenCluster, RunningCluster
from muster.base.text import counted
from muster.base.untrusted import error_text
from muster.config.node_launch import RuntimeHashes, head_runtime_hashes
from muster.config.schema import ClusterConfig, ProviderConfig
from muster.config.to_spec import node_launches, to_spec
from muster.errors import ClusterError, CommandFailed
from muster.providers.bootstrap import plain_config
from muster.providers.kind import HeadPolicy
from muster.providers.machines import Machine
from muster.providers.v1.tags import (
    NODE_KIND_HEAD,
    STATUS_UNINITIALIZED,
    STATUS_UP_TO_DATE,
    TAG_RAY_LAUNCH_CONFIG,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)
from muster.remote.steps import TAG_RUNTIME_HASH

WORKERS_LOOK_S = 1.0


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """What a user may choose for one `up`."""

    no_restart: bool = False  # leave a Ray that runs as it is
    restart_only: bool = False  # run no set-up commands
    login_shells: bool = True
    show_output: Callable[[bytes], None] | None = None  # of the commands on the head


@dataclass
class ClusterUp:
    """One call of `up` for a cluster whose head is another machine."""

    session: OpenCluster
    options: UpOptions = field(default_factory=UpOptions)

    def __post_init__(self) -> None:
        self._creating: asyncio.Future[None] | None = None
        self._setup: HeadSetup | None = None
        self._is_ending = False
        self._request = self.session.context.ids.fresh("up")

    async def run(self) -> RunningCluster:
        """Bring the cluster up. Raises KeyboardInterrupt after Ctrl-C, once nothing of it is left."""
        task = asyncio.current_task()
        assert task is not None, "inside a coroutine"
        with _signals(lambda: self._on_signal(task)):
            try:
                return await self._run()
            except asyncio.CancelledError:
                raise KeyboardInterrupt from None

    def _on_signal(self, task: asyncio.Task[Any]) -> None:
        """Interrupt the work once; nothing interrupts the return of what was begun."""
        if self._is_ending:
            self.session.context.report("", "still releasing what was started; wait")
        else:
            self._is_ending = True
            task.cancel()

    async def _run(self) -> RunningCluster:
        session = self.session
        session.context.report("", "looking for the head")
        before = await asyncio.to_thread(session.head)
        if before is not None and self._must_replace(before):
            session.context.report(before.ip, "ending a head that the file does not describe any more")
            await asyncio.to_thread(session.port.terminate_machines, [before.node_id])
            before = None
        notes = await self._end_earlier_heads()
        if before is not None:
            notes += await asyncio.to_thread(session.notes_on_removed_types)
        try:
            running = await self._bring_up(before)
            return dataclasses.replace(running, notes=(*notes, *running.notes))
        except BaseException as error:
            self._is_ending = True
            if before is None:
                await asyncio.shield(self._undo(error))
            raise

    async def wait_for_workers(self, limit_s: float) -> int:
        """Return how many workers run once all that the file always wants do, or when time is up."""
        assert self._setup is not None, "after `run`"
        clock, wanted, running = self.session.context.clock, wanted_workers(self.session.config), -1
        give_up = clock.monotonic() + limit_s
        while True:
            before, running = running, await self._setup.running_workers()
            if running != before:
                self.session.context.report("", f"{running} of {counted(wanted, 'worker')} running")
            if running >= wanted or clock.monotonic() >= give_up:
                return running
            await asyncio.sleep(WORKERS_LOOK_S)

    def _must_replace(self, head: Machine) -> bool:
        """Return whether another machine is wanted; the host of a rack is always the same."""
        if self.session.kind.head is HeadPolicy.HOST:
            return False
        launch = node_launches(self.session.config)[self.session.config.head_type]
        is_same = head.tags.get(TAG_RAY_LAUNCH_CONFIG, launch.launch_hash) == launch.launch_hash
        return not is_same or head.node_type != self.session.config.head_type

    async def _end_earlier_heads(self) -> tuple[str, ...]:
        """End the heads of a rack that ran on other hosts than the file names now; returns what is left.

        A host that was lost and has come back would else stay locked, and start its own Ray again.
        """
        session, notes = self.session, []
        for one in await asyncio.to_thread(session.earlier_heads):
            problem = await ClusterDown(session).end_earlier_head(one)
            if problem:
                notes.append(
                    f"an earlier head at {one.ip} could not be ended ({problem}): keep it off, or run "
                    f"`muster up {session.file}` again when it answers"
                )
        return tuple(notes)

    async def _bring_up(self, before: Machine | None) -> RunningCluster:
        session = self.session
        # Already: a `down` after a kill must find the cluster.
        session.write_head(is_up=False, request=self._request)
        head = before or await self._create()
        address = await asyncio.to_thread(session.address, head)
        hashes = await asyncio.to_thread(head_runtime_hashes, for_head_only(session.config))
        target = HeadTarget(head, address, self._head_file(), self._token(), hashes)
        runner = session.runner(head.node_id, login_shell=self.options.login_shells, is_setup=True)
        setup = self._setup = HeadSetup(session, target, runner, self.options.show_output)
        await setup.wait_ready()
        if before is not None and await self._is_current(setup, before):
            is_edited = await setup.file_differs()
            if is_edited:
                await setup.write_files()
            record = session.write_head(is_up=True)
            notes = ("the monitor on the head applies what you changed in the file",) if is_edited else ()
            return RunningCluster(
                record, auth_of(setup.home), is_new=False, is_changed=is_edited, notes=notes
            )
        shares_home = await setup.shares_home(self._request)
        where = {"ip": head.ip, "node_id": head.node_id, "home": setup.home, "shares_home": shares_home}
        session.write_head(address, **where)  # before anything is made there
        if not shares_home:
            await setup.claim_home()
        try:
            note = await self._set_up(setup, is_new=before is None, shares_home=shares_home)
        except CommandFailed as error:
            last = " | ".join(error.last_lines[-3:])
            shown = f"; its last output: {last}" if last and last not in str(error) else ""
            raise ClusterError(f"could not set up the head: {error}{shown}") from error
        record = session.write_head(is_up=True)
        notes = (note,) if note else ()
        return RunningCluster(
            record, auth_of(setup.home), is_new=before is None, is_changed=True, notes=notes
        )

    async def _set_up(self, setup: HeadSetup, *, is_new: bool, shares_home: bool) -> str:
        async with setup.node.tagging(setup.target.hashes):
            await setup.prepare(is_restart_only=self.options.restart_only and not is_new)
            await setup.write_files()
            await setup.install_muster()
            if is_new or not self.options.no_restart:
                await setup.start_ray()
            if is_new and not shares_home:
                await setup.send_ledger()
            record = self.session.write_head(home=setup.home, python=setup.python)
            await setup.write_record(record)  # before the monitor, which adds itself
            note = await setup.start_monitor()
            await setup.wait_for_monitor()
            if not shares_home:
                await self.session.pull_ledger(setup.runner)
        return note

    async def _is_current(self, setup: HeadSetup, head: Machine) -> bool:
        """Return whether the head was set up from the same file, and its monitor reports it as running."""
        hashes: RuntimeHashes = setup.target.hashes
        is_same = head.tags.get(TAG_RUNTIME_HASH) == hashes.runtime
        is_done = head.tags.get(TAG_RAY_NODE_STATUS) == STATUS_UP_TO_DATE
        return is_same and is_done and not self.options.restart_only and await setup.is_running()

    # -- the head's machine -----------------------------------------------------------------------

    async def _create(self) -> Machine:
        session, config = self.session, self.session.config
        session.context.report("", "getting a machine for the head")
        launch = node_launches(config)[config.head_type]
        tags = {
            TAG_RAY_NODE_NAME: f"ray-{config.cluster_name}-head",
            TAG_RAY_NODE_KIND: NODE_KIND_HEAD,
            TAG_RAY_USER_NODE_TYPE: config.head_type,
            TAG_RAY_NODE_STATUS: STATUS_UNINITIALIZED,
            TAG_RAY_LAUNCH_CONFIG: launch.launch_hash,
        }
        create = session.port.create_head
        # Shielded: a call that was made is waited for even after Ctrl-C, or its machine would be forgotten.
        self._creating = asyncio.ensure_future(asyncio.to_thread(create, self._request, launch, tags))
        await asyncio.shield(self._creating)
        timing, clock = session.head_timing(), session.context.clock
        give_up = clock.monotonic() + timing.ready_s
        while clock.monotonic() < give_up:
            head = await asyncio.to_thread(session.head)
            if head is not None and head.ip:
                return head
            await asyncio.sleep(min(1.0, timing.interval_s))
        raise ClusterError(
            f"the head's machine had no address within {timing.ready_s:g} s", fix="look at your provider"
        )

    def _head_file(self) -> HeadFile:
        """Return the head's file; a provider's class may change what goes there."""
        session = self.session
        prepared = session.port.prepare_for_head(plain_config(session.config))
        if prepared is None:
            return head_file(session.data, session.filled)
        changed = {
            key: value
            for key, value in prepared.items()
            if key in ("provider", "auth", "available_node_types", "file_mounts")
            and (session.filled is not None or value != plain_config(session.config).get(key))
        }
        return head_file(session.data, {**(session.filled or {}), **changed} or None)

    def _token(self) -> str:
        """Return the cluster's token, made once; a copy stays here, readable by its owner only."""
        path = self.session.home.token
        with contextlib.suppress(FileNotFoundError):
            return path.read_text(encoding="ascii")
        self.session.home.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        token = secrets.token_hex(32)
        path.touch(mode=0o600)
        path.write_text(token, encoding="ascii")
        return token

    # -- when it fails ----------------------------------------------------------------------------

    async def _undo(self, error: BaseException) -> None:
        """End what this call has begun; the error that led here is the one that the user sees."""
        report = self.session.context.report
        report("", "it could not be started: giving everything back")
        if self._creating is not None:
            await asyncio.gather(self._creating, return_exceptions=True)
        try:
            done = await ClusterDown(self.session).run()
            if isinstance(error, asyncio.CancelledError) and self._setup is not None:
                self._setup.node.remove_logs()  # of a failure they are kept: they say why
        except Exception as problem:  # noqa: BLE001 - told beside the first one
            raise ClusterError(
                f"{error_text(error)}",
                fix=(
                    f"and releasing what was started failed too ({error_text(problem)}): "
                    f"run `muster down {self.session.file}`"
                ),
            ) from error
        if done.left:
            left = "; ".join(f"{machine} ({why})" for machine, why in done.left.items())
            raise ClusterError(
                f"{error_text(error)}",
                fix=(f"and these machines are left: {left}; run `muster down {self.session.file}`"),
            ) from error


def for_head_only(config: ClusterConfig) -> ClusterConfig:
    """Return what the head itself is set up from; all else its monitor applies while it runs."""
    head = replace(config.available_node_types[config.head_type], min_workers=0, max_workers=0)
    return ClusterConfig(
        cluster_name=config.cluster_name,
        provider=ProviderConfig(type=config.provider.type, module=config.provider.module),
        auth=config.auth,
        docker=config.docker,
        head_node_type=config.head_type,
        available_node_types={config.head_type: head},
        file_mounts=config.file_mounts,
        cluster_synced_files=config.cluster_synced_files,
        initialization_commands=config.initialization_commands,
        head_setup_commands=config.head_setup_commands,
        head_start_ray_commands=config.head_start_ray_commands,
    )


def wanted_workers(config: ClusterConfig) -> int:
    """Return how many workers the cluster has whatever runs on it."""
    spec = to_spec(config)
    least = {known.name: known.min_nodes for known in spec.node_types}
    least[spec.head_node_type] = max(0, least[spec.head_node_type] - 1)  # the head is one of its type
    return sum(least.values()) if spec.max_nodes is None else min(sum(least.values()), spec.max_nodes - 1)


@contextlib.contextmanager
def _signals(act: Callable[[], None]) -> Iterator[None]:
    """Call a function at Ctrl-C, at a request to end, and when the terminal is closed, unless ignored."""
    loop, handled = asyncio.get_running_loop(), []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        with contextlib.suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, act)
                handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(number)
