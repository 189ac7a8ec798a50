"""An ActorHandle holds what the driver knows of one actor: its connections, placement group and end."""

from __future__ import annotations

import math
import socket
from typing import Any

from muster.base.framing import HEADER, FrameKind, unpack
from muster.engines.ray.failures import crash_failure
from muster.engines.worker.failures import exit_code_failure
from muster.engines.worker.handle import TrialRun, WorkerHandle
from muster.trials.events import TrialFailure
from muster.trials.placement_group import PlacementGroupFactory


class ActorPlacement:
    """A placement group and its actor, from the moment both are requested."""

    def __init__(self, number: int, resources: PlacementGroupFactory, group: Any) -> None:  # noqa: ANN401 - Ray's
        self.number = number  # of the actor; another one for each actor in the same group
        self.resources = resources
        self.group = group
        self.actor: Any = None
        self.run: TrialRun | None = None  # that its actor was made for, until the actor arrives
        self.worker: ActorHandle | None = None
        self.control: socket.socket | None = None  # arrives before the channel
        self.outcome: BaseException | None = None
        self.asked_at = 0.0  # when its actor was requested
        self.assigned_at = 0.0  # when its trial began
        self.priced_at = 0.0  # when its process started, or when the price of its node changed
        self.usd_per_hour: float | None = None  # of its trial, once it is known
        self.needs_node = False  # the cluster had no room for it when it was requested
        self.is_over = False  # the call that lasts as long as the actor has ended
        self.is_given_up = False  # its group goes as soon as the process has left
        self.free_since = 0.0  # of an idle or vacant place
        self.kill_at = math.inf  # when Ray must end it, if it has not ended by then
        self.hang_up_at = math.inf  # when its channel counts as closed
        self.ask_at = math.inf  # when Ray is asked again whether the actor lives

    @property
    def began_at(self) -> float | None:
        """Return when the trial in it began, or its actor was requested; None when it has neither."""
        if self.worker is None:
            return self.asked_at if self.run is not None else None
        return self.assigned_at if self.worker.run is not None else None


class ActorHandle(WorkerHandle):
    """One actor's process as the driver sees it."""

    def __init__(
        self, placement: ActorPlacement, connection: socket.socket, hello: dict[str, Any], *, now: float
    ) -> None:
        fd = connection.fileno()
        super().__init__(placement.number, fd, fd, now=now)
        self.placement = placement
        self.connection = connection
        self.control, placement.control = placement.control, None
        self.pid = hello["pid"]
        self.hostname: str = hello["hostname"]
        self.node_id: str = hello["node_id"]
        self.sees_storage: bool = hello["sees_storage"]
        self.control_data = b""  # received on the control, and not parsed yet
        self.reported_failure: TrialFailure | None = None  # what its last bytes on the control reported
        self.hung_up_at: float | None = None

    def read_control(self) -> bool:
        """Read heartbeats and the exit code; return False when the connection is closed."""
        if self.control is None:
            return False
        try:
            data = self.control.recv(1 << 16)
        except BlockingIOError:
            return True
        except OSError:
            data = b""
        self.control_data += data
        while len(self.control_data) >= HEADER.size:
            length, kind = HEADER.unpack_from(self.control_data)
            end = HEADER.size + length
            if kind not in (FrameKind.BEAT, FrameKind.LEFT) or len(self.control_data) < end:
                break  # the text of a crash is not a frame
            if kind == FrameKind.LEFT:
                self.reported_failure = exit_code_failure(unpack(self.control_data[HEADER.size : end]))
            self.beats, self.control_data = True, self.control_data[end:]
        if not data and self.reported_failure is None:
            self.reported_failure = crash_failure(self.control_data)
        return bool(data)

    def close(self) -> None:
        self.connection.close()
        if self.control is not None:
            self.control.close()
            self.control = None
