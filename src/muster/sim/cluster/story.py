"""tell_day(): a calm scripted day of an autoscaled cluster with prices, as data for the terminal.

What people do is scripted (`script.py`); everything the cluster does in answer is read from the controller's
own plans, records and verdicts (`narrator.py`), never written down in advance.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from msgspec.structs import replace

from muster.base.resources import Resources
from muster.base.rng import Seed
from muster.cluster.model import ClusterSpec, LaunchLimits, NodeKind, NodeType, Objective, Strategy
from muster.cluster.spend import price_per_hour
from muster.cluster.states import ON_CLOUD
from muster.sim.cluster.build import Scene
from muster.sim.cluster.cloud import Machine
from muster.sim.cluster.faults import Faults
from muster.sim.cluster.options import GIB, HEAD_TYPE, Setting, catalogue_for, head_type
from muster.sim.cluster.story_text import Narrator, Sentence
from muster.sim.cluster.tasks import GangWork, TaskClass
from muster.sim.cluster.world import START_OF_DAY, World

MINUTE, HOUR = 60.0, 3600.0
OPENS, CLOSES = 7 * HOUR, 20 * HOUR
NOTICE_S = 120.0


class Script:
    """Puts the day on the world's calendar; `told()` gives what happened since it was last asked."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self._news: list[Sentence] = []
        self._at(8, 30, lambda: self._tasks("features", 100, 20, CPU=1))
        self._at(9, 10, lambda: self._tasks("notebooks", 6, 175, CPU=4))
        self._at(9, 45, lambda: self._tasks("experiments", 5, 50, CPU=6, GPU=1))
        self._at(11, 0, self._start_gang)
        self._at(14, 0, lambda: self._tasks("backfill", 160, 25, CPU=1))
        self._at(14, 15, self._reclaim_spot)
        self._at(16, 0, lambda: self._tasks("giant", 1, 10, GPU=8))
        self._at(16, 20, self._withdraw_giant)
        self._at(17, 15, lambda: self._tasks("evening-report", 20, 10, CPU=2))

    def told(self) -> list[Sentence]:
        news, self._news = self._news, []
        return news

    def _at(self, hour: int, minute: int, happen: Callable[[], None]) -> None:
        self._scene.world.after(hour * HOUR + minute * MINUTE - OPENS, happen)

    def _tasks(self, name: str, count: int, minutes: float, **shape: float) -> None:
        each = " + ".join(f"{amount:g} {what}" for what, amount in shape.items())
        what = f"submit {count} {'task' if count == 1 else 'tasks'} “{name}”"
        self._news.append(Sentence("people", what, why=f"{each} each, {minutes:g} min"))
        self._scene.runtime.submit(TaskClass(Resources.of(shape), name=name), count, minutes * MINUTE)

    def _start_gang(self) -> None:
        runtime = self._scene.runtime
        bundles = [runtime.bundle(Resources.of(CPU=12)) for _ in range(4)]
        why = "4 bundles of 12 CPU, all or nothing, on 4 different nodes, 45 min"
        self._news.append(Sentence("people", "start the gang “trainer”", why=why))
        runtime.submit_gang(GangWork("trainer", Strategy.STRICT_SPREAD, bundles, 45 * MINUTE))

    def _reclaim_spot(self) -> None:
        scene = self._scene
        spot = [m for m in scene.cloud.alive() if m.node_type == "cpu-16-spot" and m.up][:2]
        why = f"spot, {NOTICE_S / MINUTE:g} min notice; their work starts again elsewhere"
        self._news.append(Sentence("cloud", "takes back", Counter(m.node_type for m in spot), why))
        for machine in spot:
            node = scene.runtime.node_on(machine)
            if node is not None:
                scene.drains.begin(node, NOTICE_S)
            self._end_later(machine)

    def _end_later(self, machine: Machine) -> None:
        self._scene.world.after(NOTICE_S, lambda: self._scene.cloud.end(machine, "preempted"))

    def _withdraw_giant(self) -> None:
        pending = self._scene.runtime.withdraw("giant")
        self._news.append(Sentence("people", "withdraw “giant”", why=f"{pending} task that could never run"))


TICK_S = 30.0
TOGETHER_S = 4 * MINUTE  # the same thing again within this time is told with the first
SAMPLE_S = 15 * MINUTE


@dataclass
class Moment:
    """Something worth telling, and the cluster as it was then."""

    time_s: float  # since midnight
    said: Sentence
    nodes: dict[str, int]  # machines paid for, by type, the head left out
    price_per_hour: float
    spent: float


