"""Holds what a step of an experiment produced, until the controller writes, logs or deletes it."""

from __future__ import annotations

from collections.abc import Sequence

from muster.trials.checkpoints import CheckpointToDelete
from muster.trials.events import Fact
from muster.trials.model import CheckpointRef


class FactLog:
    """A FactLog holds facts, warnings and superfluous checkpoints until the controller handles them."""

    def __init__(self) -> None:
        self.count = 0  # facts ever noted
        self.warnings: list[str] = []  # the controller logs them and clears the list
        # Checkpoints whose directories may be deleted once the facts noted before them are durable.
        self.checkpoints_to_delete: list[CheckpointToDelete] = []
        self.repeats = False  # facts are handled again: what was told then is not told twice
        self._facts: list[Fact] = []

    def note(self, fact: Fact) -> None:
        self._facts.append(fact)
        self.count += 1

    def take(self) -> Sequence[Fact]:
        """Returns the facts noted since the last call, in order; the caller makes them durable."""
        facts, self._facts = self._facts, []
        return facts

    def warn(self, text: str) -> None:
        self.warnings.append(text)

    def warn_once(self, text: str) -> None:
        """Warns of what follows from a fact; not again when a restore handles the fact again."""
        if not self.repeats:
            self.warnings.append(text)

    def schedule_deletion(self, checkpoints: Sequence[CheckpointRef]) -> None:
        """Marks checkpoints as superfluous; their directories stay until a crash cannot bring them back."""
        self.checkpoints_to_delete.extend(
            CheckpointToDelete(ref=ref, after=self.count) for ref in checkpoints
        )
