"""Brings a cluster up on other machines: finds or makes the head, sets it up, and leaves a monitor there.

Called by `muster up`. Ended at any point it leaves a working cluster or none: what this call has made is
given back, and a head that ran before is left as it is.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import secrets
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from msgspec.structs import replace

from muster.autoscaler.launch.down import ClusterDown
from muster.autoscaler.launch.head_file import HeadFile, head_file
from muster.autoscaler.launch.head_setup import HeadSetup, HeadTarget, auth_of
from muster.autoscaler.launch.session import ClusterSession, LaunchRecord, Machine
from muster.base.foreign import error_text
from muster.base.text import counted
from muster.config.node_launch import RuntimeHashes, head_runtime_hashes, node_launches
from muster.config.schema import ClusterConfig, ProviderConfig
from muster.config.to_spec import to_spec
from muster.errors import ClusterError
from muster.providers.bootstrap import plain_config
from muster.providers.compat.clouds import CLOUDS
from muster.providers.v1.tags import (
    NODE_KIND_HEAD,
    STATUS_UNINITIALIZED,
    STATUS_UP_TO_DATE,
    TAG_RAY_LAUNCH_CONFIG,
    TAG_RAY_LAUNCH_REQUEST,
    TAG_RAY_NODE_KIND,
    TAG_RAY_NODE_NAME,
    TAG_RAY_NODE_STATUS,
    TAG_RAY_USER_NODE_TYPE,
)

TAG_RUNTIME = "ray-runtime-config"
TAG_CONTENTS = "ray-file-mounts-contents"
STATUS_FAILED = "update-failed"
WORKERS_LOOK_S = 1.0
NODE_START_S = 900.0  # Ray's AUTOSCALER_NODE_START_WAIT_S
SSH_EVERY_S = 5.0  # Ray's AUTOSCALER_NODE_SSH_INTERVAL_S


@dataclass(frozen=True, kw_only=True)
class UpOptions:
    """UpOptions are what a user may choose for one `up`."""

    no_restart: bool = False  # leave a Ray that runs as it is
    restart_only: bool = False  # run no set-up commands
    login_shells: bool = True
    show_output: Callable[[bytes], None] | None = None  # of the commands on the head


@dataclass(frozen=True)
class RunningCluster:
    """A RunningCluster is what `up` started or found."""

    record: LaunchRecord
    auth: dict[str, str]  # paths on the head
    is_new: bool
    is_changed: bool  # False: everything ran already, as the file says
    notes: tuple[str, ...] = ()


@dataclass
class ClusterUp:
    """A ClusterUp is one call of `up`."""

    session: ClusterSession
    options: UpOptions = field(default_factory=UpOptions)

    def __post_init__(self) -> None:
        self._creating: asyncio.Future[object] | None = None
        self._setup: HeadSetup | None = None
        self._request = self.session.context.ids.fresh("up")

    async def run(self) -> RunningCluster:
        session = self.session
        session.context.report("", "looking for the head")
        before = await asyncio.to_thread(session.head)
        if before is not None and self._must_replace(before):
            session.context.report(before.ip, "ending a head that the file does not describe any more")
            await asyncio.to_thread(session.node_provider.terminate_node, before.node_id)
            before = None
        notes = await self._end_earlier_heads()
        try:
            running = await self._bring_up(before)
            return dataclasses.replace(running, notes=(*notes, *running.notes))
        except BaseException as error:
            if before is None:
                with _undisturbed(session.context.report):
                    await asyncio.shield(self._undo(error))
            raise

    async def wait_for_workers(self, limit_s: float) -> int:
        """Returns how many workers run once all that the file always wants do, or when time is up."""
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
        """Returns whether another machine is wanted; the host of a rack is always the same."""
        if self.session.config.provider.type == "local":
            return False
        launch = node_launches(self.session.config)[self.session.config.head_type]
        is_same = head.tags.get(TAG_RAY_LAUNCH_CONFIG, launch.launch_hash) == launch.launch_hash
        return not is_same or head.node_type != self.session.config.head_type

    async def _end_earlier_heads(self) -> tuple[str, ...]:
        """Ends the heads of a rack that ran on other hosts than the file names now; returns what is left.

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
        session.write_record(is_up=False, request=self._request)
        head = before or await self._create()
        address = await asyncio.to_thread(session.address, head)
        hashes = await asyncio.to_thread(head_runtime_hashes, for_head_only(session.config))
        target = HeadTarget(head, address, self._head_file(), self._token(), hashes)
        runner = session.runner(head.node_id, login_shell=self.options.login_shells)
        setup = self._setup = HeadSetup(session, target, runner, self.options.show_output)
        await setup.wait_ready(*self._patience())
        if before is not None and await self._is_current(setup, before):
            is_edited = await setup.file_differs()
            if is_edited:
                await setup.write_files()
            record = session.write_record(is_up=True)
            notes = ("the monitor on the head applies what you changed in the file",) if is_edited else ()
            return RunningCluster(
                record, auth_of(setup.home), is_new=False, is_changed=is_edited, notes=notes
            )
        shares_home = await setup.shares_home(self._request)
        note = await self._set_up(setup, is_new=before is None, shares_home=shares_home)
        record = session.write_record(
            shares_home=shares_home,
            head_ip=head.ip,
            head_id=head.node_id,
            address=address,
            head_home=setup.home,
            python=setup.python,
            is_up=True,
        )
        await setup.write_record(record)
        notes = (note,) if note else ()
        return RunningCluster(
            record, auth_of(setup.home), is_new=before is None, is_changed=True, notes=notes
        )

    async def _set_up(self, setup: HeadSetup, *, is_new: bool, shares_home: bool) -> str:
        if not self.options.restart_only or self.session.config.docker.container_name or is_new:
            await self._tag(setup, {TAG_RAY_NODE_STATUS: "setting-up"})
            await setup.set_up()
        await setup.write_files()
        await setup.install_muster()
        if is_new or not self.options.no_restart:
            await setup.start_ray()
        if is_new and not shares_home:
            await setup.send_ledger()
        note = await setup.start_monitor()
        await setup.wait_for_monitor()
        if not shares_home:
            await setup.fetch_ledger()
        hashes = setup.target.hashes
        done = {TAG_RAY_NODE_STATUS: STATUS_UP_TO_DATE, TAG_RUNTIME: hashes.runtime}
        await self._tag(setup, {**done, TAG_CONTENTS: hashes.contents or ""})
        return note

    async def _tag(self, setup: HeadSetup, tags: dict[str, str]) -> None:
        v1 = self.session.node_provider
        await asyncio.to_thread(v1.set_node_tags, setup.target.machine.node_id, tags)

    async def _is_current(self, setup: HeadSetup, head: Machine) -> bool:
        """Returns whether the head was set up from the same file, and its monitor reports it as running."""
        hashes: RuntimeHashes = setup.target.hashes
        is_same = head.tags.get(TAG_RUNTIME) == hashes.runtime
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
            TAG_RAY_LAUNCH_REQUEST: self._request,
        }
        create = session.node_provider.create_node
        # Shielded: a call that was made is waited for even after Ctrl-C, or its machine would be forgotten.
        self._creating = asyncio.ensure_future(asyncio.to_thread(create, dict(launch.node_config), tags, 1))
        await asyncio.shield(self._creating)
        limit_s, every_s = self._patience()
        clock = session.context.clock
        give_up = clock.monotonic() + limit_s
        while clock.monotonic() < give_up:
            head = await asyncio.to_thread(session.head)
            if head is not None and head.ip:
                return head
            await asyncio.sleep(min(1.0, every_s))
        raise ClusterError(f"the head's machine had no address within {limit_s:g} s; look at your provider")

    def _patience(self) -> tuple[float, float]:
        given = self.session.context.environment
        limit = _number(given.get("AUTOSCALER_NODE_START_WAIT_S"), NODE_START_S)
        every = _number(given.get("AUTOSCALER_NODE_SSH_INTERVAL_S"), SSH_EVERY_S)
        return (min(limit, 60.0) if self.session.config.provider.type == "local" else limit), every

    def _head_file(self) -> HeadFile:
        """Returns the head's file; a provider's class may change what goes there."""
        session = self.session
        prepare = getattr(session.node_provider, "prepare_for_head_node", None)
        if session.config.provider.type not in (*CLOUDS, "external") or prepare is None:
            return head_file(session.data, session.filled)
        given = plain_config(session.config)
        prepared = prepare(given)
        changed = {
            key: value
            for key, value in (prepared if isinstance(prepared, dict) else given).items()
            if key in ("provider", "auth", "available_node_types", "file_mounts")
            and (session.filled is not None or value != plain_config(session.config).get(key))
        }
        return head_file(session.data, {**(session.filled or {}), **changed} or None)

    def _token(self) -> str:
        """Returns the cluster's token, made once; a copy stays here, readable by its owner only."""
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
        """Ends what this call has begun; the error that led here is the one that the user sees."""
        report = self.session.context.report
        report("", "it could not be started: giving everything back")
        if self._creating is not None:
            await asyncio.gather(self._creating, return_exceptions=True)
        try:
            done = await ClusterDown(self.session).run()
        except Exception as problem:  # noqa: BLE001 - told beside the first one
            raise ClusterError(
                f"{error_text(error)}; and giving back what was begun failed too ({error_text(problem)}): "
                f"run `muster down {self.session.file}`"
            ) from error
        if done.left:
            left = "; ".join(f"{machine} ({why})" for machine, why in done.left.items())
            raise ClusterError(
                f"{error_text(error)}; and these machines are left: {left}; run `muster down "
                f"{self.session.file}`"
            ) from error


def for_head_only(config: ClusterConfig) -> ClusterConfig:
    """Returns what the head itself is set up from; all else its monitor applies while it runs."""
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
    """Returns how many workers the cluster has whatever runs on it."""
    spec = to_spec(config)
    least = {known.name: known.min_nodes for known in spec.node_types}
    least[spec.head_node_type] = max(0, least[spec.head_node_type] - 1)  # the head is one of its type
    return sum(least.values()) if spec.max_nodes is None else min(sum(least.values()), spec.max_nodes - 1)


@contextlib.contextmanager
def _undisturbed(report: Callable[[str, str], None]) -> Iterator[None]:
    """Lets no second Ctrl-C end the return of machines half way."""
    loop = asyncio.get_running_loop()
    try:
        loop.add_signal_handler(signal.SIGINT, lambda: report("", "still giving back what was begun; wait"))
    except (NotImplementedError, RuntimeError, ValueError):  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


def _number(text: str | None, default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        return default
