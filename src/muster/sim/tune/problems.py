"""Provide problems for simulated trials: learning-curve surrogates and test functions with a fidelity.

Formulas stand beside each problem; `t` is the iteration (1 is the first), `T` = MAX_T. Noise is drawn from
the seed, the config and `t`, so that a trial that repeats an iteration reports the same value again.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

from muster.sim.tune.trial import Config, Curve, Metrics

BRANIN_MIN = 0.39788735772973816  # at (-pi, 12.275), (pi, 2.275), (9.42478, 2.475)
HARTMANN6_MIN = -3.3223680114155147  # at (0.20169, 0.150011, 0.476874, 0.275332, 0.311652, 0.6573)

_ALPHA = (1.0, 1.2, 3.0, 3.2)
_A = (
    (10.0, 3.0, 17.0, 3.5, 1.7, 8.0),
    (0.05, 10.0, 17.0, 0.1, 8.0, 14.0),
    (3.0, 3.5, 1.7, 10.0, 17.0, 8.0),
    (17.0, 8.0, 0.05, 10.0, 0.1, 14.0),
)
_P = (
    (0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886),
    (0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991),
    (0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650),
    (0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381),
)


def branin(x: float, y: float) -> float:
    """Compute (y - 5.1 x^2 / (4 pi^2) + 5 x / pi - 6)^2 + 10 (1 - 1 / (8 pi)) cos x + 10."""
    bend = y - 5.1 * x**2 / (4.0 * math.pi**2) + 5.0 * x / math.pi - 6.0
    return bend**2 + 10.0 * (1.0 - 1.0 / (8.0 * math.pi)) * math.cos(x) + 10.0


def hartmann6(x: Sequence[float]) -> float:
    """Compute -sum_i alpha_i exp(-sum_j A_ij (x_j - P_ij)^2)."""
    return -sum(
        alpha * math.exp(-sum(a * (one - p) ** 2 for a, one, p in zip(row, x, place, strict=True)))
        for alpha, row, place in zip(_ALPHA, _A, _P, strict=True)
    )


def rosenbrock(x: Sequence[float]) -> float:
    """Compute sum_i 100 (x_{i+1} - x_i^2)^2 + (1 - x_i)^2; 0 at (1, ..., 1)."""
    pairs = ((x[i], x[i + 1]) for i in range(len(x) - 1))
    return sum(100.0 * (after - one**2) ** 2 + (1.0 - one) ** 2 for one, after in pairs)


def ackley(x: Sequence[float]) -> float:
    """Compute -20 exp(-0.2 sqrt(mean x^2)) - exp(mean cos(2 pi x)) + 20 + e; 0 at the origin."""
    count = len(x)
    spread = math.sqrt(sum(one**2 for one in x) / count)
    waves = sum(math.cos(2.0 * math.pi * one) for one in x) / count
    return -20.0 * math.exp(-0.2 * spread) - math.exp(waves) + 20.0 + math.e


MAX_T = 81  # iterations of a whole training
METRIC = "loss"
_NORMAL = NormalDist()

Loss = Callable[[Config, float], float]  # config, t -> loss without noise
Seconds = Callable[[Config], float]


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Has a loss whose least value, at `t = T` and without noise, is `optimum`."""

    name: str
    about: str
    formula: str
    space: Callable[[], dict[str, Any]]
    loss: Loss
    optimum: float
    noise: float = 0.0  # standard deviation
    seconds: Seconds = lambda config: 60.0  # per iteration
    max_t: int = MAX_T
    metric: str = METRIC
    mode: str = "min"

    def curve(self, seed: int = 0) -> Curve:
        return _Surrogate(self, seed)


@dataclass(frozen=True)
class _Surrogate(Curve):
    problem: Problem
    seed: int

    def seconds(self, config: Config, iteration: int) -> float:
        return self.problem.seconds(config)

    def metrics(self, config: Config, iteration: int) -> Metrics:
        problem = self.problem
        value = problem.loss(config, float(min(iteration, problem.max_t)))
        if problem.noise:
            # A standard normal value, the same for the same arguments.
            text = f"{self.seed}/{iteration}/{sorted(config.items())!r}".encode()
            drawn = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")
            value += problem.noise * _NORMAL.inv_cdf((drawn + 0.5) / 2.0**64)
        return {problem.metric: value}


