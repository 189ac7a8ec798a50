"""Check is one line of the contract: a sentence, what it needs, and the function that shows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from muster.providers.contract.subject import CheckSizes, ProviderSubject

Show = Callable[[ProviderSubject], str]  # returns what it saw; raises PromiseBroken
Machines = Callable[[CheckSizes], int]


class DoesNotApply(Exception):
    """A DoesNotApply means that a line says nothing about this provider, and why."""


@dataclass(frozen=True)
class Check:
    """A Check is a line of the contract; its name is a sentence with underscores."""

    name: str
    show: Show
    machines: Machines  # that it creates, at most

    @property
    def line(self) -> str:
        return self.name.replace("_", " ")


def check(machines: Machines) -> Callable[[Show], Check]:
    """Makes a line of the contract of a function, whose name is the line."""
    return lambda show: Check(show.__name__, show, machines)


def checks_in(names: Mapping[str, object]) -> tuple[Check, ...]:
    """Returns the lines that a module defines, in its order."""
    return tuple(one for one in names.values() if isinstance(one, Check))


def one(sizes: CheckSizes) -> int:
    return 1


def two(sizes: CheckSizes) -> int:
    return 2


def several(sizes: CheckSizes) -> int:
    return sizes.several


def twice_several(sizes: CheckSizes) -> int:
    return 2 * sizes.several


def crowd(sizes: CheckSizes) -> int:
    return sizes.crowd
