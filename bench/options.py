"""Hold the options of the command line."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Options:
    """Options select what a benchmark runs."""

    quick: bool = False  # a small form in under a minute
    with_peer: bool = True  # Ray runs too
    only: str = "*"  # a pattern of case names

    @property
    def partial(self) -> bool:
        """Return whether some figures are absent on purpose."""
        return self.quick or not self.with_peer or self.only != "*"

    def wants(self, case: str) -> bool:
        return fnmatchcase(case, self.only)