def _distance(rate: float) -> float:
    """Return how far a learning rate is from the best one, 1e-2, in decades."""
    return abs(math.log10(rate) + 2.0)


def power_law(config: Config, t: float) -> float:
    final = 0.05 + 0.1 * _distance(config["lr"]) ** 2 + 0.2 * (config["momentum"] - 0.9) ** 2
    return float(final + 0.95 * t ** -(0.4 + config["momentum"]))


def exponential(config: Config, t: float) -> float:
    final = 0.1 + 0.08 * _distance(config["lr"]) ** 2 + 0.5 * (config["dropout"] - 0.3) ** 2
    pace = 0.04 + 0.2 * config["lr"] ** 0.25
    return float(final + 0.9 * math.exp(-pace * t))


def crossing(config: Config, t: float) -> float:
    """Model a large rate that leads at first and ends behind: curves cross between t = 3 and t = 40."""
    decades = math.log10(config["lr"]) + 4.0  # 0 .. 4
    final = 0.02 + 0.12 * decades + 0.1 * abs(config["width"] - 0.6)
    tau = 2.0 + 28.0 * (1.0 - decades / 4.0) ** 2
    return float(final + (1.0 - final) * math.exp(-t / tau))


def late_bloomer(config: Config, t: float) -> float:
    """Model no progress, then a drop at `onset`: the better the end, the later the drop."""
    quality = 1.0 - 0.5 * abs(config["depth"] - 12) / 11.0 - 0.5 * min(_distance(config["lr"]) / 3.0, 1.0)
    onset = 4.0 + 36.0 * quality
    drop = 1.0 / (1.0 + math.exp(-(t - onset) / 3.0))
    return float(1.0 - 0.9 * quality * drop - 0.02 * t / MAX_T)


def conditional(config: Config, t: float) -> float:
    """Model an optimizer that decides which further parameter counts."""
    kind, rate = config["optimizer"], config["lr"]
    if kind == "sgd":
        final = 0.08 + 0.1 * _distance(rate * 0.1) ** 2 + 0.6 * (config["momentum"] - 0.9) ** 2
    elif kind == "adam":
        final = 0.05 + 0.12 * _distance(rate * 10.0) ** 2 + 0.3 * (config["beta"] - 0.95) ** 2
    else:
        final = 0.2 + 0.1 * _distance(rate) ** 2
    final += 0.03 * (config["layers"] - 3) ** 2 / 4.0
    return float(final + 0.8 * t ** -(0.9 if kind == "adam" else 0.6))


def _with_fidelity(function: Callable[[Config], float], bias: float) -> Loss:
    """Add `bias * (1 - t/T) * (1 + sin(...))`: an early value is biased, and differently for every x."""

    def loss(config: Config, t: float) -> float:
        missing = 1.0 - t / MAX_T
        wave = math.sin(5.0 * sum(float(value) for value in config.values()))
        return function(config) + bias * missing * (1.5 + wave)

    return loss


def _rates() -> dict[str, Any]:
    from muster.tune.search.space import loguniform

    return {"lr": loguniform(1e-4, 1.0)}


def _space(**ranges: tuple[float, float]) -> Callable[[], dict[str, Any]]:
    def made() -> dict[str, Any]:
        from muster.tune.search.space import uniform

        return {name: uniform(low, high) for name, (low, high) in ranges.items()}

    return made


def _conditional_space() -> dict[str, Any]:
    from muster.tune.search.space import choice, randint, uniform

    return {
        **_rates(),
        "optimizer": choice(["sgd", "adam", "adagrad"]),
        "momentum": uniform(0.0, 1.0),
        "beta": uniform(0.8, 1.0),
        "layers": randint(1, 7),
    }


def _bloomer_space() -> dict[str, Any]:
    from muster.tune.search.space import randint

    return {**_rates(), "depth": randint(1, 24)}


