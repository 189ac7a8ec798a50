"""Change configurations for PBT: checks mutations, fills in missing values, explores around a good one.

Random values come from the stream that is passed in, so equal streams give equal results.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from heapq import heapify, heappop, heappush
from numbers import Integral, Number
from typing import Any, NamedTuple

from sortedcontainers import SortedList  # type: ignore[import-untyped]

from muster.base.rng import Stream, global_generators_at
from muster.base.untrusted import error_text, type_text
from muster.errors import TuneError
from muster.trials.metrics import in_words
from muster.tune.plugin_state import refuse
from muster.tune.search.paths import format_vars
from muster.tune.search.sample import Categorical, Domain

Config = dict[str, Any]
Mutations = Mapping[str, Any]
Path = tuple[Any, ...]
_HOW = (
    "use a list of values, a domain (tune.uniform(...), tune.choice(...)), a function without arguments, "
    "or a dict of these"
)


class Chances(NamedTuple):
    """Says how far from the good configuration the new one may be."""

    resample_probability: float
    perturbation_factors: Sequence[float]


def check_mutations(mutations: Mutations, where: str) -> None:
    """Raise a TypeError or ValueError that names the key whose mutation is none."""
    for key, value in mutations.items():
        name = f"{where}[{key!r}]"
        if isinstance(value, Mapping):
            check_mutations(value, name)
        elif isinstance(value, Domain) and value.is_function():
            raise ValueError(f"{name} is tune.sample_from(...), which needs a whole configuration: {_HOW}")
        elif isinstance(value, (list, tuple)) and not value:
            raise ValueError(f"{name} is an empty list: {_HOW}")
        elif not isinstance(value, (list, tuple, Domain)) and not callable(value):
            raise TypeError(f"{name} is {value!r}, {type_text(value)}: {_HOW}")


def filled(config: Mapping[str, Any], mutations: Mutations, stream: Stream) -> tuple[Config, dict[Path, Any]]:
    """Return a copy with a value for every mutation, and the paths of those that were missing."""
    new: Config = dict(config)
    added: dict[Path, Any] = {}
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            inner = new.get(key, {})
            if isinstance(inner, Mapping):
                new[key], more = filled(inner, mutation, stream)
                added.update({(key, *path): value for path, value in more.items()})
        elif key not in new:
            new[key] = added[(key,)] = drawn(mutation, stream)
    return new, added


def explored(
    config: Mapping[str, Any], mutations: Mutations, chances: Chances, stream: Stream
) -> tuple[Config, dict[str, Any]]:
    """Return a new configuration near this one, and what was done to each value, in words."""
    new: Config = dict(config)
    done: dict[str, Any] = {}
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            inner = new.get(key)
            new[key], done[key] = explored(
                inner if isinstance(inner, Mapping) else {}, mutation, chances, stream
            )
        elif key not in new:
            new[key], done[key] = drawn(mutation, stream), "resample"
        else:
            new[key], done[key] = _changed(new[key], mutation, chances, stream)
    return new, done


def drawn(mutation: Any, stream: Stream) -> Any:  # noqa: ANN401 - whatever a user tunes
    """Return a value that does not depend on the old one."""
    if isinstance(mutation, (list, tuple)):
        return mutation[stream.randrange(len(mutation))]
    seed = stream.getrandbits(32)
    if isinstance(mutation, Domain):
        return mutation.sample(random_state=seed)
    if callable(mutation):
        with global_generators_at(seed):
            return _called(mutation, "a function among hyperparam_mutations")
    raise ValueError(f"cannot draw from {mutation!r}, {type_text(mutation)}: {_HOW}")


def _changed(value: Any, mutation: Any, chances: Chances, stream: Stream) -> tuple[Any, str]:  # noqa: ANN401
    """Move a value with neighbours to one of them; multiplies a number, which keeps its type."""
    if isinstance(mutation, Categorical):
        mutation = list(mutation.categories)  # a number times 1.2 need not be one of the choices
    is_list = isinstance(mutation, (list, tuple))
    has_neighbours = is_list and value in mutation
    if stream.random() < chances.resample_probability or (is_list and not has_neighbours):
        return drawn(mutation, stream), "resample"
    if is_list:
        position = mutation.index(value)
        step, side = ((-1, "left"), (1, "right"))[stream.randrange(2)]
        moved = min(max(position + step, 0), len(mutation) - 1)
        return mutation[moved], f"shift {side}" + (" (noop)" if moved == position else "")
    if not isinstance(value, Number):
        return drawn(mutation, stream), "resample"  # cannot be multiplied
    factor = stream.choice(chances.perturbation_factors)
    return _of_type(value, value * factor), f"* {factor}"  # type: ignore[operator]


def _of_type(old: Any, new: Any) -> Any:  # noqa: ANN401 - numbers of any kind
    if isinstance(old, bool):
        return bool(new)
    if isinstance(old, Integral):
        return type(old)(round(new))  # type: ignore[call-arg]
    return new


def explored_freely(config: Config, explore: Callable[[Config], Any]) -> Config:
    """Return what the user's own function makes of it; ValueError when it forgets to return it."""
    new = _called(explore, "custom_explore_fn", config)
    if not isinstance(new, dict):
        name = getattr(explore, "__name__", repr(explore))
        raise ValueError(
            f"custom_explore_fn {name} returned {new!r}: it must return the new configuration, a dict"
        )
    return new


