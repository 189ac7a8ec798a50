"""List the problems of the searchers: eight of BBOB, six synthetic ones with mixed spaces, four from tables.

A problem has a space and, for each seed, an instance: a function from a configuration to its value without
noise. Smaller is better. The tables hold cross-validated losses of scikit-learn and LightGBM.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from bench.search import bbob
from muster.tune.search import space as domains

Instance = Callable[[Mapping[str, Any]], float]
_DATA = Path(__file__).parents[1] / "data" / "search" / "tables.npz"


@dataclass(frozen=True)
class Problem:
    """Has a name, a space, and how to make the instance of a seed."""

    name: str
    space: dict[str, Any]
    make: Callable[[np.random.Generator], Instance]
    noise: float = 0.0
    instances: int = 15

    def instance(self, seed: int) -> Instance:
        number = seed % self.instances + 1
        return self.make(np.random.default_rng([zlib.crc32(self.name.encode()), number]))


def _bbob(name: str, size: int) -> Problem:
    keys = [f"x{place}" for place in range(size)]

    def make(rng: np.random.Generator) -> Instance:
        function = bbob.FUNCTIONS[name](rng, size)
        return lambda config: function(np.array([config[key] for key in keys]))

    return Problem(f"{name}_{size}d", {key: domains.uniform(-5.0, 5.0) for key in keys}, make)


def _hartmann6(rng: np.random.Generator) -> Instance:
    shift = rng.uniform(-0.1, 0.1, 6)
    a = np.array(
        [
            [10, 3, 17, 3.5, 1.7, 8],
            [0.05, 10, 17, 0.1, 8, 14],
            [3, 3.5, 1.7, 10, 17, 8],
            [17, 8, 0.05, 10, 0.1, 14],
        ]
    )
    p = 1e-4 * np.array(
        [
            [1312, 1696, 5569, 124, 8283, 5886],
            [2329, 4135, 8307, 3736, 1004, 9991],
            [2348, 1451, 3522, 2883, 3047, 6650],
            [4047, 8828, 8732, 5743, 1091, 381],
        ]
    )
    height = np.array([1.0, 1.2, 3.0, 3.2])

    def value(config: Mapping[str, Any]) -> float:
        x = np.array([config[f"x{place}"] for place in range(6)]) + shift
        return 3.32237 - float(height @ np.exp(-(a * (x - p) ** 2).sum(axis=1)))

    return value


def _mixed_ml(rng: np.random.Generator) -> Instance:
    best = rng.uniform(-3.6, -1.4), rng.integers(2, 6), rng.uniform(5, 8), rng.uniform(0.1, 0.4)
    by_activation, by_optimizer = rng.uniform(0, 0.1, 3), rng.uniform(0, 0.12, 3)
    offset = rng.uniform(-0.8, 0.8, 3)  # every optimizer has its own best learning rate

    def value(config: Mapping[str, Any]) -> float:
        optimizer = ("sgd", "adam", "lion").index(config["optimizer"])
        away = math.log10(config["lr"]) - best[0] - offset[optimizer]
        activation = ("relu", "gelu", "tanh").index(config["activation"])
        return (
            0.1
            + 0.6 * (1 - math.exp(-0.5 * away**2))
            + 0.02 * abs(config["layers"] - best[1])
            + 0.015 * (math.log2(config["width"]) - best[2]) ** 2
            + 0.5 * (config["dropout"] - best[3]) ** 2
            + by_activation[activation]
            + by_optimizer[optimizer]
        )

    return value


def _ints6(rng: np.random.Generator) -> Instance:
    best = rng.integers(3, 28, 6)
    mix = np.eye(6) + 0.3 * rng.standard_normal((6, 6))

    def value(config: Mapping[str, Any]) -> float:
        away = (np.array([config[f"n{place}"] for place in range(6)]) - best) / 31
        return float(((mix @ away) ** 2).sum())

    return value


def _nk(rng: np.random.Generator) -> Instance:
    neighbors = [
        rng.choice([other for other in range(8) if other != own], 2, replace=False) for own in range(8)
    ]
    table = rng.random((8, 5, 5, 5))

    def value(config: Mapping[str, Any]) -> float:
        picks = [config[f"c{place}"] for place in range(8)]
        gains = [table[own, picks[own], picks[a], picks[b]] for own, (a, b) in enumerate(neighbors)]
        return 1 - float(np.mean(gains))

    return value


def _small_grid(rng: np.random.Generator) -> Instance:
    table = rng.random((5, 4, 6)) * 0.3
    best = rng.integers(0, 5), rng.integers(0, 4), rng.integers(0, 6)

    def value(config: Mapping[str, Any]) -> float:
        place = "abcde".index(config["kind"]), config["depth"] - 1, round(config["rate"] * 10) - 1
        away = (place[0] != best[0]) * 0.5 + 0.2 * abs(place[1] - best[1]) + 0.1 * abs(place[2] - best[2])
        return float(away + table[place])

    return value


def _cond_opt(rng: np.random.Generator) -> Instance:
    floor = rng.permutation([0.0, 0.06, 0.12])
    lrs, rates = rng.uniform(-4, -1, 3), rng.uniform(0.2, 0.8, (3, 2))
    width, decay = rng.uniform(5, 8), rng.uniform(-5, -2)

    def value(config: Mapping[str, Any]) -> float:
        optimizer = config["optimizer"]
        kind = ("sgd", "adam", "rmsprop").index(optimizer["name"])
        inner = [each for key, each in optimizer.items() if key not in {"name", "lr"}]
        total = floor[kind] + 0.12 * (math.log10(optimizer["lr"]) - lrs[kind]) ** 2
        total += sum((each - rate) ** 2 for each, rate in zip(inner, rates[kind], strict=False))
        total += (
            0.03 * (math.log2(config["width"]) - width) ** 2
            + 0.02 * (math.log10(config["decay"]) - decay) ** 2
        )
        return float(total)

    return value


@cache
def _tables() -> dict[str, np.ndarray]:
    with np.load(_DATA) as found:
        return {name: found[name] for name in found.files}


def interpolate(table: np.ndarray, places: list[float]) -> float:
    """Return the value at places in [0, 1] of each axis, linear between the table's."""
    for place in places:
        at = place * (len(table) - 1)
        low = min(int(at), len(table) - 2)
        table = table[low] * (low + 1 - at) + table[low + 1] * (at - low)
    return float(table)


