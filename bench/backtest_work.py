"""Submit bursts of tasks and placement groups with pauses between them: the driver of `bench.backtest`.

A process of its own, run by `bench.live_driver.Driver`; what runs only sleeps.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from pathlib import Path

import ray
from ray.util.placement_group import placement_group, remove_placement_group

sys.path.insert(0, str(Path(__file__).parents[1]))  # the repository: `bench` is not installed

from bench.live_driver import answers_only, serve


@ray.remote(max_retries=-1)
def task(seconds: float) -> None:
    time.sleep(seconds)


class Bursts:
    """Asked for on a thread of their own, until their time is over and everything is done."""

    def __init__(self) -> None:
        self._is_done = False
        self._groups: list[tuple[float, object]] = []

    def start(self, seed: int, seconds: float) -> None:
        threading.Thread(target=self._run, args=(random.Random(seed), seconds), daemon=True).start()

    def is_done(self) -> bool:
        return self._is_done

    def _run(self, rng: random.Random, seconds: float) -> None:
        end, tasks = time.monotonic() + seconds, []
        while time.monotonic() < end:
            for _ in range(rng.randint(2, 5)):
                each = [(rng.choice((1, 1, 2)), rng.uniform(20, 120)) for _ in range(rng.randint(1, 4))]
                tasks += [task.options(num_cpus=cpus).remote(length_s) for cpus, length_s in each]
                if rng.random() < 0.5:
                    group = placement_group([{"CPU": 1}] * rng.randint(1, 3), strategy="PACK")
                    self._groups.append((time.monotonic() + rng.uniform(40, 120), group))
                self._rest(rng.uniform(5, 25))
            self._rest(min(rng.uniform(20, 160), max(0.0, end - time.monotonic())))
        ray.get(tasks)
        while self._groups:
            self._rest(1.0)
        self._is_done = True

    def _rest(self, seconds: float) -> None:
        """Sleep, and remove the groups whose time is over once they have their places."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            over = [one for one in self._groups if one[0] < time.monotonic() and one[1].wait(0.01)]
            for one in over:
                remove_placement_group(one[1])
                self._groups.remove(one)
            time.sleep(min(1.0, max(0.0, until - time.monotonic())))


if __name__ == "__main__":
    answers = answers_only()
    ray.init(log_to_driver=False)
    bursts = Bursts()
    serve({"start": bursts.start, "is_done": bursts.is_done}, answers)
