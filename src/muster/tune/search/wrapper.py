"""Wrapper: the part that ConcurrencyLimiter and Repeater share: a searcher inside, asked in its place."""

from __future__ import annotations

import pickle
from typing import Any

from muster.tune.search.searcher import Searcher, pickled, restore_searcher, saved_searcher


class Wrapper(Searcher):
    """Forwards everything; subclasses change what they are about."""

    def __init__(self, searcher: Searcher) -> None:
        if not isinstance(searcher, Searcher):
            raise RuntimeError(
                f"{type(self).__name__} wraps a Searcher, not {searcher!r}: "
                "BasicVariantGenerator has its own `max_concurrent`"
            )
        self.searcher = searcher
        super().__init__(metric=searcher.metric, mode=searcher.mode)

    @property
    def metric(self) -> Any:  # noqa: ANN401 - the inner one may learn it later
        return self.searcher.metric

    @property
    def mode(self) -> Any:  # noqa: ANN401
        return self.searcher.mode

    def set_search_properties(
        self,
        metric: str | list[str] | None,
        mode: str | list[str] | None,
        config: dict[str, Any],
        **spec: Any,  # noqa: ANN401
    ) -> bool:
        return set_properties(self.searcher, metric, mode, config, spec)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        self.searcher.on_trial_result(trial_id, result)

    def add_evaluated_point(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401 - as the inner one takes them
        self.searcher.add_evaluated_point(*args, **kwargs)

    def on_pause(self, trial_id: str) -> None:
        self._forward("on_pause", trial_id)

    def on_unpause(self, trial_id: str) -> None:
        self._forward("on_unpause", trial_id)

    def _forward(self, hook: str, trial_id: str) -> None:
        inner = getattr(self.searcher, hook, None)  # few searchers care
        if inner is not None:
            inner(trial_id)

    def save_state(self) -> bytes:
        return pickled((self.get_state(), saved_searcher(self.searcher)))

    def restore_state(self, state: bytes) -> None:
        own, inner = pickle.loads(state)
        self.set_state(own)
        restore_searcher(self.searcher, inner)


Names = str | list[str] | None


def set_properties(
    searcher: Searcher, metric: Names, mode: Names, config: dict[str, Any], spec: dict[str, Any]
) -> bool:
    """`set_search_properties`, also of classes written before it took the rest of the specification."""
    import inspect

    try:
        inspect.signature(searcher.set_search_properties).bind(metric, mode, config, **spec)
    except TypeError:
        return searcher.set_search_properties(metric, mode, config)
    return searcher.set_search_properties(metric, mode, config, **spec)
