"""Answer from a trace what a scheduler on some number of workers would have found, and when.

Called by `muster sim tune`; reads no files and prints nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from muster.config.document import Document
from muster.errors import ConfigError
from muster.sim.tune.candidates import SCHEDULERS, CandidateSettings, NotInstalled
from muster.sim.tune.experiment import Found, SimulatedExperiment, best_at

_SHORT = {"eta": "reduction_factor", "grace": "grace_period"}
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.75, 1.0)


class SchedulerResult(Struct, frozen=True, kw_only=True):
    """What one scheduler found; times are virtual seconds."""

    scheduler: str
    metric: str
    mode: str
    found: tuple[Found, ...]  # improvements, in order
    end_s: float
    worker_s: float
    trials: int
    failed: int
    results: int

    @property
    def best(self) -> Found | None:
        return self.found[-1] if self.found else None


class Row(Struct, frozen=True):
    """Has the best values at one moment, by scheduler; null before a scheduler's first result."""

    at_s: float
    best: Mapping[str, float | None]


def run_scheduler(experiment: SimulatedExperiment, scheduler: str) -> SchedulerResult:
    """Run the experiment to its end."""
    run = experiment.begin().run()
    return SchedulerResult(
        scheduler=scheduler,
        metric=experiment.goal()[0],
        mode=experiment.goal()[1],
        found=tuple(run.history.found),
        end_s=run.clock.monotonic(),
        worker_s=run.worker_s(),
        trials=len(run.state.trials),
        failed=sum(trial.status == "ERROR" for trial in run.state.trials.values()),
        results=run.history.results,
    )


def over_time(answers: Sequence[SchedulerResult]) -> list[Row]:
    """Return the best values at shares of the longest run."""
    end = max((answer.end_s for answer in answers), default=0.0)
    rows = []
    for at in (share * end for share in SHARES):
        best = {one.scheduler: best_at(one.found, at) for one in answers}
        rows.append(Row(at, {name: value if math.isfinite(value) else None for name, value in best.items()}))
    return rows


def scheduler_maker(spec: str, settings: CandidateSettings) -> Callable[[], Any]:
    """Parse `name` or `name:parameter=value,...`; a ConfigError names what is known."""
    name, _, rest = spec.partition(":")
    if name not in SCHEDULERS:
        raise ConfigError(
            f"--scheduler {spec}: {name!r} is unknown", fix=f"choose one of {', '.join(SCHEDULERS)}"
        )
    more = _parameters(spec, rest)

    def make() -> Any:  # noqa: ANN401 - a scheduler
        try:
            return SCHEDULERS[name].make(settings, more)
        except (TypeError, ValueError, RuntimeError, NotInstalled) as error:
            raise ConfigError(f"--scheduler {spec}: {error}") from error

    make()  # an error is raised before anything runs
    return make


def _parameters(spec: str, text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for part in filter(None, text.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise ConfigError(
                f"--scheduler {spec}: {part!r} is not parameter=value", fix="write it like eta=3"
            )
        found[_SHORT.get(key.strip(), key.strip())] = Document(value, f"--scheduler {spec}").data
    return found