def _called(function: Callable[..., Any], what: str, *arguments: Any) -> Any:  # noqa: ANN401
    try:
        return function(*arguments)
    except Exception as error:
        raise TuneError(
            f"{what} ({getattr(function, '__name__', function)}) raised {error_text(error)}. Fix "
            "it and continue with Tuner.restore: everything up to here is saved"
        ) from error


def values_of(config: Mapping[str, Any], mutations: Mutations) -> Iterator[tuple[Path, Any]]:
    """Return the values that are mutated, by their path."""
    for key, mutation in mutations.items():
        if isinstance(mutation, Mapping):
            inner = config.get(key)
            if isinstance(inner, Mapping):
                for path, value in values_of(inner, mutation):
                    yield (key, *path), value
        elif key in config:
            yield (key,), config[key]


def perturbed_tag(original: str, config: Mapping[str, Any], mutations: Mutations) -> str:
    return f"{original}@perturbed[{format_vars(dict(values_of(config, mutations)))}]"


def changes_in_words(before: Mapping[str, Any], now: Mapping[str, Any], mutations: Mutations) -> str:
    """Return how the values that are mutated have changed: "lr 0.1 -> 0.12"."""
    old, new = (
        {"/".join(map(str, path)): in_words(value) for path, value in values_of(config, mutations)}
        for config in (before, now)
    )
    changed = [name for name in new if old.get(name) != new[name]]
    return ", ".join(f"{name} {old.get(name)} -> {new[name]}" for name in changed) or "nothing changed"


def original_tag(tag: str) -> str:
    """Return a tag without what earlier perturbations have added."""
    return tag.partition("@perturbed[")[0]


Explore = Callable[[Config], Config]


class PbtParameters(NamedTuple):
    """Holds Ray's parameters without metric and mode, and a seed."""

    perturbation_interval: float
    burn_in_period: float
    hyperparam_mutations: Mapping[str, Any]
    quantile_fraction: float
    resample_probability: float
    perturbation_factors: Sequence[float]
    custom_explore_fn: Explore | None
    log_config: bool
    require_attrs: bool
    synch: bool
    seed: int | None

    @property
    def chances(self) -> Chances:
        return Chances(self.resample_probability, self.perturbation_factors)

    def check(self, name: str) -> PbtParameters:
        check_mutations(self.hyperparam_mutations, f"{name}: hyperparam_mutations")
        if not self.hyperparam_mutations and self.custom_explore_fn is None:
            raise TuneError(
                f"{name} has nothing to change: pass hyperparam_mutations={{'lr': tune.loguniform(1e-4, 1)}} "
                "or a custom_explore_fn that takes a configuration and returns a new one"
            )
        share, chance = self.quantile_fraction, self.resample_probability
        interval = self.perturbation_interval
        refuse(
            name,
            (
                not 0 <= share <= 0.5,
                f"quantile_fraction is {share}; it must be between 0 and 0.5, "
                "because no trial can be among the best and the worst",
            ),
            (not interval > 0, f"perturbation_interval is {interval}; it must be above 0"),
            (not 0 <= chance <= 1, f"resample_probability is {chance}; it must be between 0 and 1"),
            (not self.perturbation_factors, "perturbation_factors is empty; it must be like (1.2, 0.8)"),
        )
        return self


_MOST_OUTDATED = 64  # entries
Ranked = tuple[float, int, str]  # score, place in the order of joining, trial id
Turn = tuple[float, bool, int, str]  # time, whether it is a copy, order of joining, trial id


@dataclass(slots=True)
class Member:
    """One trial that is not finished. Times are those of `time_attr`."""

    number: int
    tag: str  # before any perturbation
    score: float | None = None  # larger is better; None: not known, or NaN
    last_train_time: float = 0.0
    last_perturbation_time: float = 0.0
    is_top: bool = False  # at its last perturbation; so it was asked to save
    is_copy: bool = False  # of another, and has not reported since


