"""Random result streams for schedulers with one objective, and what a scheduler makes of them, as hashes.

`single_objective_streams.json` was written by this file, at commit 8850ddd2, before schedulers took several
objectives. `python -m tests.tune.schedulers.streams` writes it again: only with a reason in the commit.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.tune.schedulers.by_hand import ByHand

from muster.trials.model import Trial
from muster.trials.states import TrialState
from muster.tune.schedulers import ASHAScheduler, HyperBandScheduler, MedianStoppingRule

RECORDED = Path(__file__).with_name("single_objective_streams.json")
STREAMS = 200
_EVENTS = 120
_ODD = (math.nan, math.inf, -math.inf)


class _DrawnSearch:
    """Has trials until the stream says that it has no more."""

    searcher: Any = None
    is_over = False

    def is_finished(self) -> bool:
        return self.is_over


def _asha(draw: random.Random, kind: str) -> ASHAScheduler:
    return ASHAScheduler(
        metric="score",
        mode=draw.choice(["min", "max"]),
        max_t=draw.choice([9, 20, 81]),
        grace_period=draw.choice([1, 2, 3]),
        reduction_factor=draw.choice([2, 3, 4, 2.5]),
        brackets=draw.choice([1, 1, 2]),
        stop_last_trials=draw.random() < 0.7,
        type=kind,
        seed=draw.randrange(100),
    )


def _hyperband(draw: random.Random) -> HyperBandScheduler:
    return HyperBandScheduler(
        metric="score",
        mode=draw.choice(["min", "max"]),
        max_t=draw.choice([4, 9, 27]),
        reduction_factor=draw.choice([2, 3]),
        stop_last_trials=draw.random() < 0.7,
    )


def _median(draw: random.Random) -> MedianStoppingRule:
    return MedianStoppingRule(
        time_attr="training_iteration",
        metric="score",
        mode=draw.choice(["min", "max"]),
        grace_period=draw.choice([0, 1, 3]),
        min_samples_required=draw.choice([1, 2, 3]),
        min_time_slice=draw.choice([0, 2]),
        hard_stop=draw.random() < 0.7,
    )


KINDS: dict[str, Callable[[random.Random], Any]] = {
    "stopping": lambda draw: _asha(draw, "stopping"),
    "promotion": lambda draw: _asha(draw, "promotion"),
    "hyperband": _hyperband,
    "median": _median,
}


class Stream:
    """One random life of a scheduler: trials come, start, report, fail, end and are removed."""

    def __init__(self, kind: str, seed: int) -> None:
        self._draw = random.Random(f"{kind}/{seed}")
        self._search = _DrawnSearch()
        self._hand = ByHand(KINDS[kind](self._draw), search=self._search)
        self._time: dict[str, int] = {}

    def run(self) -> Iterator[object]:
        """Yield every answer, the reasons given with it, and now and then the state."""
        for event in range(_EVENTS):
            self._search.is_over = event > _EVENTS * 0.7
            yield self._step()
            reasons = self._hand.view.reasons
            yield dict(reasons)
            reasons.clear()
            if event % 10 == 9:
                yield self._hand.scheduler.save_state().decode()
        yield self._hand.scheduler.debug_string()

    def _step(self) -> object:
        draw, hand = self._draw, self._hand
        if not self._search.is_over and draw.random() < 0.25:
            return hand.add().trial_id
        if draw.random() < 0.4:
            chosen = hand.choose_once()
            if chosen is not None:
                hand.start(chosen)
            return None if chosen is None else chosen.trial_id
        running = [one for one in hand.index.order if one.state is TrialState.RUNNING]
        waiting = [one for one in hand.index.order if one.state in (TrialState.PENDING, TrialState.PAUSED)]
        if waiting and draw.random() < 0.03:
            return self._noted("remove", draw.choice(waiting), hand.remove)
        if not running:
            return None
        trial, chance = draw.choice(running), draw.random()
        if chance < 0.03 and trial.last_result:
            return self._noted("complete", trial, hand.complete)
        if chance < 0.08:
            self._time[trial.trial_id] = 0
            again = draw.random() < 0.7
            return self._noted("fail", trial, lambda one: hand.fail(one, again=again))
        time = self._time[trial.trial_id] = self._time.get(trial.trial_id, 0) + draw.choice([1, 1, 1, 2, 5])
        return [trial.trial_id, hand.report(trial, time, self._score())]

    def _noted(self, what: str, trial: Trial, act: Callable[[Trial], None]) -> list[str]:
        act(trial)
        return [what, trial.trial_id]

    def _score(self) -> float:
        draw = self._draw
        if draw.random() < 0.05:
            return draw.choice(_ODD)
        return draw.choice([round(draw.random(), 1), draw.random(), draw.randrange(3)])  # ties happen


def stream_hash(kind: str, seed: int) -> str:
    content = json.dumps(list(Stream(kind, seed).run()), separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def main() -> None:
    found = {kind: " ".join(stream_hash(kind, seed) for seed in range(STREAMS)) for kind in KINDS}
    RECORDED.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
