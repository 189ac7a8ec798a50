"""Hiring: what a new actor is given, and what is changed when actors cannot come: a relay, or our package.

RayEngine says which trial gets which place; this sees to it that an actor for it can start and reach us.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Mapping
from typing import Any

import muster
from muster.engines.ray.actor import Terms
from muster.engines.ray.actor_handle import Place, RayDesk
from muster.engines.ray.actor_pool import RayStaff
from muster.engines.ray.handshake import Address, DriverUnreachable
from muster.engines.ray.package_upload import NEEDED, carried_class, is_foreign, missing_module
from muster.engines.ray.relay import Relay
from muster.engines.ray.remote_storage import Reach
from muster.engines.worker.handle import Run

_log = logging.getLogger(__name__)


class Hiring:
    """One per engine; used in its thread."""

    def __init__(self, ray: Any, staff: RayStaff, key: bytes, beat_s: float) -> None:  # noqa: ANN401 - a module
        self._ray, self._staff, self._key, self._beat_s = ray, staff, key, beat_s
        self._addresses: list[Address] = []
        self._relay: Relay | None = None
        self._waiting: list[tuple[Place, Run]] = []  # until the relay is there
        self._is_shipping = False
        self._lacks: set[str] = set()
        self._blobs: dict[str, Any] = {}  # refs to pickled trainables: sent once, fetched by each node
        self._witnesses: dict[str, str] = {}  # by directory
        self._reach: bytes | None = None
        self.why_no_reach = ""
        self.on_failure: Callable[[Run, str], None] | None = None

    def reach_at(self, address: Address) -> None:
        self._addresses = [address]

    def tell_storage(self, reach: Reach) -> None:
        """New actors are told how they get at the remote storage of the experiment."""
        try:
            self._reach = reach.pickled()
        except Exception as error:  # noqa: BLE001 - pickling a file system of the user's own
            self.why_no_reach = f"storage_filesystem cannot be sent to it: {error}"

    def put(self, name: str, trainable: bytes) -> None:
        self._blobs[name] = self._ray.put(trainable)

    def hire(self, place: Place, run: Run) -> None:
        """An actor for that trial in this place, now or when the relay is there."""
        if not self._addresses:
            place.run = run
            self._waiting.append((place, run))
            self.use_relay("the one before has ended")
            return
        name, trial_dir = run.command.trainable_name, os.path.abspath(run.command.trial_dir)
        witness = self._witness(os.path.dirname(trial_dir))

        def arguments(number: int) -> tuple[Any, ...]:
            terms = Terms(number, self._addresses, self._key, self._beat_s, witness, self._reach)
            return tuple(terms), name, self._blobs.get(name)

        self._staff.hire(place, run, arguments)

    def forget(self, run: Run) -> None:
        self._waiting = [each for each in self._waiting if each[1] is not run]

    def remedy(self, place: Place, run: Run, outcome: BaseException | None) -> bool:
        """An actor could not come: whether something was done about that, and another was asked for."""
        lacking = missing_module(outcome)
        if isinstance(outcome, DriverUnreachable) or "DriverUnreachable" in str(outcome):
            if self._relay is not None and self._addresses:
                return False
            self.use_relay(str(outcome).strip().rpartition("\n")[2])
        elif lacking == "muster" and not self._is_shipping:
            self._ship("some node lacks the package")
        elif lacking in NEEDED and lacking not in self._lacks:
            self._lacks.add(lacking)
            self._staff.ray.runtime_env = {"pip": sorted(self._lacks)}
        elif is_foreign(outcome) and not self._is_shipping:
            self._ship(f"what is there could not start: {str(outcome).strip().rpartition(chr(10))[2]}")
        else:
            return False
        self.hire(place, run)
        return True

    def suits(self, hello: Mapping[str, Any]) -> bool:
        """Whether that actor has our version; else the package is shipped from now on."""
        if hello["muster"] == muster.__version__ or self._is_shipping:
            return True
        self._ship(f"a node has muster {hello['muster']}, this is {muster.__version__}")
        return False

    def again(self, desk: RayDesk, run: Run) -> None:
        """Another actor in the same place, in the place of this one."""
        self._staff.discard(desk)
        self.hire(desk.place, run)

    def _ship(self, why: str) -> None:
        _log.info("muster is sent to the nodes: %s", why)
        self._is_shipping = True
        self._staff.ray.actor_class, self._staff.ray.constructor = carried_class(self._ray)

    def use_relay(self, why: str) -> None:
        """From now on actors meet us at the relay."""
        if self._relay is None:
            _log.info("trials reach this driver through a relay actor: %s", why)
            self._addresses = []
            bell = self._staff.bell
            self._relay = Relay(
                self._ray,
                lambda address, why: bell.ring(lambda: self._hear_relay(address, why)),
                self._bring_in,
            )

    def _bring_in(self, line: socket.socket) -> None:
        """Called in the relay's thread."""
        if not self._staff.bell.ring(lambda: self._staff.reception.welcome(line)):
            line.close()

    def _hear_relay(self, address: Address | None, why: str) -> None:
        waiting, self._waiting = self._waiting, []
        if address is None:
            ended, self._relay, self._addresses = self._relay, None, []
            if ended is not None:
                ended.close()
            for _, run in waiting:
                if self.on_failure is not None:
                    self.on_failure(run, f"the relay to the cluster could not start: {why}")
            return
        self._addresses = [address]
        for place, run in waiting:
            self.hire(place, run)

    def _witness(self, folder: str) -> str:
        """A file in the experiment's directory: who does not see it works on another disk."""
        if folder not in self._witnesses:
            os.makedirs(folder, exist_ok=True)
            file = os.path.join(folder, f".muster_seen_by_all_{secrets.token_hex(4)}")
            with open(file, "wb"):
                self._witnesses[folder] = file
        return self._witnesses[folder]

    def close(self) -> None:
        if self._relay is not None:
            self._relay.close()
            self._relay = None
        for file in self._witnesses.values():
            if os.path.exists(file):
                os.unlink(file)
        self._witnesses.clear()