@dataclass
class DayStory:
    """The whole day."""

    types: tuple[NodeType, ...]  # workers, in the order of the config
    head_price_per_hour: float
    moments: list[Moment] = field(default_factory=list)
    samples: list[float] = field(default_factory=list)  # highest $/hour of every quarter of an hour
    spent: float = 0.0
    bill: float = 0.0
    peak_per_hour: float = 0.0
    peak_at_s: float = 0.0
    machines_bought: int = 0
    machines_left: int = 0  # in the evening, the head included
    tasks_finished: int = 0
    median_wait_s: float = 0.0
    longest_wait_s: float = 0.0
    ticks: int = 0
    hours: float = (CLOSES - OPENS) / HOUR

    @property
    def at_peak_all_day(self) -> float:
        """The cost of the busiest minute's machines from opening to closing."""
        return self.peak_per_hour * self.hours


def tell_day(seed: int = 2) -> DayStory:
    """Live the day. The seed moves boot times a little; the script is always the same."""
    setting = _setting()
    scene = Scene(Seed(seed), setting, Faults.none(), world=World(START_OF_DAY + OPENS))
    script, narrator = Script(scene), Narrator()
    head, *workers = setting.spec.node_types
    story = DayStory(types=tuple(workers), head_price_per_hour=head.price_per_hour or 0.0)
    while scene.world.time < CLOSES - OPENS:
        scene.tick()
        _write_down(story, scene, [*script.told(), *narrator.listen(scene)])
        scene.store.commits.clear()
        scene.world.advance(TICK_S)
    _close(story, scene)
    return story


def _write_down(story: DayStory, scene: Scene, said: list[Sentence]) -> None:
    now = OPENS + scene.world.time
    owned = [r for r in scene.store.live.values() if r.state in ON_CLOUD]
    price = price_per_hour(owned)
    nodes = dict(Counter(r.node_type for r in owned if r.kind is not NodeKind.HEAD))
    story.ticks += 1
    if price > story.peak_per_hour:
        story.peak_per_hour, story.peak_at_s = price, now
    if scene.world.time >= len(story.samples) * SAMPLE_S:
        story.samples.append(price)
    story.samples[-1] = max(story.samples[-1], price)
    for sentence in said:
        _add(story.moments, Moment(now, sentence, nodes, price, scene.spent()))


def _add(moments: list[Moment], new: Moment) -> None:
    """Tell it with an equal thing said shortly before, unless people or the cloud spoke in between."""
    for old in reversed(moments):
        if new.time_s - old.time_s > TOGETHER_S or old.said.who != "muster" or not new.said.machines:
            break
        if old.said.what == new.said.what and old.said.why == new.said.why:
            moments.remove(old)
            new.said.machines = old.said.machines + new.said.machines
            break
    moments.append(new)


def _close(story: DayStory, scene: Scene) -> None:
    waits = sorted(scene.runtime.waits) or [0.0]
    story.median_wait_s, story.longest_wait_s = waits[len(waits) // 2], waits[-1]
    story.spent, story.bill = scene.spent(), scene.cloud.bill()
    story.machines_bought = len(scene.cloud.machines) - 1
    story.machines_left = len(scene.cloud.alive())
    story.tasks_finished = scene.runtime.finished


def _setting() -> Setting:
    spec = ClusterSpec(
        cluster_name="a-day",
        head_node_type=HEAD_TYPE,
        node_types=(
            head_type(),
            _type("cpu-16", 0.68, most=6, CPU=16, memory=64 * GIB),
            _type("cpu-16-spot", 0.25, most=6, market="spot", CPU=16, memory=64 * GIB),
            _type("gpu-1", 0.98, most=6, CPU=8, memory=32 * GIB, GPU=1),
            _type("gpu-4", 4.30, most=2, CPU=48, memory=192 * GIB, GPU=4),
        ),
        max_nodes=14,
        idle_timeout_s=5 * MINUTE,
        objective=Objective.COST,
        limits=LaunchLimits(upscaling_speed=10.0, max_concurrent=20),
    )
    sells = catalogue_for(spec)
    sells.boot_s, sells.shutdown_s = (50.0, 110.0), (10.0, 30.0)
    sells.capacity["gpu-1"] = 3  # the zone has three of them today
    return Setting(spec=spec, catalogue=sells, tick_s=TICK_S, dead_kept_s=HOUR)


def _type(name: str, price: float, *, most: int, market: str = "on-demand", **resources: float) -> NodeType:
    return replace(
        head_type(),
        name=name,
        resources=Resources.of(resources),
        max_nodes=most,
        price_per_hour=price,
        market=market,
        labels={"market": market},
        launch_hash=f"{name}/1",
    )
