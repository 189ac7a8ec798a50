"""The hosts of a simulated rack as values, and a runner that carries out the lines of `host_lock` on them.

`SimHost.execute` is the shell: it understands exactly the lines that muster sends. A test runs the same lines
with bash and compares the answers (tests/providers/rack/test_host_lines.py).
"""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache, partial
from types import MappingProxyType

import msgspec
from tests.simulation.rack.virtual_loop import VirtualLoop

from muster.base.rng import Stream
from muster.errors import CommandFailed, KeyRefused, Unreachable
from muster.providers.rack import host_lock
from muster.providers.rack.host_list import RackHost
from muster.providers.rack.host_lock import LockHolder
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.world import World

GIVEN_UP_S = 30.0  # for a take
CONNECT_S = 10.0  # after so long ssh gives a silent host up
_VERBS = {
    host_lock._LOOK: "look",
    host_lock._TAKE: "take",
    host_lock._WRITE: "write",
    host_lock._RELEASE: "release",
}


@lru_cache(maxsize=4096)
def parse(line: str) -> tuple[str, Mapping[str, str]]:
    """Return the verb and the words of a line of `host_lock`."""
    given, _, script = shlex.split(line)[2].partition(host_lock._FUNCTIONS)
    words = dict(word.split("=", 1) for word in shlex.split(given))
    return _VERBS[script], MappingProxyType(words)


@dataclass
class SimHost:
    """One computer of the rack as it truly is."""

    ip: str
    node_type: str
    is_head: bool = False
    lock: str = ""  # the text of the lock's file
    owner: str = ""  # another user of the host, who has made the lock; "": the login user
    boots: int = 1
    nodes: set[str] = field(default_factory=set)  # cloud ids with processes of a node
    rays_until: float = 0.0  # somebody else's Ray runs here
    off_until: float = 0.0
    refuses_until: float = 0.0  # the user is wrong
    full_until: float = 0.0  # the disk
    unlisted_until: float = 0.0
    skew_s: float = 0.0
    empties_locks: bool = True  # a start empties the directory of the lock, as with /tmp
    done: dict[str, set[str]] = field(default_factory=dict)  # by cloud id: what was set up here

    @property
    def boot(self) -> str:
        return f"boot-{self.ip}-{self.boots}"

    @property
    def holder(self) -> LockHolder | None:
        return host_lock.HostReport(lock=self._read()).holder

    @property
    def listed(self) -> RackHost:
        return RackHost(ip=self.ip, node_type=self.node_type, is_head=self.is_head)

    def execute(self, verb: str, words: Mapping[str, str], now: float) -> str:
        """Carry out one line and return what it prints. Raises CommandFailed."""
        if verb == "look":
            return self._look(now)
        is_ours = f'"cloud_id":"{words["ID"]}"' in self._read()
        if verb == "take":
            if self.owner:
                if words["ID"]:
                    raise CommandFailed(f"the host is taken by a lock of user {self.owner}", exit_code=3)
                return f"foreign={self.owner}\n"
            if self.lock and (f'"boot":"{self.boot}"' in self.lock or '"boot":"' not in self.lock):
                if words["ID"] and not is_ours:  # a head that takes its host again
                    raise CommandFailed("another cluster has taken the host", exit_code=3)
                return f"held={self.lock}\n"
            self._write(words["HOLDER"].replace("@BOOT@", self.boot, 1), now)
            return f"taken={self.boot}\n"
        if not is_ours:
            return "gone\n"
        if verb == "write":
            if f'"boot":"{self.boot}"' not in self.lock and '"is_head":true' not in self.lock:
                return "gone\n"
            self._write(words["HOLDER"].replace("@BOOT@", self.boot, 1), now)
            return f"written={self.boot}\n"
        self.nodes.discard(words["ID"])
        self.lock = ""
        return "released\n"

    def _read(self) -> str:
        """Return the lock, as far as it is read: nothing is read that another user has written."""
        return "" if self.owner else self.lock

    def _write(self, text: str, now: float) -> None:
        if now < self.full_until:
            raise CommandFailed("the lock cannot be written", exit_code=3)
        self.lock = text

    def _look(self, now: float) -> str:
        holder = self.holder
        mine = holder.cloud_id if holder is not None else ""
        rays = len(self.nodes - {mine}) + (now < self.rays_until)
        free_kb = 0 if now < self.full_until else 10**9
        return (
            f"gpus=0\nnow={now + self.skew_s}\ncpus=8\nmemory_kb=1000\ndisk_kb={free_kb}\nboot={self.boot}\n"
            f"rays={rays}\nservices=\nowner={self.owner}\nlock={self._read()}\n"
        )

    def set_up(self, cloud_id: str, what: str) -> None:
        """Carry out one command of a set-up. Raises CommandFailed where the host is not the node's."""
        holder = self.holder
        if holder is None or (holder.cloud_id, holder.boot) != (cloud_id, self.boot):
            raise CommandFailed("this host is not the node's any more", exit_code=3)
        self.done.setdefault(cloud_id, set()).add(what)


Executed = Callable[[SimHost, str, Mapping[str, str], bool], None]


