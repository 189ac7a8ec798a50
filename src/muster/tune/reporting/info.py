"""RunInfo: what reporters are told about an experiment before its first trial."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field


class LiveAmounts(Mapping[str, float]):
    """What `read` gives, asked anew each time: a cluster grows and shrinks."""

    def __init__(self, read: Callable[[], Mapping[str, float]]) -> None:
        self._read = read

    def __getitem__(self, name: str) -> float:
        return self._read()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """Made by the tuner. Callables are asked anew for every picture; they must be cheap and not raise."""

    name: str
    directory: str
    metric: str | None = None  # None: nothing is optimised, or several metrics at once
    mode: str | None = None
    searcher: str = ""
    scheduler: str = ""
    total: int | None = None  # trials planned; None: nobody knows
    capacity: Mapping[str, float] = field(default_factory=dict)
    used: Callable[[], Mapping[str, float]] = dict
    parameters: tuple[str, ...] = ()  # flat keys that are searched
    is_resumed: bool = False
    scheduler_debug: Callable[[], str] = str
    time_budget_s: float | None = None
