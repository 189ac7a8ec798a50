"""Adapt hyperopt (tree-structured Parzen estimators) as a Searcher."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any, ClassVar

from muster.tune.search.dimensions import Dimension, checked_name, dimension_of, refuse_grid
from muster.tune.search.library_searcher import LibrarySearcher, Proposal
from muster.tune.search.paths import Path, children, is_container, rebuilt
from muster.tune.search.sample import Categorical, Domain
from muster.tune.search.space_tree import SpaceTree
from muster.tune.search.variant_generator import has_unresolved_values

OWNER = "HyperOptSearch"


class HyperoptSpace(SpaceTree):
    """Expresses a tree in hyperopt's terms.

    Objects and constants never reach hyperopt: it sees places of options.
    """

    def __init__(self, space: Mapping[str, Any], *, keeps_constants: bool) -> None:
        super().__init__(OWNER, space, keeps_constants=keeps_constants)
        self.expression = self._expressed(self.root, "")

    def _expressed(self, node: Any, label: str) -> Any:  # noqa: ANN401
        from hyperopt import hp

        if isinstance(node, Categorical):
            options = [
                self._expressed(option, f"{label}:{index}") if has_unresolved_values(option) else index
                for index, option in enumerate(node.categories)
            ]
            return hp.choice(label, options)
        if isinstance(node, Domain):
            return hyperopt_number(self.all[label])
        if is_container(node):
            parts = {key: self._expressed(child, self.label(label, (key,))) for key, child in children(node)}
            return {str(key): part for key, part in parts.items() if part is not None}
        return None


def _label(parent: str, path: Path) -> str:
    name = checked_name(OWNER, path)
    return f"{parent}/{name}" if parent else name


def hyperopt_number(one: Dimension) -> Any:  # noqa: ANN401 - a hyperopt expression
    from hyperopt import hp

    step = one.step or (1 if one.kind == "int" else None)
    if one.mean is not None:
        return hp.qnormal(one.name, one.mean, one.sd, step) if step else hp.normal(one.name, one.mean, one.sd)
    if one.is_log:
        low, high = math.log(one.low), math.log(one.high)
        return hp.qloguniform(one.name, low, high, step) if step else hp.loguniform(one.name, low, high)
    if one.kind == "int" and one.step is None:
        return hp.uniformint(one.name, int(one.low), int(one.high))  # as in Ray; TPE knows their order
    return hp.quniform(one.name, one.low, one.high, step) if step else hp.uniform(one.name, one.low, one.high)


def _native(node: Any, label: str) -> Any:  # noqa: ANN401 - a space of hyperopt's own
    """Return a space with hyperopt's expressions in place of domains; options stay what they are."""
    from hyperopt import hp
    from hyperopt.pyll import scope

    if isinstance(node, Categorical):
        options = [_native(option, f"{label}:{index}") for index, option in enumerate(node.categories)]
        return hp.choice(label, options)
    if isinstance(node, Domain):
        found = dimension_of(label, node)
        if found is None:
            raise ValueError(f"{OWNER} cannot suggest {node!r} at '{label}': use another domain")
        expression = hyperopt_number(found)
        return scope.int(expression) if found.kind == "int" else expression
    if isinstance(node, dict) and len(node) == 1 and "grid_search" in node:
        refuse_grid(OWNER, label)
    if is_container(node):
        return rebuilt(node, {key: _native(child, _label(label, (key,))) for key, child in children(node)})
    return node


