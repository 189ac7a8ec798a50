"""Compare searchers on six problems with two objectives, by the volume that their results dominate."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.search.bbob import rotation
from bench.search.players import PLAYERS
from muster.tune.search import space as domains
from muster.tune.search.tpe.hypervolume import volume

Values = Callable[[Mapping[str, Any]], tuple[float, float]]


@dataclass(frozen=True)
class GoalProblem:
    """Has two values to minimize; volume counts up to the reference."""

    name: str
    space: dict[str, Any]
    make: Callable[[np.random.Generator], Values]
    reference: tuple[float, float]


def _numbers(config: Mapping[str, Any]) -> np.ndarray:
    return np.array(list(config.values()))


def _zdt(shape: Callable[[float, float], float]) -> Callable[[np.random.Generator], Values]:
    def make(rng: np.random.Generator) -> Values:
        del rng

        def values(config: Mapping[str, Any]) -> tuple[float, float]:
            x = _numbers(config)
            g = 1 + 9 * float(x[1:].mean())
            return float(x[0]), g * shape(float(x[0]), g)

        return values

    return make


def _kursawe(rng: np.random.Generator) -> Values:
    del rng

    def values(config: Mapping[str, Any]) -> tuple[float, float]:
        x = _numbers(config)
        first = -10 * np.exp(-0.2 * np.sqrt(x[:-1] ** 2 + x[1:] ** 2)).sum()
        return float(first), float((np.abs(x) ** 0.8 + 5 * np.sin(x**3)).sum())

    return values


def _latency(rng: np.random.Generator) -> Values:
    lr, decay = rng.uniform(-3.5, -1.5), rng.uniform(-5, -2)

    def values(config: Mapping[str, Any]) -> tuple[float, float]:
        size = config["layers"] * config["width"] / 1024
        bits = {"int8": 0.5, "fp16": 0.8, "fp32": 1.6}[config["precision"]]
        loss = {"int8": 0.06, "fp16": 0.01, "fp32": 0.0}[config["precision"]]
        error = 0.05 + 0.5 / (1 + 2 * size) + 0.08 * (math.log10(config["lr"]) - lr) ** 2 + loss
        error += 0.02 * (math.log10(config["decay"]) - decay) ** 2 + 0.05 * abs(config["dropout"] - 0.2)
        return error, 0.1 + size * bits + 0.05 * config["layers"]

    return values


def _rotated(rng: np.random.Generator) -> Values:
    turns = [rotation(rng, 5) for _ in range(2)]
    centers = rng.uniform(-1, 1, (2, 5))
    scale = 10 ** (np.arange(5) / 4)

    def values(config: Mapping[str, Any]) -> tuple[float, float]:
        x = _numbers(config)
        found = [
            float(scale @ (turn @ (x - center)) ** 2) for turn, center in zip(turns, centers, strict=True)
        ]
        return found[0], found[1]

    return values


_UNIT8 = {f"x{place}": domains.uniform(0.0, 1.0) for place in range(8)}
PROBLEMS = (
    GoalProblem("zdt1", _UNIT8, _zdt(lambda x, g: 1 - math.sqrt(x / g)), (1.1, 6.0)),
    GoalProblem("zdt2", _UNIT8, _zdt(lambda x, g: 1 - (x / g) ** 2), (1.1, 6.0)),
    GoalProblem(
        "zdt3",
        _UNIT8,
        _zdt(lambda x, g: 1 - math.sqrt(x / g) - x / g * math.sin(10 * math.pi * x)),
        (1.1, 6.0),
    ),
    GoalProblem(
        "kursawe", {f"x{place}": domains.uniform(-5.0, 5.0) for place in range(3)}, _kursawe, (-5.0, 15.0)
    ),
    GoalProblem(
        "acc_latency",
        {
            "lr": domains.loguniform(1e-5, 1.0),
            "decay": domains.loguniform(1e-7, 1e-1),
            "layers": domains.randint(1, 13),
            "width": domains.lograndint(16, 1025),
            "dropout": domains.uniform(0.0, 0.6),
            "precision": domains.choice(["int8", "fp16", "fp32"]),
        },
        _latency,
        (1.0, 4.0),
    ),
    GoalProblem(
        "rotated5", {f"x{place}": domains.uniform(-2.0, 2.0) for place in range(5)}, _rotated, (40.0, 40.0)
    ),
)


def final_volume(player: str, problem: GoalProblem, seed: int, trials: int) -> float:
    function = problem.make(np.random.default_rng(seed % 15 + 1))
    one = PLAYERS[player](problem.space, seed, goals=2)
    found = []
    for _ in range(trials):
        key, config = one.ask()
        found.append(function(config))
        one.tell(key, list(found[-1]))
    inside = [
        pair
        for pair in found
        if all(value < bound for value, bound in zip(pair, problem.reference, strict=True))
    ]
    return volume(inside, problem.reference)


def figures(seeds: int, trials: int, only: Callable[[str], bool]) -> dict[str, float]:
    result: dict[str, float] = {}
    chosen = [problem for problem in PROBLEMS if only(problem.name)]
    for problem in chosen:
        volumes = {
            player: [final_volume(player, problem, seed, trials) for seed in range(seeds)]
            for player in PLAYERS
        }
        for other in ("optuna", "random"):
            ratio = statistics.mean(volumes["ours"]) / statistics.mean(volumes[other])
            result[f"volume_ratio.{other}.{problem.name}"] = ratio
    for other in ("optuna", "random"):
        ratios = [result[f"volume_ratio.{other}.{problem.name}"] for problem in chosen]
        if ratios:
            result[f"volume_ratio.{other}"] = statistics.mean(ratios)
            result[f"least_volume_ratio.{other}"] = min(ratios)
    return result
