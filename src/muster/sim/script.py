"""Script: what people and the cloud do to the cluster on the story's day, and when."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from muster.base.resources import Resources
from muster.cluster.model import Strategy
from muster.sim.cluster.build import Scene
from muster.sim.cluster.story_text import Sentence
from muster.sim.cluster.tasks import GangWork, TaskClass
from muster.sim.machines import Machine

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