class Population:
    """Holds members by trial id, in the order in which they joined."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.joined = 0
        self._ranked: Any = SortedList()  # of Ranked: those with a score, worst first
        self._by_time: list[Turn] = []  # a heap with one true entry per member; others are outdated

    def __len__(self) -> int:
        return len(self.members)

    def join(self, trial_id: str, tag: str) -> Member:
        """Add a new member, or one that starts over."""
        self.leave(trial_id)
        member = self.members[trial_id] = Member(self.joined, tag)
        self.joined += 1
        heappush(self._by_time, (0.0, False, member.number, trial_id))
        return member

    def leave(self, trial_id: str) -> None:
        member = self.members.pop(trial_id, None)
        if member is not None:
            self._unrank(trial_id, member)

    def note(self, trial_id: str, time: float, score: float) -> None:
        member = self.members[trial_id]
        self._unrank(trial_id, member)
        member.score = None if math.isnan(score) else score
        if member.score is not None:
            self._ranked.add((member.score, member.number, trial_id))
        self.set_time(trial_id, time)

    def set_time(self, trial_id: str, time: float, *, is_copy: bool = False) -> None:
        member = self.members[trial_id]
        if (time, is_copy) != (member.last_train_time, member.is_copy):
            member.last_train_time, member.is_copy = time, is_copy
            heappush(self._by_time, (time, is_copy, member.number, trial_id))
            if len(self._by_time) > _MOST_OUTDATED + 2 * len(self.members):
                self._by_time = list({entry for entry in self._by_time if self._is_true(entry)})
                heapify(self._by_time)

    def copy_times(self, to: str, of: str, perturbed_at: float, trained: float) -> None:
        """Set the times of one member to those of another, or to its last ones if that has left."""
        donor = self.members.get(of)
        if donor is not None:
            perturbed_at, trained = donor.last_perturbation_time, donor.last_train_time
        self.members[to].last_perturbation_time = perturbed_at
        self.set_time(to, trained, is_copy=True)

    def quantiles(self, fraction: float) -> tuple[list[str], list[str]]:
        """Return the worst and the best, worst first: equally many, none in both."""
        count = self._quantile_size(fraction)
        names = [trial_id for _, _, trial_id in self._ranked]
        return names[:count], names[len(names) - count :]

    def place(self, trial_id: str, fraction: float) -> int:
        """Return -1 for one of the worst, 1 for one of the best, 0 for neither."""
        member, count = self.members[trial_id], self._quantile_size(fraction)
        if member.score is None:
            return 0
        position = self._ranked.bisect_left((member.score, member.number, trial_id))
        if position < count:
            return -1
        return 1 if position >= len(self._ranked) - count else 0

    def one_of_the_best(self, fraction: float, draw: Callable[[int], int]) -> str:
        """Return one of the best; `draw(n)` is a number below n."""
        count = self._quantile_size(fraction)
        _, _, trial_id = self._ranked[len(self._ranked) - count + draw(count)]
        return str(trial_id)

    def _quantile_size(self, fraction: float) -> int:
        total = len(self._ranked)
        return min(math.ceil(total * fraction), total // 2)

    def least_time(self) -> float:
        """Return the time of the member that is most behind; infinite without members."""
        while self._by_time and not self._is_true(self._by_time[0]):
            heappop(self._by_time)
        return self._by_time[0][0] if self._by_time else math.inf

    def most_behind(self, may_run: Callable[[str], bool], below: float) -> str | None:
        """Return the trial that may run and has trained least, and less than `below`.

        Of equals the first to join. Copies come after their originals: with one worker, a trial that is reset
        to another one's time again and again would else keep that one from ever continuing. Trials that may
        not run are skipped: they run already, so there are few of them.
        """
        aside, found = [], None
        while self.least_time() < below:
            entry = self._by_time[0]
            if may_run(entry[-1]):
                found = entry[-1]
                break
            aside.append(heappop(self._by_time))
        for entry in aside:
            heappush(self._by_time, entry)
        return found

    def _is_true(self, entry: Turn) -> bool:
        member = self.members.get(entry[-1])
        return member is not None and entry[:-1] == (member.last_train_time, member.is_copy, member.number)

    def _unrank(self, trial_id: str, member: Member) -> None:
        if member.score is not None:
            self._ranked.remove((member.score, member.number, trial_id))

    def to_plain(self) -> dict[str, Any]:
        members = {trial_id: asdict(member) for trial_id, member in self.members.items()}
        return {"members": members, "joined": self.joined}

    @classmethod
    def from_plain(cls, saved: dict[str, Any]) -> Population:
        population = cls()
        population.joined, ranked = saved["joined"], []
        for trial_id, content in saved["members"].items():
            member = population.members[trial_id] = Member(**content)
            turn = (member.last_train_time, member.is_copy, member.number, trial_id)
            population._by_time.append(turn)
            if member.score is not None:
                ranked.append((member.score, member.number, trial_id))
        heapify(population._by_time)
        population._ranked = SortedList(ranked)
        return population
