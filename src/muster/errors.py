"""Defines every public exception, grouped by what the caller should do about it.

MusterError                   retryable: ClassVar[bool] = False
  ConfigError                 fix the file: carries path, file and line
  InvalidTransition           a bug; carries the entity and its history
  StoreError                  the ledger file cannot be used; says which and what to do
    VersionConflict           another process committed; observe again
    LedgerCorrupt             says what is damaged and how to continue; the file is not changed
    LedgerLocked              another process holds the ledger
    StoreFull                 no room on the disk, or it does not answer; nothing was written   retryable
  ProviderError               kind says how to react
    CapacityExhausted         try another type, or later        retryable
    QuotaExceeded             raise the quota; do not loop
    Throttled                 back off                          retryable
    ProviderDenied            credentials or permissions: notify the user, do not loop
    ProviderMisconfigured     the request can never work: fix the node type
  EngineError                 what trials or nodes run on cannot be used
    EngineMissing             Ray is not installed, or another version: the message says which
    EngineUnreachable         no cluster answers at the address retryable
    EngineDenied              the token is missing or wrong
  ClusterError                a cluster cannot be found, started or stopped; says what to do
  TuneError                   Ray's public name: an experiment that cannot continue, and what to change
    RestoreError              an experiment that cannot be resumed from its directory
  SimulationError             the simulator found something wrong; carries seed and tick
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar


class MusterError(Exception):
    """A MusterError is the base of every error that muster raises on purpose."""

    retryable: ClassVar[bool] = False


class ConfigError(MusterError):
    """A ConfigError reports a configuration that cannot be used, with the place to fix."""

    def __init__(self, message: str, *, path: str = "", file: str = "", line: int | None = None) -> None:
        self.message, self.path, self.file, self.line = message, path, file, line
        super().__init__(self._render())

    def _render(self) -> str:
        where = self.file if self.line is None else f"{self.file}:{self.line}"
        parts = [part for part in (where, self.path) if part]
        return ": ".join([*parts, self.message])


class InvalidTransition(MusterError):
    """An InvalidTransition is a state change that the transition table does not allow."""

    def __init__(self, entity: str, source: str, target: str, history: Sequence[str] = ()) -> None:
        self.entity, self.source, self.target, self.history = entity, source, target, tuple(history)
        tail = f" (history: {' > '.join(self.history)})" if self.history else ""
        super().__init__(f"{entity} may not go from {source} to {target}{tail}")


class StoreError(MusterError):
    """A StoreError means that the ledger cannot be read or written."""


class VersionConflict(StoreError):
    """A VersionConflict means that another process committed since the read: observe and decide again."""

    retryable = True

    def __init__(self, expected: int, actual: int) -> None:
        self.expected, self.actual = expected, actual
        super().__init__(f"ledger is at version {actual}, the decision was made at version {expected}")


class LedgerCorrupt(StoreError):
    """A LedgerCorrupt means that the ledger file is damaged; the message says how to continue."""


class LedgerLocked(StoreError):
    """A LedgerLocked means that another process holds the ledger."""

    retryable = True


class StoreFull(StoreError):
    """A StoreFull means that the disk is full or does not answer; nothing was written."""

    retryable = True


class ProviderError(MusterError):
    """A ProviderError is a refusal; `kind` is one of the values of `cluster.model.FailureKind`."""

    kind: ClassVar[str] = "unknown"


class CapacityExhausted(ProviderError):
    """A CapacityExhausted means sold out: try another type, another zone, or later."""

    kind = "capacity"
    retryable = True


class QuotaExceeded(ProviderError):
    """A QuotaExceeded means the account's limit: a user must raise it."""

    kind = "quota"


class Throttled(ProviderError):
    """A Throttled means too many calls: wait and retry."""

    kind = "throttled"
    retryable = True


class ProviderDenied(ProviderError):
    """A ProviderDenied means missing credentials or permissions: a user must act."""

    kind = "permission"


class ProviderMisconfigured(ProviderError):
    """A ProviderMisconfigured request can never succeed as written."""

    kind = "config"


class EngineError(MusterError):
    """An EngineError means that what trials or nodes run on cannot be used; one line with cause and fix."""


class EngineMissing(EngineError):
    """An EngineMissing means that Ray is not installed, or in a version that muster does not support."""


class EngineUnreachable(EngineError):
    """An EngineUnreachable means that no cluster answers at the address."""

    retryable = True


class EngineDenied(EngineError):
    """An EngineDenied means that the cluster's token is missing or wrong."""


class ClusterError(MusterError):
    """A ClusterError means that a cluster cannot be found, started or stopped; it says what to do."""


class TuneError(MusterError):
    """A TuneError means that an experiment cannot continue; the message names the component and the fix."""


class RestoreError(TuneError):
    """A RestoreError means that an experiment cannot be resumed from its directory."""


class SimulationError(MusterError):
    """A SimulationError reports what the simulator found; the message ends with the replay command."""

    def __init__(self, message: str, *, seed: int, tick: int) -> None:
        self.seed, self.tick = seed, tick
        super().__init__(f"{message}\n  replay: muster sim replay --seed {seed} --until-tick {tick}")
