"""Every public exception, grouped by what the caller should do about it.

MusterError                   retryable: ClassVar[bool] = False
  ConfigError                 fix the file: carries path, file and line
  InvalidTransition           a bug; carries the entity and its story
  StoreError                  the ledger file cannot be used; says which and what to do
    VersionConflict           somebody else committed; observe again
    LedgerCorrupt             says what is damaged and how to go on; the file is left as it is
    LedgerLocked              another process holds the ledger
    StoreFull                 no room on the disk, or it does not answer; nothing was written   retryable
  ProviderError               kind says how to react
    CapacityExhausted         try another type, or later        retryable
    QuotaExceeded             raise the quota; do not loop
    Throttled                 back off                          retryable
    ProviderDenied            credentials or permissions: tell the user, do not loop
    ProviderMisconfigured     the request can never work: fix the node type
  EngineError                 what trials or nodes run on cannot be used
    EngineMissing             Ray is not installed, or another version: the message says which
    EngineUnreachable         nobody answers at the address     retryable
    EngineDenied              the token is missing or wrong
  ClusterError                a cluster cannot be found, brought up or taken down; says what to do
  TuneError                   Ray's public name: an experiment that cannot go on, and what to change
    RestoreError              an experiment that cannot be continued from its directory
  SimulationError
    InvariantBroken           carries seed and tick
    NotConverged              carries seed and tick
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class MusterError(Exception):
    """Base of every error raised on purpose by muster."""

    retryable: ClassVar[bool] = False


class ConfigError(MusterError):
    """A configuration that cannot be used, with the place to fix."""

    def __init__(self, message: str, *, path: str = "", file: str = "", line: int | None = None) -> None:
        self.message, self.path, self.file, self.line = message, path, file, line
        super().__init__(self._render())

    def _render(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [part for part in (where, self.path) if part]
        return ": ".join([*parts, self.message])


class InvalidTransition(MusterError):
    """A state change that the transition table does not allow."""

    def __init__(self, entity: str, source: str, target: str, story: Sequence[str] = ()) -> None:
        self.entity, self.source, self.target, self.story = entity, source, target, tuple(story)
        tail = f" (story: {' > '.join(self.story)})" if self.story else ""
        super().__init__(f"{entity} may not go from {source} to {target}{tail}")


class StoreError(MusterError):
    """The ledger cannot be read or written."""


class VersionConflict(StoreError):
    """The ledger moved on since it was read: observe again, then decide again."""

    retryable = True

    def __init__(self, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"ledger is at version {actual}, the decision was made at version {expected}")


class LedgerCorrupt(StoreError):
    """The ledger file is damaged."""


class LedgerLocked(StoreError):
    """Another process holds the ledger."""

    retryable = True


class StoreFull(StoreError):
    """The disk has no room, or does not take what is written; nothing was written."""

    retryable = True


class ProviderError(MusterError):
    """A provider refused; `kind` is one of the values of `cluster.model.FailureKind`."""

    kind: ClassVar[str] = "unknown"


class CapacityExhausted(ProviderError):
    """Sold out: another type, another zone, or later."""

    kind = "capacity"
    retryable = True


class QuotaExceeded(ProviderError):
    """The account's limit: a person must raise it."""

    kind = "quota"


class Throttled(ProviderError):
    """Too many calls."""

    kind = "throttled"
    retryable = True


class ProviderDenied(ProviderError):
    """Credentials or permissions: a person must act."""

    kind = "permission"


class ProviderMisconfigured(ProviderError):
    """The request can never succeed as written."""

    kind = "config"


class EngineError(MusterError):
    """What trials or nodes run on cannot be used; the message is one line: cause and fix."""


class EngineMissing(EngineError):
    """Ray is not installed, or is not of the line this version of muster works with."""


class EngineUnreachable(EngineError):
    """Nobody answers at the address."""

    retryable = True


class EngineDenied(EngineError):
    """The cluster wants a token that was not given, or another one."""


class ClusterError(MusterError):
    """A cluster cannot be found, brought up or taken down; the message says what to do."""


class TuneError(MusterError):
    """An experiment that cannot go on; the message names the component and the fix."""


class RestoreError(TuneError):
    """An experiment that cannot be continued from its directory."""


class SimulationError(MusterError):
    """The simulator found something wrong; the message ends with the replay command."""

    def __init__(self, message: str, *, seed: int, tick: int) -> None:
        self.seed, self.tick = seed, tick
        super().__init__(f"{message}\n  replay: muster sim replay --seed {seed} --until-tick {tick}")


class InvariantBroken(SimulationError):
    """A safety property failed after a tick."""


class NotConverged(SimulationError):
    """A liveness property failed after the faults had stopped."""