def _unit(value: float, low: float, high: float) -> float:
    return min(1.0, max(0.0, math.log(value / low) / math.log(high / low)))


def svm(config: Mapping[str, Any]) -> float:
    at = [_unit(config["C"], 1e-3, 1e3), _unit(config["gamma"], 1e-5, 1e1)]
    kernel = config["kernel"]
    table = _tables()[f"svm_{kernel}"]
    return interpolate(table[config["degree"] - 2] if kernel == "poly" else table, at)


def gbm(config: Mapping[str, Any]) -> float:
    at = [
        _unit(config["lr"], 1e-3, 1.0),
        _unit(config["leaves"], 2, 128),
        _unit(config["min_child"], 1, 64),
        config["subsample"],
        config["columns"],
    ]
    return interpolate(_tables()["gbm"], at)


def sgd(config: Mapping[str, Any]) -> float:
    table = _tables()["sgd"]
    loss = ("hinge", "log_loss", "modified_huber").index(config["loss"])
    penalty = ("l1", "l2", "elasticnet").index(config["penalty"])
    return interpolate(
        table[loss, penalty], [_unit(config["alpha"], 1e-7, 1e-1), _unit(config["eta0"], 1e-5, 1.0)]
    )


SVM = {
    "kernel": domains.choice(["rbf", "sig", "poly"]),
    "C": domains.loguniform(1e-3, 1e3),
    "gamma": domains.loguniform(1e-5, 1e1),
    "degree": domains.randint(2, 5),
}
GBM = {
    "lr": domains.loguniform(1e-3, 1.0),
    "leaves": domains.lograndint(2, 129),
    "min_child": domains.lograndint(1, 65),
    "subsample": domains.uniform(0.0, 1.0),
    "columns": domains.uniform(0.0, 1.0),
}
SGD = {
    "loss": domains.choice(["hinge", "log_loss", "modified_huber"]),
    "penalty": domains.choice(["l1", "l2", "elasticnet"]),
    "alpha": domains.loguniform(1e-7, 1e-1),
    "eta0": domains.loguniform(1e-5, 1.0),
}


def cash(config: Mapping[str, Any]) -> float:
    model = config["model"]
    # Losses of different data sets, brought to one scale: the worst of each is 1.
    if model["kind"] == "svm":
        return svm(model) / 1.24 + 0.02
    return gbm(model) / 0.65 if model["kind"] == "gbm" else sgd(model) / 0.9 + 0.05


MIXED = {
    "lr": domains.loguniform(1e-5, 1.0),
    "layers": domains.randint(1, 9),
    "width": domains.lograndint(8, 1025),
    "dropout": domains.uniform(0.0, 0.7),
    "activation": domains.choice(["relu", "gelu", "tanh"]),
    "optimizer": domains.choice(["sgd", "adam", "lion"]),
}
_LR = domains.loguniform(1e-6, 1.0)
COND_OPT = {
    "optimizer": domains.choice(
        [
            {"name": "sgd", "lr": _LR, "momentum": domains.uniform(0.0, 1.0)},
            {
                "name": "adam",
                "lr": _LR,
                "beta1": domains.uniform(0.0, 1.0),
                "beta2": domains.uniform(0.0, 1.0),
            },
            {"name": "rmsprop", "lr": _LR, "alpha": domains.uniform(0.0, 1.0)},
        ]
    ),
    "width": domains.lograndint(8, 1025),
    "decay": domains.loguniform(1e-7, 1e-1),
}
GRID = {
    "kind": domains.choice(["a", "b", "c", "d", "e"]),
    "depth": domains.randint(1, 5),
    "rate": domains.quniform(0.1, 0.6, 0.1),
}

PROBLEMS: dict[str, Problem] = {
    problem.name: problem
    for problem in (
        _bbob("f1", 10),
        *(_bbob(name, 5) for name in ("f3", "f6", "f8", "f10", "f15", "f20", "f21")),
        Problem("hartmann6", {f"x{place}": domains.uniform(0.0, 1.0) for place in range(6)}, _hartmann6),
        Problem("mixed_ml", MIXED, _mixed_ml, noise=0.01),
        Problem("ints6", {f"n{place}": domains.randint(0, 32) for place in range(6)}, _ints6),
        Problem("nk_cat8", {f"c{place}": domains.choice(list(range(5))) for place in range(8)}, _nk),
        Problem("small_grid", GRID, _small_grid),
        Problem("cond_opt", COND_OPT, _cond_opt),
        Problem("svm_bc", SVM, lambda rng: svm),
        Problem("gbm_bc", GBM, lambda rng: gbm),
        Problem("sgd_digits", SGD, lambda rng: sgd),
        Problem(
            "cash",
            {
                "model": domains.choice(
                    [{"kind": "svm", **SVM}, {"kind": "gbm", **GBM}, {"kind": "sgd", **SGD}]
                )
            },
            lambda rng: cash,
        ),
    )
}
