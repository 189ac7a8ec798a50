"""Pass what a user asks to the driver of a running experiment: a file in its directory for each request.

The command line and the dashboard write them, the driver reads them. Only files of the driver's own user
count, and only those that nobody else may read or write.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

from msgspec import MsgspecError, Struct, json

from muster.base.clock import Clock
from muster.errors import StoreError
from muster.host.atomic_write import atomic_write
from muster.host.file_lock import holder_of
from muster.host.regular_file import open_regular
from muster.stores.experiment.reader import STORE_NAME

FOLDER = "requests"
PERIOD_S = 0.5
_MOST_BYTES = 65_536


class ExperimentRequest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """What is to be stopped or changed."""

    stop: bool = False  # the experiment; it can be resumed
    trials: tuple[str, ...] = ()  # to stop, by id
    cost_budget: float | None = None  # in $, with what was spent
    deadline: float | None = None  # seconds since the epoch


def send_request(directory: str | Path, request: ExperimentRequest) -> Path:
    """Write a request for the driver that runs the experiment.

    Raises:
        StoreError: Nobody runs it, or it belongs to another user.
    """
    place = Path(directory)
    if holder_of(place / STORE_NAME) is None:
        raise StoreError(
            f"{place}: the experiment is not running, so nothing can be stopped or changed",
            fix="use `muster tune resume` to continue it, with --cost-budget or --deadline",
        )
    try:
        if (place / STORE_NAME).stat().st_uid != os.geteuid():
            raise StoreError(f"{place}: the experiment belongs to another user", fix="ask its owner")
        (place / FOLDER).mkdir(mode=0o700, exist_ok=True)
        file = place / FOLDER / f"{secrets.token_hex(8)}.json"
        atomic_write(file, json.encode(request), mode=0o600)
    except OSError as error:
        raise StoreError(f"{place / FOLDER} cannot be written ({error.strerror})") from error
    return file


class RequestReader:
    """Reads requests in the driver; a file is removed once the facts that follow from it are safe."""

    def __init__(self, directory: Path, clock: Clock, warn: Callable[[str], None]) -> None:
        self._folder, self._clock, self._warn = directory / FOLDER, clock, warn
        self._look_at = -1.0
        self._seen: set[Path] = set()  # applied, to be removed at the next look; or refused
        for request in tuple(self._files()):  # of an earlier driver, which has ended
            request.unlink(missing_ok=True)

    def poll(self) -> Iterator[ExperimentRequest]:
        """Yield new requests; looks twice a second at most."""
        now = self._clock.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + PERIOD_S
        for file in self._files():
            if file in self._seen:
                file.unlink(missing_ok=True)
                continue
            self._seen.add(file)
            try:
                yield _read(file)
            except (OSError, MsgspecError, ValueError) as error:
                self._warn(f"{file}: this request is ignored ({error})")

    def forget(self) -> None:
        """Remove what was applied: this driver ends."""
        for file in self._seen:
            file.unlink(missing_ok=True)

    def _files(self) -> Iterator[Path]:
        try:
            names = sorted(os.listdir(self._folder))
        except OSError:
            return
        yield from (self._folder / name for name in names if name.endswith(".json"))


def _read(file: Path) -> ExperimentRequest:
    with open_regular(file) as stream:
        found = os.fstat(stream.fileno())
        if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o077:
            raise ValueError("it must belong to the driver's user, with mode 0600")
        return json.decode(stream.read(_MOST_BYTES), type=ExperimentRequest)
