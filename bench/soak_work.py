"""Submit random tasks and gangs from a seed, each again until it is done: the driver of the soak.

A process of its own, run by `bench.live_driver.Driver`. Tasks are retried by Ray. A gang is a placement group
with one actor per bundle; when one of them is lost, the whole gang is made again.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository: `bench` is not installed

from bench.live_driver import answers_only, serve

MOST_OPEN = 12  # tasks and gangs at a time: several times what fits
GANG_S = 90.0  # after this a gang that does not come together is requested again
STRATEGIES = ("PACK", "SPREAD", "STRICT_SPREAD", "STRICT_PACK")


@ray.remote(max_retries=-1)
def task(seconds: float, number: int) -> int:
    time.sleep(seconds)
    return number


@ray.remote(num_cpus=1)
class Member:
    """One actor of a gang."""

    def work(self, seconds: float) -> str:
        time.sleep(seconds)
        return str(ray.get_runtime_context().get_node_id())


class Work:
    """Work holds what was requested and its state."""

    def __init__(self) -> None:
        self.counts = {"tasks": 0, "tasks_done": 0, "gangs": 0, "gangs_done": 0, "gangs_again": 0}
        self.errors: list[str] = []
        self._lock = threading.Lock()
        self._asking = False

    def start(self, seed: int, seconds: float) -> None:
        """Return at once; `state` reports the progress."""
        self._asking = True
        threading.Thread(target=self._ask, args=(random.Random(seed), seconds), daemon=True).start()

    def state(self) -> dict[str, Any]:
        with self._lock:
            done = not self._asking and self._open() == 0
            return {**self.counts, "open": self._open(), "errors": self.errors[:5], "is_done": done}

    def _ask(self, rng: random.Random, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            with self._lock:
                room = MOST_OPEN - self._open()
            if rng.random() < 0.65:
                for _ in range(min(room, rng.randint(1, 5))):
                    self._do("tasks", self._task, rng.uniform(1, 8), 2 if rng.random() < 0.2 else 1)
            elif room > 0:
                self._do("gangs", self._gang, rng.randint(1, 3), rng.choice(STRATEGIES), rng.uniform(2, 8))
            pause_s = (
                rng.uniform(15, 30) if rng.random() < 0.12 else rng.uniform(0.5, 5)
            )  # some rest: nodes idle
            time.sleep(min(pause_s, max(0.0, end - time.monotonic())))
        self._asking = False

    def _open(self) -> int:
        counts = self.counts
        return counts["tasks"] - counts["tasks_done"] + counts["gangs"] - counts["gangs_done"]

    def _count(self, name: str) -> None:
        with self._lock:
            self.counts[name] += 1

    def _do(self, kind: str, work: Any, *arguments: Any) -> None:
        self._count(kind)

        def run() -> None:
            try:
                work(*arguments)
            except Exception as error:  # noqa: BLE001 - any error is reported
                self.errors.append(f"{kind}: {type(error).__name__}: {error}"[:300])
            else:
                self._count(f"{kind}_done")

        threading.Thread(target=run, daemon=True).start()

    def _task(self, seconds: float, cpus: int) -> None:
        number = random.randrange(1_000_000)
        answer = ray.get(task.options(num_cpus=cpus).remote(seconds, number))
        if answer != number:
            raise RuntimeError(f"a task answered {answer}, not {number}")

    def _gang(self, size: int, strategy: str, seconds: float) -> None:
        """STRICT_PACK must fit one node, of two CPUs at most."""
        bundles = [{"CPU": 1}] * (min(size, 2) if strategy == "STRICT_PACK" else size)
        while not self._once(bundles, strategy, seconds):
            self._count("gangs_again")

    def _once(self, bundles: list[dict[str, float]], strategy: str, seconds: float) -> bool:
        gang = placement_group(bundles, strategy=strategy)
        members: list[Any] = []
        try:
            if not gang.wait(GANG_S):
                return False
            members = [
                Member.options(
                    scheduling_strategy=PlacementGroupSchedulingStrategy(
                        placement_group=gang, placement_group_bundle_index=index
                    )
                ).remote()
                for index in range(len(bundles))
            ]
            places = ray.get([member.work.remote(seconds) for member in members], timeout=GANG_S)
            return strategy != "STRICT_SPREAD" or len(set(places)) == len(places)
        except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError):
            return False
        finally:
            for member in members:
                ray.kill(member)
            remove_placement_group(gang)


def me() -> str:
    return str(ray.get_runtime_context().get_node_id())


if __name__ == "__main__":
    answers = answers_only()
    ray.init(log_to_driver=False, logging_level="ERROR")
    work = Work()
    serve({"start": work.start, "state": work.state, "me": me}, answers)
