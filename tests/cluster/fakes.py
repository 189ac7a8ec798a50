"""Ports in memory for tests of the loop: they answer what they are told to, and remember every call."""

from __future__ import annotations

from tests.cluster.worlds import HEAD_MACHINE, HEAD_NODE, spec

from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.base.rng import Ambient, Seed
from muster.cluster.model import RuntimeReport
from muster.cluster.ports import CloudProvider, Drainer, Installer, NoticeReport, Ports
from muster.cluster.snapshot import ProviderTraits
from muster.stores.ledger.memory import MemoryInstanceStore

START = 10_000.0


class Scripted:
    """Answers by name; an answer that is an exception is raised, a callable is called."""

    def __init__(self, **answers) -> None:
        self.answers = answers
        self.calls: list[tuple] = []

    def reply(self, name, *arguments):
        self.calls.append((name, *arguments))
        answer = self.answers.get(name)
        if isinstance(answer, BaseException):
            raise answer
        return answer(*arguments) if callable(answer) else answer

    def called(self, name) -> list[tuple]:
        return [call[1:] for call in self.calls if call[0] == name]

    def take(self, name):
        """A poll: what is told once."""
        answer = self.reply(name)
        if not isinstance(answer, BaseException) and name in self.answers:
            self.answers[name] = ()
        return answer


class FakeProvider(Scripted, CloudProvider):
    """A cloud that buys nothing by itself; put machines into `machines`."""

    def __init__(self, **answers) -> None:
        super().__init__(
            poll_launch_failures=(), poll_terminate_failures=(), traits=ProviderTraits(), **answers
        )
        self.machines = {"c-head": HEAD_MACHINE}
        self.answers.setdefault("list_instances", lambda: dict(self.machines))

    def traits(self):
        return self.reply("traits")

    def list_instances(self):
        return self.reply("list_instances")

    def launch(self, request_id, shape, offers=()):
        self.reply("launch", request_id, dict(shape), *[offer.name for offer in offers])

    def terminate(self, request_id, cloud_ids):
        self.reply("terminate", request_id, tuple(cloud_ids))

    def resize(self, request_id, cloud_id, desired):
        self.reply("resize", request_id, cloud_id, dict(desired))

    def end_idle_cluster(self, request_id, policy):
        self.reply("end_idle_cluster", request_id, policy)

    def poll_launch_failures(self):
        return self.take("poll_launch_failures")

    def poll_terminate_failures(self):
        return self.take("poll_terminate_failures")


class FakeRuntime(Scripted):
    """A runtime with the head's node and what is put into `nodes`, `demands` and `gangs`."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.nodes = [HEAD_NODE]
        self.demands = []
        self.gangs = []
        self.answers["read"] = self._report

    def _report(self):
        self.version += 1
        return RuntimeReport(
            version=self.version,
            nodes=tuple(self.nodes),
            demands=tuple(self.demands),
            gangs=tuple(self.gangs),
        )

    def read(self):
        return self.reply("read")

    def publish(self, version, report):
        self.reply("publish", version, report)


class FakeDrainer(Scripted, Drainer):
    def drain(self, action):
        self.reply("drain", action)

    def poll(self):
        return self.take("poll")


class FakeInstaller(Scripted, Installer):
    def start(self, action):
        self.reply("start", action)

    def poll(self):
        return self.take("poll")


class FakeResizer(Scripted):
    def resize(self, action):
        self.reply("resize", action)

    def poll(self):
        return self.take("poll")


class FakeSpec(Scripted):
    def current(self):
        return self.reply("current")


class FakeNotices(Scripted):
    def read(self):
        return self.reply("read")


class Stage:
    """A controller's whole outside."""

    def __init__(self, *, store=None, installer=True, wishes=None) -> None:
        self.clock = ManualClock(START)
        self.ambient = Ambient(clock=self.clock, ids=CountingIds(), seed=Seed(1))
        self.provider = FakeProvider()
        self.runtime = FakeRuntime()
        self.drainer = FakeDrainer(poll=())
        self.resizer = FakeResizer(poll=())
        self.installer = FakeInstaller(poll=()) if installer else None
        self.spec = FakeSpec(current=(wishes or spec(), ""))
        self.notices = FakeNotices(read=NoticeReport())
        self.store = store or MemoryInstanceStore(clock=self.clock)
        self.ports = Ports(
            provider=self.provider,
            nodes=self.runtime,
            drainer=self.drainer,
            installer=self.installer,
            store=self.store,
            spec=self.spec,
            notices=self.notices,
            resizer=self.resizer,
        )
