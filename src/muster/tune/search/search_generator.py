"""Make trials from a Searcher's suggestions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import msgpack

from muster.base.ids import IdSource, RandomIds
from muster.base.untrusted import message_text
from muster.errors import MusterError, TuneError, as_plugin_error
from muster.trials.model import Trial
from muster.trials.plugins import stopped_argument
from muster.trials.template import TrialTemplate
from muster.tune.search.paths import copied, flat_name, flattened, format_vars, joined
from muster.tune.search.placeholders import Placeholders, inject_placeholders, is_sole_key
from muster.tune.search.search_algorithm import (
    Experiments,
    Names,
    SearchAlgorithm,
    as_templates,
    decoded_state,
    hex_digits,
)
from muster.tune.search.searcher import Searcher, Wrapper, restore_searcher, saved_searcher, set_properties

_COUNTERS = ("counter", "num_samples", "is_finished")  # with the first id and the searcher, all that is saved
_ID_STEP = 0x9E3779B1  # odd, so that counting in these steps meets every 32-bit number once


class SearchGenerator(SearchAlgorithm):
    """Asks a searcher for configurations until there are `num_samples` of them.

    A trial's config is the experiment's, with the suggestion merged into it. Trial ids have eight hex digits
    and never repeat; a saved generator continues with the same ids.

    Args:
        searcher: The Searcher to ask.
        ids: Where the first trial id comes from.
    """

    state_file_prefix = "search_gen_state"

    def __init__(self, searcher: Searcher, *, ids: IdSource | None = None) -> None:
        if not isinstance(searcher, Searcher):
            raise AssertionError(
                f"SearchGenerator needs a Searcher, not {searcher!r}: subclass tune.search.Searcher"
            )
        self.searcher = searcher
        self._ids: IdSource = ids or RandomIds()
        self._root: int | None = None
        self._counter = 0  # trials made so far
        self._is_finished = False
        self._template: TrialTemplate | None = None
        self._config: dict[str, Any] = {}
        self._placeholders = Placeholders()
        self._num_samples: int | None = None
        self._rungs: tuple[tuple[float, ...] | None, str] | None = None

    @property
    def metric(self) -> Any:  # noqa: ANN401
        return self.searcher.metric

    @property
    def total_samples(self) -> int:
        return self._num_samples or 0

    def set_search_properties(
        self, metric: Names, mode: Names, config: dict[str, Any], **spec: object
    ) -> bool:
        """Give the searcher the space with placeholders for objects and functions, as in trials' tags."""
        space = inject_placeholders(config, Placeholders())
        return bool(set_properties(self.searcher, metric, mode, space, spec))

    def add_configurations(self, experiments: Experiments) -> None:
        templates = as_templates(experiments)
        if len(templates) != 1 or self._template is not None:
            raise AssertionError("SearchGenerator takes one experiment: run several one after the other")
        self._template = templates[0]
        self._config = inject_placeholders(dict(self._template.param_space), self._placeholders)
        if self._num_samples is None:  # a restored state has it
            self._num_samples = self._template.samples

    def next_trial(self) -> Trial | None:
        if self._template is None or self.is_finished():
            return None
        # The id stays the same until a trial is made of it, also after None or a crash.
        trial_id = f"{(self._own_root() + self._counter * _ID_STEP) % 2**32:08x}"
        suggestion = self._ask("suggest", trial_id)
        if suggestion is None:
            return None
        if suggestion == Searcher.FINISHED:
            self._is_finished = True
            return None
        if not isinstance(suggestion, dict):
            raise TuneError(
                f"the searcher {self._name} suggested {suggestion!r}: suggest() must return a dict, "
                "None (ask again later) or Searcher.FINISHED"
            )
        self._counter += 1
        config = joined(_merged(self._config, suggestion))
        tag = f"{self._counter}_{format_vars(flattened(config))}"
        evaluated = {flat_name(path): value for path, value in flattened(joined(suggestion)).items()}
        return self._template.make(trial_id, self._placeholders.resolve(config), evaluated, tag)

    def why(self, trial_id: str) -> str:
        """Return why the searcher suggested this trial."""
        return str(self._ask("why", trial_id))

    def _own_root(self) -> int:
        if self._root is None:
            self._root = int(hex_digits(self._ids, 8), 16)
        return self._root

    def on_trial_result(self, trial_id: str, result: Mapping[str, Any]) -> None:
        self._ask("on_trial_result", trial_id, dict(result))

    def on_trial_complete(
        self,
        trial_id: str,
        result: Mapping[str, Any] | None = None,
        error: bool = False,
        stopped: bool = False,
    ) -> None:
        copied_result = None if result is None else dict(result)
        more = stopped_argument(self.searcher, stopped)
        self._ask("on_trial_complete", trial_id, result=copied_result, error=error, **more)

    def set_rungs(self, levels: tuple[float, ...] | None, time_attr: str) -> None:
        """Pass the scheduler's milestones on to the searcher, now and after a restore.

        Args:
            levels: The scheduler's milestones.
            time_attr: The result key that counts progress.
        """
        self._rungs = (levels, time_attr)
        self._ask("set_rungs", levels, time_attr)

    @property
    def _name(self) -> str:
        """Return the name of the searcher itself, not of a limiter or repeater around it."""
        found = self.searcher
        while isinstance(found, Wrapper):
            found = found.searcher
        return type(found).__name__

    def _ask(self, hook: str, *arguments: object, **named: object) -> Any:  # noqa: ANN401 - what the hook returns
        try:
            return getattr(self.searcher, hook)(*arguments, **named)
        except MusterError:
            raise
        except Exception as error:
            raised = f"{type(error).__name__} in {hook}(): {message_text(error)}"
            message = f"the searcher {self._name} raised {raised}. "
            fix = "Fix the searcher, or use another `search_alg`"
            raise as_plugin_error(error, message + fix) from error

    def is_finished(self) -> bool:
        is_full = self._num_samples is not None and self._counter >= self._num_samples
        return self._is_finished or is_full

    def set_finished(self) -> None:
        self._is_finished = True

    def save_state(self) -> bytes:
        """Return the counters and the searcher's own state, whose size and cost are the searcher's."""
        counters = {name: getattr(self, f"_{name}") for name in _COUNTERS}
        searcher = saved_searcher(self.searcher)
        return msgpack.encode({"version": 1, "root": self._own_root(), **counters, "searcher": searcher})

    def restore_state(self, state: bytes) -> None:
        """Continue from a saved state; the experiment may be added before or after."""
        saved = decoded_state(self, msgpack.decode, state)
        for name in ("root", *_COUNTERS):
            setattr(self, f"_{name}", saved[name])
        restore_searcher(self.searcher, saved["searcher"])
        if self._rungs is not None:
            self.set_rungs(*self._rungs)


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Return containers of both copied, dicts merged deeply; a grid or expression is a value, not a dict."""
    merged = copied(base)
    for key, value in over.items():
        old = merged.get(key)
        is_mergeable = (
            isinstance(old, dict) and not is_sole_key(old, "grid_search") and not is_sole_key(old, "eval")
        )
        merged[key] = _merged(old, value) if is_mergeable and isinstance(value, dict) else copied(value)
    return merged  # type: ignore[no-any-return]