@dataclass
class SimRunner:
    """A CommandRunner to one simulated host: commands hang, are late, or break before or after they ran."""

    host: SimHost
    world: World
    faults: Faults
    draw: Stream
    loop: VirtualLoop
    on_executed: Executed  # host, verb, words, and whether the caller gets the answer
    cloud_id: str = ""  # whose set-up it runs; "": the lines of the provider
    _sent: dict[asyncio.Future[str], float] = field(default_factory=dict)
    _done: set[str] = field(default_factory=set)  # what this set-up has done itself

    async def run(self, command: str, *, timeout_s: float = 60.0, **options: object) -> str:
        answer = self.loop.future()
        self._sent[answer] = self.world.time
        self._send(partial(self._set_up, command) if self.cloud_id else partial(self._line, command), answer)
        try:
            return await asyncio.wait_for(answer, timeout_s)
        except asyncio.TimeoutError:
            raise TimeoutError(f"{self.host.ip} did not answer within {timeout_s:g} s") from None

    async def sync_up(self, source: str, target: str, *, timeout_s: float = 60.0, **options: object) -> None:
        """Copy a file; a connection that breaks leaves it incomplete for this set-up.

        rsync puts a file in place once it is whole: what an earlier set-up has copied is there meanwhile.
        """
        done = self.host.done.setdefault(self.cloud_id, set())
        done.discard(target)
        await self.run(f"half of {target}", timeout_s=timeout_s)
        if self.faults.hit("copy_breaks"):
            raise Unreachable(f"the connection to {self.host.ip} broke")
        await self.run(target, timeout_s=timeout_s)

    async def prepare(self, **options: object) -> bool:
        return False

    async def close(self) -> None:
        """There is no connection."""

    def _send(self, arrive: Callable[[asyncio.Future[str]], None], answer: asyncio.Future[str]) -> None:
        """Let the command arrive after a while, whatever becomes of the process that sent it."""
        world, host, faults = self.world, self.host, self.faults
        fail = lambda error, after_s: world.after(after_s, lambda: self.loop.deliver(answer, None, error))  # noqa: E731
        if world.time < host.off_until:
            fail(Unreachable(f"{host.ip} does not answer"), CONNECT_S)
        elif world.time < host.refuses_until:
            fail(KeyRefused(f"{host.ip} refuses the key"), 1.0)
        elif faults.hit("session_lost_before"):
            fail(Unreachable(f"the connection to {host.ip} broke"), 1.0)
        else:
            late_s = faults.between("host_late", 5, 25) if faults.hit("host_late") else 0.0
            if faults.hit("host_hangs"):
                late_s = faults.between("host_hangs", 30, 120)  # it continues after the caller has given up
            boots, takes_s = host.boots, round(self.draw.uniform(0.1, 2.0), 2)
            world.after(late_s + takes_s, lambda: self._arrive(arrive, answer, boots))

    def _arrive(
        self, arrive: Callable[[asyncio.Future[str]], None], answer: asyncio.Future[str], boots: int
    ) -> None:
        if self.host.boots != boots or self.world.time < self.host.off_until:  # it was restarted meanwhile
            self.loop.deliver(answer, None, Unreachable(f"the connection to {self.host.ip} broke"))
        else:
            arrive(answer)

    def _set_up(self, command: str, answer: asyncio.Future[str]) -> None:
        """Carry out a command of a set-up, whether or not somebody waits for it."""
        host, deliver = self.host, self.loop.deliver
        try:
            if command != "uptime" and self.faults.hit("command_fails"):
                raise CommandFailed(f"{command} failed", exit_code=1)
            host.set_up(self.cloud_id, command)
        except CommandFailed as error:
            deliver(answer, None, error)
            return
        self._done.add(command)
        self.on_executed(host, command, {"ID": self.cloud_id, "DONE": "\n".join(self._done)}, True)
        is_lost = self.faults.hit("session_lost_after")
        deliver(answer, "", Unreachable(f"the connection to {host.ip} broke") if is_lost else None)

    def _line(self, command: str, answer: asyncio.Future[str]) -> None:
        """Carry out a line of `host_lock`; nobody waits for one that hung, also after a kill."""
        host, faults, deliver = self.host, self.faults, self.loop.deliver
        verb, words = parse(command)
        if verb == "release" and faults.hit("release_stuck"):
            deliver(answer, "left=123:456\n", None)
            return
        is_late = self.world.time - self._sent[answer] > GIVEN_UP_S
        is_lost = answer.done() or is_late or faults.hit("session_lost_after")
        is_cut = not is_lost and faults.hit("answer_cut")
        try:
            printed = host.execute(verb, words, self.world.now())
        except CommandFailed as error:
            deliver(answer, None, error)
            return
        self.on_executed(host, verb, words, not is_lost and not is_cut)
        if is_cut:
            lines = printed.splitlines(keepends=True)
            deliver(answer, "".join(lines[: len(lines) // 2]), None)
        elif is_lost:
            deliver(answer, None, Unreachable(f"the connection to {host.ip} broke"))
        else:
            deliver(answer, f"Welcome to {host.ip}\n{printed}", None)


def holder_text(cluster: str, cloud_id: str, boot: str, **fields: object) -> str:
    """Return the text of a lock."""
    holder = LockHolder(
        cluster=cluster,
        cloud_id=cloud_id,
        launcher="simulated",
        taken_at=0.0,
        boot=boot,
        **fields,  # type: ignore[arg-type]
    )
    return msgspec.json.encode(holder).decode()