_ALL = (
    Problem(
        name="power_law",
        about="a classic learning curve",
        formula="0.05 + 0.1 d^2 + 0.2 (m - 0.9)^2 + 0.95 t^-(0.4 + m),  d = |log10 lr + 2|",
        space=lambda: {**_rates(), **_space(momentum=(0.0, 1.0))()},
        loss=power_law,
        optimum=0.0529306618,
    ),
    Problem(
        name="exponential",
        about="saturates early; the pace depends on lr; an iteration takes 20 to 100 s by dropout",
        formula="0.1 + 0.08 d^2 + 0.5 (p - 0.3)^2 + 0.9 exp(-(0.04 + 0.2 lr^0.25) t)",
        space=lambda: {**_rates(), **_space(dropout=(0.0, 0.8))()},
        loss=exponential,
        optimum=0.1002088441,
        seconds=lambda config: 20.0 + 100.0 * config["dropout"],
    ),
    Problem(
        name="crossing",
        about="who is ahead early loses in the end",
        formula="f + (1 - f) exp(-t / tau),  f = 0.02 + 0.12 z + 0.1 |w - 0.6|,  tau = 2 + 28 (1 - z/4)^2,"
        "  z = log10 lr + 4",
        space=lambda: {**_rates(), **_space(width=(0.0, 1.0))()},
        loss=crossing,
        optimum=0.0858614025,
    ),
    Problem(
        name="noisy",
        about="the power law with noise as large as the differences that matter",
        formula="power_law + N(0, 0.05^2)",
        space=lambda: {**_rates(), **_space(momentum=(0.0, 1.0))()},
        loss=power_law,
        optimum=0.0529306618,
        noise=0.05,
    ),
    Problem(
        name="late_bloomers",
        about="nothing happens until a drop, which comes the later the better the end is",
        formula="1 - 0.9 q s - 0.02 t/T,  s = 1/(1 + exp(-(t - 4 - 36 q)/3)),  q: quality of depth and lr",
        space=_bloomer_space,
        loss=late_bloomer,
        optimum=0.08,
        seconds=lambda config: 10.0 + 5.0 * config["depth"],
    ),
    Problem(
        name="conditional",
        about="the optimizer decides which parameter counts",
        formula="per optimizer: base + rate term + its own parameter + 0.03 (layers - 3)^2 / 4 + 0.8 t^-k",
        space=_conditional_space,
        loss=conditional,
        optimum=0.05 + 0.8 * MAX_T**-0.9,
        seconds=lambda config: 30.0 + 10.0 * config["layers"],
    ),
    Problem(
        name="branin",
        about="two dimensions, three equal minima",
        formula="branin(x, y) + 10 (1 - t/T) (1.5 + sin(5 (x + y)))",
        space=_space(x=(-5.0, 10.0), y=(0.0, 15.0)),
        loss=_with_fidelity(lambda config: branin(config["x"], config["y"]), 10.0),
        optimum=BRANIN_MIN,
    ),
    Problem(
        name="hartmann6",
        about="six dimensions, one deep minimum among six",
        formula="hartmann6(x1..x6) + 0.5 (1 - t/T) (1.5 + sin(5 sum x))",
        space=_space(**{f"x{i}": (0.0, 1.0) for i in range(1, 7)}),
        loss=_with_fidelity(lambda config: hartmann6([config[f"x{i}"] for i in range(1, 7)]), 0.5),
        optimum=HARTMANN6_MIN,
    ),
    Problem(
        name="rosenbrock",
        about="four dimensions, a long bent valley",
        formula="log10(1 + rosenbrock(x1..x4)) + 0.3 (1 - t/T) (1.5 + sin(5 sum x))",
        space=_space(**{f"x{i}": (-2.0, 2.0) for i in range(1, 5)}),
        loss=_with_fidelity(
            lambda config: math.log10(1.0 + rosenbrock([config[f"x{i}"] for i in range(1, 5)])), 0.3
        ),
        optimum=0.0,
    ),
    Problem(
        name="ackley",
        about="four dimensions, a funnel full of small holes, with noise",
        formula="ackley(x1..x4) + 1.5 (1 - t/T) (1.5 + sin(5 sum x)) + N(0, 0.1^2)",
        space=_space(**{f"x{i}": (-10.0, 12.0) for i in range(1, 5)}),
        loss=_with_fidelity(lambda config: ackley([config[f"x{i}"] for i in range(1, 5)]), 1.5),
        optimum=0.0,
        noise=0.1,
    ),
)
PROBLEMS: dict[str, Problem] = {problem.name: problem for problem in _ALL}
