"""Check transitions against a table: which state may follow which, and nothing else."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Generic, TypeVar

from muster.errors import InvalidTransition

S = TypeVar("S", bound=Hashable)


class StateMachine(Generic[S]):
    """A named table of allowed transitions, closed under its own states."""

    def __init__(self, name: str, edges: Mapping[S, Iterable[S]]) -> None:
        self.name = name
        self.edges: dict[S, frozenset[S]] = {source: frozenset(targets) for source, targets in edges.items()}
        for source, targets in self.edges.items():
            unknown = targets - self.edges.keys()
            if unknown or source in targets:
                raise ValueError(f"{name}: {source} leads to itself or to unknown states {unknown}")
        self._reachable = {source: self._closure(source) for source in self.edges}

    def allows(self, source: S, target: S) -> bool:
        return target in self.edges.get(source, ())

    def check(self, entity: str, source: S, target: S, story: Sequence[str] = ()) -> None:
        """Raise InvalidTransition, with the entity's story, unless the table has this edge."""
        if not self.allows(source, target):
            raise InvalidTransition(entity, _label(source), _label(target), story)

    def reachable(self, source: S) -> frozenset[S]:
        """Return every state that can follow `source`; `source` itself only through a loop."""
        return self._reachable[source]

    def can_reach(self, target: S) -> frozenset[S]:
        """Return `target` and every state from which it can be reached."""
        return frozenset(s for s in self.edges if s == target or target in self._reachable[s])

    def _closure(self, source: S) -> frozenset[S]:
        seen: set[S] = set()
        open_states = list(self.edges[source])
        while open_states:
            state = open_states.pop()
            if state not in seen:
                seen.add(state)
                open_states.extend(self.edges[state])
        return frozenset(seen)


def _label(state: object) -> str:
    return str(getattr(state, "name", state))