class HyperOptSearch(LibrarySearcher):
    """Takes suggestions from hyperopt's TPE (`pip install "muster-ml[hyperopt]"`).

    Args:
        space: A search space, or one of hyperopt's own (`hp.uniform` and so on by key). Usually left to
            the Tuner's `param_space`. Options of a choice may hold further domains.
        metric: The result key to optimize.
        mode: "min" or "max".
        points_to_evaluate: Configurations to begin with; each holds every key that is not constant. With a
            space of hyperopt's own: values by label, of an `hp.choice` the place of the option.
        n_initial_points: How many suggestions are random before the model begins.
        random_state_seed: Makes the suggestions repeatable.
        gamma: The share of results that are good.
    """

    library: ClassVar[str] = "hyperopt"
    extra: ClassVar[str] = "hyperopt"
    _unsaved = ("_domain",)

    def __init__(  # noqa: PLR0913, PLR0917 - Ray's signature
        self,
        space: Mapping[str, Any] | None = None,
        metric: str | None = None,
        mode: str | None = None,
        points_to_evaluate: list[dict[str, Any]] | None = None,
        n_initial_points: int = 20,
        random_state_seed: int | None = None,
        gamma: float = 0.25,
    ) -> None:
        import numpy as np

        super().__init__(metric, mode, points_to_evaluate)
        import hyperopt

        self._algorithm = partial(hyperopt.tpe.suggest, n_startup_jobs=n_initial_points, gamma=gamma)
        if random_state_seed is None:  # from the stream that a script may have seeded
            random_state_seed = int(np.random.randint(0, 2**31 - 1))
        self._random = np.random.RandomState(random_state_seed)  # as in Ray: the same seed, the same trials
        self._trials = hyperopt.Trials()
        self._converted_space: HyperoptSpace | None = None
        self._domain: Any = None
        self._keeps_constants = bool(space)  # else the experiment adds those of its param_space
        self._begin(space)

    @staticmethod
    def convert_search_space(spec: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
        """Return a space of hyperopt's own, in the shape of `spec`.

        Args:
            spec: The search space with muster's domains.
            prefix: Comes before every name.
        """
        return dict(_native(dict(spec), prefix.rstrip("/")))

    def _set_space(self, space: Any) -> None:  # noqa: ANN401
        """Take a space; one of both kinds becomes hyperopt's own."""
        from hyperopt.pyll import Apply

        if isinstance(space, Mapping) and not _holds(dict(space), Apply):
            self._converted_space = HyperoptSpace(space, keeps_constants=self._keeps_constants)
        elif isinstance(space, Mapping) and has_unresolved_values(dict(space)):
            space = self.convert_search_space(space)
        self._space = space  # last: a space that is refused is not kept

    def _is_constant(self) -> bool:
        return self._converted_space is not None and not self._converted_space.all

    def _start(self) -> None:
        self._reopen()

    def _reopen(self) -> None:
        from hyperopt import Domain

        expression = self._space if self._converted_space is None else self._converted_space.expression
        self._domain = Domain(lambda drawn: drawn, expression)

    def _propose(self, point: dict[str, Any] | None) -> Proposal:
        values = None if point is None else self._values(point)
        number = int(self._trials.new_trial_ids(1)[0])
        if values is None:
            seed = int(self._random.randint(2**31 - 1))
            documents = self._algorithm([number], self._domain, self._trials, seed)
        else:
            documents = self._documents(number, values)
        self._trials.insert_trial_docs(documents)
        self._trials.refresh()
        drawn = {label: one[0] for label, one in documents[0]["misc"]["vals"].items() if len(one)}
        return number, self._suggestion(drawn)

    def _suggestion(self, drawn: dict[str, Any]) -> dict[str, Any]:
        if self._converted_space is not None:
            return self._converted_space.suggestion(drawn)
        from hyperopt.pyll import rec_eval

        found = rec_eval(self._domain.expr, memo=self._domain.memo_from_config(drawn))
        return {
            key: value.item() if hasattr(value, "item") and not getattr(value, "shape", True) else value
            for key, value in found.items()
        }

    def _values(self, point: dict[str, Any]) -> dict[str, Any]:
        return self._converted_space.values(point) if self._converted_space is not None else dict(point)

    def _documents(self, number: int, values: Mapping[str, Any]) -> list[Any]:
        """Return a trial of hyperopt's with given values; other variables are in branches not taken."""
        labels = list(self._domain.params)
        unknown = [name for name in values if name not in labels]
        if unknown:
            raise ValueError(f"HyperOptSearch: a point names {', '.join(unknown)}, not in the space")
        misc = {
            "tid": number,
            "cmd": self._domain.cmd,
            "workdir": self._domain.workdir,
            "idxs": {label: [number] if label in values else [] for label in labels},
            "vals": {label: [values[label]] if label in values else [] for label in labels},
        }
        return list(self._trials.new_trial_docs([number], [None], [self._domain.new_result()], [misc]))

    def _inform(self, handle: int, loss: float) -> None:
        from hyperopt import JOB_STATE_DONE

        self._end(handle, JOB_STATE_DONE, {"loss": loss, "status": "ok"})

    def _abandon(self, handle: int) -> None:
        from hyperopt import JOB_STATE_ERROR

        self._end(handle, JOB_STATE_ERROR, {"status": "fail"})

    def _end(self, number: int, state: int, result: dict[str, Any]) -> None:
        for trial in reversed(self._trials._dynamic_trials):
            if trial["tid"] == number:
                trial["state"], trial["result"] = state, result
                break
        self._trials.refresh()

    def _learn(self, point: dict[str, Any], loss: float) -> None:
        values = self._values(point)
        number = int(self._trials.new_trial_ids(1)[0])
        self._trials.insert_trial_docs(self._documents(number, values))
        self._inform(number, loss)


def _holds(node: Any, kind: type) -> bool:  # noqa: ANN401
    if isinstance(node, kind):
        return True
    inner = node.values() if isinstance(node, dict) else node if isinstance(node, (list, tuple)) else ()
    return any(_holds(part, kind) for part in inner)
