"""No hot loop: a type that cannot be bought is asked for less and less often."""

from __future__ import annotations

from collections.abc import Iterator

from muster.cluster.requests import base_id
from muster.cluster.states import InstanceState
from muster.sim.scene import Scene

WINDOW_S = 300.0
MOST_REFUSALS = 12  # with a pause of 5 s that doubles up to 60 s, nine fit into the window


class NoHotLoop:
    """Counts, per type, the ticks in which a refusal was told and written down, until a machine comes up."""

    def __init__(self) -> None:
        self._calls = self._told = 0
        self._refused_at: dict[str, list[float]] = {}

    def __call__(self, scene: Scene) -> Iterator[str]:
        now = scene.world.time
        fresh = scene.cloud.launch_calls[self._calls :]
        told = scene.cloud.failures_told[self._told :]
        self._calls, self._told = len(scene.cloud.launch_calls), len(scene.cloud.failures_told)
        self._forgive(scene)
        asked = {name for call in fresh if base_id(call.request_id) == call.request_id for name in call.shape}
        if not scene.clock_was_set:
            yield from self._too_soon(scene, asked)
        if scene.store.committed is None or scene.plan is None:
            return  # what this tick heard may be lost: it need not be remembered
        refused = {f.node_type for f in told}
        refused.update(name for call in fresh if call.refused and len(call.shape) == 1 for name in call.shape)
        for name in sorted(refused):
            times = [at for at in self._refused_at.get(name, ()) if now - at < WINDOW_S]
            self._refused_at[name] = [*times, now]
            if len(times) >= MOST_REFUSALS:
                yield f"{name} was asked for and refused {len(times) + 1} times within {WINDOW_S:g} s"

    def _too_soon(self, scene: Scene, asked: set[str]) -> Iterator[str]:
        pause_s = scene.spec.spec.backoff.base_s
        for name in sorted(asked):
            last = self._refused_at.get(name, [])[-1:]
            if last and scene.world.time - last[0] < pause_s:
                yield f"{name} was asked for again {scene.world.time - last[0]:g} s after a refusal"

    def _forgive(self, scene: Scene) -> None:
        for commit in scene.store.commits:
            for record in commit.plan.writes:
                if record.state is InstanceState.RAY_RUNNING:
                    self._refused_at.pop(record.node_type, None)
