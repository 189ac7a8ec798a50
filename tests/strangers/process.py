"""One process of the autoscaler: the real controller behind gates; it may die at any port call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from tests.strangers.cloud import CloudClient, Notices
from tests.strangers.runtime import RuntimeClient, Setup

from muster.base.clock import Boot
from muster.base.ids import CountingIds, RequestId
from muster.base.rng import Ambient
from muster.cluster.controller import ClusterController, Ports
from muster.cluster.model import ClusterSpec
from muster.cluster.plan import Drain, Plan
from muster.cluster.ports import Ledger, TickResult
from muster.errors import ProviderError

if TYPE_CHECKING:
    from tests.strangers.run import Story

T = TypeVar("T")


class Killed(Exception):
    """The process is dead: nothing that it still tries reaches anything."""


class Process:
    """One process of the autoscaler. It dies at a drawn port call, before the call or after it."""

    def __init__(self, story: Story, epoch: int) -> None:
        self.story, self.watch = story, story.watch
        self.is_dead = False
        world = story.world
        draw = world.stream("kill")
        is_mortal = "kill" in world.faults and not world.is_calm
        self._target = draw.choice(("", "commit", "launch", "terminate", "drain", "handed_over", "install"))
        self._calls_left = draw.randint(1, 1500 if not self._target else 12) if is_mortal else 0
        self._is_after = draw.random() < 0.5
        self.cloud = CloudClient(
            story.cloud, buys_offers=story.buys_offers, takes_next_offer=story.takes_next
        )
        self.runtime, self.setup = RuntimeClient(story.runtime), Setup(world)
        self._notices = Notices(story.cloud)
        ports = Ports(
            provider=_Gate(self, self.cloud, {"launch": self._launch, "terminate": self._terminate}),
            nodes=_Gate(self, self.runtime, {}),
            drainer=_Gate(self, self.runtime, {"drain": self._drain}),
            installer=None if story.cloud.installs_runtime else _Gate(self, self.setup, {}),
            store=_Gate(self, story.store, {"commit": self._commit, "load": self._load}),
            spec=_Gate(self, self, {}),
            notices=_Gate(self, self._notices, {}) if "interruption" in world.faults else None,
        )
        boot = Boot("the one of this computer", lambda: world.t)
        ambient = Ambient(world.clock, CountingIds(epoch), world.seed, boot)
        self._controller = ClusterController(ports, ambient)
        self._records: dict[str, object] = {}

    def tick(self) -> TickResult | None:
        result = self._controller.tick()
        return None if self.is_dead else result

    def make_immortal(self) -> None:
        self._calls_left = 0

    def current(self) -> tuple[ClusterSpec, str]:
        return self.story.world.spec, ""

    def call(self, name: str, call: Callable[[], T]) -> T:
        """Pass a call on, unless the process dies here."""
        if self.is_dead:
            raise Killed
        is_last = False
        if self._calls_left and name.startswith(self._target):
            self._calls_left -= 1
            is_last = self._calls_left == 0
        if is_last and not self._is_after:
            self.is_dead = True
            raise Killed
        result = call()
        if is_last:
            self.is_dead = True
            raise Killed
        return result

    def _launch(self, request_id, shape, offers=()) -> None:
        self.watch.launch(request_id, shape)
        try:
            self.cloud.launch(request_id, shape, offers)
        except ProviderError:
            self.watch.unanswered.pop(request_id, None)
            raise

    def _terminate(self, request_id: RequestId, cloud_ids: Sequence[str]) -> None:
        self.watch.terminate(cloud_ids)
        self.cloud.terminate(request_id, cloud_ids)

    def _drain(self, action: Drain) -> None:
        self.watch.drain(action)
        self.runtime.drain(action)

    def _load(self) -> Ledger:
        ledger = self.story.store.load()
        if ledger.damaged:
            self.watch.report("ledger", str(ledger.damaged[0]))
        self._records = dict(ledger.instances)
        return ledger

    def _commit(self, version: int, plan: Plan) -> int:
        world = self.story.world
        if world.hit("ledger-fails"):
            raise OSError("disk full")
        for note in plan.quarantined:
            if note.source.startswith("rule "):
                self.watch.report("rule-failed", f"{note.source}: {note.message}")
        version = self.story.store.commit(version, plan)
        self.watch.commit(plan, self._records)
        if world.hit("ledger-fails"):
            raise OSError("the answer is lost")
        return version


class _Gate:
    """Every port call of a process passes here."""

    def __init__(self, process: Process, port: object, watched: dict[str, Callable[..., object]]) -> None:
        self._process, self._port, self._watched = process, port, watched

    def __getattr__(self, name: str):
        method = self._watched.get(name) or getattr(self._port, name)
        if name == "start":
            name = "install"
        return lambda *args, **more: self._process.call(name, lambda: method(*args, **more))
