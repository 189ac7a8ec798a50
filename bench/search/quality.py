"""Play all searchers on all problems, and compares what they found run by run."""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Mapping, Sequence

import numpy as np

from bench.rank_test import signed_rank_p
from bench.search.players import PLAYERS
from bench.search.problems import Problem

Curves = dict[str, dict[str, np.ndarray]]  # player -> problem -> best value so far, a row per seed


def play(player: str, problem: Problem, seed: int, trials: int, workers: int) -> np.ndarray:
    """Return the best value, without noise, after each trial; with workers, the oldest trial ends first."""
    instance = problem.instance(seed)
    noise = np.random.default_rng([seed, 7])
    one = PLAYERS[player](problem.space, seed)
    live: deque[tuple[object, float]] = deque()
    best, seen, curve = np.inf, np.inf, []
    for asked in range(1, trials + workers):
        if asked <= trials:
            key, config = one.ask()
            live.append((key, instance(config)))
        if asked >= workers and live:
            key, value = live.popleft()
            noisy = value + problem.noise * float(noise.standard_normal())
            one.tell(key, [noisy])
            if noisy < seen:  # the incumbent is the one that looked best
                seen, best = noisy, value
            curve.append(best)
    return np.array(curve)


def curves(
    problems: Mapping[str, Problem], seeds: Sequence[int], workers: int, trials: int, players: Sequence[str]
) -> Curves:
    return {
        player: {
            name: np.array([play(player, problem, seed, trials, workers) for seed in seeds])
            for name, problem in problems.items()
        }
        for player in players
    }


def win_rates(found: Curves, other: str, trial: int) -> dict[str, float]:
    """Return per problem how often our run was better than the other's with the same seed; ties are half."""
    rates = {}
    for name, ours in found["ours"].items():
        mine, theirs = ours[:, trial - 1], found[other][name][:, trial - 1]
        rates[name] = float(np.mean((mine < theirs) + 0.5 * (mine == theirs)))
    return rates


def significance(found: Curves, name: str, trial: int) -> float:
    """Return the p of a difference from Optuna on one problem, negative when ours is worse."""
    mine, theirs = found["ours"][name][:, trial - 1], found["optuna"][name][:, trial - 1]
    rate = np.mean((mine < theirs) + 0.5 * (mine == theirs))
    p = signed_rank_p([a - b for a, b in zip(mine, theirs, strict=True)])
    return p if rate >= 0.5 else -p


def trials_to(found: Curves, other: str) -> float:
    """Return the median, over problems, of our trials until the other's median result at the end."""
    needed = []
    for name, ours in found["ours"].items():
        goal = float(np.median(found[other][name][:, -1]))
        reached = ours <= goal
        first = np.where(reached.any(axis=1), reached.argmax(axis=1) + 1, ours.shape[1] + 1)
        needed.append(float(np.median(first)))
    return statistics.median(needed)


def figures(found: Curves, mode: str) -> dict[str, float]:
    trials = len(next(iter(found["ours"].values()))[0])
    result: dict[str, float] = {}
    for other in ("optuna", "random"):
        rates = win_rates(found, other, trials)
        result[f"wins.{other}.{mode}"] = statistics.mean(rates.values())
        result[f"trials_to.{other}.{mode}"] = trials_to(found, other)
        result |= {f"wins.{other}.{mode}.{name}": rate for name, rate in rates.items()}
        if other == "optuna":
            result[f"p.optuna.{mode}"] = signed_rank_p([rate - 0.5 for rate in rates.values()])
            half = win_rates(found, other, trials // 2)
            result[f"wins_half.optuna.{mode}"] = statistics.mean(half.values())
    signs = {name: significance(found, name, trials) for name in found["ours"]}
    result[f"worse_problems.{mode}"] = sum(-0.01 < p < 0 for p in signs.values())
    return result
