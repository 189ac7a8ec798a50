"""No hot loop: a type that cannot be bought is left alone for a while, and asked for less and less often."""

from __future__ import annotations

from collections.abc import Iterator

from muster.cluster.plan import Launch, base_id
from muster.cluster.states import InstanceState
from muster.sim.cluster.build import Scene

WINDOW_S = 300.0
MOST_REFUSALS = 12  # with a pause of 5 s that doubles up to 60 s, nine fit into the window


class NoHotLoop:
    """Per type, the ticks whose decision took a refusal into account, until a machine of it comes up.

    A refusal that a call raised is taken into account by the next tick that is written down; one that was
    polled, by the same tick. What a killed controller heard is lost, and need not be remembered.
    """

    def __init__(self) -> None:
        self._calls = self._told = 0
        self._heard: set[str] = set()  # types refused, not yet part of a decision
        self._refused_at: dict[str, list[float]] = {}

    def __call__(self, scene: Scene) -> Iterator[str]:
        told = scene.cloud.failures_told[self._told :]
        self._told += len(told)
        self._heard.update(failure.node_type for failure in told)
        self._forgive(scene)
        if scene.store.committed is not None:
            yield from self._decided(scene)
        self._listen(scene)

    def _decided(self, scene: Scene) -> Iterator[str]:
        now = scene.world.time
        for name in sorted(self._heard):
            times = [at for at in self._refused_at.get(name, ()) if now - at < WINDOW_S]
            self._refused_at[name] = [*times, now]
            if len(times) >= MOST_REFUSALS:
                yield f"{name} was asked for and refused {len(times) + 1} times within {WINDOW_S:g} s"
        self._heard.clear()
        if not scene.clock_was_set:
            yield from self._asked_too_soon(scene)

    def _asked_too_soon(self, scene: Scene) -> Iterator[str]:
        plan, pause_s = scene.store.committed, scene.spec.spec.backoff.base_s
        launches = [a for a in plan.actions if isinstance(a, Launch)] if plan else []
        asked = {name for a in launches if base_id(a.request_id) == a.request_id for name in a.shape}
        for name in sorted(asked):
            since = scene.world.time - self._refused_at.get(name, [float("-inf")])[-1]
            if since < pause_s:
                yield f"{name} was asked for {since:g} s after a refusal was known"

    def _listen(self, scene: Scene) -> None:
        """What the calls of this tick raised is known to the next one, if the controller lives to see it."""
        calls = scene.cloud.launch_calls[self._calls :]
        self._calls += len(calls)
        if scene.plan is None:
            self._heard.clear()
            return
        self._heard.update(name for call in calls if call.refused for name in call.shape)

    def _forgive(self, scene: Scene) -> None:
        for commit in scene.store.commits:
            for record in commit.plan.writes:
                if record.state is InstanceState.RAY_RUNNING:
                    self._refused_at.pop(record.node_type, None)
