"""Give muster's searcher, Optuna 5 and random search the same two methods: ask and tell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from muster.tune.search.dimensions import dimension_of
from muster.tune.search.sample import Categorical, Domain
from muster.tune.search.tpe import TPESearch


class Ours:
    """TPESearch as users have it by default."""

    def __init__(self, space: Mapping[str, Any], seed: int, goals: int = 1, **options: Any) -> None:
        metric = "value" if goals == 1 else [f"value{place}" for place in range(goals)]
        self._names = [metric] if isinstance(metric, str) else metric
        mode = "min" if goals == 1 else ["min"] * goals
        self.searcher = TPESearch(space, metric=metric, mode=mode, seed=seed, **options)
        self._count = 0

    def ask(self) -> tuple[str, dict[str, Any]]:
        self._count += 1
        key = str(self._count)
        return key, self.searcher.suggest(key)  # type: ignore[return-value]

    def tell(self, key: str, values: list[float]) -> None:
        self.searcher.on_trial_complete(key, dict(zip(self._names, values, strict=True)))


class Optuna:
    """Optuna with its default sampler, define-by-run: the way its users write conditional spaces."""

    def __init__(self, space: Mapping[str, Any], seed: int, goals: int = 1) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._space = dict(space)
        sampler = optuna.samplers.TPESampler(seed=seed)
        self.study = optuna.create_study(directions=["minimize"] * goals, sampler=sampler)

    def ask(self) -> tuple[Any, dict[str, Any]]:
        trial = self.study.ask()
        return trial, dict(self._suggest(trial, self._space, ""))

    def _suggest(self, trial: Any, node: Any, label: str) -> Any:
        if isinstance(node, Categorical):
            place = trial.suggest_categorical(label, list(range(len(node.categories))))
            return self._suggest(trial, node.categories[place], f"{label}:{place}")
        if isinstance(node, Domain):
            return _number(trial, node, label)
        if isinstance(node, dict):
            return {key: self._suggest(trial, child, f"{label}/{key}") for key, child in node.items()}
        return node

    def tell(self, key: Any, values: list[float]) -> None:
        self.study.tell(key, values)


def _number(trial: Any, domain: Domain, label: str) -> Any:
    one = dimension_of(label, domain)
    assert one is not None
    if one.kind == "int":
        return trial.suggest_int(label, int(one.low), int(one.high), log=one.is_log, step=int(one.step or 1))
    return trial.suggest_float(label, one.low, one.high, log=one.is_log, step=one.step)


class Random:
    """Independent draws from the space."""

    def __init__(self, space: Mapping[str, Any], seed: int, goals: int = 1) -> None:
        del goals
        self._space, self._rng = dict(space), np.random.default_rng(seed)

    def ask(self) -> tuple[None, dict[str, Any]]:
        return None, dict(self._draw(self._space))

    def _draw(self, node: Any) -> Any:
        if isinstance(node, Domain):
            return self._draw(node.sample(random_state=self._rng))
        if isinstance(node, dict):
            return {key: self._draw(child) for key, child in node.items()}
        return node

    def tell(self, key: Any, values: list[float]) -> None:
        pass


PLAYERS = {"ours": Ours, "optuna": Optuna, "random": Random}
